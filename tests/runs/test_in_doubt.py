"""A call that began and has no result: made again where that is safe, else the caller decides; never in silence."""

# ruff: noqa: PT012 (what leaves the block of a run is what is tested, so the block is within `raises`)

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any

import pytest
from tests import shapes
from tests.runs import durable
from tests.runs.durable import Killed, Place, of, stopped, types
from tests.shapes import Shape

from holdfast import CircuitOpen, ConcurrencyFull, Denied, Holdfast, Hook, InDoubt, RunConflict
from holdfast.calls import recording
from holdfast.frameworks.guarded import Aside, Guarded
from holdfast.testing import ManualClock, Script, fail, ok
from holdfast.waiting.threads import Job, Workers

place, disk, memory = durable.place, durable.disk, durable.memory
shape = shapes.shape


class Desk:
    """A tool that dies in the middle of its first call, and the Holdfasts on the way."""

    def __init__(self, place: Place, shape: Shape | None = None, **policy: Any) -> None:
        self.place = place
        self.shape = shape or Shape("function")
        self.policy = policy
        self.keys: list[str | None] = []
        self.opened()

    def opened(self, **more: Any) -> Holdfast:
        self.hf = hf = self.place.open(**more)

        def pay(amount: int) -> list[str]:
            assert hf.current_run is not None
            self.keys.append(hf.current_run.idempotency_key)
            if len(self.keys) == 1:
                self.place.die(hf)
            return [f"receipt {len(self.keys)}"]

        self.guarded = hf.tool("pay", **self.policy)(self.shape.of(pay))
        self.pay = self.shape.run(self.guarded)
        return hf

    def killed(self) -> str:
        """The id of a run that died in the tool."""
        with pytest.raises(Killed), self.hf.run() as run:
            self.pay(7)
        self.opened()
        return run.id


def doubted(desk: Desk, run_id: str, decide: Callable[[InDoubt], Any]) -> Any:
    with desk.hf.resume(run_id):
        with pytest.raises(InDoubt) as caught:
            desk.pay(7)
        return decide(caught.value)


@pytest.mark.parametrize("policy", [{"idempotent": True}, {"read_only": True}])
def test_what_is_safe_to_repeat_is_made_again_with_the_same_key(
    place: Place, shape: Shape, policy: dict[str, bool]
) -> None:
    desk = Desk(place, shape, **policy)
    with pytest.raises(Killed), desk.hf.run() as run:
        desk.pay(7)
    hf = desk.opened()

    with hf.resume(run.id):
        assert desk.pay(7) == ["receipt 2"]

    assert len(desk.keys) == 2
    assert desk.keys[0] == desk.keys[1] is not None
    assert hf.runs.snapshot(run.id).tool_calls == 1


def test_any_other_call_is_in_doubt_and_the_tool_is_not_called(place: Place, shape: Shape) -> None:
    desk = Desk(place, shape)
    run_id = desk.killed()

    with (
        pytest.raises(InDoubt, match="began before the run was interrupted, and no result of it was kept") as caught,
        desk.hf.resume(run_id),
    ):
        desk.pay(7)

    doubt = caught.value
    assert (doubt.tool, doubt.key, doubt.call_id) == ("pay", desk.keys[0], str(desk.keys[0])[:16])
    assert len(desk.keys) == 1
    snapshot = desk.hf.runs.snapshot(run_id)
    assert (snapshot.interrupted, snapshot.active_tools) == (True, ("pay",))
    with pytest.raises(InDoubt), desk.hf.resume(run_id):
        desk.pay(7)


def test_repeat_makes_the_call_again_with_the_same_key(place: Place) -> None:
    desk = Desk(place)
    run_id = desk.killed()

    assert doubted(desk, run_id, lambda doubt: doubt.repeat()) == ["receipt 2"]

    assert desk.keys[0] == desk.keys[1]
    snapshot = desk.hf.runs.snapshot(run_id)
    assert (snapshot.status, snapshot.tool_calls, snapshot.active_tools) == ("completed", 1, ())
    first, second = of(desk.hf, run_id, "tool_started")
    assert first.payload["call_id"] == second.payload["call_id"]
    assert first.payload["key"] == second.payload["key"]


