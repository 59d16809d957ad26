"""One thread at most: an interrupt while it is started leaves nobody believing in a thread that is not there."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from contextlib import suppress
from functools import partial

import pytest
from tests.children import eventually
from tests.interrupts import interrupted_at

from holdfast.solo import Solo


class Post:
    """Work for a thread: letters, of which it takes one at a time."""

    def __init__(self) -> None:
        self.letters: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.read: list[tuple[str, threading.Thread]] = []
        self.solo = Solo("reader", self._read, lambda: not self.letters.empty())

    def _read(self) -> None:
        while not self.letters.empty():
            self.read.append((self.letters.get(), threading.current_thread()))

    def send(self, letter: str) -> None:
        self.letters.put(letter)
        if not self.solo.there:
            self.solo.start()

    def has_read(self, *letters: str) -> bool:
        return eventually(lambda: [letter for letter, _ in self.read] == list(letters))


def test_it_comes_back_when_it_is_needed() -> None:
    post = Post()
    for number in range(20):
        post.send(str(number))

        assert post.has_read(*map(str, range(number + 1)))
        assert eventually(lambda: not post.solo.there)


def test_while_it_is_there_no_other_is_started() -> None:
    going = threading.Event()
    solo = Solo("waits", going.wait, lambda: False)

    solo.start()
    solo.start()

    assert [thread.name for thread in threading.enumerate()].count("waits") == 1
    going.set()
    solo.join(30)
    assert not solo.there


def test_it_does_not_wait_for_itself() -> None:
    ended = threading.Event()

    def work() -> None:
        solo.join(30)
        ended.set()

    solo = Solo("waits for itself", work, lambda: False)
    solo.start()

    assert ended.wait(10)


def test_who_waits_before_it_runs_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    post = Post()
    start = threading.Thread.start

    def wait_first(self: threading.Thread) -> None:
        monkeypatch.undo()
        post.solo.join(30)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", wait_first)
    post.send("one")

    assert post.has_read("one")


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("started", [False, True], ids=["before", "after"])
def test_who_is_interrupted_while_starting_it_leaves_it_to_the_next(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException], started: bool
) -> None:
    post = Post()
    start = threading.Thread.start

    def strike(self: threading.Thread) -> None:
        monkeypatch.undo()
        if started:
            start(self)
        raise error("struck")

    monkeypatch.setattr(threading.Thread, "start", strike)
    with pytest.raises(error):
        post.send("one")
    post.send("two")

    assert post.has_read("one", "two")
    assert eventually(lambda: not post.solo.there)


def test_wherever_an_interrupt_comes_while_no_thread_can_be_started_the_next_starts_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    at, struck = 0, True
    while struck:
        post = Post()
        with monkeypatch.context() as patched, suppress(RuntimeError):
            patched.setattr(threading.Thread, "start", fail)
            struck = False
            struck = interrupted_at(at, Solo.start, partial(post.send, "one"))
        post.send("two")

        assert post.has_read("one", "two")
        at += 1
    assert at > 3


def test_a_thread_whose_work_fails_is_not_believed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda told: None)
    solo = Solo("fails", lambda: 1 / 0, lambda: True)

    solo.start()
    solo.join(30)

    assert not solo.there


ENDING = """
import builtins
from holdfast.solo import Solo


class Late:
    def __del__(self, solo=Solo("late", print, bool), print=print):
        try:
            solo.start()
        except RuntimeError as error:
            print(error, flush=True)


builtins.late = Late()  # which is there until the interpreter has ended all threads
"""


def test_who_needs_it_when_the_interpreter_ends_is_told_and_does_not_wait_for_it() -> None:
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=50, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout == "the interpreter ends: no thread can be started\n"
