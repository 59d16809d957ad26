"""A store that fails in a run: the run stops and says so, or goes on, by choice. And owners that lost their run."""

# ruff: noqa: PT012 (what leaves the block of a run is what is tested, so the block is within `raises`)

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests import shapes
from tests.runs import durable
from tests.runs.durable import Entering, Place, of, stopped, types
from tests.shapes import Gate, Shape, Thread, eventually

import holdfast
from holdfast import CancelResult, Holdfast, InDoubt, LeaseLost, Run, RunCancelled, RunConflict, StoreError
from holdfast.runs.ending import End, Finish
from holdfast.stores.ledger import Ledger
from holdfast.stores.store import LEASE
from holdfast.testing import ManualClock, Script, fail, ok

place, disk, memory, entering = durable.place, durable.disk, durable.memory, durable.entering
shape = shapes.shape


class Disk:
    """A disk that is full when it is told to be, from a number of writes on."""

    def __init__(self) -> None:
        self.left: float = float("inf")

    def __call__(self, point: str) -> None:
        if point == "begin":
            self.left -= 1
            if self.left < 0:
                raise StoreError("the disk is full")

    def full(self, after: int = 0) -> None:
        self.left = after

    def free(self) -> None:
        self.left = float("inf")


@pytest.fixture
def trouble() -> Disk:
    return Disk()


@pytest.fixture
def hf(place: Place, trouble: Disk) -> Holdfast:
    return place.open(crash=trouble)


@pytest.fixture
def lenient(place: Place, trouble: Disk) -> Holdfast:
    return place.open(crash=trouble, on_store_error="continue")


# --- stop ---


def test_a_run_is_not_entered_if_that_cannot_be_written(hf: Holdfast, entering: Entering, trouble: Disk) -> None:
    trouble.full()

    with pytest.raises(StoreError, match="the disk is full"):
        entering(hf.run(), lambda run: pytest.fail("was entered"))

    trouble.free()
    assert hf.current_run is None
    assert hf.runs.list_runs() == []


def test_the_tool_is_not_called_if_its_start_cannot_be_written(hf: Holdfast, shape: Shape, trouble: Disk) -> None:
    script = Script(ok([1]), name="pay")
    pay = shape(hf, script)

    with pytest.raises(StoreError, match="the disk is full"), hf.run() as run:
        trouble.full()
        try:
            pay()
        finally:
            trouble.free()

    assert script.count == 0
    assert hf.runs.snapshot(run.id).interrupted
    with hf.resume(run.id):
        assert pay() == [1]


def test_the_error_has_the_result_if_only_the_end_cannot_be_written(hf: Holdfast, shape: Shape, trouble: Disk) -> None:
    def pay() -> list[int]:
        trouble.full()
        return [1]

    tool = shape(hf, pay)
    with pytest.raises(StoreError) as caught, hf.run() as run:
        try:
            tool()
        finally:
            trouble.free()

    assert caught.value.result == (None if shape.is_stream else [1])
    with pytest.raises(InDoubt), hf.resume(run.id):
        tool()


def test_the_tools_own_error_is_not_lost_if_its_end_cannot_be_written(hf: Holdfast, trouble: Disk) -> None:
    def pay() -> None:
        trouble.full()
        raise ValueError("no")

    tool = hf.tool("pay")(pay)
    with pytest.raises(StoreError) as caught, hf.run():
        try:
            tool()
        finally:
            trouble.free()

    assert isinstance(caught.value.__context__, ValueError)


def test_the_error_of_a_step_has_its_result(hf: Holdfast, trouble: Disk) -> None:
    def plan() -> str:
        trouble.full()
        return "tea"

    with pytest.raises(StoreError) as caught, hf.run() as run:
        try:
            run.step("plan", plan)
        finally:
            trouble.free()

    assert caught.value.result == "tea"


async def test_the_error_of_an_astep_has_its_result(hf: Holdfast, trouble: Disk) -> None:
    async def plan() -> str:
        trouble.full()
        return "tea"

    with pytest.raises(StoreError) as caught:
        async with hf.run() as run:
            try:
                await run.astep("plan", plan)
            finally:
                trouble.free()

    assert caught.value.result == "tea"