async def test_repeat_gives_a_coroutine_or_a_stream_where_the_tool_does(memory: Place) -> None:
    for name in ("coroutine", "generator", "async_generator"):
        desk = Desk(memory, Shape(name))
        run_id = await asyncio.to_thread(desk.killed)
        async with desk.hf.resume(run_id):
            with pytest.raises(InDoubt) as caught:
                await collected(desk.guarded(7))
            assert await collected(caught.value.repeat()) == ["receipt 2"]
        assert desk.keys[0] == desk.keys[1]


async def collected(answer: Any) -> Any:
    if hasattr(answer, "__aiter__"):
        async with aclosing(answer):
            return [item async for item in answer]
    return list(answer) if hasattr(answer, "__next__") else await answer


async def test_a_plain_tool_that_is_awaited_is_repeated_by_awaiting(memory: Place) -> None:
    desk = Desk(memory)
    run_id = await asyncio.to_thread(desk.killed)

    async with desk.hf.resume(run_id):
        with pytest.raises(InDoubt) as caught:
            await desk.hf.acall("pay", 7)
        answer: Any = caught.value.repeat()
        assert await answer == ["receipt 2"]


def test_an_answer_is_taken_for_the_result_and_remembered(place: Place, shape: Shape) -> None:
    desk = Desk(place, shape)
    run_id = desk.killed()

    with pytest.raises(KeyboardInterrupt), desk.hf.resume(run_id):
        with pytest.raises(InDoubt) as caught:
            desk.pay(7)
        assert caught.value.answer(["receipt X"]) == ["receipt X"]
        raise KeyboardInterrupt

    with desk.hf.resume(run_id):
        assert desk.pay(7) == ["receipt X"]
    assert len(desk.keys) == 1
    ended = of(desk.hf, run_id, "tool_ended")[-1].payload
    assert ended["result"] == ["receipt X"]
    assert (ended["status"], ended["duration_ms"], ended["attempts"], ended["category"]) == ("success", 0, 0, None)
    assert not ended["cached"]
    assert desk.hf.runs.snapshot(run_id).active_tools == ()


async def test_aanswer_does_the_same_as_a_task(memory: Place) -> None:
    desk = Desk(memory, Shape("coroutine"))
    run_id = await asyncio.to_thread(desk.killed)

    with pytest.raises(KeyError):
        async with desk.hf.resume(run_id):
            with pytest.raises(InDoubt) as caught:
                await desk.guarded(7)
            doubt: Any = caught.value
            assert await doubt.aanswer("receipt X") == "receipt X"
            raise KeyError
    async with desk.hf.resume(run_id):
        assert await desk.guarded(7) == "receipt X"


def test_an_answer_counts_as_a_call(memory: Place) -> None:
    desk = Desk(memory)
    with pytest.raises(Killed), desk.hf.run(budget={"calls": 1}) as run:
        desk.pay(7)
    desk.opened()

    with desk.hf.resume(run.id):
        with pytest.raises(InDoubt) as caught:
            desk.pay(7)
        caught.value.answer(["receipt X"])
        with pytest.raises(Denied, match="budget"):
            desk.pay(8)


def test_who_asks_again_without_deciding_is_told_the_same(place: Place) -> None:
    desk = Desk(place)
    run_id = desk.killed()

    with desk.hf.resume(run_id):
        keys = set()
        for _ in range(3):
            with pytest.raises(InDoubt) as caught:
                desk.pay(7)
            keys.add(caught.value.key)
        assert caught.value.repeat() == ["receipt 2"]
        assert desk.pay(7) == ["receipt 3"]  # another call of its kind

    assert keys == {desk.keys[0]}
    assert desk.keys[2] != desk.keys[0]


def test_two_calls_of_a_kind_that_are_in_doubt_are_two(memory: Place) -> None:
    hf = memory.open()

    async def pay() -> None:
        memory.die(hf) if calls.append(1) or len(calls) == 2 else await asyncio.Event().wait()

    calls: list[int] = []
    tool = hf.tool("pay")(pay)

    async def agent() -> None:
        await asyncio.gather(tool(), tool())

    async def main() -> str:
        with pytest.raises(Killed):
            async with hf.run() as run:
                await agent()
        return run.id

    run_id = asyncio.run(main())
    hf = memory.open()
    tool = hf.tool("pay")(pay)

    async def resume() -> list[Any]:
        async with hf.resume(run_id):
            return await asyncio.gather(tool(), tool(), return_exceptions=True)

    one, two = asyncio.run(resume())
    assert isinstance(one, InDoubt)
    assert isinstance(two, InDoubt)
    assert one.key != two.key


