"""A run that is only noted, as a proxy's sessions are: its events get to the store, and nobody waits for that."""

from __future__ import annotations

import gc
import itertools
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.runs import durable
from tests.runs.durable import Place

from holdfast import Holdfast, RunConflict, RunStatus
from holdfast.policy import PolicyBook
from holdfast.stores import SqliteRunStore
from holdfast.testing import ManualClock
from holdfast.waiting.threads import Job, Workers

place, memory = durable.place, durable.memory


def work(hf: Holdfast) -> Any:
    @hf.tool
    def pay(amount: int) -> int:
        return amount

    return pay


def test_its_calls_are_written_down(place: Place) -> None:
    hf = place.open()
    pay = work(hf)

    with hf.note("session", "what it is") as run:
        pay(5)

    snapshot = hf.runs.snapshot(run.id)
    types = [event.type for event in hf.runs.events(run.id)]
    assert types == ["run_started", "tool_started", "tool_ended", "run_completed"]
    assert (snapshot.status, snapshot.session_id, snapshot.tool_calls) == (RunStatus.COMPLETED, "session", 1)


async def test_its_calls_are_written_down_in_async_code(place: Place) -> None:
    hf = place.open()

    @hf.tool
    async def pay(amount: int) -> int:
        return amount

    async with hf.note() as run:
        await pay(5)

    assert [event.type for event in hf.runs.events(run.id)][1:3] == ["tool_started", "tool_ended"]


@pytest.mark.parametrize("is_noted", [True, False], ids=["a note", "blocks"])
def test_calls_that_equal_no_other_leave_nothing_in_memory(tmp_path: Path, is_noted: bool) -> None:
    hf = Holdfast(PolicyBook.load({}), ManualClock(), SqliteRunStore(tmp_path / "runs.db"))
    pay, numbers = work(hf), itertools.count()

    def call() -> None:
        if is_noted:
            pay(next(numbers))
        else:
            with hf.guard("pay"):
                pass

    def blocks(calls: int) -> int:
        for _ in range(calls):
            call()
        hf.runs.create_run("s", "")  # now all is written that was queued
        gc.collect()
        return sys.getallocatedblocks()

    with hf.note() if is_noted else hf.run():
        before = blocks(1500)  # the history is full now
        after = blocks(1500)
    hf.close()

    assert after - before < 750


def test_each_of_its_calls_has_a_key_of_its_own(memory: Place) -> None:
    hf = memory.open()
    pay = work(hf)

    with hf.note() as run:
        for _ in range(3):
            pay(5)

    events = hf.runs.events(run.id)
    started, ended = ([e.payload for e in events if e.type == kind] for kind in ("tool_started", "tool_ended"))
    assert len({each["key"] for each in started}) == 3
    assert [each["call_id"] for each in started] == [each["call_id"] for each in ended]


def test_nobody_waits_for_a_store_that_is_busy(tmp_path: Path) -> None:
    store = SqliteRunStore(tmp_path / "runs.db")
    hf = Holdfast(PolicyBook.load({}), ManualClock(), store, survives_store_errors=True)
    pay = work(hf)
    done = threading.Event()

    with store.writer.turn:  # whoever writes has to wait for this
        run = hf.note().__enter__()
        paid = pay(5)
        done.set()
    run.__exit__(None, None, None)

    assert done.is_set()
    assert paid == 5
    assert hf.runs.snapshot(run.id).tool_calls == 1
    hf.close()


async def test_its_end_waits_for_no_store_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("holdfast.runs.beginning.PATIENCE", 0.05, raising=False)
    store = SqliteRunStore(tmp_path / "runs.db")
    hf = Holdfast(PolicyBook.load({}), ManualClock(), store, survives_store_errors=True)

    with store.writer.turn:  # the next to write waits, and all others for that
        async with hf.note() as run:
            work(hf)(5)
        hf.close()
        (closing,) = [thread for thread in threading.enumerate() if thread.name == "holdfast-closing"]

    closing.join()
    assert "the store took too long to close" in caplog.text
    assert SqliteRunStore(tmp_path / "runs.db").snapshot(run.id).status is RunStatus.COMPLETED


def test_a_store_that_cannot_be_written_stops_no_call(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    store = SqliteRunStore(blocked / "runs.db")
    hf = Holdfast(PolicyBook.load({}), ManualClock(), store, survives_store_errors=True)
    pay = work(hf)

    with hf.note():
        assert pay(5) == 5

    assert "not recorded in full" in caplog.text
    hf.close()


def test_a_store_that_took_its_end_but_not_its_beginning_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    SqliteRunStore(tmp_path / "runs.db").create_run("before", "")
    blocked = tmp_path / "runs.db-owners"
    blocked.write_text("no folder")  # so there is nobody who could begin a run, as on a disk that only reads
    hf = Holdfast(PolicyBook.load({}), ManualClock(), SqliteRunStore(tmp_path / "runs.db"), survives_store_errors=True)

    with hf.note():
        assert work(hf)(5) == 5

    assert "not recorded in full: its beginning could not be written" in caplog.text
    hf.close()


def test_it_cannot_be_resumed(place: Place) -> None:
    hf = place.open()
    with pytest.raises(KeyboardInterrupt), hf.note() as run:
        raise KeyboardInterrupt

    assert hf.runs.snapshot(run.id).interrupted
    with pytest.raises(RunConflict, match="was only noted"):
        hf.resume(run.id).__enter__()


def test_it_is_cancelled_from_elsewhere_like_any_other(place: Place) -> None:
    hf = place.open()

    with hf.note() as run:
        hf.runs.writer.flush()
        hf.runs.handle(run.id).cancel("enough")
        assert run.cancelled.wait(30)

    assert hf.runs.snapshot(run.id).status is RunStatus.CANCELLED


def test_it_begins_where_no_thread_can_be_started_to_look_after_it(
    memory: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hf = memory.open()
    pay = work(hf)

    def full(workers: Workers, job: Job) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Workers, "start", full)
    with hf.note() as run:
        pay(5)

    assert hf.runs.snapshot(run.id).status is RunStatus.COMPLETED
    assert caplog.messages == ["the run goes on, but it is not recorded in full: RuntimeError: can't start new thread"]
