from __future__ import annotations

import asyncio
import gc
import itertools
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
from tests.children import descriptors, fork

from holdfast.errors import StoreError
from holdfast.stores.bell import Bell, Listener
from holdfast.stores.watch import Watch

LONG = 30.0  # a wait that lasts so long has failed
TURNS = 5000


@pytest.fixture
def bell() -> Bell:
    """Of a store that nobody else can write to."""
    return Bell(None)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def shared(file: Path) -> Iterator[Bell]:
    bell = Bell(lambda: Watch(str(file)))

    yield bell

    bell.close()


def watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "holdfast-watcher"]


# --- rings ---


def test_a_ring_before_the_wait_is_not_lost(bell: Bell) -> None:
    with bell.listen() as listener:
        bell.ring()

        assert listener.wait()


def test_rings_before_a_wait_are_one(bell: Bell) -> None:
    with bell.listen() as listener:
        bell.ring()
        bell.ring()

        assert listener.wait()
        assert not listener.wait(0)


def test_a_ring_before_listening_is_not_heard(bell: Bell) -> None:
    bell.ring()

    with bell.listen() as listener:
        assert not listener.wait(0)


@pytest.mark.parametrize("timeout", [0, -1, 0.001])
async def test_a_wait_ends_at_its_timeout(bell: Bell, timeout: float) -> None:
    with bell.listen() as listener:
        assert not listener.wait(timeout)
        assert not await listener.await_(timeout)


async def test_a_timeout_may_be_longer_than_the_system_can_wait(bell: Bell) -> None:
    with bell.listen() as listener:
        ringing = threading.Thread(target=bell.ring)
        ringing.start()
        assert listener.wait(float("inf"))
        ringing.join()

        asyncio.get_running_loop().call_soon(bell.ring)
        assert await listener.await_(float("inf"))


def test_a_ring_wakes_every_thread_that_listens(bell: Bell) -> None:
    heard: list[bool] = []
    listeners = [bell.listen() for _ in range(20)]
    threads = [threading.Thread(target=lambda one: heard.append(one.wait(LONG)), args=(one,)) for one in listeners]
    for thread in threads:
        thread.start()

    bell.ring()
    for thread in threads:
        thread.join()

    assert heard == [True] * 20
    bell.close()


async def test_a_ring_of_another_thread_wakes_every_task_that_listens(bell: Bell) -> None:
    listeners = [bell.listen() for _ in range(300)]
    tasks = [asyncio.create_task(one.await_(LONG)) for one in listeners]
    await asyncio.sleep(0)

    await asyncio.to_thread(bell.ring)

    assert await asyncio.gather(*tasks) == [True] * 300
    bell.close()


async def test_a_ring_is_not_lost_by_a_task_that_is_cancelled(bell: Bell) -> None:
    with bell.listen() as listener:
        task = asyncio.create_task(listener.await_())
        await asyncio.sleep(0)
        bell.ring()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert await listener.await_(0)


async def test_a_cancelled_wait_leaves_no_timer(bell: Bell) -> None:
    loop = asyncio.get_running_loop()
    with bell.listen() as listener:
        task = asyncio.create_task(listener.await_(LONG))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert all(handle.cancelled() for handle in loop._scheduled)  # type: ignore[attr-defined]


def test_a_loop_that_was_closed_harms_nobody(bell: Bell) -> None:
    loop = asyncio.new_event_loop()
    left, other = bell.listen(), bell.listen()
    coroutine = left.await_()
    task = loop.create_task(coroutine)
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()

    bell.ring()

    assert other.wait(0)
    bell.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine.close()


def test_a_task_whose_loop_was_closed_is_let_go_of_at_the_next_ring(bell: Bell) -> None:
    loop = asyncio.new_event_loop()
    task = loop.create_task(bell.listen().await_())
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    left = weakref.ref(task)
    del task

    bell.ring()
    gc.collect()

    assert left() is None


# --- closing ---


async def test_closing_wakes_all_who_wait_and_says_so(bell: Bell) -> None:
    of_thread, of_task = bell.listen(), bell.listen()
    thread = asyncio.create_task(asyncio.to_thread(of_thread.wait))
    task = asyncio.create_task(of_task.await_())
    await asyncio.sleep(0)

    bell.close()

    assert [await thread, await task] == [False, False]
    assert of_thread.closed
    assert of_task.closed


def test_what_was_rung_before_closing_is_still_heard(bell: Bell) -> None:
    listener = bell.listen()
    bell.ring()

    bell.close()

    assert listener.wait()
    assert not listener.wait()


def test_who_listens_after_closing_is_heard(shared: Bell, file: Path) -> None:
    shared.close()
    shared.close()

    with shared.listen() as listener:
        file.write_bytes(b"x")

        assert listener.wait(LONG)