def test_in_doubt_repeat_decides_for_all(place: Place, shape: Shape) -> None:
    desk = Desk(place, shape)
    run_id = desk.killed()

    with desk.hf.resume(run_id, in_doubt="repeat"):
        assert desk.pay(7) == ["receipt 2"]

    assert desk.keys[0] == desk.keys[1]


def test_a_repeat_that_is_refused_leaves_the_call_in_doubt(place: Place) -> None:
    desk = Desk(place)
    run_id = desk.killed()
    desk.hf.breaker.force_open("pay")

    def decide(doubt: InDoubt) -> Any:
        with pytest.raises(CircuitOpen):
            doubt.repeat()
        with pytest.raises(InDoubt):
            desk.pay(7)
        desk.hf.breaker.force_closed("pay")
        return doubt.repeat()

    assert doubted(desk, run_id, decide) == ["receipt 2"]
    assert desk.keys[0] == desk.keys[1]


def test_a_repeat_that_is_safe_and_refused_is_asked_anew_with_the_same_key(place: Place) -> None:
    desk = Desk(place, idempotent=True)
    with pytest.raises(Killed), desk.hf.run() as run:
        desk.hf.runs.writer.flush()
        desk.pay(7)
    hf = desk.opened()
    hf.breaker.force_open("pay")

    with hf.resume(run.id):
        with pytest.raises(CircuitOpen):
            desk.pay(7)
        hf.breaker.force_closed("pay")
        desk.pay(7)

    assert desk.keys[0] == desk.keys[1]
    assert hf.runs.snapshot(run.id).tool_calls == 1


def test_a_repeat_that_is_refused_leaves_the_doubt_to_who_asks_next(place: Place) -> None:
    desk = Desk(place)
    run_id = desk.killed()
    desk.hf.breaker.force_open("pay")

    with desk.hf.resume(run_id):
        with pytest.raises(CircuitOpen):
            desk.hf.call("pay", 7, policy={"idempotent": True})
        desk.hf.breaker.force_closed("pay")
        with pytest.raises(InDoubt):
            desk.pay(7)

    assert len(desk.keys) == 1


async def test_of_two_who_repeat_a_call_at_once_one_makes_another_call_of_the_same(memory: Place) -> None:
    hf = memory.open()
    keys: list[str | None] = []
    is_dying = True

    @hf.tool("charge")
    async def charge() -> str:
        if is_dying:
            raise Killed
        keys.append(run.idempotency_key)
        await asyncio.sleep(0)
        return "receipt"

    async def safe() -> str:
        try:
            return await charge()
        except InDoubt as doubt:
            await asyncio.sleep(0)
            answer: str = await doubt.repeat()
            return answer

    with pytest.raises(Killed):
        async with hf.run(run_id="r") as run:
            await charge()
    is_dying = False

    async with hf.resume("r") as run:
        answers = await asyncio.gather(safe(), safe())

    assert answers == ["receipt", "receipt"]
    assert len(set(keys)) == len(keys) == 2


def test_a_repeat_that_dies_is_in_doubt_again(memory: Place) -> None:
    desk = Desk(memory)
    run_id = desk.killed()
    desk.keys.clear()

    with pytest.raises(Killed):
        doubted(desk, run_id, lambda doubt: doubt.repeat())
    desk.opened()

    assert doubted(desk, run_id, lambda doubt: doubt.repeat()) == ["receipt 2"]


def test_a_call_is_answered_once(memory: Place) -> None:
    desk = Desk(memory)
    run_id = desk.killed()

    def decide(doubt: InDoubt) -> Any:
        answer = doubt.answer(["receipt X"])
        with pytest.raises(RunConflict, match="decided already"):
            doubt.answer(["receipt Y"])
        return answer

    assert doubted(desk, run_id, decide) == ["receipt X"]
    assert [event.payload["result"] for event in of(desk.hf, run_id, "tool_ended")] == [["receipt X"]]


