"""The process of the driver: `python -m holdfast.torture KIND FOLDER SEED SECONDS KILLS`.

Says how far it is, and at last its verdict, one JSON value a line. It forks, so it has no thread.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType

import msgspec

from holdfast.clock import SystemClock
from holdfast.torture.driver import drive
from holdfast.torture.places import temporary
from holdfast.torture.process import STOPS
from holdfast.torture.promises import Progress, Verdict


def main(arguments: list[str]) -> None:
    """Torture as *arguments* say."""
    kind, folder, seed, seconds, kills = arguments
    for number in STOPS:
        signal.signal(number, _leave)
    verdict = drive(
        temporary(kind, folder),
        folder,
        seed=int(seed),
        seconds=float(seconds),
        kills=int(kills),
        clock=SystemClock(),
        tell=_say,
    )
    _say(verdict)


def _say(what: Progress | Verdict) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(what) + b"\n")
    sys.stdout.buffer.flush()


def _leave(number: int, frame: FrameType | None) -> None:
    for each in STOPS:
        signal.signal(each, lambda number, frame: None)  # once is enough, and nothing may stop whoever tidies
    raise SystemExit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