def test_who_listens_while_the_bell_is_being_closed_is_heard(shared: Bell, file: Path) -> None:
    late: list[Listener] = []
    shared.listen()._wake = lambda: late.append(shared.listen())

    shared.close()

    (listener,) = late
    assert not listener.closed
    file.write_bytes(b"x")
    assert listener.wait(LONG)


def test_a_listener_that_left_hears_nothing(bell: Bell) -> None:
    with bell.listen() as listener:
        pass

    bell.ring()

    assert listener.closed
    assert not listener.wait()


def test_a_listener_closed_by_another_thread_lets_its_waiter_go(bell: Bell) -> None:
    listener = bell.listen()
    heard: list[bool] = []
    thread = threading.Thread(target=lambda: heard.append(listener.wait()))
    thread.start()

    listener.close()
    thread.join()

    assert heard == [False]


# --- the watcher ---


def test_a_write_of_another_process_rings(shared: Bell, file: Path) -> None:
    with shared.listen() as first, shared.listen() as second:
        subprocess.run(["sh", "-c", 'echo x >> "$0"', str(file)], check=True)

        assert first.wait(LONG)
        assert second.wait(LONG)


def test_one_thread_watches_while_anybody_listens_and_none_otherwise(shared: Bell, file: Path) -> None:
    assert watchers() == []

    listeners = [shared.listen() for _ in range(10)]
    (watcher,) = watchers()
    for listener in listeners[1:]:
        listener.close()
    file.touch()
    assert listeners[0].wait(LONG)
    listeners[0].wait(0.01)  # the watcher is back at its watch by now, if the machine is not too slow
    listeners[0].close()
    watcher.join(LONG)

    assert not watcher.is_alive()


def test_who_listens_after_the_watcher_has_ended_is_heard_again(shared: Bell, file: Path) -> None:
    with shared.listen():
        (first,) = watchers()
    first.join(LONG)

    with shared.listen() as listener:
        file.touch()

        assert listener.wait(LONG)


def test_closing_ends_the_watcher_before_it_returns(file: Path) -> None:
    before = descriptors()

    for _ in range(100):
        bell = Bell(lambda: Watch(str(file)))
        bell.listen()
        bell.close()

        assert watchers() == []
    assert descriptors() == before


def test_a_store_in_memory_has_no_watcher(bell: Bell) -> None:
    with bell.listen():
        assert watchers() == []


def test_a_watch_that_cannot_be_made_is_told_to_who_would_listen(tmp_path: Path) -> None:
    bell = Bell(lambda: Watch(str(tmp_path / "missing" / "log")))

    with pytest.raises(StoreError):
        bell.listen()

    (tmp_path / "missing").mkdir()
    with bell.listen() as listener:
        (tmp_path / "missing" / "log").touch()
        assert listener.wait(LONG)
    bell.close()


# --- forks and garbage ---


def test_a_forked_child_listens_for_itself(shared: Bell, file: Path) -> None:
    with shared.listen() as listener:
        file.write_text("x")
        listener.wait(LONG)
        listener.wait(0.01)  # the watcher is at its watch by now, if the machine is not too slow
        child = fork()
        if child == 0:
            good = False
            try:
                before = len(os.listdir("/dev/fd"))
                shared.after_fork()
                assert len(os.listdir("/dev/fd")) == before - (3 if sys.platform == "linux" else 0)
                with shared.listen() as own:
                    file.write_text("y")
                    good = listener.closed and not listener.wait() and own.wait(LONG)
            finally:
                os._exit(0 if good else 1)

        _, status = os.waitpid(child, 0)

        assert os.waitstatus_to_exitcode(status) == 0
        assert listener.wait(LONG)  # the child wrote, and took nothing from us


def test_the_collector_may_close_a_listener_while_the_bell_is_locked(file: Path) -> None:
    bell = Bell(lambda: Watch(str(file)))
    gc.freeze()  # what was there before is not looked through thirty times
    abandoned = [abandon(bell) for _ in range(30)]
    left: list[int] = []

    def collect() -> None:
        if abandoned:
            abandoned.pop()
            gc.collect()

    def use() -> None:
        with at_each_line_of(Bell.listen, collect), at_each_line_of(Bell.close, collect):
            bell.listen()
            left.append(len(abandoned))
            bell.close()

    thread = threading.Thread(target=use, daemon=True)  # one that is stuck must not keep the others waiting
    thread.start()
    thread.join(LONG)
    gc.unfreeze()

    assert not thread.is_alive()
    assert left[0] < 27


def test_a_ring_while_a_wait_gives_up_is_not_lost(bell: Bell) -> None:
    with bell.listen() as listener:
        acts = iter([bool, bell.ring])  # first nothing: it is to ring after the listener has looked
        with at_each_line_of(Listener._take, lambda: [act() for act in itertools.islice(acts, 1)]):
            assert not listener.wait(0)

        assert listener.wait(0)


