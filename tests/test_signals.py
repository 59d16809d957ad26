"""What ends a process ends a command as Ctrl-C does; what is ignored stays so."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator

import pytest

from holdfast.signals import ended_gently, handled

ENDS = (signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The handlers of a new process; put back at the end."""
    new = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in new.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", ENDS)
def test_what_ends_a_process_interrupts_it(number: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt), ended_gently():
        signal.raise_signal(number)

    assert signal.getsignal(number) == signal.SIG_DFL


@pytest.mark.parametrize("number", ENDS)
def test_a_command_that_handles_ctrl_c_is_told_in_the_same_way(number: signal.Signals) -> None:
    heard: list[int] = []

    with ended_gently(), handled({signal.SIGINT: lambda number, _: heard.append(number)}):
        signal.raise_signal(number)

    assert heard == [signal.SIGINT]


@pytest.mark.parametrize("number", ENDS)
def test_what_ignores_ctrl_c_in_the_background_of_a_shell_can_be_ended(number: signal.Signals) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    with pytest.raises(KeyboardInterrupt), ended_gently():
        signal.raise_signal(number)


@pytest.mark.parametrize("number", ENDS)
def test_what_is_ignored_stays_so(number: signal.Signals) -> None:
    signal.signal(number, signal.SIG_IGN)

    with ended_gently():
        signal.raise_signal(number)


def test_another_thread_leaves_signals_as_they_are() -> None:
    found: list[Callable[..., object] | int | None] = []

    def look() -> None:
        with ended_gently():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()

    assert found == [signal.SIG_DFL]


@pytest.mark.parametrize("forks", ["the main thread", "another thread"])
def test_a_forked_child_has_the_handlers_from_before(forks: str) -> None:
    codes: list[int] = []

    def fork() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks in the midst of threads
            child = os.fork()
        if not child:
            os._exit(sum(signal.getsignal(number) != signal.SIG_DFL for number in ENDS))
        codes.append(os.waitpid(child, 0)[1])

    with ended_gently(), handled({signal.SIGTERM: lambda number, _: None}):
        if forks == "the main thread":
            fork()
        else:
            thread = threading.Thread(target=fork)
            thread.start()
            thread.join()
        assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL

    assert codes == [0]
