"""The process of the driver: `python -m holdfast.torture`. What it is to do it reads from stdin, as one JSON value.

Not from arguments, which everybody can see: an address may hold a password. It says how far it is, and at last its
verdict, one JSON value a line. It forks, so it has no thread.
"""

from __future__ import annotations

import os
import shutil
import sys

import msgspec

from holdfast.errors import HoldfastError
from holdfast.torture.driver import Task, Trouble, drive
from holdfast.torture.process import stopped_once
from holdfast.torture.promises import Progress, Verdict


def main() -> None:
    """Torture as stdin says."""
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    try:
        with stopped_once(SystemExit(1)):
            _say(drive(task, _say))
    except HoldfastError as error:
        _say(Trouble(str(error)))
        raise SystemExit(1) from error
    finally:
        if os.getppid() != task.parent:  # killed: it listens no more, and does not tidy
            task.place.clear()
            shutil.rmtree(task.folder)
            os._exit(1)


def _say(what: Progress | Trouble | Verdict) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(what) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
