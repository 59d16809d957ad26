"""A resumed run answers finished calls from its log: what comes back, who a call is, what becomes of budgets, forks."""

# ruff: noqa: PT012 (what leaves the block of a run is what is tested, so the block is within `raises`)

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import datetime as dt
import functools
import io
import numbers
import subprocess
import sys
import textwrap
import threading
import weakref
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import shapes
from tests.runs import durable
from tests.runs.durable import Entering, Killed, Place, of, stopped, types
from tests.shapes import Shape

import holdfast
from holdfast import (
    BudgetExceeded,
    CircuitOpen,
    ConcurrencyFull,
    ErrorCategory,
    Holdfast,
    Hook,
    InDoubt,
    LoopDetected,
    RateLimited,
    RecordedError,
    Run,
    RunConflict,
    RunDiverged,
    RunNotFound,
    ToolTimeout,
)
from holdfast.policy import PolicyBook
from holdfast.runs import current, remembered
from holdfast.stores import MemoryRunStore
from holdfast.testing import ManualClock, Recorder, Script, fail, ok
from holdfast.values.redaction import Payloads

place, disk, memory, entering = durable.place, durable.disk, durable.memory, durable.entering
shape = shapes.shape


@pytest.fixture
def hf(memory: Place) -> Holdfast:
    return memory.open()


class Rude(Exception):
    pass


class Struck(BaseException):
    pass


def resumed(hf: Holdfast, run_id: str, body: Callable[[], Any], **choice: Any) -> Any:
    with hf.resume(run_id, **choice):
        return body()


# --- what comes back ---


def test_a_finished_call_is_answered_from_the_log_in_every_shape(place: Place, shape: Shape) -> None:
    hf = place.open()
    script = Script(ok([1, "two"]), name="fetch")
    fetch = shape(hf, script)
    run_id = stopped(hf, lambda: fetch("x"))

    answer = resumed(hf, run_id, lambda: fetch("x"))

    assert answer == [1, "two"]
    assert script.count == 1
    assert hf.runs.snapshot(run_id).tool_calls == 1
    assert types(hf, run_id) == [
        "run_started", "tool_started", "tool_ended", "run_interrupted", "run_resumed", "run_completed",
    ]  # fmt: skip


def test_another_process_answers_from_the_log_of_the_first(place: Place, shape: Shape) -> None:
    first = place.open()
    script = Script(ok([1, "two"]), name="fetch")
    call = shape(first, script)
    with pytest.raises(Killed), first.run() as run:
        call("x")
        place.die(first)
    second = place.open()
    call = shape(second, script)

    assert resumed(second, run.id, lambda: call("x")) == [1, "two"]
    assert script.count == 1