def test_a_call_that_was_repeated_under_another_policy_waits_for_no_answer(memory: Place) -> None:
    desk = Desk(memory)
    run_id = desk.killed()

    def decide(doubt: InDoubt) -> Any:
        receipt = desk.hf.call("pay", 7, policy={"idempotent": True})
        with pytest.raises(RunConflict, match="decided already"):
            doubt.answer(["receipt X"])
        return receipt

    assert doubted(desk, run_id, decide) == ["receipt 2"]


def test_a_doubt_that_no_call_raised_cannot_be_decided() -> None:
    doubt = InDoubt("pay", "id", "key", "why")

    for decide in (doubt.repeat, lambda: doubt.answer(1)):
        with pytest.raises(RunConflict, match="can still be decided"):
            decide()


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda doubt: pickle.loads(pickle.dumps(doubt))], ids=["copy", "deep", "pickle"]
)
def test_a_doubt_travels_between_processes_with_its_facts_and_is_decided_where_it_was_raised(
    memory: Place, again: Callable[[InDoubt], InDoubt]
) -> None:
    desk = Desk(memory)
    run_id = desk.killed()

    def decide(doubt: InDoubt) -> Any:
        doubt.add_note("seen")
        other = again(doubt)

        assert (type(other), str(other), other.__notes__) == (InDoubt, str(doubt), ["seen"])
        assert (other.tool, other.call_id, other.key, other.why) == (doubt.tool, doubt.call_id, doubt.key, doubt.why)
        for one in (other.repeat, lambda: other.answer(1), lambda: other.aanswer(1)):
            with pytest.raises(RunConflict, match="can still be decided"):
                one()
        return doubt.answer(["receipt X"])

    assert doubted(desk, run_id, decide) == ["receipt X"]


# --- results that were not kept ---


def test_the_result_of_a_tool_that_is_not_to_be_remembered_is_in_doubt(place: Place, shape: Shape) -> None:
    hf = place.open()
    script = Script(ok([1]), name="pay")
    pay = shape(hf, script, remember=False)
    run_id = stopped(hf, pay)

    with (
        pytest.raises(InDoubt, match=r"was made before .*, but its result was not kept"),
        hf.resume(run_id),
    ):
        pay()
    assert script.count == 1


def test_a_safe_tool_that_is_not_to_be_remembered_is_called_again(memory: Place, shape: Shape) -> None:
    hf = memory.open()
    script = Script(ok([1]), ok([2]), name="fetch")
    fetch = shape(hf, script, remember=False, read_only=True)
    run_id = stopped(hf, fetch)

    with hf.resume(run_id):
        assert fetch() == [2]


@pytest.mark.parametrize("value", [object(), "x" * 5_000_000, {"deep": [object()]}], ids=["object", "huge", "deep"])
def test_a_result_that_cannot_be_kept_exactly_is_in_doubt(memory: Place, value: Any) -> None:
    hf = memory.open()
    script = Script(ok(value), name="pay")
    pay = hf.tool()(script.function)
    run_id = stopped(hf, pay)

    with (
        pytest.raises(InDoubt, match=r"was made before .*, but its result was not kept"),
        hf.resume(run_id),
    ):
        pay()


def test_that_a_result_was_not_kept_is_known_to_the_fork_and_after_a_repeat_that_was_refused(place: Place) -> None:
    hf = place.open()
    pay = hf.tool("pay", remember=False)(lambda: [1])
    with pytest.raises(ZeroDivisionError), hf.run() as run:
        pay()
        raise ZeroDivisionError
    hf.breaker.force_open("pay")
    with pytest.raises(CircuitOpen), hf.resume(run.id, in_doubt="repeat"):
        pay()
    hf.breaker.force_closed("pay")

    with pytest.raises(InDoubt, match="its result was not kept"), hf.resume(run.id):
        pay()


def test_a_repeat_that_was_cut_off_is_no_longer_said_to_have_been_made(memory: Place) -> None:
    hf = memory.open()
    pay = hf.tool("pay", remember=False)(Script(ok([1]), fail(KeyboardInterrupt), name="pay").function)
    run_id = stopped(hf, pay)
    with pytest.raises(KeyboardInterrupt), hf.resume(run_id, in_doubt="repeat"):
        pay()

    with pytest.raises(InDoubt, match="no result of it was kept"), hf.resume(run_id):
        pay()


