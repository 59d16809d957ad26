"""Writes that trust what is in memory: another process that has written to the same run is noticed all the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Holdfast, LeaseLost, RunStore
from holdfast.stores import open_store
from holdfast.stores.ledger import Ledger, OwnerRow


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def ours(path: Path) -> Iterator[Holdfast]:
    with holdfast.open(path, policies={}) as hf:
        yield hf


@pytest.fixture
def theirs(path: Path) -> Iterator[RunStore]:
    """Another store on the same file, as another process has it."""
    store = open_store(str(path))
    yield store
    store.close()


def looks(hf: Holdfast) -> list[bool]:
    """Whether each transaction of *hf* from now on trusts what is in memory."""
    seen: list[bool] = []
    begin = hf.runs.file.begin

    def noted(*, trusting: bool) -> bool:
        seen.append(trusting)
        return begin(trusting=trusting)

    hf.runs.file.begin = noted  # type: ignore[method-assign]
    return seen


def types(hf: Holdfast, run_id: str) -> list[str]:
    events = hf.runs.events(run_id)
    assert [event.sequence for event in events] == list(range(len(events)))
    return [event.type for event in events]


def test_the_steps_of_a_run_do_not_look_at_what_others_have_written(ours: Holdfast, theirs: RunStore) -> None:
    with ours.run() as run:
        seen = looks(ours)
        for number in range(3):
            theirs.create_run("session", f"{number}")
            run.step("think", abs, number)

        assert seen == [True] * 3


def test_an_event_that_another_process_adds_to_the_run_of_an_owner_is_in_its_place(
    ours: Holdfast, theirs: RunStore
) -> None:
    with ours.run() as run:
        run.step("think", abs, 1)
        theirs.record_event(run.id, "noted")
        seen = looks(ours)
        run.step("think", abs, 2)

        assert seen == [True, False]

    begun = ["step_started", "step_ended"]
    assert types(ours, run.id) == ["run_started", *begun, "noted", *begun, "run_completed"]
    assert ours.runs.snapshot(run.id).event_count == 7


def test_an_event_that_changes_the_status_notices_one_that_another_process_has_added(
    ours: Holdfast, theirs: RunStore
) -> None:
    with ours.run() as run:
        theirs.record_event(run.id, "noted")
        run.commit("planning_started")

        assert ours.runs.snapshot(run.id).status == "planning"

    assert types(ours, run.id) == ["run_started", "noted", "planning_started", "run_completed"]


@pytest.mark.parametrize("event", ["noted", "planning_started"])
def test_an_owner_whose_run_was_taken_without_an_event_is_refused(event: str, ours: Holdfast, theirs: RunStore) -> None:
    thief = OwnerRow("0" * 32, "elsewhere", 4711, 2**50)

    def take(ledger: Ledger) -> None:
        live = ledger.run(run.id)
        live.owner = None
        ledger.claim(live, thief)

    with pytest.raises(LeaseLost), ours.run() as run:  # noqa: PT012 - the block is what is tested
        run.commit("begun")
        theirs.writer.commit(take)
        run.commit(event)

    assert types(ours, run.id) == ["run_started", "begun"]
    assert ours.runs.snapshot(run.id).owner is not None


def test_an_owner_whose_run_was_deleted_is_refused(ours: Holdfast, theirs: RunStore) -> None:
    with pytest.raises(holdfast.RunError), ours.run() as run:  # noqa: PT012 - the block is what is tested
        run.commit("begun")
        theirs.writer.commit(lambda ledger: ledger.erase(ledger.run(run.id).key))
        run.commit("noted")

    assert theirs.list_runs() == []


def test_one_outdated_run_does_not_keep_the_others_of_its_group_from_being_written(
    ours: Holdfast, theirs: RunStore
) -> None:
    with ours.run(run_id="one") as one, ours.run(run_id="two") as two:
        theirs.record_event("one", "noted")
        two.emit("first")
        one.emit("second")
        two.commit("third")

    assert types(ours, "one") == ["run_started", "noted", "second", "run_completed"]
    assert types(ours, "two") == ["run_started", "first", "third", "run_completed"]
