"""The thread that looks after open runs: one for all, there for the next run, gone a moment after the last."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.children import eventually

import holdfast
from holdfast import Holdfast, RunCancelled
from holdfast.stores import SqliteRunStore


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Holdfast]:
    with holdfast.open(tmp_path / "runs.db", policies={}) as hf:
        yield hf


def keepers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "holdfast-keeper"]


def test_one_thread_looks_after_all_runs(hf: Holdfast) -> None:
    with hf.run(), hf.run():
        assert len(keepers()) == 1


def test_the_next_run_finds_the_thread_of_the_last(hf: Holdfast) -> None:
    with hf.run():
        (first,) = keepers()
    with hf.run():
        (second,) = keepers()

    assert second is first


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


def test_after_the_store_was_closed_another_thread_hears_what_is_said_to_its_new_name(hf: Holdfast) -> None:
    with hf.run():
        (first,) = keepers()
    hf.runs.close()

    with hf.run():
        assert eventually(lambda: first not in keepers())
        assert len(keepers()) == 1


def test_a_run_after_the_store_was_closed_hears_of_its_cancel(hf: Holdfast, tmp_path: Path) -> None:
    with hf.run():
        pass
    hf.runs.close()  # what comes next has another name

    with pytest.raises(RunCancelled), hf.run() as run:  # noqa: PT012
        with SqliteRunStore(tmp_path / "runs.db") as other:
            other.cancel(run.id)
        assert run.cancelled.wait(60)
        run.check()