def test_a_result_that_the_annotation_no_longer_fits_is_in_doubt(memory: Place) -> None:
    from enum import Enum

    class Colour(Enum):
        RED = 1

    hf = memory.open()

    def first() -> Colour:
        return Colour.RED

    first.__annotations__["return"] = Colour
    pay = hf.tool("pay")(first)
    run_id = stopped(hf, pay)
    pay = hf.tool("pay")(lambda: pytest.fail("was called"))

    with pytest.raises(InDoubt, match="can no longer be read"), hf.resume(run_id):
        pay()


def test_a_stream_that_was_left_early_is_in_doubt(memory: Place) -> None:
    hf = memory.open()

    @hf.tool
    def numbers() -> Iterator[int]:
        yield from range(5)

    def agent() -> None:
        stream = numbers()
        next(stream)
        stream.close()

    run_id = stopped(hf, agent)

    with pytest.raises(InDoubt), hf.resume(run_id):
        list(numbers())


def test_a_stream_with_an_item_that_cannot_be_given_back_is_in_doubt(memory: Place) -> None:
    hf = memory.open()

    @hf.tool
    def items() -> Iterator[object]:
        yield 1
        yield object()

    run_id = stopped(hf, lambda: list(items()))

    with pytest.raises(InDoubt), hf.resume(run_id):
        list(items())


def test_a_stream_that_is_too_long_to_be_remembered_is_given_whole_and_is_in_doubt(
    memory: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "MOST_ITEMS", 2)
    hf = memory.open()
    given: list[int] = []

    @hf.tool
    def numbers() -> Iterator[int]:
        yield from range(5)

    run_id = stopped(hf, lambda: given.extend(numbers()))

    assert given == [0, 1, 2, 3, 4]
    with pytest.raises(InDoubt), hf.resume(run_id):
        list(numbers())


async def test_an_async_stream_that_was_left_early_is_in_doubt(memory: Place) -> None:
    hf = memory.open()

    @hf.tool
    async def numbers() -> AsyncIterator[int]:
        for number in range(5):
            yield number

    with pytest.raises(KeyError):
        async with hf.run() as run:
            async with aclosing(numbers()) as stream:
                await anext(stream)
            raise KeyError

    with pytest.raises(InDoubt):
        async with hf.resume(run.id):
            await collected(numbers())


def test_a_stream_that_failed_after_its_first_item_is_in_doubt(memory: Place) -> None:
    hf = memory.open()

    @hf.tool
    def numbers() -> Iterator[int]:
        yield 1
        raise ValueError("no")

    def agent() -> None:
        with pytest.raises(ValueError, match="no"):
            list(numbers())

    run_id = stopped(hf, agent)

    with pytest.raises(InDoubt), hf.resume(run_id):
        list(numbers())


async def test_a_call_that_was_cancelled_in_the_middle_is_in_doubt(memory: Place) -> None:
    hf = memory.open()

    called = asyncio.Event()

    @hf.tool
    async def pay() -> None:
        called.set()
        await asyncio.Event().wait()

    with pytest.raises(KeyError):
        async with hf.run() as run:
            task = asyncio.create_task(pay())
            await called.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            raise KeyError

    with pytest.raises(InDoubt):
        async with hf.resume(run.id):
            await pay()


def test_a_call_whose_own_call_was_refused_is_in_doubt(memory: Place) -> None:
    hf = memory.open()
    inner = hf.tool("inner")(lambda: 1)
    outer = hf.tool("outer")(lambda: [inner()])
    hf.breaker.force_open("inner")

    def agent() -> None:
        with pytest.raises(CircuitOpen):
            outer()

    run_id = stopped(hf, agent)

    with pytest.raises(InDoubt, match="outer"), hf.resume(run_id):
        outer()


def test_a_call_within_which_others_were_in_doubt_is_in_doubt(memory: Place) -> None:
    hf = memory.open()
    made: list[int] = []

    def outer() -> None:
        made.append(1)
        raise ExceptionGroup("two", [ValueError("no"), InDoubt("inner", "id", "key", "why")])

    tool = hf.tool("outer")(outer)

    def agent() -> None:
        with pytest.raises(ExceptionGroup):
            tool()

    run_id = stopped(hf, agent)

    with pytest.raises(InDoubt), hf.resume(run_id):
        tool()
    assert made == [1]


