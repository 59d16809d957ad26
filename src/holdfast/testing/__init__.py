"""For tests of agents: a clock moved by hand, a recorder of events, tools that fail, hang and refuse on a script.

Nothing here needs a test framework, and nothing waits in real time, except that `ManualClock` lets other threads finish
before it moves on by itself.
"""

from __future__ import annotations

from holdfast.testing.manual import ManualClock
from holdfast.testing.recorder import Recorder
from holdfast.testing.script import (
    Response,
    Script,
    Step,
    TooManyRequests,
    fail,
    fail_after,
    hang,
    hang_after,
    ok,
    rate_limit,
    slow,
)

__all__ = [
    "ManualClock",
    "Recorder",
    "Response",
    "Script",
    "Step",
    "TooManyRequests",
    "fail",
    "fail_after",
    "hang",
    "hang_after",
    "ok",
    "rate_limit",
    "slow",
]
