"""The event loop of a worker's coroutine functions."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Iterator

import pytest
from tests.children import eventually

from holdfast.workers.lane import Lane

PATIENCE = 30.0


@pytest.fixture
def lane() -> Iterator[Lane]:
    lane = Lane()
    yield lane
    lane.close()


def test_all_coroutines_are_run_in_one_thread(lane: Lane) -> None:
    threads: list[threading.Thread] = []
    done = threading.Semaphore(0)

    async def look() -> None:
        threads.append(threading.current_thread())
        done.release()

    for _ in range(3):
        lane.begin(look)
        assert done.acquire(timeout=PATIENCE)

    assert len(set(threads)) == 1


def test_where_its_thread_could_not_be_started_the_next_coroutine_has_one(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = threading.Event()

    async def work() -> None:
        done.set()

    def no_thread(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError, match="can't start"):
            lane.begin(work)
    lane.begin(work)

    assert done.wait(PATIENCE)


def test_a_coroutine_that_nothing_else_holds_is_not_collected(lane: Lane) -> None:
    began, ended = threading.Event(), threading.Event()

    async def waits_for_what_only_it_knows() -> None:
        asyncio.get_running_loop().call_soon(began.set)  # when this waits
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.set()

    lane.begin(waits_for_what_only_it_knows)
    assert began.wait(PATIENCE)
    gc.collect()
    lane.close()

    assert ended.is_set()


def test_a_lane_that_is_closed_before_its_loop_goes_on_cancels_what_is_left(
    lane: Lane,
) -> None:
    ended = threading.Event()

    async def stays() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.set()

    async def exits() -> None:
        raise SystemExit

    class Closes(logging.Handler):
        """As soon as the lane has left its loop to say why, it is closed by another thread."""

        def emit(self, record: logging.LogRecord) -> None:
            loop = lane._loop
            assert loop is not None
            closer.start()
            assert eventually(lambda: lane._loop is None and len(loop._ready) > 0)  # type: ignore[attr-defined]

    closer, handler = threading.Thread(target=lane.close), Closes()
    logging.getLogger("holdfast").addHandler(handler)
    try:
        lane.begin(stays)
        lane.begin(exits)

        assert ended.wait(PATIENCE)
        closer.join(PATIENCE)
    finally:
        logging.getLogger("holdfast").removeHandler(handler)


def test_a_lane_that_was_closed_starts_no_other_loop(lane: Lane) -> None:
    async def work() -> None: ...

    lane.close()

    with pytest.raises(RuntimeError, match="closed"):
        lane.begin(work)