def test_a_call_that_was_cut_off_is_in_doubt_in_the_fork_of_its_run_too(place: Place) -> None:
    desk = Desk(place)
    run_id = desk.killed()
    desk.hf.runs.handle(run_id).cancel()

    with pytest.raises(InDoubt) as caught, desk.hf.resume(run_id) as fork:
        desk.pay(7)

    assert fork.forked_from == run_id
    assert caught.value.key == desk.keys[0]


def test_what_a_call_called_that_is_answered_need_not_be_asked_for(memory: Place) -> None:
    hf = memory.open()

    def outer() -> None:
        inner()
        memory.die(hf)

    inner = hf.tool("inner")(lambda: 1)
    tool = hf.tool("outer")(outer)
    with pytest.raises(Killed), hf.run() as run:
        tool()
    hf = memory.open()
    tool = hf.tool("outer")(outer)

    with hf.resume(run.id, diverged="raise"):
        with pytest.raises(InDoubt) as caught:
            tool()
        caught.value.answer(None)


# --- a start after which the tool was not called ---


def test_a_call_that_was_stopped_between_its_start_and_the_tool_is_made_anew(memory: Place) -> None:
    hf = memory.open()
    made: list[int] = []
    pay = hf.tool("pay")(lambda: made.append(1))
    settle = hf.runs.writer.settle

    def interrupted(pending: Any, **more: Any) -> None:
        settle(pending, **more)
        hf.runs.writer.settle = settle  # type: ignore[method-assign]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), hf.run() as run:
        hf.runs.writer.settle = interrupted  # type: ignore[method-assign]
        pay()

    assert made == []
    assert hf.runs.snapshot(run.id).active_tools == ()
    with hf.resume(run.id):
        pay()
    assert made == [1]
    keys = {event.payload["key"] for event in of(hf, run.id, "tool_started")}
    assert len(keys) == 1


def test_a_repeat_that_was_stopped_before_the_tool_is_in_doubt_still(memory: Place) -> None:
    desk = Desk(memory)
    run_id = desk.killed()
    writer = desk.hf.runs.writer
    settle = writer.settle

    def interrupted(pending: Any, **more: Any) -> None:
        settle(pending, **more)
        writer.settle = settle  # type: ignore[method-assign]
        raise KeyboardInterrupt

    def decide(doubt: InDoubt) -> None:
        writer.settle = interrupted  # type: ignore[method-assign]
        doubt.repeat()

    with pytest.raises(KeyboardInterrupt):
        doubted(desk, run_id, decide)

    with pytest.raises(InDoubt), desk.hf.resume(run_id):
        desk.pay(7)


def keyed_tool(hf: Holdfast) -> tuple[Callable[[], None], list[str | None]]:
    """A tool, and the idempotency keys that it was called with."""
    keys: list[str | None] = []

    @hf.tool
    def pay() -> None:
        assert hf.current_run is not None
        keys.append(hf.current_run.idempotency_key)

    return pay, keys


