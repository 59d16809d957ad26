"""A child process of the driver: forked, watched, frozen, woken and killed."""

from __future__ import annotations

import faulthandler
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

from holdfast.clock import SystemClock
from holdfast.signals import handled

PATIENCE: Final = 60.0  # seconds after which a process that has not ended counts as hanging
GLANCE: Final = 0.001  # seconds between two checks of a process
STOPS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Child:
    """A forked process, known as *life*, that does *work* and nothing else; its output goes to the file *errors*.

    The forking process must have no other thread and no open store.
    """

    def __init__(self, life: int, work: Callable[[], object], errors: str) -> None:
        self.life = life
        self.point = ""  # the point at which it is to die
        self.status: int | None = None  # its exit status, once it has ended
        self.is_frozen = False
        self.pid = os.fork()
        if self.pid == 0:
            _be(work, errors)

    @property
    def was_killed(self) -> bool:
        """True if it was ended by SIGKILL."""
        return self.status == -signal.SIGKILL

    def glance(self) -> bool:
        """Return True if it has ended or is frozen."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
            if pid and os.WIFSTOPPED(status):
                self.is_frozen = True
            elif pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is not None or self.is_frozen

    def wake(self) -> None:
        """Let it go on after it froze."""
        self.is_frozen = False
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill it now; harmless if it has ended."""
        self.glance()
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            self.is_frozen = False

    def await_end(self) -> bool:
        """Wait until it has ended or is frozen; False if it hangs: then it dumps its stacks and is killed."""
        until = SystemClock.monotonic() + PATIENCE
        while not self.glance():
            if SystemClock.monotonic() > until:
                os.kill(self.pid, signal.SIGUSR1)
                SystemClock.sleep(1.0)
                self.kill()
                return False
            SystemClock.sleep(GLANCE)
        return True


@contextmanager
def stopped_once(leaving: BaseException) -> Iterator[None]:
    """Make the first signal that would stop this process raise *leaving*, and ignore the rest, so that cleaning up is
    not interrupted. Ignored signals stay ignored.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        for each in heeded:
            signal.signal(each, lambda number, frame: None)
        raise leaving

    heeded = [number for number in STOPS if signal.getsignal(number) != signal.SIG_IGN]
    with handled(dict.fromkeys(heeded, leave)):
        yield


@contextmanager
def unstopped() -> Iterator[None]:
    """Hold back the signals that would stop this process: a child that is not registered yet would be left behind."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)


def _be(work: Callable[[], object], errors: str) -> NoReturn:
    """Run as the forked process; never returns to the parent's code."""
    code = 1
    try:
        for number in STOPS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        fd = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        faulthandler.enable(fd)
        faulthandler.register(signal.SIGUSR1, fd, all_threads=True)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
