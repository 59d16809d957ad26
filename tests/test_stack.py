"""An endless recursion ends anywhere, within Holdfast too: what was taken is given back, and the store goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import holdfast
from holdfast import Holdfast, RunStatus, SqliteRunStore

LEFT = range(1, 200, 3)  # levels that are left of the stack


@pytest.fixture
def hf() -> Holdfast:
    return holdfast.open(":memory:")


def near_the_end(left: int, fn: Callable[[], object]) -> object:
    """Call *fn* where the stack has *left* levels, more or less."""

    def down(levels: int) -> object:
        return down(levels - 1) if levels > 0 else fn()

    frame, used = sys._getframe(), 1
    while frame.f_back is not None:
        frame, used = frame.f_back, used + 1
    return down(sys.getrecursionlimit() - used - left)


def test_no_slot_is_lost_where_the_stack_ends(hf: Holdfast) -> None:
    @hf.tool(concurrency=1, max_wait=0, breaker=False, loop=False)
    def endless() -> object:
        return endless.__wrapped__()  # type: ignore[attr-defined]

    with hf.run():
        for left in LEFT:
            with pytest.raises(RecursionError):
                near_the_end(left, endless)
            with pytest.raises(RecursionError):  # and no refusal
                endless()


def test_the_store_goes_on_after_a_recursion_that_ended_in_a_call(hf: Holdfast) -> None:
    @hf.tool(concurrency=1, max_wait=0, loop=False)
    def fetch(left: int) -> int:
        return left

    with hf.run() as run:
        for left in LEFT:
            with suppress(RecursionError):
                near_the_end(left, lambda left=left: fetch(left))  # type: ignore[misc]
            with suppress(RecursionError):
                near_the_end(left, lambda left=left: run.step("think", lambda: left))  # type: ignore[misc]
            with suppress(RecursionError):
                near_the_end(left, lambda: run.commit("noted"))
            assert fetch(-left) == -left

    assert run.status is RunStatus.COMPLETED
    assert run.snapshot().active_tools == ()


def test_no_step_is_begun_that_has_no_room_to_end(hf: Holdfast) -> None:
    with hf.run() as run:
        for left in LEFT:
            with suppress(RecursionError):
                near_the_end(left, lambda: run.step("think", lambda: 1))

    types = [event.type for event in run.events()]
    assert types.count("step_started") == types.count("step_ended") > 0


def test_a_store_can_be_written_after_a_write_where_the_stack_ended(tmp_path: Path) -> None:
    with SqliteRunStore(tmp_path / "runs.db") as store:
        store.create_run("s", "p", run_id="r")

        for left in range(1, 120):
            with suppress(RecursionError):
                near_the_end(left, lambda: store.record_event("r", "deep"))
            store.record_event("r", "shallow")

        assert [event.type for event in store.events("r")].count("shallow") == 119


def test_an_agent_that_calls_itself_for_ever_does_not_take_the_store_along(hf: Holdfast) -> None:
    @hf.tool
    def agent(task: int) -> object:
        return agent(task + 1)

    with hf.run() as run:
        with pytest.raises(RecursionError):
            agent(0)
        assert run.step("go on", lambda: 1) == 1

    assert run.status is RunStatus.COMPLETED
    assert run.snapshot().active_tools == ()
