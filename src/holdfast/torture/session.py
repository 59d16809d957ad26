"""A session: a temporary folder, and the driver in a process of its own, since whoever forks must have one thread."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from holdfast.errors import HoldfastError
from holdfast.torture.promises import Progress, Verdict

DRIVER: Sequence[str] = (sys.executable, "-P", "-m", "holdfast.torture")
GRACE: Final = 10.0  # seconds for the driver to take its processes along

_SAID = msgspec.json.Decoder(Progress | Verdict)


def torture(
    seconds: float,
    *,
    kind: str = "sqlite",
    kills: int = 0,
    seed: int | None = None,
    tell: Callable[[Progress], object] = lambda progress: None,
) -> Verdict:
    """Torture runs on a temporary store of *kind* for *seconds* at least, and until *kills* processes were killed.

    *tell* hears how far it is. The folder with the evidence is kept only if a promise was not.
    """
    seed = random.SystemRandom().randrange(2**32) if seed is None else seed
    folder = tempfile.mkdtemp(prefix="holdfast-torture-")
    keeps = False
    try:
        verdict = _drive([*DRIVER, kind, folder, str(seed), str(seconds), str(kills)], tell)
        keeps = verdict is None or not verdict.is_clean
    finally:
        if not keeps:
            shutil.rmtree(folder)
    if verdict is None:
        raise HoldfastError(f"the torture itself broke off; what it says stands above, the rest is in {folder}")
    return msgspec.structs.replace(verdict, folder=folder) if keeps else verdict


def _drive(command: Sequence[str], tell: Callable[[Progress], object]) -> Verdict | None:
    """What the driver says at last; None if it did not get that far."""
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        verdict = None
        try:
            for line in process.stdout:
                said = _SAID.decode(line)
                if isinstance(said, Verdict):
                    verdict = said
                else:
                    tell(said)
        except BaseException:
            _stop(process)
            raise
    return verdict if process.returncode == 0 else None


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
