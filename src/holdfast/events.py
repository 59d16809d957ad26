"""Events: what happened, in the past tense, as small records that sinks and stores receive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

RUN_STARTED: Final = "run_started"
PLANNING_STARTED: Final = "planning_started"
PLANNING_ENDED: Final = "planning_ended"
TURN_STARTED: Final = "turn_started"
TURN_ENDED: Final = "turn_ended"
STEP_STARTED: Final = "step_started"
STEP_ENDED: Final = "step_ended"
SPENT: Final = "spent"
VERIFICATION_STARTED: Final = "verification_started"
VERIFICATION_ENDED: Final = "verification_ended"
RUN_INTERRUPTED: Final = "run_interrupted"
RUN_RESUMED: Final = "run_resumed"
RUN_CANCEL_REQUESTED: Final = "run_cancel_requested"
RUN_DIVERGED: Final = "run_diverged"
RUN_COMPLETED: Final = "run_completed"
RUN_FAILED: Final = "run_failed"
RUN_CANCELLED: Final = "run_cancelled"
TOOL_STARTED: Final = "tool_started"
TOOL_ATTEMPT_FAILED: Final = "tool_attempt_failed"
TOOL_ENDED: Final = "tool_ended"
TOOL_DENIED: Final = "tool_denied"
CIRCUIT_OPENED: Final = "circuit_opened"
CIRCUIT_HALF_OPENED: Final = "circuit_half_opened"
CIRCUIT_CLOSED: Final = "circuit_closed"
LOOP_DETECTED: Final = "loop_detected"
BUDGET_WARNING: Final = "budget_warning"
FLEET_LOST: Final = "fleet_lost"
FLEET_RETURNED: Final = "fleet_returned"
POLICY_RELOADED: Final = "policy_reloaded"
POLICY_REJECTED: Final = "policy_rejected"


class Event(msgspec.Struct, frozen=True):
    """One fact. *timestamp_ms* is wall-clock time; *tool* and *run*, an id, are None if it concerns none."""

    type: str
    timestamp_ms: int
    tool: str | None = None
    run: str | None = None
    payload: Mapping[str, object] = {}
