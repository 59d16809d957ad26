"""The cache of read-only tools: an answer is good for a while, and identical calls in flight are made once."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import enum
import functools
import io
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from tests import shapes
from tests.shapes import Gate, Shape, Thread, eventually, settled

import holdfast
from holdfast import (
    BudgetExceeded,
    CircuitOpen,
    ConcurrencyFull,
    ConfigError,
    Event,
    Holdfast,
    LoopDetected,
    ToolTimeout,
)
from holdfast.calls.answering import GLANCE, _waits_for_us, leading
from holdfast.testing import ManualClock, Recorder, Script, Step, fail, hang, ok, slow
from holdfast.tools.cache import Lead, SharedCall

hf = shapes.hf

CACHED: dict[str, Any] = {"read_only": True, "cache": 60.0, "retry": False}


@pytest.fixture(params=["function", "coroutine"])
def shape(request: pytest.FixtureRequest) -> Shape:
    """The shapes that have one answer."""
    return Shape(request.param)


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.let_out(1000)


def numbered() -> Script:
    """A tool whose answers can be told apart."""
    return Script(*map(ok, range(100)), name="tool")


# --- answers that are kept ---


def test_the_same_call_is_answered_from_the_cache(shape: Shape, hf: Holdfast) -> None:
    script = numbered()
    call = shape(hf, script, **CACHED)

    assert [call("a"), call("a"), call("a")] == [0, 0, 0]
    assert script.count == 1


def test_other_arguments_are_another_call(shape: Shape, hf: Holdfast) -> None:
    call = shape(hf, numbered(), **CACHED)

    assert [call("a"), call("b"), call("a", 1), call(1), call(1.5), call(None), call()] == list(range(7))


def test_an_answer_ages_while_the_machine_sleeps(shape: Shape, hf: Holdfast, clock: ManualClock) -> None:
    """The monotonic clock stands still meanwhile."""
    call = shape(hf, numbered(), **CACHED)
    call("a")
    clock.shift_time(59.9)
    assert call("a") == 0

    clock.shift_time(0.1)

    assert call("a") == 1


def test_an_answer_is_kept_no_longer_where_the_wall_clock_goes_back(
    shape: Shape, hf: Holdfast, clock: ManualClock
) -> None:
    call = shape(hf, numbered(), **CACHED)
    call("a")
    clock.shift_time(-3600)

    clock.advance(60)

    assert call("a") == 1


def test_a_none_is_an_answer_too(shape: Shape, hf: Holdfast) -> None:
    script = Script(ok(None))
    call = shape(hf, script, **CACHED)

    assert call() is call() is None
    assert script.count == 1


def test_an_answer_is_good_for_its_time(shape: Shape, hf: Holdfast, clock: ManualClock) -> None:
    call = shape(hf, numbered(), **CACHED)
    call()

    clock.advance(59.9)
    assert call() == 0

    clock.advance(0.1)
    assert call() == 1


def test_the_time_of_an_answer_begins_when_it_came(shape: Shape, hf: Holdfast, clock: ManualClock) -> None:
    call = shape(hf, Script(slow(30.0, "slow"), ok("again"), clock=clock), **CACHED)
    call()

    clock.advance(59.0)

    assert call() == "slow"


def test_an_answer_is_not_kept_longer_because_it_was_used(shape: Shape, hf: Holdfast, clock: ManualClock) -> None:
    call = shape(hf, numbered(), **CACHED)

    answers = []
    for _ in range(4):
        answers.append(call())
        clock.advance(25.0)

    assert answers == [0, 0, 0, 1]


def test_the_least_recently_used_answers_go_first(shape: Shape, hf: Holdfast) -> None:
    call = shape(hf, numbered(), read_only=True, cache={"ttl": 60.0, "max_entries": 2})
    call("a"), call("b"), call("a")

    call("c")

    assert (call("a"), call("c")) == (0, 2)
    assert call("b") == 3


@pytest.mark.parametrize(
    "spell",
    [
        lambda call: call(1, 2),
        lambda call: call(1, b=2),
        lambda call: call(a=1, b=2),
        lambda call: call(b=2, a=1),
        lambda call: call(1, 2, c="c"),
        lambda call: call(c="c", b=2, a=1),
    ],
)
def test_it_does_not_matter_how_the_arguments_were_spelt(shape: Shape, hf: Holdfast, spell: Any) -> None:
    made = []

    def tool(a: int, b: int, c: str = "c") -> int:
        made.append((a, b, c))
        return len(made)

    call = shape(hf, tool, **CACHED)
    call(1, 2)

    assert spell(call) == 1
    assert made == [(1, 2, "c")]


def test_the_order_of_keys_inside_an_argument_does_not_matter(shape: Shape, hf: Holdfast) -> None:
    call = shape(hf, numbered(), **CACHED)

    assert call({"x": 1, "y": {2, 3}}) == call({"y": {3, 2}, "x": 1}) == 0
    assert call({1: "x", 2: {2, 3}}) == call({2: {3, 2}, 1: "x"}) == 1


@pytest.mark.parametrize(
    "argument", [io.StringIO(), object(), lambda: None, threading.Lock()], ids=lambda a: type(a).__name__
)
def test_arguments_that_cannot_be_compared_pass_the_cache_by(shape: Shape, hf: Holdfast, argument: object) -> None:
    call = shape(hf, numbered(), **CACHED)

    assert [call(argument), call(argument)] == [0, 1]


class Mailbox:
    def __init__(self, owner: str) -> None:
        self.owner = owner

    def __eq__(self, other: object) -> bool:
        raise AssertionError("nobody asks an object whether it is another")

    __hash__ = None  # type: ignore[assignment]

    def read(self, folder: str) -> str:
        return f"{self.owner}'s {folder}"

    def __call__(self, folder: str) -> str:
        return self.read(folder)


def read(owner: str, folder: str) -> str:
    return f"{owner}'s {folder}"


OWNED: dict[str, Callable[[str], Callable[[str], str]]] = {
    "methods": lambda owner: Mailbox(owner).read,
    "objects": Mailbox,
    "partials": lambda owner: functools.partial(read, owner),
    "partials of methods": lambda owner: functools.partial(Mailbox(owner).read),
}


@pytest.mark.parametrize("make", OWNED.values(), ids=OWNED)
def test_nobody_gets_the_answer_of_another_object(hf: Holdfast, make: Callable[[str], Callable[[str], str]]) -> None:
    alices, bobs = make("alice"), make("bob")

    answers = [hf.call(tool, "inbox", policy=CACHED) for tool in (alices, bobs, alices)]

    assert answers == ["alice's inbox", "bob's inbox", "alice's inbox"]
    assert answers[2] is answers[0]


def test_a_decorated_method_has_answers_for_each_object(hf: Holdfast) -> None:
    class Guarded(Mailbox):
        fetch = hf.tool("fetch", **CACHED)(Mailbox.read)

    alice, bob = Guarded("alice"), Guarded("bob")

    answers = [hf.call(box.fetch, "inbox") for box in (alice, bob, alice)]

    assert answers == ["alice's inbox", "bob's inbox", "alice's inbox"]
    assert answers[2] is answers[0]


def test_a_decorated_method_that_is_called_itself_has_answers_for_each_object(shape: Shape, hf: Holdfast) -> None:
    class Guarded(Mailbox):
        fetch = hf.tool("fetch", **CACHED)(shape.of(Mailbox.read))

    alice, bob = Guarded("alice"), Guarded("bob")

    answers = [shape.run(box.fetch)("inbox") for box in (alice, bob, alice)]

    assert answers == ["alice's inbox", "bob's inbox", "alice's inbox"]
    assert answers[2] is answers[0]


def test_a_decorated_class_method_has_answers_for_each_class(hf: Holdfast) -> None:
    class One:
        @classmethod
        @hf.tool("fetch", **CACHED)
        def fetch(cls, folder: str) -> str:
            return f"{cls.__name__}'s {folder}"

    class Other(One): ...

    answers = [each.fetch("inbox") for each in (One, Other, One)]

    assert answers == ["One's inbox", "Other's inbox", "One's inbox"]
    assert answers[2] is answers[0]


def test_an_object_with_a_value_counts_by_it(hf: Holdfast) -> None:
    @dataclasses.dataclass
    class Account:
        owner: str

        @hf.tool("fetch", **CACHED)
        def fetch(self, folder: str) -> str:
            return f"{self.owner}'s {folder}"

    alice = Account("alice")

    first = alice.fetch("inbox")
    assert Account("alice").fetch("inbox") is first
    alice.owner = "bob"
    assert alice.fetch("inbox") == "bob's inbox"


def test_what_else_cannot_be_compared_keeps_a_method_out_of_the_cache(shape: Shape, hf: Holdfast) -> None:
    class Guarded(Mailbox):
        fetch = hf.tool("fetch", **CACHED)(shape.of(Mailbox.read))

    call = shape.run(Guarded("alice").fetch)

    assert call(folder := io.StringIO()) is not call(folder)


def test_a_partial_made_anew_is_the_same_call(hf: Holdfast) -> None:
    script = numbered()

    answers = [hf.call(functools.partial(script.function, "x"), 1, policy=CACHED) for _ in range(2)]

    assert answers == [0, 0]


def test_functions_of_one_name_have_answers_of_their_own(shape: Shape, hf: Holdfast) -> None:
    one, other = (shape(hf, Script(ok(answer)), **CACHED) for answer in ("one", "other"))

    assert (one(1), other(1), one(1)) == ("one", "other", "one")


@dataclasses.dataclass
class ById:
    value: str


@dataclasses.dataclass
class ByName:
    value: str


class Red(enum.Enum):
    FIRST = 1


class Blue(enum.Enum):
    FIRST = 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ById("7"), ByName("7")),
        (ById("7"), {"value": "7"}),
        ([ById("7")], [ByName("7")]),
        ({"key": ById("7")}, {"key": ByName("7")}),
        (Red.FIRST, Blue.FIRST),
        (Red.FIRST, 1),
        (dt.date(2024, 1, 1), "2024-01-01"),
        ([[ById("7")]], [[ByName("7")]]),
        (ById(ById("7")), ById(ByName("7"))),
        ({"key": {"deep": (1, 2)}}, {"key": {"deep": [1, 2]}}),
    ],
)
def test_arguments_of_different_types_are_different_calls(
    shape: Shape, hf: Holdfast, one: object, other: object
) -> None:
    def find(key: object) -> list[object]:
        return [key]

    call = shape(hf, find, **CACHED)

    assert (call(one), call(other), call(one)) == ([one], [other], [one])


def test_a_tool_that_changes_its_argument_is_kept_by_what_it_was_given(shape: Shape, hf: Holdfast) -> None:
    def count(basket: list[object]) -> int:
        basket.append(None)
        return len(basket)

    call = shape(hf, count, **CACHED)
    call(["tea"])

    assert call(["tea"]) == 2
    assert hf.tracker.stats("count").cached_hits == 1
    assert not hf._box.tool("count").cache._shared  # type: ignore[union-attr]


def test_a_failure_is_not_kept(shape: Shape, hf: Holdfast) -> None:
    call = shape(hf, Script(fail(LookupError), ok("fine")), **CACHED)

    with pytest.raises(LookupError):
        call()

    assert call() == "fine"


def test_only_a_read_only_tool_may_have_a_cache(shape: Shape, hf: Holdfast) -> None:
    with pytest.raises(ConfigError, match=r"cache = .* needs read_only"):
        shape(hf, numbered(), cache=60.0)


def test_what_a_file_says_of_all_tools_holds_for_the_read_only_ones(shape: Shape, clock: ManualClock) -> None:
    hf = holdfast.open(":memory:", policies={"policy": {"cache": 60.0}}, clock=clock)
    reading = shape(hf, Script(ok(1), ok(2), name="reading"), read_only=True)
    writing = shape(hf, Script(ok(1), ok(2), name="writing"))

    assert [reading(), reading()] == [1, 1]
    assert [writing(), writing()] == [1, 2]


def test_a_cached_answer_is_counted_as_such(shape: Shape, hf: Holdfast, clock: ManualClock) -> None:
    recorder = Recorder()
    hf.bus.add(recorder)
    call = shape(hf, Script(slow(2.0, "slow"), clock=clock), **CACHED)

    call(), call()

    stats = hf.tracker.stats("script")
    assert (stats.total, stats.successful, stats.cached_hits) == (2, 2, 1)
    assert (stats.mean, stats.total_duration) == (2.0, 2.0)
    assert [event.payload["cached"] for event in recorder.of("tool_ended")] == [False, True]
    assert len(recorder.of("tool_started")) == 1


def test_a_cached_answer_needs_no_guard(shape: Shape, hf: Holdfast) -> None:
    call = shape(hf, numbered(), rate={"per_second": 0.01, "burst": 1}, **CACHED)
    call()
    hf.breaker.force_open("tool")

    assert call() == 0
    assert hf.tracker.stats("tool").denied == 0


def test_a_cached_answer_does_not_count_against_the_budget(shape: Shape, hf: Holdfast) -> None:
    call = shape(hf, numbered(), **CACHED)

    with hf.run(budget={"calls": 1}):
        assert [call("a"), call("a"), call("a")] == [0, 0, 0]
        with pytest.raises(BudgetExceeded):
            call("b")
        assert call("a") == 0


@pytest.mark.parametrize("by_name", [False, True])
def test_answers_that_are_no_longer_true_can_be_dropped(hf: Holdfast, by_name: bool) -> None:
    price = hf.tool("price", **CACHED)(numbered().function)
    other = hf.tool("other", **CACHED)(numbered().function)
    price("tea"), price("milk"), other("tea")

    hf.forget("price" if by_name else price)

    assert [price("tea"), price("milk"), other("tea")] == [2, 3, 0]


def test_the_answers_of_a_function_that_is_called_as_it_is_can_be_dropped(hf: Holdfast) -> None:
    asked = []

    def price(item: str) -> int:
        asked.append(item)
        return len(asked)

    hf.forget(price)  # nothing yet
    assert hf.call(price, "tea", policy=CACHED) == hf.call(price, "tea", policy=CACHED) == 1
    hf.forget(price)

    assert hf.call(price, "tea", policy=CACHED) == 2


def test_whose_answers_to_drop_must_be_known(hf: Holdfast) -> None:
    with pytest.raises(ConfigError, match="prize"):
        hf.forget("prize")


async def test_the_answer_of_a_call_on_its_way_is_dropped_too(hf: Holdfast) -> None:
    answers, written = iter(["old", "new"]), asyncio.Event()

    @hf.tool("price", **CACHED)
    async def price() -> str:
        answer = next(answers)
        if answer == "old":
            await written.wait()
        return answer

    early = [asyncio.create_task(price()) for _ in range(2)]
    await settled()
    hf.forget(price)
    late = await price()
    written.set()

    assert await asyncio.gather(*early) == ["old", "old"]
    assert (late, await price()) == ("new", "new")


def test_one_call_can_do_without_the_cache_and_leaves_it_as_it_is(hf: Holdfast) -> None:
    tool = hf.tool(**CACHED)(numbered().function)
    tool()

    assert hf.call(tool, policy={"cache": False}) == 1
    assert tool() == 0


def test_the_answer_of_a_fallback_is_not_kept(shape: Shape, hf: Holdfast) -> None:
    call = shape(hf, Script(fail(ConnectionError), ok("the real one")), fallback={"value": "instead"}, **CACHED)

    assert call() == "instead"
    assert call() == "the real one"


# --- identical calls in flight ---


def test_identical_calls_of_many_threads_are_made_once(
    shape: Shape, hf: Holdfast, clock: ManualClock, gate: Gate
) -> None:
    def tool(what: str) -> list[str]:
        return gate(what)

    call = shape(hf, tool, **CACHED)

    with clock.busy():
        threads = [Thread(call, "same") for _ in range(16)]
        eventually(lambda: followers(hf, "tool") == 15)
        gate.let_out()
        answers = [thread.result() for thread in threads]

    assert answers == [["same"]] * 16
    assert gate.entered == ["same"]
    stats = hf.tracker.stats("tool")
    assert (stats.total, stats.cached_hits) == (16, 15)


async def test_identical_calls_of_many_coroutines_are_made_once(hf: Holdfast, clock: ManualClock) -> None:
    script = Script(slow(1.0, "found"), clock=clock)
    tool = hf.tool(**CACHED)(script.coroutine)

    answers = await asyncio.gather(*(tool("same") for _ in range(100)), tool("other"))

    assert answers == ["found"] * 101
    assert script.count == 2
    assert clock.monotonic() == 1.0


def test_a_thread_and_a_coroutine_share_one_call(hf: Holdfast, clock: ManualClock, gate: Gate) -> None:
    tool = hf.tool("tool", **CACHED)(lambda: gate("only one"))

    with clock.busy():
        leader = Thread(tool)
        eventually(lambda: gate.entered)
        follower = Thread(lambda: asyncio.run(hf.acall("tool")))
        eventually(lambda: followers(hf, "tool") == 1)
        gate.let_out()

        assert leader.result() == follower.result() == ["only one"]
    assert gate.entered == ["only one"]


def test_the_error_of_the_call_in_flight_is_shared(shape: Shape, hf: Holdfast, clock: ManualClock, gate: Gate) -> None:
    def tool() -> None:
        gate()
        raise ConnectionError("for all")

    call = shape(hf, tool, **CACHED)

    with clock.busy():
        threads = [Thread(call) for _ in range(4)]
        eventually(lambda: followers(hf, "tool") == 3)
        gate.let_out()
        errors = [thread.error for thread in threads]

    assert [str(error) for error in errors] == ["for all"] * 4
    assert all("1 attempt," in note for error in errors for note in error.__notes__)
    assert len(gate.entered) == 1
    stats = hf.tracker.stats("tool")
    assert (stats.failed, stats.cached_hits) == (4, 3)
    assert hf.breaker.diagnostics("tool").failure_count == 1


def test_calls_that_wait_for_each_other_keep_no_third_one_from_asking_whether_they_wait_for_it() -> None:
    one, other, third = (SharedCall() for _ in range(3))
    one.awaits.append(other)
    other.awaits.append(one)
    execution: Any = SimpleNamespace(as_task=True)

    with leading(Lead("key", third), nullcontext()):
        assert not _waits_for_us(execution, one)


def test_the_refusal_of_the_call_in_flight_is_shared(hf: Holdfast, clock: ManualClock) -> None:
    policy = {"rate": {"per_second": 0.1, "burst": 1}, "max_wait": 20.0, **CACHED}
    script = Script(ok())
    tool = hf.tool(**policy)(script.coroutine)

    async def main() -> list[Any]:
        await tool("first")
        calls = [asyncio.create_task(tool("same")) for _ in range(3)]
        await settled()
        hf.breaker.force_open("script")
        return await asyncio.gather(*calls, return_exceptions=True)

    errors = asyncio.run(main())

    assert [type(error) for error in errors] == [CircuitOpen] * 3
    assert hf.tracker.stats("script").denied == 3


async def test_a_cancelled_leader_hands_over(hf: Holdfast, clock: ManualClock) -> None:
    script = Script(hang(), slow(1.0, "by the next one"), clock=clock)
    tool = hf.tool(**CACHED)(script.coroutine)
    leader = asyncio.create_task(tool())
    await settled()
    others = [asyncio.create_task(tool()) for _ in range(3)]
    await settled()

    leader.cancel()

    assert await asyncio.gather(*others) == ["by the next one"] * 3
    assert leader.cancelled()
    assert script.count == 2


def test_a_leader_that_was_interrupted_hands_over(shape: Shape, hf: Holdfast, clock: ManualClock, gate: Gate) -> None:
    def tool() -> str:
        gate()
        if len(gate.entered) == 1:
            raise KeyboardInterrupt
        return "by the next one"

    call = shape(hf, tool, **CACHED)

    with clock.busy():
        leader = Thread(call)
        eventually(lambda: gate.entered)
        follower = Thread(call)
        eventually(lambda: followers(hf, "tool") == 1)
        gate.let_out(2)

        assert isinstance(leader.error, KeyboardInterrupt)
        assert follower.result() == "by the next one"


def test_a_leader_refused_for_its_own_run_hands_over(shape: Shape, hf: Holdfast, clock: ManualClock) -> None:
    """The loop of one run is nothing to a caller in another, who asks just then."""
    call = shape(hf, Script(*[fail(LookupError)] * 3, ok("fine")), **CACHED)
    asking: list[Thread] = []

    def ask_too(event: Event) -> None:
        if event.type == "loop_detected":
            asking.append(Thread(call))
            eventually(lambda: followers(hf, "script") == 1)

    hf.bus.add(ask_too)

    with hf.run(), clock.busy():
        for expected in (LookupError, LookupError, LookupError, LoopDetected, LoopDetected):
            with pytest.raises(expected):
                call()

    assert [thread.result() for thread in asking] == ["fine"]


async def test_a_follower_waits_no_longer_than_its_deadline(hf: Holdfast, clock: ManualClock) -> None:
    script = Script(slow(10.0, "late"), clock=clock)
    tool = hf.tool(**CACHED)(script.coroutine)
    leader = asyncio.create_task(tool())
    await settled()

    with pytest.raises(ToolTimeout):
        await hf.acall(tool, policy={"deadline": 1.0})

    assert clock.monotonic() == 1.0
    assert hf.tracker.stats("script").timed_out == 1
    assert await leader == "late"


async def test_a_follower_waits_for_a_slower_call_no_longer_than_its_own_timeout(
    hf: Holdfast, clock: ManualClock
) -> None:
    script = Script(slow(10.0, "late"), clock=clock)
    tool = hf.tool(**CACHED)(script.coroutine)
    leader = asyncio.create_task(tool())
    await settled()

    with pytest.raises(ToolTimeout, match=r"1\.5"):
        await hf.acall(tool, policy={"timeout": 1.5, "deadline": 5.0})

    assert clock.monotonic() == 1.5
    assert await leader == "late"


async def test_a_call_with_a_time_limit_of_its_own_leaves_its_followers_theirs(
    hf: Holdfast, clock: ManualClock
) -> None:
    script = Script(slow(10.0, "late"), clock=clock)
    tool = hf.tool(**CACHED)(script.coroutine)
    hasty = [asyncio.create_task(hf.acall(tool, policy={"timeout": 1.5, "fallback": {"value": n}})) for n in range(2)]
    await settled()

    assert await asyncio.gather(tool(), tool(), *hasty) == ["late", "late", 0, 1]

    assert script.count == 2
    assert clock.monotonic() == 11.5


async def test_an_impatient_call_leaves_its_followers_their_place_in_line(hf: Holdfast) -> None:
    tool = hf.tool(**CACHED, concurrency=1)(numbered().coroutine)
    async with hf.guard("tool"):
        impatient = asyncio.create_task(hf.acall(tool, policy={"max_wait": 0.5}))
        await settled()
        follower = asyncio.create_task(tool())
        with pytest.raises(ConcurrencyFull):
            await impatient

    assert await follower == 0


async def test_a_follower_with_the_same_timeout_waits_for_all_attempts(hf: Holdfast, clock: ManualClock) -> None:
    script = Script(slow(2.0, "too late"), slow(0.5, "in time"), clock=clock)
    tool = hf.tool(read_only=True, cache=60.0, timeout=1.0, retry={"attempts": 2, "initial": 0, "max": 0})(
        script.coroutine
    )

    assert await asyncio.gather(tool(), tool()) == ["in time", "in time"]


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_a_tool_that_comes_to_ask_itself_the_same_does_not_wait_for_itself(hf: Holdfast, timeout: float | None) -> None:
    depth = 0

    @hf.tool(**CACHED, **({} if timeout is None else {"timeout": timeout}))
    def research(topic: str) -> str:
        nonlocal depth
        depth += 1
        return "notes" if depth == 2 else "based on " + research(topic)

    assert research("tides") == "based on notes"
    assert research("tides") == "based on notes"


async def test_a_task_that_comes_to_ask_itself_the_same_does_not_wait_for_itself(hf: Holdfast) -> None:
    depth = 0

    @hf.tool(timeout=60.0, **CACHED)
    async def research(topic: str) -> str:
        nonlocal depth
        depth += 1
        return "notes" if depth == 2 else "based on " + await asyncio.create_task(research(topic))

    assert await research("tides") == "based on notes"


async def test_two_tools_that_ask_for_each_other_at_once_do_not_wait_for_each_other(hf: Holdfast) -> None:
    begun: list[str] = []
    both_lead = asyncio.Event()

    async def reach(name: str) -> str:
        begun.append(name)
        if len(begun) == 2:
            both_lead.set()
        if len(begun) > 2:
            return name
        await both_lead.wait()
        return name + await (right() if name == "left" else left())

    @hf.tool("left", read_only=True, cache=60)
    async def left() -> str:
        return await reach("left")

    @hf.tool("right", read_only=True, cache=60)
    async def right() -> str:
        return await reach("right")

    async with asyncio.timeout(30):
        answers = await asyncio.gather(left(), right())

    assert {*answers} <= {"leftright", "rightleft", "leftrightleft", "rightleftright"}


async def test_a_plain_call_does_not_wait_for_a_task_of_the_event_loop_it_blocks(hf: Holdfast, gate: Gate) -> None:
    tool = hf.tool("tool", **CACHED)(gate)
    leader = asyncio.create_task(hf.acall("tool", "same"))
    await asyncio.to_thread(eventually, lambda: gate.entered)
    gate.let_out(2)

    assert tool("same") == ["same"]
    assert await leader == ["same"]
    assert len(gate.entered) == 2


@pytest.mark.parametrize("end", ["stopped", "closed"])
@pytest.mark.parametrize("follows", ["before", "after"])
def test_nobody_waits_for_a_task_whose_event_loop_stands_still(
    hf: Holdfast, clock: ManualClock, end: str, follows: str
) -> None:
    asked = []

    @hf.tool(**CACHED)
    async def tool() -> str:
        asked.append(len(asked))
        if len(asked) == 1:
            await asyncio.get_running_loop().create_future()
        return "found"

    async def lead() -> asyncio.Task[str]:
        task = asyncio.create_task(tool())
        await settled()
        if follows == "before":
            others.extend(Thread(asyncio.run, tool()) for _ in range(3))
            await asyncio.to_thread(eventually, lambda: clock.pending == 3)
        return task

    others: list[Thread] = []
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # that a task is destroyed in it is meant
    with clock.busy():
        leader = loop.run_until_complete(lead())
        if end == "closed":
            loop.close()
        clock.advance(GLANCE)
        answers = [asyncio.run(tool()), *(other.result() for other in others)]

    assert set(answers) == {"found"}
    assert asked == [0, 1]
    if end == "stopped":
        leader.cancel()
        loop.run_until_complete(asyncio.wait([leader]))
        loop.close()
    assert asyncio.run(tool()) == "found"


def test_who_follows_a_call_that_has_just_ended_does_not_wait() -> None:
    awaited = SharedCall()

    awaited.end()

    assert awaited.follow().fired


async def test_a_cancelled_follower_does_not_disturb_the_others(hf: Holdfast, clock: ManualClock) -> None:
    script = Script(slow(1.0, "found"), clock=clock)
    tool = hf.tool(**CACHED)(script.coroutine)
    calls = [asyncio.create_task(tool()) for _ in range(3)]
    await settled()

    calls[1].cancel()
    answers = await asyncio.gather(*calls, return_exceptions=True)

    assert (answers[0], answers[2]) == ("found", "found")
    assert isinstance(answers[1], asyncio.CancelledError)
    assert script.count == 1


async def test_followers_that_gave_up_are_not_kept_by_the_call_they_followed(hf: Holdfast, clock: ManualClock) -> None:
    tool = hf.tool(**CACHED)(Script(slow(10.0, "late"), clock=clock).coroutine)
    leader = asyncio.create_task(tool())
    await settled()
    awaited = next(iter(hf._box.tool("script").cache._shared.values()))  # type: ignore[union-attr]

    hasty = [asyncio.create_task(hf.acall(tool, policy={"deadline": 1.0})) for _ in range(5)]
    cancelled = [asyncio.create_task(tool()) for _ in range(5)]
    await settled()
    followed = len(awaited._followers)
    for each in cancelled:
        each.cancel()
    await asyncio.gather(*hasty, *cancelled, return_exceptions=True)

    assert (followed, len(awaited._followers)) == (10, 0)
    assert await leader == "late"


async def test_a_followers_retries_are_the_leaders(hf: Holdfast, clock: ManualClock) -> None:
    script = Script(Step(lead=1.0, error=ConnectionError), slow(1.0, "at last"), clock=clock)
    tool = hf.tool(read_only=True, cache=60.0, retry={"attempts": 2, "initial": 0, "max": 0})(script.coroutine)

    one, other = await asyncio.gather(tool(), tool())

    assert one == other == "at last"
    assert script.count == 2


def test_a_call_that_keeps_failing_is_refused_though_it_has_a_cache(shape: Shape, hf: Holdfast) -> None:
    call = shape(hf, Script(fail(LookupError)), **CACHED)

    with hf.run():
        for _ in range(3):
            with pytest.raises(LookupError):
                call()
        with pytest.raises(LoopDetected):
            call()


def followers(hf: Holdfast, tool: str) -> int:
    """How many wait for somebody else's identical call of *tool*."""
    cache = hf._box.tool(tool).cache
    assert cache is not None
    return sum(len(flight._followers) for flight in list(cache._shared.values()))