# --- all at once ---


class Log:
    """What is committed, and who is told."""

    def __init__(self, bell: Bell, writers: int, each: int) -> None:
        self.bell = bell
        self.entries: list[int] = []
        self.total = writers * each
        self._threads = [threading.Thread(target=self._write, args=(each,)) for _ in range(writers)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _write(self, each: int) -> None:
        for i in range(each):
            self.entries.append(i)
            self.bell.ring()


@pytest.mark.usefixtures("hurried")
def test_no_thread_misses_the_last_ring(bell: Bell) -> None:
    for _ in range(10):
        log = Log(bell, writers=3, each=100)
        missed: list[int] = []
        followers = [threading.Thread(target=follow, args=(log, bell.listen(), missed)) for _ in range(4)]
        for thread in followers:
            thread.start()

        log.start()
        for thread in followers:
            thread.join()
        log.join()

        assert missed == []


@pytest.mark.usefixtures("hurried")
async def test_no_task_misses_the_last_ring(bell: Bell) -> None:
    for _ in range(10):
        log = Log(bell, writers=3, each=100)
        listeners = [bell.listen() for _ in range(10)]
        tasks = [asyncio.create_task(afollow(log, one)) for one in listeners]

        log.start()
        missed = await asyncio.gather(*tasks)
        log.join()

        assert missed == [False] * 10


@pytest.mark.usefixtures("hurried")
def test_of_two_threads_that_wait_for_each_other_none_misses_a_ring() -> None:
    there, back = Bell(None), Bell(None)
    heard: list[bool] = []

    def answer(listener: Listener) -> None:
        for _ in range(TURNS):
            heard.append(listener.wait(LONG))
            back.ring()

    with there.listen() as theirs, back.listen() as ours:
        thread = threading.Thread(target=answer, args=(theirs,))
        thread.start()
        for _ in range(TURNS):
            there.ring()
            heard.append(ours.wait(LONG))
            if not heard[-1]:
                break
        thread.join()

    assert heard == [True] * 2 * TURNS


@pytest.mark.usefixtures("hurried")
async def test_of_a_thread_and_a_task_that_wait_for_each_other_none_misses_a_ring() -> None:
    there, back = Bell(None), Bell(None)
    heard: list[bool] = []

    def answer(listener: Listener) -> None:
        for _ in range(TURNS):
            heard.append(listener.wait(LONG))
            back.ring()

    with there.listen() as theirs, back.listen() as ours:
        thread = threading.Thread(target=answer, args=(theirs,))
        thread.start()
        for _ in range(TURNS):
            there.ring()
            heard.append(await ours.await_(LONG))
            if not heard[-1]:
                break
        thread.join()

    assert heard == [True] * 2 * TURNS


@pytest.mark.usefixtures("hurried")
def test_who_comes_and_goes_among_others_is_always_served(shared: Bell, file: Path) -> None:
    before = descriptors()
    missed: list[int] = []

    def come_and_go(number: int) -> None:
        for _ in range(100):
            with shared.listen() as listener:
                with file.open("ab", buffering=0) as stream:
                    stream.write(b"x")
                if not listener.wait(LONG):
                    missed.append(number)

    threads = [threading.Thread(target=come_and_go, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    shared.close()
    assert missed == []
    assert watchers() == []
    assert descriptors() == before


def follow(log: Log, listener: Listener, missed: list[int]) -> None:
    with listener:
        while (seen := len(log.entries)) < log.total:
            if not listener.wait(LONG):
                missed.append(seen)
                return


async def afollow(log: Log, listener: Listener) -> bool:
    with listener:
        while len(log.entries) < log.total:
            if not await listener.await_(LONG):
                return True
    return False


@contextmanager
def at_each_line_of(function: Callable[..., object], act: Callable[[], object]) -> Iterator[None]:
    """Have *act* called before each line of *function* that this thread runs."""
    before = sys.gettrace()

    def trace(frame: FrameType, event: str, argument: object) -> object:
        if frame.f_code is not function.__code__:  # type: ignore[attr-defined]
            return before(frame, event, argument) if before is not None else None
        if event == "line":
            act()
        return trace

    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        yield
    finally:
        sys.settrace(before)


def abandon(bell: Bell) -> object:
    """Somebody who follows, and whom only the collector can find once what is returned is dropped."""

    def follow() -> Iterator[None]:
        with bell.listen():
            yield

    stream = follow()
    next(stream)
    itself: list[object] = [stream]
    itself.append(itself)
    return itself


def test_where_no_thread_can_be_started_who_listens_is_told(shared: Bell, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(StoreError, match="nobody can listen for what others write: can't start new thread"):
            shared.listen()

    with shared.listen():
        assert len(watchers()) == 1