def test_the_failure_of_a_step_is_on_disk_before_the_caller_gets_it(hf: Holdfast, trouble: Disk) -> None:
    def plan() -> str:
        trouble.full()
        raise ValueError("no tea")

    with pytest.raises(StoreError) as caught, hf.run() as run:
        try:
            run.step("plan", plan)
        finally:
            trouble.free()

    assert isinstance(caught.value.__context__, ValueError)


async def test_the_failure_of_an_astep_is_on_disk_before_the_caller_gets_it(hf: Holdfast, trouble: Disk) -> None:
    async def plan() -> str:
        trouble.full()
        raise ValueError("no tea")

    with pytest.raises(StoreError) as caught:
        async with hf.run() as run:
            try:
                await run.astep("plan", plan)
            finally:
                trouble.free()

    assert isinstance(caught.value.__context__, ValueError)


def test_a_run_that_is_left_cleanly_and_cannot_be_ended_raises(hf: Holdfast, entering: Entering, trouble: Disk) -> None:
    run = hf.run()

    with pytest.raises(StoreError, match="the disk is full"):
        entering(run, lambda run: trouble.full())

    assert hf.current_run is None


@pytest.mark.parametrize(
    "error", [ValueError("no"), KeyboardInterrupt(), asyncio.CancelledError(), StoreError("first")]
)
def test_the_error_of_the_block_is_kept_and_says_that_the_end_is_not_recorded(
    hf: Holdfast, entering: Entering, trouble: Disk, error: BaseException
) -> None:
    def body(run: Run) -> None:
        trouble.full()
        raise error

    with pytest.raises(type(error)) as caught:
        entering(hf.run(), body)

    assert "the end of the run is not recorded: the disk is full" in "\n".join(getattr(caught.value, "__notes__", ()))


def test_a_completion_that_cannot_be_written_can_be_asked_for_again(hf: Holdfast, trouble: Disk) -> None:
    with hf.run() as run:
        trouble.full()
        with pytest.raises(StoreError):
            run.complete("tea")
        trouble.free()
        run.complete("tea")

    assert hf.runs.snapshot(run.id).result_text == "tea"


def test_a_run_whose_memory_cannot_be_read_is_not_resumed_and_stays_free(hf: Holdfast, entering: Entering) -> None:
    run_id = stopped(hf, lambda: None)
    database = hf.runs.file.writing()
    database.execute("ALTER TABLE memos RENAME TO elsewhere")

    with pytest.raises(StoreError, match="does not have the tables that it should have"):
        entering(hf.resume(run_id), lambda run: pytest.fail("was entered"))

    hf.runs.writer.flush()
    database.execute("ALTER TABLE elsewhere RENAME TO memos")
    with hf.resume(run_id):
        pass


def test_a_run_that_could_not_be_given_back_is_free_when_the_store_is_back(hf: Holdfast, trouble: Disk) -> None:
    run_id = stopped(hf, lambda: None)
    hf.runs.file.writing().execute("ALTER TABLE memos RENAME TO elsewhere")
    trouble.full(after=1)  # so that it is taken, and nothing more
    with pytest.raises(StoreError), hf.resume(run_id):
        pytest.fail("was entered")
    with pytest.raises(StoreError):
        hf.runs.writer.flush()
    hf.runs.file.writing().execute("ALTER TABLE elsewhere RENAME TO memos")
    trouble.free()

    with hf.run():  # before which what is owed is written
        pass
    with hf.resume(run_id) as run:
        pass

    assert run.status == "completed"


def test_commit_and_cancel_say_that_the_store_fails(hf: Holdfast, trouble: Disk) -> None:
    with hf.run() as run:
        trouble.full()
        with pytest.raises(StoreError):
            run.commit("noted")
        with pytest.raises(StoreError):
            run.cancel()
        trouble.free()

    assert not run.cancelled.is_set()


def test_a_store_that_fails_says_nothing_about_the_tool(hf: Holdfast, trouble: Disk) -> None:
    pay = hf.tool("pay", breaker={"failure_threshold": 1})(lambda: 1)

    with hf.run():
        trouble.full()
        for _ in range(3):
            with pytest.raises(StoreError):
                pay()
        trouble.free()
        assert pay() == 1


