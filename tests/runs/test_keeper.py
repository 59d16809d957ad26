"""The thread that looks after open runs: one for all, there for the next run, gone a moment after the last."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import pytest
from tests.children import eventually
from tests.runs import durable
from tests.runs.durable import Place
from tests.stores.kinds import claim

import holdfast
from holdfast import Holdfast, LeaseLost, Run, RunCancelled, RunStatus, StoreError, bus
from holdfast.runs import keeper
from holdfast.stores import SqliteRunStore
from holdfast.testing import ManualClock

disk = durable.disk


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Holdfast]:
    with holdfast.open(tmp_path / "runs.db", policies={}) as hf:
        yield hf


def keepers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "holdfast-keeper"]


def test_one_thread_looks_after_all_runs(hf: Holdfast) -> None:
    with hf.run(), hf.run():
        assert len(keepers()) == 1


def test_the_next_run_finds_the_thread_of_the_last(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "LINGER", 60.0)
    with hf.run():
        (first,) = keepers()
    with hf.run():
        (second,) = keepers()

    assert second is first


def test_runs_that_follow_each_other_find_the_same_thread_however_many_they_are(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "LINGER", 60.0)
    found = set()

    for _ in range(20):
        with hf.run():
            found |= set(keepers())

    assert len(found) == 1


def test_the_thread_ends_a_moment_after_the_last_run(hf: Holdfast) -> None:
    with hf.run():
        pass

    assert eventually(lambda: not keepers())


def test_closing_ends_the_thread_at_once(hf: Holdfast) -> None:
    with hf.run():
        (thread,) = keepers()
    hf.close()

    thread.join(60)
    assert not thread.is_alive()


def test_a_run_that_is_open_when_all_is_closed_is_looked_after_still(hf: Holdfast) -> None:
    with hf.run():
        hf.close()

        assert len(keepers()) == 1
        assert hf._home.keeper._mailbox is not None


def test_a_run_after_the_store_was_closed_hears_what_is_said_to_its_new_name(
    hf: Holdfast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "LINGER", 60.0)  # so that the thread of before is still there
    with SqliteRunStore(tmp_path / "runs.db") as other:
        other.create_run("s", "p", run_id="another")
        claim(other, "another")  # so that the folder of names stays when ours is gone
        with hf.run():
            (first,) = keepers()
        hf.runs.close()

        with pytest.raises(RunCancelled), hf.run() as run:  # noqa: PT012
            assert eventually(lambda: first not in keepers())
            other.cancel(run.id)
            assert run.cancelled.wait(30)
            run.check()


@pytest.mark.parametrize("runs_before", [0, 1])
def test_a_cancel_that_comes_before_the_run_is_looked_after_is_heard(
    hf: Holdfast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs_before: int
) -> None:
    monkeypatch.setattr(keeper, "LINGER", 60.0)
    for _ in range(runs_before):
        with hf.run():
            pass
    add = keeper.Keeper.add
    with SqliteRunStore(tmp_path / "runs.db") as other:

        def add_late(self: keeper.Keeper, run: Run) -> None:
            other.cancel(run.id)
            assert not runs_before or eventually(lambda: run.id in self._early)  # the thread has looked too soon
            add(self, run)

        monkeypatch.setattr(keeper.Keeper, "add", add_late)

        with pytest.raises(RunCancelled), hf.run() as run:  # noqa: PT012
            assert run.cancelled.wait(0 if runs_before else 60)  # without waiting for the next sign of life
            run.check()


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError("can't start new thread")])
def test_a_run_after_one_whose_thread_could_not_be_started_is_looked_after(
    hf: Holdfast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException | type[BaseException]
) -> None:
    start = threading.Thread.start

    def strike(self: threading.Thread) -> None:
        if self.name == "holdfast-keeper":
            raise error
        start(self)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", strike)
        with pytest.raises((KeyboardInterrupt, StoreError)), hf.run(run_id="first"):
            pass

    with SqliteRunStore(tmp_path / "runs.db") as other:
        assert eventually(lambda: other.snapshot("first").interrupted)
        with pytest.raises(RunCancelled), hf.run() as run:  # noqa: PT012
            other.cancel(run.id)
            assert run.cancelled.wait(30)
            run.check()


def lease_of(hf: Holdfast) -> int:
    ((_, _, _, until, *_),) = hf.runs.file.fetch("owning")
    return int(until)


def is_renewed_in(hf: Holdfast, clock: ManualClock, seconds: float) -> bool:
    """True if the keeper renews the lease when *seconds* have passed; it is woken as if it had waited for that long."""
    before = lease_of(hf)
    clock.advance(seconds)
    mailbox = hf._home.keeper._mailbox
    assert mailbox is not None
    mailbox.wake()
    return eventually(lambda: lease_of(hf) > before)


def test_a_run_that_takes_long_is_known_to_be_alive(disk: Place, clock: ManualClock) -> None:
    hf = disk.open()

    with hf.run():
        for _ in range(3):
            assert is_renewed_in(hf, clock, hf.runs.lease / keeper.SIGNS)


def test_a_run_is_looked_after_still_when_an_earlier_block_that_had_lost_it_is_left(
    disk: Place, clock: ManualClock
) -> None:
    hf = disk.open()
    lost = hf.run(run_id="r")
    lost.__enter__()
    later = disk.open(clock=ManualClock(clock.monotonic() + 2 * hf.runs.lease))  # as if `hf` had been frozen
    with suppress(KeyboardInterrupt), later.resume("r"):
        raise KeyboardInterrupt

    with pytest.raises(RunCancelled), hf.resume("r") as run:  # noqa: PT012
        with pytest.raises(LeaseLost):
            lost.__exit__(None, None, None)
        disk.open().runs.cancel("r")
        assert run.cancelled.wait(30)
        run.check()


def test_a_renewal_that_takes_long_does_not_delay_the_next(
    disk: Place, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = disk.open()
    renew, pause = hf.runs.renew, hf.runs.lease / keeper.SIGNS
    renewed = threading.Semaphore(0)

    def renew_slowly() -> None:
        renew()
        clock.advance(pause / 2)
        renewed.release()

    monkeypatch.setattr(hf.runs, "renew", renew_slowly)
    with hf.run():
        assert is_renewed_in(hf, clock, pause)
        assert renewed.acquire(timeout=30)

        assert is_renewed_in(hf, clock, pause / 2)
        assert renewed.acquire(timeout=30)


def test_the_thread_looks_after_runs_still_after_memory_ran_out(
    disk: Place, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hf = disk.open()
    renew, pause, troubles = hf.runs.renew, hf.runs.lease / keeper.SIGNS, [MemoryError()]

    def renew_if_there_is_memory() -> None:
        if troubles:
            raise troubles.pop()
        renew()

    monkeypatch.setattr(hf.runs, "renew", renew_if_there_is_memory)
    with hf.run():
        clock.advance(pause)
        hf._home.keeper._mailbox.wake()  # type: ignore[union-attr]
        assert eventually(lambda: "could not look after" in caplog.text)

        assert is_renewed_in(hf, clock, pause)


def test_a_store_that_is_away_is_complained_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, aside = tmp_path / "runs.db", tmp_path / "aside.db"
    with holdfast.open(path, policies={}) as hf, hf.run():
        mine = hf._home.keeper
        for _ in range(2):
            path.rename(aside)
            for _ in range(3):
                mine._try(mine.look)
            aside.rename(path)
            mine._try(mine.look)

    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "the owner of runs could not reach the store"
    ] * 2


def strand(hf: Holdfast, run_id: str) -> asyncio.Task[None]:
    """Open a run in a task, and close the event loop under it."""
    loop = asyncio.new_event_loop()

    async def work() -> None:
        async with hf.run(run_id=run_id):
            loop.stop()
            await asyncio.Event().wait()

    task = loop.create_task(work())
    loop.run_forever()
    loop.close()
    return task


def give_up(task: asyncio.Task[None]) -> None:
    """Let go of it, without the complaint of asyncio."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    task.get_coro().close()


