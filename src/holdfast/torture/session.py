"""A session: sets up a temporary store, and starts the driver's process, which reports back."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from holdfast.errors import HoldfastError, StoreError
from holdfast.stores import RunStore
from holdfast.torture.driver import Task, Trouble
from holdfast.torture.places import Place, temporary
from holdfast.torture.promises import Progress, Verdict

DRIVER: Sequence[str] = (sys.executable, "-P", "-m", "holdfast.torture")
GRACE: Final = 10.0  # seconds for the driver to end its child processes

_SAID = msgspec.json.Decoder(Progress | Trouble | Verdict)
_log = logging.getLogger("holdfast")


def torture(
    seconds: float,
    *,
    like: RunStore | None = None,
    kills: int = 0,
    seed: int | None = None,
    tell: Callable[[Progress], object] = lambda progress: None,
    say: Callable[[str], object] = _log.warning,
) -> Verdict:
    """Torture runs on a temporary store of the kind of *like*, for at least *seconds*, and until *kills* processes were
    killed.

    *tell* is given the progress, *say* any other message. The evidence is kept only if a promise was broken, or there
    is no verdict.
    """
    seed = random.SystemRandom().randrange(2**32) if seed is None else seed
    folder = tempfile.mkdtemp(prefix="holdfast-torture-")
    keeps = False
    try:
        with temporary(like, folder, say) as place:
            verdict = _drive(Task(os.getpid(), place, folder, seed, seconds, kills), tell)
            keeps = verdict is None or not verdict.is_clean
            if keeps:
                _keep(place, folder, say)
    finally:
        if not keeps:
            shutil.rmtree(folder)
    if verdict is None:
        raise HoldfastError(f"the torture itself broke off; what it says stands above, the rest is in {folder}")
    return msgspec.structs.replace(verdict, folder=folder) if keeps else verdict


def _drive(task: Task, tell: Callable[[Progress], object]) -> Verdict | None:
    """Return the driver's verdict; None if it did not get that far."""
    verdict = None
    with tempfile.TemporaryFile() as orders:  # not a pipe: neither process waits for the other to read or write
        orders.write(msgspec.json.encode(task))
        orders.seek(0)
        # A process group of its own: signals reach the driver only through this process, and its leftovers can be
        # killed together.
        with subprocess.Popen(DRIVER, stdin=orders, stdout=subprocess.PIPE, process_group=0) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    said = _SAID.decode(line)
                    if isinstance(said, Trouble):
                        raise StoreError(f"the torture broke off: {said.text}")
                    if isinstance(said, Verdict):
                        verdict = said
                    else:
                        tell(said)
            except BaseException:
                _stop(process)
                raise
    if process.returncode == 0:
        return verdict
    with contextlib.suppress(ProcessLookupError):  # the driver has ended its children already
        os.killpg(process.pid, signal.SIGKILL)
    return None


def _keep(place: Place, folder: str, say: Callable[[str], object]) -> None:
    """Keep in *folder* as much of the evidence as can be read."""
    try:
        place.keep(folder)
    except StoreError as error:
        say(f"the runs could not be kept: {error}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