def interrupt_next_write(hf: Holdfast, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Interrupt the caller of the next write when that is made, after it has called *meanwhile*."""
    settle = hf.runs.writer.settle

    def interrupted(pending: Any, **more: Any) -> None:
        hf.runs.writer.settle = settle  # type: ignore[method-assign]
        settle(pending, **more)
        meanwhile()
        raise KeyboardInterrupt

    hf.runs.writer.settle = interrupted  # type: ignore[method-assign]


def test_a_call_that_is_asked_again_after_it_was_stopped_before_the_tool_keeps_its_key(memory: Place) -> None:
    hf = memory.open()
    pay, keys = keyed_tool(hf)

    with hf.run() as run:
        interrupt_next_write(hf)
        with pytest.raises(KeyboardInterrupt):
            pay()
        pay()

    assert {event.payload["key"] for event in of(hf, run.id, "tool_started")} == set(keys)
    assert hf.runs.snapshot(run.id).status == "completed"


def test_a_call_that_was_stopped_before_the_tool_after_an_equal_one_began_gives_its_key_to_no_other(
    memory: Place,
) -> None:
    hf = memory.open()
    pay, keys = keyed_tool(hf)

    with hf.run():
        interrupt_next_write(hf, meanwhile=pay)
        with pytest.raises(KeyboardInterrupt):
            pay()
        pay()
        pay()

    assert len(set(keys)) == len(keys) == 3


def test_a_repeat_that_was_stopped_while_it_waited_for_its_turn_keeps_its_key_for_the_next(
    memory: Place, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(memory, idempotent=True, rate={"per_second": 1, "burst": 1})
    run_id = desk.killed()

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    with desk.hf.resume(run_id):
        desk.pay(8)
        with monkeypatch.context() as patch:
            patch.setattr(clock, "sleep", interrupted)
            with pytest.raises(KeyboardInterrupt):
                desk.pay(7)
        desk.pay(7)

    first, _, again = desk.keys
    assert again == first


def test_a_block_that_its_process_did_not_survive_is_over_when_the_run_is_resumed(memory: Place) -> None:
    hf = memory.open()
    with pytest.raises(Killed), hf.run() as run, hf.guard("pay"):
        memory.die(hf)
    hf = memory.open()

    with hf.resume(run.id):
        active = hf.runs.snapshot(run.id).active_tools

    assert active == ()


# --- what goes with it ---


def test_hooks_are_asked_before_a_repeat(memory: Place) -> None:
    asked: list[Any] = []
    desk = Desk(memory)
    run_id = desk.killed()
    desk.opened(hooks=[Hook("before_tool", lambda call: asked.append((call.tool, call.key)))])

    doubted(desk, run_id, lambda doubt: doubt.repeat())

    assert asked == [("pay", desk.keys[0])]


def test_a_doubt_that_is_left_to_itself_leaves_the_run_interrupted(place: Place) -> None:
    desk = Desk(place)
    run_id = desk.killed()

    for _ in range(2):
        with pytest.raises(InDoubt), desk.hf.resume(run_id):
            desk.pay(7)
        assert types(desk.hf, run_id)[-1] == "run_interrupted"


def test_a_call_that_its_framework_has_put_off_is_not_in_doubt_however_soon_the_process_dies(place: Place) -> None:
    made: list[str] = []

    def pay() -> str:
        made.append("pay")
        if len(made) == 1:
            raise Aside(TimeoutError("somebody is asked"), again=True)
        return "receipt"

    hf = place.open()
    hf.runs.writer.ticks = 10_000  # what is only queued is lost
    with pytest.raises(Killed), hf.run() as run:
        with pytest.raises(TimeoutError):
            Guarded(hf, {}).call("pay", pay, {}, str)
        place.die(hf)
    hf = place.open()

    with hf.resume(run.id):
        assert Guarded(hf, {}).call("pay", pay, {}, str) == "receipt"


def test_a_call_for_which_there_was_no_thread_is_not_in_doubt_however_soon_the_process_dies(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(ok("receipt"), name="pay")
    hf = place.open()
    hf.runs.writer.ticks = 10_000  # what is only queued is lost
    pay = hf.tool(timeout=60.0)(script.function)

    def full(workers: Workers, job: Job) -> None:
        raise RuntimeError("can't start new thread")

    with pytest.raises(Killed), hf.run() as run:
        with monkeypatch.context() as patch:
            patch.setattr(Workers, "start", full)
            with pytest.raises(ConcurrencyFull):
                pay()
        place.die(hf)
    hf = place.open()

    with hf.resume(run.id):
        assert hf.tool(timeout=60.0)(script.function)() == "receipt"
    assert script.count == 1


# --- beside other threads ---


def test_a_call_about_which_somebody_has_decided_is_not_doubted_again(memory: Place) -> None:
    desk = Desk(memory)
    run_id = desk.killed()

    with desk.hf.resume(run_id) as run:
        with pytest.raises(InDoubt) as caught:
            desk.pay(7)
        (waiting,) = run.steps.undecided.values()
        (found,) = waiting.values()  # by another thread, which asks for the same
        caught.value.repeat()
        found.doubt()

        assert desk.pay(7) == ["receipt 3"]
    assert desk.keys[0] == desk.keys[1] != desk.keys[2]


def test_who_asks_while_somebody_decides_makes_another_call(memory: Place) -> None:
    class Decided(dict[str, Any]):
        def values(self) -> Any:
            self.clear()  # another thread has decided
            return super().values()

    desk = Desk(memory)
    run_id = desk.killed()

    with desk.hf.resume(run_id) as run:
        with pytest.raises(InDoubt):
            desk.pay(7)
        ((base, waiting),) = run.steps.undecided.items()
        run.steps.undecided[base] = Decided(waiting)

        assert desk.pay(7) == ["receipt 2"]
    assert desk.keys[0] != desk.keys[1]