@pytest.mark.parametrize("store", [":memory:", "runs.db"])
def test_a_run_whose_event_loop_was_closed_can_be_resumed(tmp_path: Path, store: str) -> None:
    with holdfast.open(store if store == ":memory:" else tmp_path / store, policies={}) as hf:
        task = strand(hf, "r")

        with hf.resume("r") as run:
            give_up(task)

            assert run.is_open
        told = [event.payload for event in hf.runs.events("r") if event.type == "run_interrupted"]
        assert told == [{"reason": "the event loop of its task was closed"}]
        assert hf.runs.snapshot("r").status is RunStatus.COMPLETED


def test_a_run_whose_event_loop_was_closed_is_soon_shown_as_interrupted(hf: Holdfast, tmp_path: Path) -> None:
    hf.runs.lease = 0.1
    task = strand(hf, "r")

    with SqliteRunStore(tmp_path / "runs.db") as other:
        assert eventually(lambda: other.snapshot("r").interrupted)
    give_up(task)


def test_a_run_whose_event_loop_was_closed_is_over_for_who_watches(hf: Holdfast) -> None:
    class Watching:
        ended: ClassVar[list[object]] = []

        def call(self, call: bus.Call) -> None:
            raise AssertionError("there is no call")

        def run(self, run: bus.Run, *, resumed: bool) -> Watching:
            return self

        def end(self, error: BaseException | None, *, here: bool) -> None:
            self.ended.append((type(error), here))

    hf.bus.watch(Watching())
    task = strand(hf, "r")

    with hf.resume("r"):
        assert Watching.ended == [(LeaseLost, False)]
        give_up(task)