class Colour(Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    colour: Colour


@pytest.mark.parametrize(
    "value",
    [None, True, 0, -1.5, "", "täa", b"\x00", [1, [2]], (1, (2,)), {"a": {1: 2}}, {1, 2}, 2**80, Point(1, Colour.RED)],
    ids=repr,
)
def test_a_result_comes_back_with_its_types(hf: Holdfast, value: Any) -> None:
    @hf.tool
    def make() -> Point | Any:
        return value

    run_id = stopped(hf, make)

    answer = resumed(hf, run_id, make)

    assert answer == value
    assert type(answer) is type(value)


def test_partials_are_known_again_by_what_they_were_given(hf: Holdfast) -> None:
    def read(owner: str, folder: str) -> str:
        return f"{owner}'s {folder}"

    def ask(*owners: str) -> list[str]:
        return [hf.call(functools.partial(read, owner), "inbox") for owner in owners]

    run_id = stopped(hf, lambda: ask("alice", "bob"))

    assert resumed(hf, run_id, lambda: ask("bob", "alice")) == ["bob's inbox", "alice's inbox"]


def test_a_call_refused_for_want_of_a_thread_is_in_no_doubt(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def refused() -> None:
        with monkeypatch.context() as patch, pytest.raises(ConcurrencyFull):
            patch.setattr(threading.Thread, "start", full)
            pay()

    pay = hf.tool("pay", timeout=60.0)(Script(ok("paid")).function)
    run_id = stopped(hf, refused)

    assert not hf.runs.snapshot(run_id).active_calls
    assert resumed(hf, run_id, pay) == "paid"


def test_a_result_that_comes_back_is_not_the_redacted_one(hf: Holdfast) -> None:
    log_in = hf.tool("log_in")(lambda: {"token": "abc"})
    run_id = stopped(hf, log_in)

    assert resumed(hf, run_id, log_in) == {"token": "abc"}


@pytest.mark.parametrize(
    "error", [ValueError("no", 5), KeyError("x"), ConnectionError("down"), OSError(2, "gone", "f")]
)
def test_a_builtin_failure_is_raised_again_as_itself(place: Place, shape: Shape, error: Exception) -> None:
    hf = place.open({"policy": {"breaker": False}})
    script = Script(fail(error), name="fetch")
    fetch = shape(hf, script)

    def agent() -> str:
        with pytest.raises(type(error)) as caught:
            fetch("x")
        assert type(caught.value) is type(error)
        return str(caught.value)

    run_id = stopped(hf, agent)

    assert resumed(hf, run_id, agent) == str(error)
    assert script.count == 1


def test_a_failure_of_ones_own_kind_is_raised_again_as_a_recorded_error(hf: Holdfast, shape: Shape) -> None:
    fetch = shape(hf, Script(fail(Rude("go away")), name="fetch"))

    def first() -> None:
        with pytest.raises(Rude):
            fetch("x")

    run_id = stopped(hf, first)

    with pytest.raises(RecordedError) as caught, hf.resume(run_id):
        fetch("x")
    assert caught.value.type.endswith("Rude")
    assert caught.value.message == "go away"
    assert caught.value.category is ErrorCategory.EXECUTION_ERROR


def test_a_step_that_is_given_the_text_of_a_failure_is_known_again(hf: Holdfast, shape: Shape) -> None:
    fetch = shape(hf, Script(fail(Rude("go away")), name="fetch"))
    asked: list[str] = []

    def agent() -> None:
        try:
            fetch("x")
        except Exception as error:
            current = hf.current_run
            assert current is not None
            current.step("ask", asked.append, str(error))

    run_id = stopped(hf, agent)

    with hf.resume(run_id):
        agent()
    assert asked == ["go away"]


def test_a_run_that_a_recorded_failure_ends_names_it_as_the_first_one_did(memory: Place) -> None:
    hf = memory.open()
    fetch = hf.tool("fetch")(Script(fail(Rude("go away"))).function)

    def first() -> None:
        with pytest.raises(Rude):
            fetch("x")

    run_id = stopped(hf, first)

    with pytest.raises(RecordedError), hf.resume(run_id):
        fetch("x")
    assert hf.runs.snapshot(run_id).error == "Rude: go away"


def test_a_timeout_is_raised_again(memory: Place) -> None:
    hf = memory.open()
    script = Script(fail(ToolTimeout("fetch", 5.0)), name="fetch")
    fetch = hf.tool()(script.function)

    def agent() -> None:
        with pytest.raises(ToolTimeout, match="within 5 s"):
            fetch()

    run_id = stopped(hf, agent)

    resumed(hf, run_id, agent)
    assert script.count == 1


def test_what_was_tried_again_until_it_worked_is_answered_once(hf: Holdfast) -> None:
    script = Script(fail(ConnectionError), fail(ConnectionError), ok("tea"), name="fetch")
    fetch = hf.tool(idempotent=True)(script.function)
    run_id = stopped(hf, fetch)

    assert resumed(hf, run_id, fetch) == "tea"
    assert script.count == 3
    assert of(hf, run_id, "tool_ended")[0].payload["attempts"] == 3
    assert len(of(hf, run_id, "tool_started")) == 1


@pytest.mark.parametrize("value", ["tea", ["milk", "tea"]])
def test_the_fixed_answer_of_a_fallback_is_given_again(hf: Holdfast, value: Any) -> None:
    script = Script(fail(ConnectionError), name="fetch")
    fetch = hf.tool(fallback={"value": value})(script.function)
    run_id = stopped(hf, fetch)

    assert resumed(hf, run_id, fetch) == value
    assert script.count == 1


def test_the_tool_that_answers_instead_is_answered_from_the_log_too(hf: Holdfast, shape: Shape) -> None:
    first, second = Script(fail(ConnectionError), name="fetch"), Script(ok(["spare"]), name="spare")
    shape(hf, second)
    fetch = shape(hf, first, fallback={"tool": "spare"})
    run_id = stopped(hf, fetch)

    assert resumed(hf, run_id, fetch, diverged="raise") == ["spare"]
    assert (first.count, second.count) == (1, 1)


def test_an_answer_of_the_cache_is_given_again_and_counts_for_nothing(memory: Place) -> None:
    hf = memory.open()
    script = Script(ok(1), ok(2), ok(3), name="fetch")
    fetch = hf.tool(read_only=True, cache=100.0)(script.function)

    def agent() -> list[int]:
        return [fetch(), fetch(), fetch()]

    run_id = stopped(hf, agent, budget={"calls": 2})
    hf.tool(read_only=True, cache=100.0)(script.function)  # whose cache knows nothing yet
    memory.clock.advance(1000)

    def again() -> list[int]:
        answers = agent()
        return [*answers, fetch("other")]

    assert resumed(hf, run_id, again) == [1, 1, 1, 2]
    assert hf.runs.snapshot(run_id).cached_hits == 2


async def test_finished_calls_are_found_beside_identical_ones_that_were_never_made(disk: Place) -> None:
    async def look(call: object) -> None:
        await asyncio.sleep(0)  # so that all of them are looked up before the first begins

    hf = disk.open(hooks=[Hook("before_tool", look)])
    paid: list[int] = []

    @hf.tool(loop=False)
    async def pay(amount: int) -> int:
        paid.append(amount)
        return len(paid)

    with pytest.raises(KeyboardInterrupt):
        async with hf.run() as run:
            with hf.runs.writer.turn:  # nothing can be written meanwhile, so none is called
                tasks = [asyncio.create_task(pay(1)) for _ in range(4)]
                while len(hf.runs.writer._queue) < 4:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0)
                for task in tasks[:2]:
                    task.cancel()
                await asyncio.wait(tasks[:2])
            await asyncio.gather(*tasks[2:])
            raise KeyboardInterrupt
    assert len(paid) == 2

    async with hf.resume(run.id):
        await asyncio.gather(*(pay(1) for _ in range(4)))

    assert len(paid) == 4


def test_a_remembered_stream_takes_what_is_sent_to_it(hf: Holdfast) -> None:
    @hf.tool(read_only=True)
    def talk() -> Generator[str, str, None]:
        heard = yield "hello"
        yield f"you said {heard}"

    def agent() -> list[str]:
        stream = talk()
        return [next(stream), stream.send("hi"), *stream]

    run_id = stopped(hf, agent)

    assert resumed(hf, run_id, agent) == ["hello", "you said hi"]


def test_a_stream_that_was_left_early_is_not_remembered(hf: Holdfast) -> None:
    @hf.tool(read_only=True)
    def numbers() -> Iterator[int]:
        made.append(1)
        yield from range(5)

    made: list[int] = []

    def agent() -> int:
        stream = numbers()
        first = next(stream)
        stream.close()
        return first

    run_id = stopped(hf, agent)

    resumed(hf, run_id, agent)
    assert len(made) == 2


def test_the_items_of_a_stream_come_back_as_they_were_given(hf: Holdfast) -> None:
    @hf.tool
    def progress() -> Iterator[dict[str, Any]]:
        state: dict[str, Any] = {"seen": []}
        for page in range(3):
            state["seen"].append(page)  # the same object again, as agents give their state
            yield state

    def agent() -> list[int]:
        return [len(state["seen"]) for state in progress()]

    run_id = stopped(hf, agent)

    assert resumed(hf, run_id, agent) == [1, 2, 3]


def test_a_stream_is_not_remembered_by_what_its_items_have_become(hf: Holdfast) -> None:
    @hf.tool(read_only=True)
    def states() -> Iterator[dict[str, Any]]:
        state: dict[str, Any] = {"client": object()}  # cannot be given back
        yield state
        state.clear()

    def agent() -> list[bool]:
        return ["client" in state for state in states()]

    run_id = stopped(hf, agent)

    assert resumed(hf, run_id, agent) == [True]


def test_the_items_of_a_stream_are_not_held_once_they_were_given(hf: Holdfast) -> None:
    class Chunk(dict[str, str]): ...

    @hf.tool(read_only=True)
    def download() -> Iterator[Chunk]:
        for _ in range(10):
            chunk = Chunk(data="x" * 2**18)
            given.append(weakref.ref(chunk))
            yield chunk

    given: list[weakref.ref[Chunk]] = []

    with hf.run():
        most = max(sum(chunk() is not None for chunk in given) for _ in download())

    assert most <= 2


def test_what_a_generator_returns_comes_back_too(hf: Holdfast) -> None:
    @hf.tool
    def numbers() -> Iterator[int]:
        yield 1
        return "done"

    def agent() -> list[Any]:
        def whole() -> Iterator[Any]:
            yield (yield from numbers())

        return list(whole())

    run_id = stopped(hf, agent)

    assert resumed(hf, run_id, agent) == [1, "done"]


def test_a_stream_that_failed_before_its_first_item_fails_again(hf: Holdfast) -> None:
    script = Script(fail(ValueError("no")), name="numbers")
    numbers = hf.tool(script.generator)

    def agent() -> None:
        with pytest.raises(ValueError, match="no"):
            list(numbers())

    run_id = stopped(hf, agent)

    resumed(hf, run_id, agent)
    assert script.count == 1


def test_a_block_is_recorded_and_never_answered(hf: Holdfast) -> None:
    done: list[int] = []

    def agent() -> None:
        with hf.guard("block"):
            done.append(1)

    run_id = stopped(hf, agent)

    resumed(hf, run_id, agent, diverged="raise")
    assert done == [1, 1]
    assert len(of(hf, run_id, "tool_started")) == 2


def test_statistics_sinks_and_hooks_hear_nothing_of_an_answer_from_the_log(memory: Place) -> None:
    hf = memory.open()
    fetch = hf.tool("fetch")(lambda: 1)
    run_id = stopped(hf, fetch)
    recorder = Recorder()
    hf.bus.add(recorder)

    resumed(hf, run_id, fetch)

    assert hf.tracker.stats("fetch").total == 1
    assert recorder.types() == ["run_resumed", "run_completed"]


# --- steps ---


def test_a_step_is_remembered(place: Place) -> None:
    hf = place.open()
    asked: list[str] = []

    def agent(run: Any) -> list[str]:
        return [run.step("ask", lambda text: asked.append(text) or text.upper(), "tea") for _ in range(2)]

    with pytest.raises(KeyboardInterrupt), hf.run() as run:
        agent(run)
        raise KeyboardInterrupt

    with hf.resume(run.id) as again:
        assert agent(again) == ["TEA", "TEA"]
    assert asked == ["tea", "tea"]


async def test_an_astep_is_remembered_and_takes_plain_functions_too(hf: Holdfast) -> None:
    asked: list[str] = []

    async def ask(text: str) -> str:
        asked.append(text)
        return text.upper()

    with pytest.raises(KeyError):
        async with hf.run() as run:
            await run.astep("ask", ask, "tea")
            await run.astep("plain", str.upper, "rum")
            raise KeyError

    async with hf.resume(run.id) as again:
        assert await again.astep("ask", ask, "tea") == "TEA"
        assert await again.astep("plain", str.upper, "rum") == "RUM"
    assert asked == ["tea"]


def test_the_failure_of_a_step_is_raised_again(hf: Holdfast) -> None:
    asked: list[int] = []

    def ask() -> None:
        asked.append(1)
        raise ValueError("no")

    def agent(run: Any) -> None:
        with pytest.raises(ValueError, match="no"):
            run.step("ask", ask)

    with pytest.raises(KeyboardInterrupt), hf.run() as run:
        agent(run)
        raise KeyboardInterrupt
    with hf.resume(run.id) as again:
        agent(again)
    assert asked == [1]


async def test_the_failure_of_an_astep_is_raised_again(hf: Holdfast) -> None:
    asked: list[int] = []

    async def ask() -> None:
        asked.append(1)
        raise ValueError("no")

    with pytest.raises(KeyError):
        async with hf.run() as run:
            with pytest.raises(ValueError, match="no"):
                await run.astep("ask", ask)
            raise KeyError
    async with hf.resume(run.id) as again:
        with pytest.raises(ValueError, match="no"):
            await again.astep("ask", ask)
    assert asked == [1]


def test_a_step_whose_failure_can_no_longer_be_read_is_called_again(hf: Holdfast) -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(KeyboardInterrupt), hf.run() as run:
        with pytest.raises(ValueError, match="no"):
            run.step("ask", fail)
        raise KeyboardInterrupt
    hf.runs.file.writing().execute("UPDATE memos SET outcome = CAST('ce?' AS BLOB)")

    with hf.resume(run.id) as again:
        assert again.step("ask", lambda: "tea") == "tea"


def test_a_step_that_was_cut_off_is_called_again_with_the_same_key(place: Place) -> None:
    hf = place.open()
    keys: list[Any] = []

    def ask() -> str:
        assert hf.current_run is not None
        keys.append(hf.current_run.idempotency_key)
        if len(keys) == 1:
            place.die(hf)
        return "tea"

    with pytest.raises(Killed), hf.run() as run:
        run.step("first", lambda: 1)
        run.step("ask", ask)
    hf = place.open()

    with hf.resume(run.id) as again:
        assert again.step("first", lambda: 2) in {1, 2}
        assert again.step("ask", ask) == "tea"
    assert len(keys) == 2
    assert keys[0] == keys[1]


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", 5])
def test_the_name_of_a_step_is_1_to_200_printable_characters(hf: Holdfast, name: Any) -> None:
    with hf.run() as run, pytest.raises(ValueError, match="1 to 200 printable"):
        run.step(name, int)


def test_what_cannot_be_called_is_no_step(hf: Holdfast) -> None:
    with hf.run() as run, pytest.raises(ValueError, match="cannot be called"):
        run.step("plan", "text")  # type: ignore[arg-type]


def test_a_coroutine_function_belongs_into_astep(hf: Holdfast) -> None:
    async def ask() -> None: ...

    with hf.run() as run, pytest.raises(ValueError, match="astep"):
        run.step("ask", ask)


def test_a_step_and_a_tool_of_one_name_are_two_things(hf: Holdfast) -> None:
    tool = hf.tool("plan")(lambda: "tool")

    def agent(run: Any) -> list[str]:
        return [run.step("plan", lambda: "step"), tool()]

    with pytest.raises(KeyboardInterrupt), hf.run() as run:
        agent(run)
        raise KeyboardInterrupt
    with hf.resume(run.id) as again:
        assert agent(again) == ["step", "tool"]


# --- who a call is ---


def test_the_same_call_made_many_times_is_many_calls(hf: Holdfast) -> None:
    script = Script(*map(ok, range(10)), name="roll")
    roll = hf.tool()(script.function)
    run_id = stopped(hf, lambda: [roll() for _ in range(3)])

    assert resumed(hf, run_id, lambda: [roll() for _ in range(5)]) == [0, 1, 2, 3, 4]
    assert script.count == 5


def test_calls_are_known_by_their_arguments_not_by_their_order(hf: Holdfast) -> None:
    made: list[str] = []

    @hf.tool
    def fetch(name: str, size: int = 1) -> str:
        made.append(name)
        return f"{name}{len(made)}"

    run_id = stopped(hf, lambda: [fetch("a"), fetch("b"), fetch("a")])

    answers = resumed(hf, run_id, lambda: [fetch(name="b"), fetch("a", size=1), fetch("a", 1)])

    assert answers == ["b2", "a1", "a3"]
    assert made == ["a", "b", "a"]


class Level(Enum):
    LOW = 1


@pytest.mark.parametrize(
    "after",
    [
        lambda name, size=0.0: pytest.fail("was called"),
        lambda name, size=0.0, level=Level.LOW, tags=("a", dt.timedelta(1)): pytest.fail("was called"),
        lambda name, size=0.0, *more, deep=None, **options: pytest.fail("was called"),
        lambda deep=None, name="", size=0.0: pytest.fail("was called"),
        functools.partial(lambda name, size=0.0, deep=False: pytest.fail("was called"), deep=False),
    ],
)
def test_a_tool_may_be_given_more_parameters_that_have_defaults(hf: Holdfast, after: Callable[..., int]) -> None:
    def agent(fetch: Callable[..., int]) -> list[int]:
        return [fetch(name="a"), fetch(name="a", size=1.0), fetch(name="b", size=0.0)]

    numbers = iter(range(3))
    before = hf.tool("fetch")(lambda name, size=0.0: next(numbers))
    run_id = stopped(hf, lambda: agent(before))

    assert resumed(hf, run_id, lambda: agent(hf.tool("fetch")(after))) == [0, 1, 2]


@pytest.mark.parametrize(
    "other", [lambda fetch: fetch("a", -0.0), lambda fetch: fetch("a", 0), lambda fetch: fetch("a", False)]
)
def test_an_argument_that_only_looks_like_its_default_is_another(hf: Holdfast, other: Callable[..., int]) -> None:
    before = iter(range(2))
    fetch = hf.tool("fetch")(lambda name, size=0.0: next(before))
    run_id = stopped(hf, lambda: [fetch("a"), other(fetch)])

    assert resumed(hf, run_id, lambda: [other(fetch), fetch("a")]) == [1, 0]


def test_a_default_is_known_by_its_value_not_by_asking_it(hf: Holdfast) -> None:
    class Odd(list[int]):
        def __eq__(self, other: object) -> bool:
            pytest.fail("was asked")

        __hash__ = None  # type: ignore[assignment]

    def buy(what: str, options: list[int] = Odd([1])) -> int:  # noqa: B008
        return next(bought)

    bought = iter(range(3))
    tool = hf.tool("buy")(buy)
    run_id = stopped(hf, lambda: [tool("a"), tool("a", Odd([1])), tool("a", Odd([2]))])

    assert resumed(hf, run_id, lambda: [tool("a", Odd([2])), tool("a"), tool("a", Odd([1]))]) == [2, 0, 1]


@given(order=st.permutations(list(range(6))))
@settings(max_examples=20)
def test_calls_side_by_side_keep_their_identity_in_any_order(order: list[int]) -> None:
    with Holdfast_in_memory() as hf:
        made: Counter[int] = Counter()

        @hf.tool
        async def fetch(number: int) -> str:
            await asyncio.sleep(0)
            made[number] += 1
            return f"{number}:{made[number]}"

        async def first() -> str:
            with pytest.raises(KeyError):
                async with hf.run() as run:
                    await asyncio.gather(*map(fetch, [0, 1, 2, 3, 0, 1]))
                    raise KeyError
            return run.id

        async def second(run_id: str) -> list[str]:
            async with hf.resume(run_id, diverged="raise"):
                wanted = [[0, 1, 2, 3, 0, 1][at] for at in order]
                return await asyncio.gather(*map(fetch, wanted))

        answers = asyncio.run(second(asyncio.run(first())))

        assert sorted(answers) == ["0:1", "0:2", "1:1", "1:2", "2:1", "3:1"]
        assert made == {0: 2, 1: 2, 2: 1, 3: 1}


def Holdfast_in_memory() -> Holdfast:  # noqa: N802
    import holdfast

    return holdfast.open(":memory:", policies={})


def test_calls_within_calls_are_known_by_the_one_that_makes_them(place: Place) -> None:
    hf = place.open()
    made: list[str] = []
    leaf = hf.tool("leaf")(lambda: made.append("leaf") or len(made))

    def branch(name: str) -> int:
        made.append(name)
        answer: int = leaf()
        if name == "right" and made.count("right") == 1:
            place.die(hf)
        return answer

    tool = hf.tool("branch", idempotent=True)(branch)
    with pytest.raises(Killed), hf.run() as run:
        tool("left")
        tool("right")
    hf = place.open()
    leaf, tool = hf.tool("leaf")(leaf.__wrapped__), hf.tool("branch", idempotent=True)(branch)

    answers = resumed(hf, run.id, lambda: [tool("right"), tool("left")], diverged="raise")

    assert answers == [4, 2]
    assert made == ["left", "leaf", "right", "leaf", "right"]


def test_what_a_finished_call_called_need_not_be_asked_for_again(hf: Holdfast) -> None:
    leaf = hf.tool("leaf")(lambda number: number)
    branch = hf.tool("branch")(lambda number: leaf(number) + 1)
    tree = hf.tool("tree")(lambda: branch(1) + branch(2))
    run_id = stopped(hf, tree)

    assert resumed(hf, run_id, tree, diverged="raise") == 5
    assert "run_diverged" not in types(hf, run_id)


def test_what_a_finished_step_called_need_not_be_asked_for_again(hf: Holdfast) -> None:
    leaf = hf.tool("leaf")(lambda: 1)
    with pytest.raises(KeyboardInterrupt), hf.run() as run:
        run.step("plan", leaf)
        raise KeyboardInterrupt

    with hf.resume(run.id, diverged="raise") as again:
        assert again.step("plan", leaf) == 1


def test_the_same_call_made_by_different_calls_is_not_the_same(hf: Holdfast) -> None:
    made: list[int] = []
    leaf = hf.tool("leaf")(lambda: made.append(1) or len(made))
    branch = hf.tool("branch", remember=False, idempotent=True)(lambda name: leaf())
    run_id = stopped(hf, lambda: [branch("a"), branch("b"), leaf()])

    assert resumed(hf, run_id, lambda: [leaf(), branch("b"), branch("a")]) == [3, 2, 1]
    assert len(made) == 3


def test_a_refused_call_is_no_call_and_is_asked_anew(hf: Holdfast) -> None:
    script = Script(ok("one"), ok("two"), name="roll")
    roll = hf.tool(rate={"per_second": 1.0, "burst": 1.0}, max_wait=0.0)(script.function)
    clock: ManualClock = hf._clock  # type: ignore[assignment]

    def agent(refusals: int) -> list[str]:
        answers = [roll()]
        for _ in range(refusals):
            with pytest.raises(RateLimited):
                roll()
        clock.advance(1.0)
        answers.append(roll())
        return answers

    run_id = stopped(hf, lambda: agent(2))

    assert resumed(hf, run_id, lambda: agent(0)) == ["one", "two"]
    assert script.count == 2


class Shop:
    def __init__(self, hf: Holdfast) -> None:
        self.made: list[str] = []
        self.buy: Callable[[str], str] = hf.tool("buy")(self._buy)

    def _buy(self, what: str) -> str:
        self.made.append(what)
        return f"{what} {len(self.made)}"


def test_bound_methods_are_known_by_their_arguments(hf: Holdfast) -> None:
    shop = Shop(hf)
    run_id = stopped(hf, lambda: [shop.buy("tea"), shop.buy("rum")])

    assert resumed(hf, run_id, lambda: [shop.buy("rum"), shop.buy("tea")]) == ["rum 2", "tea 1"]


@dataclasses.dataclass
class Bank:
    session: str  # another one in each process
    charged: list[int]

    def charge(self, amount: int) -> str:
        self.charged.append(amount)
        return f"receipt {len(self.charged)}"

    @classmethod
    def name(cls, word: str) -> str:
        return f"{cls.__name__} {word}"


class Branch(Bank):
    pass


def test_the_object_of_a_decorated_method_counts_by_its_type_alone(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bank, "charge", hf.tool(Bank.charge))
    charged: list[int] = []
    run_id = stopped(hf, lambda: Bank("hunter2", charged).charge(7))

    assert resumed(hf, run_id, lambda: Bank("another", charged).charge(7)) == "receipt 1"
    assert charged == [7]
    assert of(hf, run_id, "tool_started")[0].payload["arguments"] == {"self": "<Bank>", "amount": 7}
    assert resumed(hf, stopped(hf, lambda: Bank("a", charged).charge(7)), lambda: Branch("a", charged).charge(7)) == (
        "receipt 3"
    )


def test_the_class_of_a_decorated_class_method_counts_by_its_name(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bank, "name", classmethod(hf.tool(vars(Bank)["name"].__func__)))
    run_id = stopped(hf, lambda: [Bank.name("a"), Branch.name("a")])

    assert resumed(hf, run_id, lambda: [Branch.name("a"), Bank.name("a")]) == ["Branch a", "Bank a"]
    assert [event.payload["arguments"]["cls"] for event in of(hf, run_id, "tool_started")] == ["<Bank>", "<Branch>"]


def test_a_method_called_in_a_wrong_way_does_not_show_its_object(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bank, "charge", hf.tool(Bank.charge))

    with pytest.raises(TypeError), hf.run() as run:
        Bank("hunter2", []).charge()  # type: ignore[call-arg]

    assert of(hf, run.id, "tool_started")[0].payload["arguments"] == [["<Bank>"], {}]


def test_an_argument_called_self_of_a_function_is_an_argument(hf: Holdfast) -> None:
    greet = hf.tool("greet")(lambda self: f"hello {self}")
    run_id = stopped(hf, lambda: [greet("a"), greet("b")])

    assert resumed(hf, run_id, lambda: [greet("b"), greet("a")]) == ["hello b", "hello a"]


def test_arguments_that_cannot_be_told_leave_the_others_to_tell_calls_apart(hf: Holdfast) -> None:
    made: list[str] = []

    @hf.tool
    def fetch(session: object, name: str, *more: object, **options: object) -> str:
        made.append(name)
        return f"{name} {len(made)}"

    def agent(*names: str) -> list[str]:
        return [fetch(object(), name, object(), name, one=object(), two=name) for name in names]

    def spelt_otherwise(*names: str) -> list[str]:
        return [fetch(object(), name, object(), name, two=name, one=object()) for name in names]

    run_id = stopped(hf, lambda: agent("a", "b", "c"))

    assert resumed(hf, run_id, lambda: spelt_otherwise("c", "a", "b")) == ["c 3", "a 1", "b 2"]
    assert len(made) == 3


class Title(str):
    """A text of a class of its own."""

    __slots__ = ()


class Moment(dt.datetime):
    """A time that knows more than those of the standard library."""

    nanoseconds = 0

    def __str__(self) -> str:
        return f"{super().__str__()} and {self.nanoseconds} ns"


def moment(nanoseconds: int) -> Moment:
    made = Moment(2026, 1, 2)
    made.nanoseconds = nanoseconds
    return made


@dataclasses.dataclass
class Transfer:
    to: str
    wei: object


class Order(pydantic.BaseModel):
    to: str


class Zone(dt.tzinfo):
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


@numbers.Integral.register
class Dozens:
    """A number as other packages have them."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __int__(self) -> int:
        return 12 * self._count


@numbers.Real.register
class Degrees:
    """A number as other packages have them."""

    def __init__(self, value: float) -> None:
        self._value = value

    def __float__(self) -> float:
        return self._value

    def __eq__(self, other: object) -> bool:
        return other == self._value

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (25 * 10**18, 30 * 10**18),
        (-(2**64), -(2**65)),
        ("a \ud800", "b \ud800"),
        (Title("a"), Title("b")),
        (Title("a"), "a"),
        (moment(1), moment(2)),
        ((1, 2), [1, 2]),
        ({1, "a"}, {1, "b"}),
        (Transfer("ann", 2**70), Transfer("bob", 2**70)),
        (Transfer("ann", object()), Transfer("bob", object())),
        ([[[[[{"a": 1, "b": object()}]]]]], [[[[[{"a": 2, "b": object()}]]]]]),
        (int, str),
        (list[int], list[str]),
        (len, sum),
        (functools.partial(len, [1]), functools.partial(len, [2])),
        (ValueError("a"), ValueError("b")),
        (pydantic.SecretStr("a"), pydantic.SecretStr("b")),
        (pydantic.AnyUrl("http://a/"), pydantic.AnyUrl("http://b/")),
        (array("i", [1]), array("i", [2])),
        (Zone("a"), Zone("b")),
        (Dozens(1), Dozens(2)),
        (Degrees(1.5), Degrees(2.5)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_that_are_not_as_usual_tell_calls_apart(hf: Holdfast, one: object, other: object) -> None:
    made: list[object] = []
    send = hf.tool("send")(lambda amount: made.append(amount) or len(made))
    run_id = stopped(hf, lambda: [send(one), send(other)])

    assert resumed(hf, run_id, lambda: [send(other), send(one)]) == [2, 1]


def test_steps_are_known_by_the_types_of_their_arguments_too(hf: Holdfast) -> None:
    def ask(name: object) -> str:
        return repr(name)

    def agent(*names: object) -> list[str]:
        return [hf.current_run.step("ask", ask, name) for name in names]

    run_id = stopped(hf, lambda: agent(1, True, (1,), [1], int, str))

    assert resumed(hf, run_id, lambda: agent(str, int, [1], (1,), True, 1))[2:] == ["[1]", "(1,)", "True", "1"]


def test_arguments_that_contain_themselves_are_no_trouble(hf: Holdfast) -> None:
    circle: list[Any] = []
    circle.append(circle)
    fetch = hf.tool("fetch")(lambda thing: 1)
    run_id = stopped(hf, lambda: fetch(circle))

    assert resumed(hf, run_id, lambda: fetch(circle)) == 1


def test_two_runs_with_the_same_calls_have_different_keys(hf: Holdfast) -> None:
    fetch = hf.tool("fetch")(lambda: 1)
    one, two = stopped(hf, fetch), stopped(hf, fetch)

    assert of(hf, one, "tool_started")[0].payload["key"] != of(hf, two, "tool_started")[0].payload["key"]


def test_keys_do_not_tell_the_arguments_to_who_does_not_have_the_store(memory: Place) -> None:
    keys = set()
    for _ in range(2):
        hf = Holdfast_in_memory()
        fetch = hf.tool("fetch")(lambda pin: 1)
        with hf, hf.run(run_id="same"):
            fetch("1234")
            keys.add(of(hf, "same", "tool_started")[0].payload["key"])

    assert len(keys) == 2


# --- divergence ---


def test_finished_calls_that_nobody_asks_for_are_listed_at_the_end(hf: Holdfast, entering: Entering) -> None:
    fetch = hf.tool("fetch")(lambda number: number)
    run_id = stopped(hf, lambda: [fetch(1), fetch(2), fetch(3)])

    entering(hf.resume(run_id), lambda run: fetch(2))

    assert types(hf, run_id)[-2:] == ["run_diverged", "run_completed"]
    assert of(hf, run_id, "run_diverged")[0].payload == {"calls": ["fetch", "fetch"], "count": 2}


@pytest.mark.parametrize(("choice", "end"), [("record", "run_completed"), ("raise", "run_interrupted")])
def test_sinks_are_told_that_a_run_diverged_before_they_are_told_how_it_ended(
    hf: Holdfast, entering: Entering, choice: str, end: str
) -> None:
    fetch = hf.tool("fetch")(lambda number: number)
    run_id = stopped(hf, lambda: [fetch(1), fetch(2)])
    recorder = Recorder()
    hf.bus.add(recorder)

    with contextlib.suppress(RunDiverged):
        entering(hf.resume(run_id, diverged=choice), lambda run: fetch(2))

    diverged, ended = recorder.events[-2:]
    assert (diverged.type, ended.type) == ("run_diverged", end)
    assert (diverged.run, diverged.tool, diverged.payload) == (run_id, None, {"calls": ["fetch"], "count": 1})


def test_divergence_can_be_an_error_that_leaves_the_run_interrupted(hf: Holdfast, entering: Entering) -> None:
    fetch = hf.tool("fetch")(lambda number: number)
    run_id = stopped(hf, lambda: [fetch(1), fetch(2)])

    with pytest.raises(RunDiverged, match="fetch") as caught:
        entering(hf.resume(run_id, diverged="raise"), lambda run: fetch(2))

    assert caught.value.calls == ("fetch",)
    assert hf.runs.snapshot(run_id).interrupted
    assert types(hf, run_id)[-2:] == ["run_diverged", "run_interrupted"]
    assert resumed(hf, run_id, lambda: [fetch(1), fetch(2)], diverged="raise") == [1, 2]


def test_what_was_spent_and_not_reported_again_is_no_divergence(hf: Holdfast) -> None:
    with pytest.raises(KeyboardInterrupt), hf.run() as run:
        run.spend("usd", 1.0)
        raise KeyboardInterrupt

    resumed(hf, run.id, lambda: None, diverged="raise")


def test_a_fatal_call_that_is_not_made_anew_is_no_divergence(hf: Holdfast) -> None:
    pay = hf.tool(Script(fail(ValueError("no")), name="pay").function)
    with pytest.raises(ValueError, match="no"), hf.run() as run:
        pay()

    resumed(hf, run.id, lambda: None, diverged="raise")


def test_a_run_that_diverged_cannot_be_completed_if_that_is_an_error(hf: Holdfast) -> None:
    fetch = hf.tool("fetch")(lambda number: number)
    run_id = stopped(hf, lambda: fetch(1))

    with pytest.raises(RunDiverged), hf.resume(run_id, diverged="raise") as run:
        run.complete("tea")

    assert hf.runs.snapshot(run_id).interrupted


def test_the_error_of_the_block_is_stronger_than_divergence(hf: Holdfast) -> None:
    fetch = hf.tool("fetch")(lambda number: number)
    run_id = stopped(hf, lambda: fetch(1))

    with pytest.raises(ValueError, match="no"), hf.resume(run_id, diverged="raise"):
        raise ValueError("no")

    assert hf.runs.snapshot(run_id).status == "failed"


def test_a_run_that_is_interrupted_or_cancelled_has_not_diverged(hf: Holdfast) -> None:
    fetch = hf.tool("fetch")(lambda number: number)
    run_id = stopped(hf, lambda: fetch(1))

    with pytest.raises(KeyboardInterrupt), hf.resume(run_id):
        raise KeyboardInterrupt
    with hf.resume(run_id, diverged="raise") as run:
        run.cancel()

    assert "run_diverged" not in types(hf, run_id)
    assert hf.runs.snapshot(run_id).status == "cancelled"


# --- budgets, spending and the loop guard ---


def test_the_budget_of_a_run_is_known_when_it_is_resumed_and_old_calls_count(hf: Holdfast) -> None:
    fetch = hf.tool("fetch")(lambda number: number)
    run_id = stopped(hf, lambda: [fetch(1), fetch(2)], budget={"calls": 3})

    with hf.resume(run_id):
        fetch(1), fetch(2), fetch(3)
        with pytest.raises(BudgetExceeded):
            fetch(4)


def test_the_budget_of_a_tool_counts_old_calls(hf: Holdfast) -> None:
    fetch = hf.tool("fetch", budget={"calls": 2})(lambda number: number)
    run_id = stopped(hf, lambda: fetch(1))

    with hf.resume(run_id):
        fetch(1), fetch(2)
        with pytest.raises(BudgetExceeded):
            fetch(3)


def by_step(hf: Holdfast, work: Callable[[], Any]) -> Callable[[], Any]:
    def made() -> Any:
        assert hf.current_run is not None
        return hf.current_run.step("outer", work)

    return made


def by_tool(hf: Holdfast, work: Callable[[], Any]) -> Callable[[], Any]:
    return hf.tool("outer")(work)


@pytest.mark.parametrize("end", [KeyboardInterrupt, KeyError], ids=["resumed", "forked"])
@pytest.mark.parametrize(("outer", "calls"), [(by_step, 3), (by_tool, 4)], ids=["step", "call"])
def test_budgets_count_calls_made_within_what_is_answered_from_the_log(
    hf: Holdfast, outer: Callable[..., Callable[[], Any]], calls: int, end: type[BaseException]
) -> None:
    pay = hf.tool("pay")(lambda number: number)
    buy = hf.tool("buy", budget={"calls": 3})(lambda number: number)

    def work() -> list[int]:
        assert hf.current_run is not None
        return hf.current_run.step("inner", lambda: [pay(1), buy(2), buy(3)])

    made = outer(hf, work)
    with pytest.raises(end), hf.run(budget={"calls": calls + 2}) as run:
        made()
        raise end

    with pytest.raises(BudgetExceeded, match=f"of {calls + 2} calls"), hf.resume(run.id):
        made()
        buy(4)
        with pytest.raises(BudgetExceeded, match="of 3 calls"):
            buy(5)
        pay(6)
        pay(7)


def test_the_seconds_of_a_budget_start_anew_when_the_run_is_resumed(hf: Holdfast, clock: ManualClock) -> None:
    fetch = hf.tool("fetch")(lambda number: number)
    run_id = stopped(hf, lambda: fetch(1), budget={"seconds": 60.0})
    clock.advance(86_400.0)

    with hf.resume(run_id):
        assert fetch(2) == 2
        clock.advance(60.0)
        with pytest.raises(BudgetExceeded):
            fetch(3)


def test_of_the_seconds_of_a_budget_a_resumed_run_warns_anew(hf: Holdfast, clock: ManualClock) -> None:
    fetch = hf.tool("fetch")(lambda number: number)

    def agent() -> None:
        clock.advance(50.0)
        fetch(clock.monotonic())

    run_id = stopped(hf, agent, budget={"seconds": 60.0})

    with hf.resume(run_id):
        agent()

    assert types(hf, run_id).count("budget_warning") == 2


def test_a_warning_that_was_given_is_not_given_again_when_the_run_is_resumed(hf: Holdfast) -> None:
    fetch = hf.tool("fetch", budget={"calls": 10})(lambda number: number)

    def agent() -> None:
        for number in range(8):
            fetch(number)
        assert hf.current_run is not None
        hf.current_run.spend("usd", 0.9)

    run_id = stopped(hf, agent, budget={"calls": 10, "usd": 1.0})

    with hf.resume(run_id):
        agent()
        fetch(8)

    assert types(hf, run_id).count("budget_warning") == 3


def test_a_warning_is_not_given_again_for_a_call_that_is_made_again(hf: Holdfast) -> None:
    interrupts = [KeyboardInterrupt(), KeyboardInterrupt(), None]

    @hf.tool(idempotent=True, budget={"calls": 1, "usd": 1.0})
    def fetch() -> None:
        if (interrupt := interrupts.pop(0)) is not None:
            raise interrupt

    def agent() -> None:
        assert hf.current_run is not None
        hf.current_run.spend("usd", 0.9)
        fetch()

    run_id = stopped(hf, agent, budget={"calls": 1})

    with pytest.raises(KeyboardInterrupt), hf.resume(run_id):
        agent()
    with hf.resume(run_id):
        agent()

    warned = [(event.payload.get("tool"), event.payload["unit"]) for event in of(hf, run_id, "budget_warning")]
    assert warned == [(None, "calls"), ("fetch", "calls"), ("fetch", "usd")]


Call = tuple[str, int, bool, list[Any]]  # the tool, a number, whether it fails, and the calls that it makes
TOOLS, NUMBERS = st.sampled_from(["a", "b"]), st.integers(0, 1)
CALLS: st.SearchStrategy[Call] = st.recursive(
    st.tuples(TOOLS, NUMBERS, st.booleans(), st.just([])),
    lambda inner: st.tuples(TOOLS, NUMBERS, st.booleans(), st.lists(inner, max_size=3)),
    max_leaves=6,
)


def under_a_budget(calls: list[Call], stops: list[int]) -> tuple[object, ...]:
    """What *calls* come to in a run that is interrupted as often, each time after so many moments, and then is not."""
    left: list[float] = []

    def pass_by() -> None:
        left[-1] -= 1
        if left[-1] < 0:
            raise KeyboardInterrupt

    def body(number: int, fails: bool, inner: list[Call]) -> list[Any]:
        pass_by()
        given = [act(*each) for each in inner]
        pass_by()
        if fails:
            raise ValueError("no")
        return [number, given]

    def act(tool: str, number: int, fails: bool, inner: list[Call]) -> object:
        try:
            return tools[tool](number, fails, inner)
        except (ValueError, BudgetExceeded) as error:
            return str(error)

    with holdfast.open(":memory:", policies={"policy": {"loop": False, "breaker": False, "retry": False}}) as hf:
        tools = {"a": hf.tool("a", idempotent=True, budget={"calls": 3})(body), "b": hf.tool("b", read_only=True)(body)}
        for moments in [*stops, float("inf")]:
            left.append(moments)
            run = hf.resume("run") if left[1:] else hf.run(run_id="run", budget={"calls": 6})
            with contextlib.suppress(KeyboardInterrupt), run:
                given = [act(*each) for each in calls]
                break
        told = [(event.payload.get("tool"), event.payload["unit"]) for event in of(hf, "run", "budget_warning")]
        return given, sorted(told, key=str), hf.runs.snapshot("run").tool_calls


@settings(max_examples=50)
@given(calls=st.lists(CALLS, min_size=1, max_size=6), stops=st.lists(st.integers(0, 12), min_size=1, max_size=3))
def test_budgets_refuse_and_warn_the_same_however_often_a_run_is_interrupted(
    calls: list[Call], stops: list[int]
) -> None:
    assert under_a_budget(calls, stops) == under_a_budget(calls, [])


def test_a_fork_warns_of_its_budget_too(hf: Holdfast) -> None:
    fetch = hf.tool("fetch")(lambda number: number)
    with pytest.raises(ValueError, match="x"), hf.run(budget={"calls": 5}) as run:
        for number in range(4):
            fetch(number)
        raise ValueError("x")

    with hf.resume(run.id) as fork:
        for number in range(5):
            fetch(number)

    assert [types(hf, each).count("budget_warning") for each in (run.id, fork.id)] == [1, 1]


@pytest.mark.parametrize("payload", [{}, {"unit": 1, "limit": "many"}, {"unit": "calls"}])
def test_a_warning_of_the_users_own_does_not_hinder_the_run(hf: Holdfast, payload: dict[str, Any]) -> None:
    fetch = hf.tool("fetch")(lambda: 1)

    def warn() -> None:
        assert hf.current_run is not None
        hf.current_run.emit("budget_warning", **payload)

    run_id = stopped(hf, warn, budget={"calls": 1})

    with hf.resume(run_id):
        fetch()

    assert types(hf, run_id).count("budget_warning") == 2


def test_a_resumed_run_warns_of_what_was_not_reached_before(hf: Holdfast) -> None:
    fetch = hf.tool("fetch")(lambda number: number)
    run_id = stopped(hf, lambda: fetch(1), budget={"calls": 2})

    with hf.resume(run_id):
        fetch(1)
        fetch(2)

    assert types(hf, run_id).count("budget_warning") == 1


def test_what_was_spent_is_known_when_the_run_is_resumed_and_counts_once(place: Place) -> None:
    hf = place.open()
    fetch = hf.tool("fetch")(lambda: 1)

    def agent(run: Any, parts: int) -> None:
        for _ in range(parts):
            run.spend("usd", 0.25)

    with pytest.raises(KeyboardInterrupt), hf.run(budget={"usd": 1.0}) as run:
        agent(run, 2)
        raise KeyboardInterrupt

    with hf.resume(run.id) as again:
        assert again.spent == {"usd": 0.5}
        agent(again, 2)
        assert again.spent == {"usd": 0.5}
        fetch()
        agent(again, 2)
        with pytest.raises(BudgetExceeded):
            fetch()
    assert hf.runs.snapshot(run.id).spend == {"usd": 1.0}


def test_what_a_call_spends_is_spent_again_only_if_it_is_made_again(place: Place) -> None:
    hf = place.open()

    def ask(text: str) -> str:
        assert hf.current_run is not None
        hf.current_run.spend("usd", 0.25)
        hf.current_run.commit("noted")
        if text == "second" and not dead:
            dead.append(1)
            place.die(hf)
        return text

    dead: list[int] = []
    tool = hf.tool("ask", idempotent=True)(ask)
    with pytest.raises(Killed), hf.run() as run:
        tool("first"), tool("second")
    hf = place.open()
    tool = hf.tool("ask", idempotent=True)(ask)

    resumed(hf, run.id, lambda: [tool("first"), tool("second")])

    assert hf.runs.snapshot(run.id).spend == {"usd": 0.75}


def test_the_loop_guard_remembers_failures_from_before(memory: Place) -> None:
    hf = memory.open({"policy": {"breaker": False}})
    script = Script(fail(ValueError), name="fetch")
    fetch = hf.tool()(script.function)

    def agent(times: int) -> None:
        for _ in range(times):
            with pytest.raises(ValueError):  # noqa: PT011
                fetch("x")

    run_id = stopped(hf, lambda: agent(2))

    with hf.resume(run_id):
        agent(3)
        with pytest.raises(LoopDetected):
            fetch("x")
    assert script.count == 3


def test_calls_that_the_loop_guard_passes_over_move_its_window_after_a_resume_too(memory: Place) -> None:
    hf = memory.open({"policy": {"breaker": False}})
    fetch = hf.tool(loop={"repeats": 2, "window": 3})(Script(fail(ValueError), name="fetch").function)
    poll = hf.tool("poll", loop=False)(lambda number: number)

    def agent() -> None:
        for _ in range(2):
            with pytest.raises(ValueError):  # noqa: PT011
                fetch("x")
        poll(1), poll(2)

    run_id = stopped(hf, agent)

    with hf.resume(run_id):
        agent()
        with pytest.raises(ValueError):  # noqa: PT011
            fetch("x")


def test_calls_within_a_call_that_is_answered_from_the_log_move_the_window_of_the_loop_guard(memory: Place) -> None:
    hf = memory.open({"policy": {"breaker": False}})
    fetch = hf.tool(loop={"repeats": 2, "window": 4})(Script(fail(ValueError), name="fetch").function)
    look = hf.tool("look")(lambda number: number)
    look_around = hf.tool("look around")(lambda: [look(number) for number in range(4)])

    def agent() -> None:
        for _ in range(2):
            with pytest.raises(ValueError):  # noqa: PT011
                fetch("x")
        look_around()

    run_id = stopped(hf, agent)

    with hf.resume(run_id):
        agent()
        with pytest.raises(ValueError):  # noqa: PT011
            fetch("x")


# --- ownership ---


def test_a_run_that_is_open_cannot_be_resumed_in_the_same_process(hf: Holdfast, entering: Entering) -> None:
    def body(run: Any) -> None:
        with pytest.raises(RunConflict, match="is being run by process"):
            hf.resume(run.id).__enter__()

    entering(hf.run(), body)


def test_of_two_who_resume_a_run_one_wins(place: Place) -> None:
    hf = place.open()
    run_id = stopped(hf, lambda: None)

    with hf.resume(run_id), pytest.raises(RunConflict):
        hf.resume(run_id).__enter__()

    assert hf.runs.snapshot(run_id).status == "completed"


async def test_of_many_tasks_that_resume_a_run_at_once_one_wins(hf: Holdfast) -> None:
    run_id = stopped(hf, lambda: None)
    beaten, all_beaten = [0], asyncio.Event()

    async def resume() -> str:
        try:
            async with hf.resume(run_id):
                await all_beaten.wait()
        except RunConflict:
            beaten[0] += 1
            if beaten[0] == 4:
                all_beaten.set()
            return "conflict"
        return "won"

    answers = await asyncio.gather(*(resume() for _ in range(5)))

    assert sorted(answers) == ["conflict"] * 4 + ["won"]


def test_another_process_cannot_resume_a_run_that_is_open_here(disk: Place) -> None:
    hf = disk.open(clock=ManualClock(epoch=4e9))  # whose lease ends long after that of the other's clock
    source = """
        import holdfast, sys
        hf = holdfast.open(sys.argv[1], policies={})
        try:
            hf.resume("order").__enter__()
        except holdfast.RunConflict as error:
            print(error)
    """
    with hf.run(run_id="order"):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(source), str(disk.path)],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )

    assert "is being run by process" in done.stdout, done.stderr


def test_a_completed_run_cannot_be_resumed_and_nothing_is_called(hf: Holdfast, entering: Entering) -> None:
    with hf.run() as run:
        pass

    with pytest.raises(RunConflict, match="has completed"):
        entering(hf.resume(run.id), lambda run: pytest.fail("was entered"))


# --- forks ---


def failed(hf: Holdfast, body: Callable[[], Any]) -> str:
    with pytest.raises(ValueError), hf.run("shop", "tea") as run:  # noqa: PT011
        body()
        raise ValueError("no")
    return run.id


def test_a_failed_run_is_resumed_as_a_new_run_that_knows_what_it_knew(place: Place, entering: Entering) -> None:
    hf = place.open()
    script = Script(ok("tea"), ok("rum"), name="fetch")
    fetch = hf.tool()(script.function)
    old = failed(hf, fetch)
    fork = hf.resume(old)

    answer = entering(fork, lambda run: fetch())

    assert (answer, script.count) == ("tea", 1)
    assert fork.id != old
    assert fork.forked_from == old
    snapshot = hf.runs.snapshot(fork.id)
    assert (snapshot.status, snapshot.forked_from, snapshot.session_id) == ("completed", old, "shop")
    assert hf.runs.snapshot(old).status == "failed"


def test_a_fork_is_as_old_as_its_making(hf: Holdfast, clock: ManualClock) -> None:
    with pytest.raises(KeyError), hf.run() as run:
        raise KeyError
    clock.advance(60.0)

    with hf.resume(run.id) as fork:
        pass

    ages = [hf.runs.snapshot(each.id).created_at_ms for each in (run, fork)]
    assert ages == [0, 60_000]
    assert [each.id for each in hf.runs.list_runs()] == [fork.id, run.id]


def test_the_first_event_of_a_fork_and_of_a_run_that_nobody_had_begun_says_what_it_was_asked_to_do(
    place: Place,
) -> None:
    hf = place.open(payloads=Payloads(lambda value: {"prompt": "tea"} if value == {"prompt": "s3cret"} else value))
    old = hf.runs.create_run("shop", "s3cret").id
    with pytest.raises(ValueError, match="no"), hf.resume(old):
        raise ValueError("no")

    with hf.resume(old) as fork:
        pass

    begun = [hf.runs.events(run_id)[0] for run_id in (old, fork.id)]
    assert [(event.type, event.payload["prompt"]) for event in begun] == [("run_started", "tea")] * 2


def test_a_cancelled_run_is_resumed_as_a_new_run(hf: Holdfast) -> None:
    script = Script(ok("tea"), name="fetch")
    fetch = hf.tool()(script.function)
    run_id = stopped(hf, fetch)
    hf.runs.handle(run_id).cancel()

    with hf.resume(run_id) as fork:
        assert fetch() == "tea"

    assert script.count == 1
    assert fork.forked_from == run_id


def test_a_fork_knows_the_result_of_a_call_that_ended_after_the_run(hf: Holdfast) -> None:
    begun, over = threading.Event(), threading.Event()
    made: list[int] = []

    @hf.tool
    def pay(number: int) -> str:
        made.append(number)
        begun.set()
        over.wait(30)
        return "receipt"

    with pytest.raises(KeyError), hf.run() as run:
        context = contextvars.copy_context()
        thread = threading.Thread(target=lambda: context.run(pay, 1))
        thread.start()
        begun.wait(30)
        raise KeyError
    over.set()
    thread.join()

    with hf.resume(run.id):
        assert pay(1) == "receipt"

    assert made == [1]


def test_the_call_whose_failure_ended_the_run_is_made_anew_with_the_same_key(place: Place) -> None:
    hf = place.open()
    keys: list[Any] = []

    @hf.tool
    def pay(amount: int) -> str:
        assert hf.current_run is not None
        keys.append(hf.current_run.idempotency_key)
        if len(keys) == 2:
            raise ValueError("declined")
        return f"receipt {amount}"

    with pytest.raises(ValueError, match="declined"), hf.run() as run:
        pay(1), pay(2)

    answers = resumed(hf, run.id, lambda: [pay(1), pay(2)])

    assert answers == ["receipt 1", "receipt 2"]
    assert keys[1] == keys[2]
    assert len(keys) == 3


def test_a_failure_that_was_handled_stays_when_the_run_fails_later(hf: Holdfast) -> None:
    broken, script = Script(fail(KeyError("x")), name="broken"), Script(fail(ValueError("no")), ok(1), name="pay")
    first, second = hf.tool()(broken.function), hf.tool()(script.function)

    def agent() -> Any:
        try:
            first()
        except KeyError:
            return second()

    with pytest.raises(ValueError, match="no"), hf.run() as run:
        agent()

    assert resumed(hf, run.id, agent) == 1
    assert (broken.count, script.count) == (1, 2)


def test_the_call_that_an_error_was_made_of_is_made_anew(hf: Holdfast) -> None:
    script = Script(fail(KeyError("x")), ok(1), name="pay")
    pay = hf.tool()(script.function)

    def agent() -> Any:
        try:
            return pay()
        except KeyError as error:
            raise ValueError("no") from error

    with pytest.raises(ValueError, match="no"), hf.run() as run:
        agent()

    assert resumed(hf, run.id, agent) == 1


async def test_all_calls_whose_failures_ended_a_group_of_tasks_are_made_anew(hf: Holdfast) -> None:
    made: list[str] = []

    @hf.tool
    async def pay(name: str) -> str:
        made.append(name)
        await asyncio.sleep(0)
        if made.count(name) == 1 and name != "c":
            raise ValueError(name)
        return name

    async def agent() -> None:
        async with asyncio.TaskGroup() as tasks:
            for name in "abc":
                tasks.create_task(pay(name))

    with pytest.raises(ExceptionGroup):
        async with hf.run() as run:
            await pay("c")
            await agent()
    async with hf.resume(run.id, in_doubt="repeat"):
        await pay("c")
        await agent()

    assert made.count("a") == made.count("b") == 2


def test_what_made_the_fatal_call_fail_is_made_anew_within_it(hf: Holdfast) -> None:
    good, script = Script(ok(1), name="good"), Script(fail(ValueError("no")), ok(1), name="inner")
    helper, inner = hf.tool()(good.function), hf.tool()(script.function)
    outer = hf.tool("outer")(lambda: helper() + inner())

    with pytest.raises(ValueError, match="no"), hf.run() as run:
        outer()

    assert resumed(hf, run.id, outer) == 2
    assert (good.count, script.count) == (1, 2)


def order_of(hf: Holdfast, calls: list[str], **policy: Any) -> Callable[[], str]:
    """A tool that pays with its second card if the first fails; everything works from the second time on."""
    is_down = True

    @hf.tool("charge", **policy)
    def charge(card: str) -> str:
        calls.append(card)
        if card == "visa" and len(calls) == 1:
            raise TimeoutError("the bank gave no answer")
        return card

    @hf.tool("ship", idempotent=True)
    def ship() -> None:
        nonlocal is_down
        if is_down:
            is_down = False
            raise ValueError("no truck")

    @hf.tool("order")
    def order() -> str:
        try:
            card = charge("visa")
        except TimeoutError:
            card = charge("amex")
        ship()
        return card

    return order


def test_a_failure_that_was_handled_within_the_fatal_call_is_told_again(hf: Holdfast) -> None:
    calls: list[str] = []
    order = order_of(hf, calls)
    with pytest.raises(ValueError, match="truck"), hf.run(run_id="r"):
        order()

    paid = resumed(hf, "r", order, in_doubt="repeat")

    assert paid == "amex"
    assert calls == ["visa", "amex"]


def test_a_harmless_call_that_failed_within_the_fatal_call_is_made_anew(hf: Holdfast) -> None:
    calls: list[str] = []
    order = order_of(hf, calls, idempotent=True, retry=False)
    with pytest.raises(ValueError, match="truck"), hf.run(run_id="r"):
        order()

    paid = resumed(hf, "r", order)

    assert paid == "visa"
    assert calls == ["visa", "amex", "visa"]


def test_a_step_that_failed_within_the_fatal_call_is_made_anew(hf: Holdfast) -> None:
    script = Script(fail(TimeoutError("no answer")), ok("amex"), name="choose")
    troubles = [ValueError("no truck")]

    @hf.tool("order")
    def order() -> object:
        assert hf.current_run is not None
        try:
            card = hf.current_run.step("choose", script.function)
        except TimeoutError:
            card = "visa"
        if troubles:
            raise troubles.pop()
        return card

    with pytest.raises(ValueError, match="truck"), hf.run() as run:
        order()

    assert resumed(hf, run.id, order) == "amex"


def test_what_an_error_of_the_fatal_call_was_raised_for_is_made_anew(hf: Holdfast) -> None:
    script = Script(fail(Rude("no")), ok("paid"), name="charge")
    charge = hf.tool("charge")(script.function)

    @hf.tool("order")
    def order() -> Any:
        try:
            return charge()
        except Exception as error:
            raise RuntimeError("the order failed") from error

    with pytest.raises(RuntimeError), hf.run(run_id="r"):
        order()

    assert resumed(hf, "r", order) == "paid"


def test_the_call_whose_failure_ended_the_run_through_a_guarded_block_is_made_anew(hf: Holdfast) -> None:
    fetch = hf.tool("fetch")(Script(fail(ValueError("down")), ok("up"), name="fetch").function)

    def body() -> Any:
        with hf.guard("block"):
            return fetch()

    with pytest.raises(ValueError, match="down"), hf.run(run_id="r"):
        body()

    assert resumed(hf, "r", body) == "up"


@pytest.mark.parametrize("is_inner", [False, True])
async def test_calls_that_failed_by_following_an_identical_one_are_made_anew(hf: Holdfast, is_inner: bool) -> None:
    is_down = True

    @hf.tool("look", read_only=True, cache=60.0)
    async def look() -> str:
        await asyncio.sleep(0)
        if is_down:
            raise ValueError("down")
        return "up"

    async def both() -> list[str]:
        return list(await asyncio.gather(look(), look()))

    body = hf.tool("both")(both) if is_inner else both
    with pytest.raises(ValueError, match="down"):
        async with hf.run(run_id="r"):
            await body()
    is_down = False

    async with hf.resume("r"):
        answers = await body()

    assert answers == ["up", "up"]


def test_a_failure_that_was_told_from_the_log_and_then_ended_the_run_is_made_anew(hf: Holdfast) -> None:
    script = Script(fail(ValueError("no")), ok(1), name="pay")
    pay = hf.tool()(script.function)

    def handled() -> None:
        with pytest.raises(ValueError, match="no"):
            pay()

    run_id = stopped(hf, handled)
    with pytest.raises(ValueError, match="no"), hf.resume(run_id):
        pay()

    assert resumed(hf, run_id, pay) == 1


def test_the_failure_of_a_step_that_was_told_from_the_log_and_then_ended_the_run_is_made_anew(hf: Holdfast) -> None:
    script = Script(fail(ValueError("no")), ok(1), name="ask")

    def ask() -> Any:
        assert hf.current_run is not None
        return hf.current_run.step("ask", script.function)

    def handled() -> None:
        with pytest.raises(ValueError, match="no"):
            ask()

    run_id = stopped(hf, handled)
    with pytest.raises(ValueError, match="no"), hf.resume(run_id):
        ask()

    assert resumed(hf, run_id, ask) == 1


def test_run_fail_with_an_error_makes_its_call_anew_too(hf: Holdfast) -> None:
    script = Script(fail(ValueError("no")), ok(1), name="pay")
    pay = hf.tool()(script.function)

    with hf.run() as run:
        try:
            pay()
        except ValueError as error:
            run.fail(error)

    assert resumed(hf, run.id, pay) == 1


def test_the_failure_of_a_step_that_ended_the_run_is_asked_anew(hf: Holdfast) -> None:
    script = Script(fail(ValueError("no")), ok(1), name="ask")

    with pytest.raises(ValueError, match="no"), hf.run() as run:
        run.step("ask", script.function)
    with hf.resume(run.id) as fork:
        assert fork.step("ask", script.function) == 1


def test_whoever_resumes_a_failed_run_again_goes_on_with_its_fork(place: Place) -> None:
    hf = place.open()
    made: list[int] = []
    pay = hf.tool("pay")(lambda number: made.append(number) or number)
    old = failed(hf, lambda: pay(1))
    with pytest.raises(KeyboardInterrupt), hf.resume(old) as fork:
        pay(1), pay(2)
        raise KeyboardInterrupt

    with hf.resume(old) as again:
        pay(1), pay(2), pay(3)

    assert again.id == fork.id
    assert made == [1, 2, 3]
    with pytest.raises(RunConflict, match=f"completed, as '{fork.id}'"):
        hf.resume(old).__enter__()


def test_a_fork_that_is_open_cannot_be_resumed_through_the_old_run(hf: Holdfast) -> None:
    old = failed(hf, lambda: None)

    with hf.resume(old), pytest.raises(RunConflict, match="is being run"):
        hf.resume(old).__enter__()


def test_a_fork_of_a_fork_knows_what_both_knew_under_the_same_keys(place: Place) -> None:
    hf = place.open()
    keys: dict[int, list[Any]] = {}

    @hf.tool
    def pay(number: int) -> int:
        assert hf.current_run is not None
        keys.setdefault(number, []).append(hf.current_run.idempotency_key)
        if number == len(keys) and len(keys[number]) == 1 and number > 1:
            raise ValueError(number)
        return number

    last = ""
    for upto in (2, 3):
        with pytest.raises(ValueError, match=str(upto)), hf.resume(last) if last else hf.run() as run:
            for number in range(1, upto + 1):
                pay(number)
        last = last or run.id

    with hf.resume(last) as fork:
        assert [pay(number) for number in (1, 2, 3)] == [1, 2, 3]

    assert {number: len(made) for number, made in keys.items()} == {1: 1, 2: 2, 3: 2}
    assert all(len(set(made)) == 1 for made in keys.values())
    middle = hf.runs.snapshot(fork.id).forked_from
    assert middle is not None
    assert hf.runs.snapshot(middle).forked_from == last


def test_a_fork_counts_each_call_that_it_makes_once(place: Place) -> None:
    hf = place.open()
    fetch = hf.tool("fetch", idempotent=True, remember=False)(lambda: 1)
    with pytest.raises(ValueError, match="x"), hf.run() as run:
        fetch()
        raise ValueError("x")

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt), hf.resume(run.id) as fork:
            fetch()
            raise KeyboardInterrupt

    assert hf.runs.snapshot(fork.id).tool_calls == 1
    assert [event.payload.get("repeat") for event in of(hf, fork.id, "tool_started")] == [None, True]


def test_what_was_spent_after_the_run_had_ended_counts_when_its_fork_spends_it(hf: Holdfast) -> None:
    with hf.run() as run:
        run.fail("enough")
        run.spend("usd", 0.75)

    with hf.resume(run.id) as fork:
        fork.spend("usd", 0.75)

    assert hf.runs.snapshot(fork.id).spend == {"usd": 0.75}


def test_the_fork_of_a_run_has_the_same_id_in_every_version(hf: Holdfast) -> None:
    with pytest.raises(ValueError, match="no"), hf.run(run_id="run"):
        raise ValueError("no")

    with hf.resume("run") as fork:
        pass

    # With another id, a run that another version has forked would be forked again, and its calls made twice.
    assert fork.id == "f2bcdced12c7612e928710f076ea3f9b"


def test_a_fork_goes_on_with_what_was_spent(hf: Holdfast) -> None:
    with pytest.raises(ValueError, match="no"), hf.run(budget={"usd": 1.0}) as run:
        run.spend("usd", 0.75)
        raise ValueError("no")

    with hf.resume(run.id) as fork:
        fork.spend("usd", 0.75)
        assert fork.spent == {"usd": 0.75}
        assert fork.snapshot().spend == {"usd": 0.75}
        fork.spend("usd", 0.25)
        with pytest.raises(BudgetExceeded):
            hf.call(lambda: None)


def test_a_refusal_that_ended_the_run_is_asked_anew(memory: Place) -> None:
    hf = memory.open()
    script = Script(ok(1), name="pay")
    pay = hf.tool()(script.function)
    hf.breaker.force_open("pay")
    with pytest.raises(CircuitOpen), hf.run() as run:
        pay()
    hf.breaker.auto("pay")
    hf.breaker.reset("pay")

    assert resumed(hf, run.id, pay) == 1


def test_a_fork_that_was_pruned_is_not_there(hf: Holdfast) -> None:
    with pytest.raises(RunNotFound):
        hf.resume("gone").__enter__()


# --- an import ---


def moved(hf: Holdfast, clock: ManualClock) -> Holdfast:
    """Another Holdfast, on a store that has the runs of the first by import."""
    text = io.StringIO()
    hf.runs.export(text)
    store = MemoryRunStore(clock=clock)
    store.import_(io.StringIO(text.getvalue()))
    return Holdfast(PolicyBook.load({}), clock, store)


def test_finished_calls_of_an_imported_run_are_in_doubt(memory: Place, clock: ManualClock) -> None:
    hf = memory.open()
    pay = hf.tool("pay")(lambda number: number)
    run_id = stopped(hf, lambda: pay(1))
    other = moved(hf, clock)
    pay = other.tool("pay")(lambda number: pytest.fail("was called"))

    with other, pytest.raises(InDoubt), other.resume(run_id):
        pay(1)


def test_calls_of_an_imported_run_are_known_by_what_its_events_show_of_their_arguments(
    memory: Place, clock: ManualClock
) -> None:
    hf = memory.open()
    values = [
        (1, 2),
        [3],
        Path("a"),
        Path("b"),
        Transfer("ann", 1),
        Transfer("bob", 1),
        Order(to="ann"),
        Order(to="bob"),
    ]
    pay = hf.tool("pay")(lambda value: 1)
    run_id = stopped(hf, lambda: [pay(value) for value in values])
    keys = [event.payload["key"] for event in of(hf, run_id, "tool_started")]
    other = moved(hf, clock)
    pay = other.tool("pay")(lambda value: pytest.fail("was called"))

    with other, pytest.raises(KeyboardInterrupt), other.resume(run_id):
        for value, key in [*zip(values, keys, strict=True)][::-1]:
            with pytest.raises(InDoubt) as doubt:
                pay(value)
            assert doubt.value.key == key
        raise KeyboardInterrupt


def test_calls_of_an_imported_run_are_known_whether_they_say_a_default_or_not(
    memory: Place, clock: ManualClock
) -> None:
    hf = memory.open()
    pay = hf.tool("pay")(lambda to, amount=1: 1)
    run_id = stopped(hf, lambda: [pay("ann"), pay("bob", 1), pay("cid", 2)])
    keys = [event.payload["key"] for event in of(hf, run_id, "tool_started")]
    other = moved(hf, clock)
    pay = other.tool("pay")(lambda to, amount=1: pytest.fail("was called"))

    found = []
    with other, pytest.raises(KeyboardInterrupt), other.resume(run_id):
        for arguments in (("cid", 2), ("bob",), ("ann", 1)):
            with pytest.raises(InDoubt) as doubt:
                pay(*arguments)
            found.append(doubt.value.key)
        raise KeyboardInterrupt

    assert found == keys[::-1]


async def test_a_call_that_was_cut_off_before_its_tool_was_called_counts_once(disk: Place) -> None:
    hf = disk.open()
    made: list[int] = []

    @hf.tool
    async def pay(number: int) -> None:
        made.append(number)

    async def cut() -> None:
        async with hf.run(run_id="r"):
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().call_soon(task.cancel)  # while the begin of the call is on its way to disk
            await pay(1)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(cut())
    assert made == []
    async with hf.resume("r"):
        await pay(1)

    assert made == [1]
    assert hf.runs.snapshot("r").tool_calls == 1


async def test_async_generators_within_a_resumed_run_can_be_iterated_in_tasks(hf: Holdfast) -> None:
    made: list[int] = []

    @hf.tool
    async def numbers(start: int) -> AsyncIterator[int]:
        made.append(start)
        for number in range(start, start + 3):
            await asyncio.sleep(0)
            yield number

    async def collect(start: int) -> list[int]:
        return [number async for number in numbers(start)]

    async def agent() -> list[list[int]]:
        return await asyncio.gather(collect(0), collect(10), collect(0))

    with pytest.raises(KeyError):
        async with hf.run() as run:
            first = await agent()
            raise KeyError
    async with hf.resume(run.id):
        second = await agent()

    assert first == second
    assert made == [0, 10, 0]


def test_a_key_that_somebody_made_up_does_not_hinder_a_fork(hf: Holdfast) -> None:
    with pytest.raises(ValueError, match="enough"), hf.run() as run:
        run.emit("tool_started", call_id="mine", tool="search", key="not a key of ours")
        raise ValueError("enough")

    with hf.resume(run.id) as again:
        assert again.forked_from == run.id


def test_a_run_that_was_imported_without_its_first_events_cannot_be_resumed(hf: Holdfast, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="enough"), hf.run() as run:
        run.step("ask", len, "a")
        raise ValueError("enough")
    hf.runs.prune(max_events=1)
    file = io.StringIO()
    hf.runs.export(file)

    with holdfast.open(tmp_path / "other.db", policies={}) as other:
        other.runs.import_(io.StringIO(file.getvalue()))
        with pytest.raises(RunConflict, match="was imported, and lacks its first 3 events"), other.resume(run.id):
            pass


# --- interrupted on the way into a tool and out of it ---


@pytest.mark.parametrize("kind", ["tool", "step"])
@pytest.mark.parametrize("where", ["entering", "leaving"])
def test_what_is_called_after_a_call_that_was_struck_is_not_taken_for_its_own(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, kind: str, where: str
) -> None:
    paid: list[int] = []
    pay = hf.tool("pay")(paid.append)
    look = hf.tool("look", idempotent=True)(lambda: "seen")

    variable = current.current_key

    class Striking:
        """A context variable, of which an interrupt comes just after it was set or before it is put back."""

        get = staticmethod(variable.get)

        @staticmethod
        def set(key: str) -> Any:
            if where == "leaving" and variable.get():  # a plain function's step puts it back so, without a token
                raise Struck
            token = variable.set(key)
            if where == "entering":
                raise Struck
            return token

        @staticmethod
        def reset(token: Any) -> None:
            raise Struck

    def ask(run: Run) -> object:
        return look() if kind == "tool" else run.step("look", lambda: "seen")

    with pytest.raises(KeyboardInterrupt), hf.run() as run:
        with monkeypatch.context() as patch, pytest.raises(Struck):
            patch.setattr(remembered, "current_key", Striking)
            patch.setattr(current, "current_key", Striking)
            ask(run)
        pay(7)
        raise KeyboardInterrupt
    with hf.resume(run.id) as again:
        ask(again)
        pay(7)

    assert paid == [7]


@pytest.mark.parametrize("odd", [{"key": 5}, {"key": "no digits", "result": 1}, {"key": "", "result": 1}, {"tool": []}])
def test_a_users_own_event_that_looks_like_the_end_of_a_step_hides_no_finished_step(
    tmp_path: Path, odd: dict[str, object]
) -> None:
    made: list[int] = []

    def go_on(run: Run) -> None:
        for part in range(3):
            run.step("work", made.append, part)

    with holdfast.open(tmp_path / "runs.db", policies={}) as hf:
        with pytest.raises(KeyboardInterrupt), hf.run(run_id="odd") as run:
            go_on(run)
            run.commit("step_ended", **odd)
            raise KeyboardInterrupt

        with hf.resume("odd") as run:
            go_on(run)

        assert made == [0, 1, 2]
        assert "run_diverged" not in [event.type for event in run.events()]
