"""A session: a temporary store, and the process of the driver, which is told what to do and says what came of it."""

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
GRACE: Final = 10.0  # seconds for the driver to take its processes along

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
    """Torture runs on a temporary store *like* this for *seconds* at least, and until *kills* processes were killed.

    *tell* hears how far it is, *say* what else there is to know. The evidence is kept only if a promise was not.
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
    """What the driver says at last; None if it did not get that far."""
    verdict = None
    with tempfile.TemporaryFile() as orders:  # not a pipe: nobody waits for the other to read or write
        orders.write(msgspec.json.encode(task))
        orders.seek(0)
        # A group of its own: what stops us reaches it through us, and what it leaves can be ended as a whole.
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
    with contextlib.suppress(ProcessLookupError):  # it has taken its processes along
        os.killpg(process.pid, signal.SIGKILL)
    return None


def _keep(place: Place, folder: str, say: Callable[[str], object]) -> None:
    """Leave the evidence in *folder*, as much as can be had."""
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