def test_others_who_wait_for_the_same_answer_do_not_get_the_store_error_of_this_run(
    memory: Place, trouble: Disk
) -> None:
    hf = memory.open(crash=trouble)
    gate = Gate()

    def fetch() -> Any:
        gate()
        if trouble.left == 0:
            raise StoreError("of another call within")
        return 1

    tool = hf.tool("fetch", read_only=True, cache=60.0)(fetch)

    def agent() -> None:
        with hf.run():
            tool()

    leader = Thread(agent)
    eventually(lambda: gate.entered)
    follower = Thread(tool)
    eventually(lambda: hf._kit.bound["fetch"].tool.cache._shared and _followers(hf))  # type: ignore[attr-defined]
    trouble.full()
    gate.let_out()
    eventually(lambda: len(gate.entered) == 2)
    trouble.free()
    gate.let_out()

    assert isinstance(leader.error, StoreError)
    assert follower.result() == 1


def _followers(hf: Holdfast) -> list[Any]:
    cache = hf._kit.bound["fetch"].tool.cache  # type: ignore[attr-defined]
    return [signal for flight in list(cache._shared.values()) for signal in flight._followers]


# --- continue ---


def test_a_run_goes_on_without_a_store_if_that_was_chosen(
    lenient: Holdfast, entering: Entering, trouble: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    script = Script(ok(1), fail(ValueError("no")), ok(3), name="pay")
    pay = lenient.tool()(script.function)
    trouble.full()

    def body(run: Run) -> list[Any]:
        answers = [pay()]
        with pytest.raises(ValueError, match="no"):
            pay()
        run.emit("noted")
        run.commit("noted")
        run.spend("usd", 1.0)
        answers += [pay(), run.step("plan", lambda: "tea")]
        run.complete("done")
        return answers

    run = lenient.run()
    assert entering(run, body) == [1, 3, "tea"]
    trouble.free()
    assert caplog.text.count("the run goes on, but it is not recorded in full") == 1


def test_a_run_goes_on_where_no_store_can_be_made_if_that_was_chosen(tmp_path: Path, entering: Entering) -> None:
    (tmp_path / "file").write_text("no folder")
    with holdfast.open(tmp_path / "file" / "runs.db", policies={}, on_store_error="continue") as hf:
        pay = hf.tool()(Script(ok(1), name="pay").function)

        assert entering(hf.run(), lambda run: pay()) == 1


def test_a_store_that_fails_in_the_middle_stops_nothing_if_that_was_chosen(
    lenient: Holdfast, shape: Shape, trouble: Disk
) -> None:
    pay = shape(lenient, Script(ok([1]), ok([2]), ok([3]), name="pay"))

    with lenient.run() as run:
        answers = pay()
        trouble.full()
        answers = [*answers, *pay()]
        trouble.free()
        answers = [*answers, *pay()]

    assert answers == [1, 2, 3]
    assert lenient.runs.snapshot(run.id).status == "completed"


def test_a_run_cannot_be_resumed_without_its_store(lenient: Holdfast, entering: Entering, trouble: Disk) -> None:
    run_id = stopped(lenient, lambda: None)
    trouble.full()

    with pytest.raises(StoreError):
        entering(lenient.resume(run_id), lambda run: pytest.fail("was entered"))
    trouble.free()


def test_an_end_that_cannot_be_written_is_no_error_if_that_was_chosen(
    lenient: Holdfast, entering: Entering, trouble: Disk
) -> None:
    entering(lenient.run(), lambda run: trouble.full())
    trouble.free()


def test_an_end_that_the_store_did_not_take_is_written_when_the_block_is_left(lenient: Holdfast, trouble: Disk) -> None:
    with lenient.run() as run:
        trouble.full()
        run.fail("no tea")
        trouble.free()

    snapshot = lenient.runs.snapshot(run.id)
    assert (snapshot.status, snapshot.error) == ("failed", "no tea")


@pytest.mark.parametrize(
    "write",
    [lambda run: run.complete(), lambda run: run.commit("noted"), lambda run: run.step("plan", int)],
    ids=["end", "event", "step"],
)
def test_what_the_store_did_not_take_is_told_at_once(
    lenient: Holdfast, trouble: Disk, caplog: pytest.LogCaptureFixture, write: Callable[[Run], object]
) -> None:
    with lenient.run() as run:
        trouble.full()
        write(run)
        trouble.free()

        assert "not recorded in full" in caplog.text


def test_ends_that_are_owed_are_offered_together_while_the_store_is_away_and_written_before_a_run_when_it_is_back(
    lenient: Holdfast, trouble: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        owed = [stack.enter_context(lenient.run()) for _ in range(50)]
        trouble.full()
    writer, offered = lenient.runs.writer, []
    submit = writer.submit
    monkeypatch.setattr(writer, "submit", lambda op: [submit(op), offered.append(op)][0])

    for _ in range(3):
        with lenient.run():
            pass
    away = len(offered)
    trouble.free()
    with lenient.run():
        ends = {lenient.runs.snapshot(run.id).status for run in owed}

    assert away < 50
    assert ends == {"completed"}


def test_a_run_that_is_cancelled_while_its_end_is_owed_is_cancelled(lenient: Holdfast, trouble: Disk) -> None:
    with lenient.run() as run:
        trouble.full()
    trouble.free()

    answer = lenient.runs.handle(run.id).cancel("enough")
    with lenient.run():
        ended = lenient.runs.snapshot(run.id)

    assert (answer, ended.status, ended.error) == ("requested", "cancelled", "enough")


@pytest.mark.parametrize("error", [StoreError, LeaseLost, ValueError])
def test_an_end_that_spoils_what_is_written_with_it_is_tried_alone(
    lenient: Holdfast, trouble: Disk, error: type[Exception]
) -> None:
    with ExitStack() as stack:
        owed = [stack.enter_context(lenient.run()) for _ in range(3)]
        trouble.full()
    trouble.free()

    def spoil(ledger: Ledger) -> None:
        ledger.say(ledger.run(owed[0].id), "spoilt")
        raise error("odd")

    lenient._home.keeper.debts._owed.insert(1, spoil)
    for _ in range(4):
        with lenient.run():
            pass

    assert [types(lenient, run.id) for run in owed] == [["run_started", "run_completed"]] * 3
    assert list(lenient._home.keeper.debts._owed) == ([spoil] if error is StoreError else [])


def test_an_end_that_was_written_after_all_is_not_written_again(lenient: Holdfast) -> None:
    with lenient.run() as run:
        assert run.log.claim is not None
        finish = Finish(run.log.claim, End("run_completed", {"text": ""}), [], [], yields=False)
    lenient._home.keeper.debts._owed.append(finish.write_late)

    with lenient.run():
        pass

    assert types(lenient, run.id) == ["run_started", "run_completed"]


def test_an_end_that_can_no_longer_be_written_keeps_none_of_the_others(lenient: Holdfast, trouble: Disk) -> None:
    with ExitStack() as stack:
        owed = [stack.enter_context(lenient.run()) for _ in range(3)]
        trouble.full()
    trouble.free()
    gone, *others = owed
    lenient.runs.file.writing().execute("UPDATE runs SET fence = fence + 1 WHERE id = ?", (gone.id,))
    lenient.runs.file.writing().commit()

    for _ in range(2):
        with lenient.run():
            pass

    assert {lenient.runs.snapshot(run.id).status for run in others} == {"completed"}
    assert not lenient._home.keeper.debts._owed


def test_a_run_without_a_store_can_be_cancelled_from_inside(lenient: Holdfast, trouble: Disk) -> None:
    pay = lenient.tool("pay")(lambda: pytest.fail("was called"))
    trouble.full()

    with pytest.raises(RunCancelled), lenient.run() as run:
        assert run.cancel() is CancelResult.REQUESTED
        pay()
    trouble.free()


def test_budgets_and_keys_work_without_a_store(lenient: Holdfast, trouble: Disk) -> None:
    from holdfast import BudgetExceeded

    def key() -> str | None:
        assert lenient.current_run is not None
        return lenient.current_run.idempotency_key

    tool = lenient.tool("key")(key)
    trouble.full()

    with lenient.run(budget={"calls": 2}):
        one, two = tool(), tool()
        with pytest.raises(BudgetExceeded):
            tool()
    trouble.free()
    assert one != two
    assert None not in (one, two)


def test_an_error_that_is_no_store_error_is_not_passed_over(lenient: Holdfast) -> None:
    run_id = stopped(lenient, lambda: None)

    with lenient.resume(run_id), pytest.raises(RunConflict):
        lenient.resume(run_id).__enter__()


# --- a real disk ---


def test_a_file_that_is_deleted_underfoot_is_a_store_error_that_says_so(disk: Place) -> None:
    hf = disk.open()
    pay = hf.tool("pay")(lambda: pytest.fail("was called"))

    with pytest.raises(StoreError, match="deleted or moved"), hf.run():
        os.unlink(disk.path)
        pay()


# --- an owner that lost its run ---


class Zombie:
    """A run whose owner slept for longer than its lease, while another resumed it."""

    def __init__(self, disk: Place, **more: Any) -> None:
        self.first = disk.open(clock=ManualClock(), **more)
        later = ManualClock()
        later.advance(LEASE + 1)
        self.second = disk.open(clock=later)

    def take_over(self, run_id: str) -> None:
        with pytest.raises(KeyboardInterrupt), self.second.resume(run_id):
            raise KeyboardInterrupt


@pytest.fixture
def zombie(disk: Place) -> Zombie:
    return Zombie(disk)


def test_whatever_an_owner_writes_that_lost_its_run_is_refused(zombie: Zombie, entering: Entering) -> None:
    hf = zombie.first
    script = Script(ok(1), name="pay")
    pay = hf.tool()(script.function)

    def body(run: Run) -> None:
        zombie.take_over(run.id)
        for _ in range(2):
            with pytest.raises(LeaseLost):
                pay()
        with pytest.raises(LeaseLost):
            run.step("plan", lambda: pytest.fail("was called"))
        run.emit("noted")
        pay()

    run = hf.run()
    with pytest.raises(LeaseLost):
        entering(run, body)

    assert script.count == 0
    hf.runs.writer.flush()
    assert types(zombie.second, run.id) == ["run_started", "run_resumed", "run_interrupted"]


def test_a_safe_call_is_made_and_its_result_refused(zombie: Zombie) -> None:
    script = Script(ok(1), name="fetch")
    fetch = zombie.first.tool(read_only=True)(script.function)

    with pytest.raises(LeaseLost), zombie.first.run() as run:
        zombie.take_over(run.id)
        fetch()

    assert "tool_started" not in types(zombie.second, run.id)


def test_an_owner_that_lost_its_run_cannot_end_it(zombie: Zombie, entering: Entering) -> None:
    run = zombie.first.run()

    with pytest.raises(LeaseLost):
        entering(run, lambda run: zombie.take_over(run.id))

    assert types(zombie.second, run.id) == ["run_started", "run_resumed", "run_interrupted"]
    with zombie.second.resume(run.id):
        pass


def test_an_owner_that_lost_its_run_and_swallowed_that_is_told_at_the_end(zombie: Zombie) -> None:
    pay = zombie.first.tool("pay")(lambda: 1)

    with pytest.raises(LeaseLost), zombie.first.run() as run:
        zombie.take_over(run.id)
        with pytest.raises(LeaseLost):
            pay()


def test_the_error_of_a_block_that_lost_its_run_is_kept(zombie: Zombie) -> None:
    with pytest.raises(ValueError, match="no") as caught, zombie.first.run() as run:
        zombie.take_over(run.id)
        raise ValueError("no")

    assert "has another owner now" in str(caught.value.__notes__)


def test_commit_and_complete_are_refused(zombie: Zombie) -> None:
    with pytest.raises(LeaseLost), zombie.first.run() as run:
        zombie.take_over(run.id)
        for end in (lambda: run.complete("tea"), lambda: run.commit("noted")):
            with pytest.raises(LeaseLost):
                end()
        raise LeaseLost(run.id)


def test_a_lost_run_stops_even_where_a_store_that_fails_would_not(disk: Place) -> None:
    zombie = Zombie(disk, on_store_error="continue")
    pay = zombie.first.tool("pay")(lambda: pytest.fail("was called"))

    with pytest.raises(LeaseLost), zombie.first.run() as run:
        zombie.take_over(run.id)
        pay()


def test_an_owner_that_gives_signs_of_life_keeps_its_run(disk: Place) -> None:
    clock = ManualClock()
    hf, other = disk.open(clock=clock), disk.open(clock=clock)

    with hf.run() as run:
        clock.advance(LEASE - 1)
        hf.runs.renew()
        clock.advance(LEASE - 1)
        with pytest.raises(RunConflict):
            other.resume(run.id).__enter__()

    assert of(hf, run.id, "run_completed")
