"""The driver's process: `python -m holdfast.torture`. It reads its task from stdin, as one JSON value.

The task is not passed in arguments, which every user of the machine can see: an address may hold a password. The driver
writes its progress and finally its verdict to stdout, one JSON value per line. It forks, so it has no other thread.
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
    """Run the torture that stdin describes."""
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    try:
        with stopped_once(SystemExit(1)):
            _say(drive(task, _say))
    except HoldfastError as error:
        _say(Trouble(str(error)))
        raise SystemExit(1) from error
    finally:
        if os.getppid() != task.parent:  # the parent was killed: it reads no verdict and does not clean up
            task.place.clear()
            shutil.rmtree(task.folder)
            os._exit(1)


def _say(what: Progress | Trouble | Verdict) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(what) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
