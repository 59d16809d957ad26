"""Fallbacks: somebody else answers for a tool that cannot, once, and the statistics keep what really happened."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from typing import Any

import pytest
from tests import shapes
from tests.shapes import Shape

from holdfast import BudgetExceeded, CircuitOpen, CircuitState, ErrorCategory, Holdfast, LoopDetected, RateLimited
from holdfast.testing import ManualClock, Recorder, Script, fail, hang, ok, rate_limit

shape, hf = shapes.shape, shapes.hf

INSTEAD: dict[str, Any] = {"fallback": {"value": ["instead"]}}
EASY = {"failure_threshold": 1, "min_backoff": 5.0, "jitter": 0.0}


class Unavailable(Exception):
    status_code = 503


# --- when ---


@pytest.mark.parametrize("step", [fail(ConnectionError), fail(TimeoutError), fail(Unavailable), rate_limit()])
def test_a_failure_of_a_retryable_category_is_answered_by_the_fallback(shape: Shape, hf: Holdfast, step: Any) -> None:
    assert shape(hf, Script(step), **INSTEAD)() == ["instead"]


@pytest.mark.parametrize(
    "error", [ValueError, PermissionError, RuntimeError, asyncio.CancelledError, KeyboardInterrupt]
)
def test_another_failure_leaves_as_it_is(shape: Shape, hf: Holdfast, error: type[BaseException]) -> None:
    call = shape(hf, Script(fail(error)), **INSTEAD)

    with pytest.raises(error):
        call()


def test_an_open_circuit_is_answered_by_the_fallback(shape: Shape, hf: Holdfast) -> None:
    script = Script(ok(["the tool"]))
    call = shape(hf, script, **INSTEAD)
    hf.breaker.force_open("script")

    assert call() == ["instead"]
    assert script.count == 0
    assert hf.tracker.stats("script").denied == 1


def test_a_used_up_rate_is_answered_by_the_fallback(shape: Shape, hf: Holdfast) -> None:
    call = shape(hf, Script(ok(["the tool"])), rate={"per_second": 0.1, "burst": 1}, **INSTEAD)

    assert [call(), call()] == [["the tool"], ["instead"]]


def test_a_full_tool_is_answered_by_the_fallback(shape: Shape, hf: Holdfast) -> None:
    call = shape(hf, Script(ok(["the tool"])), concurrency=1, max_wait=0, **INSTEAD)

    with hf.guard("script"):
        assert call() == ["instead"]
    assert call() == ["the tool"]


def test_a_timeout_is_answered_by_the_fallback(shape: Shape, hf: Holdfast, clock: ManualClock) -> None:
    call = shape(hf, Script(hang(1.0), clock=clock), timeout=1.0, **INSTEAD)

    assert call() == ["instead"]
    assert hf.tracker.stats("script").timed_out == 1


def test_only_the_final_failure_is_answered_by_the_fallback(shape: Shape, hf: Holdfast) -> None:
    script = Script(fail(ConnectionError), ok(["at last"]))

    assert shape(hf, script, retry={"attempts": 2, "initial": 0, "max": 0}, **INSTEAD)() == ["at last"]
    assert script.count == 2


def test_a_loop_is_not_hidden_by_a_fallback(shape: Shape, hf: Holdfast) -> None:
    call = shape(hf, Script(fail(LookupError)), **INSTEAD)

    with hf.run():
        for _ in range(3):
            with pytest.raises(LookupError):
                call()
        with pytest.raises(LoopDetected):
            call()


def test_a_used_up_budget_is_not_hidden_by_a_fallback(shape: Shape, hf: Holdfast) -> None:
    call = shape(hf, Script(ok(["the tool"])), **INSTEAD)

    with hf.run(budget={"calls": 1}):
        call(1)
        with pytest.raises(BudgetExceeded):
            call(2)


def test_a_refusal_inside_the_tool_is_answered_like_a_failure(shape: Shape, hf: Holdfast) -> None:
    inner = hf.tool("inner")(Script(ok()).function)
    hf.breaker.force_open("inner")

    def outer() -> Any:
        return inner()

    assert shape(hf, outer, **INSTEAD)() == ["instead"]


def test_after_an_answer_no_fallback_is_asked(shape: Shape, hf: Holdfast) -> None:
    other = Script(ok(["other"]), name="other")
    hf.tool(other.function)

    assert shape(hf, Script(ok(["the tool"])), fallback={"tool": "other"})() == ["the tool"]
    assert other.count == 0


# --- what ---


@pytest.mark.parametrize("value", [None, 0, "text", {"a": 1}])
def test_a_value_that_is_no_list_is_the_answer_or_the_only_item(shape: Shape, hf: Holdfast, value: object) -> None:
    answer = shape(hf, Script(fail(ConnectionError)), fallback={"value": value})()

    assert answer == ([value] if shape.is_stream else value)


def test_another_tool_answers_with_the_same_arguments(shape: Shape, hf: Holdfast) -> None:
    other = Script(ok(["other"]), name="other")
    shape(hf, other)
    call = shape(hf, Script(fail(ConnectionError)), fallback={"tool": "other"})

    assert call(1, key=2) == ["other"]
    assert other.calls == [((1,), {"key": 2})]


class Shop:
    def __init__(self, name: str) -> None:
        self.name = name

    def ask(self, what: str) -> list[str]:
        raise ConnectionError(what)

    def look(self, what: str) -> list[str]:
        return [f"{what} of {self.name}"]


def look(what: str) -> list[str]:
    return [f"{what} of nobody"]


@pytest.mark.parametrize(("other", "answer"), [(Shop.look, "tea of anna"), (look, "tea of nobody")])
def test_a_method_is_answered_for_by_one_of_its_object_or_by_a_function(
    shape: Shape, hf: Holdfast, other: Any, answer: str
) -> None:
    class Guarded(Shop):
        guarded = hf.tool("ask", fallback={"tool": "look"})(shape.of(Shop.ask))

    hf.tool("look")(shape.of(other))
    call = shape.run(Guarded("anna").guarded)

    assert [call("tea"), call(what="tea")] == [[answer]] * 2


@pytest.mark.parametrize(("other", "answer"), [(Shop.look, "tea of anna"), (look, "tea of nobody")])
def test_what_is_given_to_call_is_answered_for_as_if_it_were_called_itself(
    hf: Holdfast, other: Any, answer: str
) -> None:
    class Guarded(Shop):
        guarded = hf.tool("ask", fallback={"tool": "look"})(Shop.ask)

    hf.tool("look")(other)
    anna = Guarded("anna")

    assert hf.call(anna.guarded, "tea") == [answer]
    assert hf.call(functools.partial(anna.guarded, "tea")) == [answer]
    assert hf.call(functools.partial(Guarded.guarded, anna), what="tea") == [answer]
    assert hf.call(anna.ask, "tea", policy={"fallback": {"tool": "look"}}) == [answer]


def test_what_a_decorated_partial_was_given_is_its_own(shape: Shape, hf: Holdfast) -> None:
    other = Script(ok(["other"]), name="other")
    shape(hf, other)
    call = shape(hf, functools.partial(Shop("anna").ask), fallback={"tool": "other"})
    given = shape.run(hf.tool("given", fallback={"tool": "other"})(functools.partial(shape.of(Shop.ask), Shop("anna"))))

    assert call("tea") == given("coffee") == ["other"]
    assert other.calls == [(("tea",), {}), (("coffee",), {})]


@pytest.mark.parametrize(
    "names",
    [
        ("coroutine", "function"),
        ("generator", "function"),
        ("async_generator", "generator"),
        ("async_generator", "function"),
        ("async_generator", "coroutine"),
    ],
)
def test_a_simpler_tool_can_answer_for_another(hf: Holdfast, names: tuple[str, str]) -> None:
    shape, simpler = map(Shape, names)
    simpler(hf, Script(ok(["simple"]), name="simple"))

    assert shape(hf, Script(fail(ConnectionError)), fallback={"tool": "simple"})() == ["simple"]


@pytest.mark.parametrize(
    "names",
    [
        ("function", "coroutine"),
        ("function", "generator"),
        ("coroutine", "generator"),
        ("coroutine", "async_generator"),
        ("generator", "coroutine"),
    ],
)
def test_a_tool_whose_answer_cannot_be_had_here_is_not_asked(hf: Holdfast, names: tuple[str, str]) -> None:
    shape, other = map(Shape, names)
    script = Script(ok(["other"]), name="other")
    other(hf, script)

    with pytest.raises(ConnectionError) as caught:
        shape(hf, Script(fail(ConnectionError)), fallback={"tool": "other"})()

    assert script.count == 0
    assert any("the fallback 'other' is a" in note for note in caught.value.__notes__)


def test_a_tool_that_is_not_there_is_noted_on_the_error(shape: Shape, hf: Holdfast) -> None:
    call = shape(hf, Script(fail(ConnectionError)), fallback={"tool": "missing"})

    with pytest.raises(ConnectionError) as caught:
        call()

    assert any("the fallback 'missing' is not a tool" in note for note in caught.value.__notes__)


def test_a_tool_that_does_not_take_the_arguments_is_not_blamed_for_them(hf: Holdfast) -> None:
    hf.tool("other")(lambda query, region: [query, region])
    tool = hf.tool("search", fallback={"tool": "other"})(lambda query: Script(fail(ConnectionError)).function())

    with pytest.raises(ConnectionError) as caught:
        tool("tea")

    assert "holdfast: the fallback 'other' does not take these arguments" in caught.value.__notes__
    assert hf.tracker.stats("other").total == 0
    assert hf.breaker.diagnostics("other").failure_count == 0


def test_what_wraps_a_tool_may_add_arguments_that_the_call_has_not(hf: Holdfast) -> None:
    def other(query: str, client: str) -> list[str]:
        return [query, client]

    @functools.wraps(other)
    def with_client(*args: Any) -> list[str]:
        return other(*args, client="client")

    hf.tool("other")(with_client)
    tool = hf.tool("search", fallback={"tool": "other"})(lambda query: Script(fail(ConnectionError)).function())

    assert tool("tea") == ["tea", "client"]


def test_there_is_one_hop(shape: Shape, hf: Holdfast) -> None:
    third = Script(ok(["third"]), name="third")
    shape(hf, third)
    second = shape(hf, Script(fail(ConnectionError("second")), name="second"), fallback={"tool": "third"})
    first = shape(hf, Script(fail(ConnectionError("first")), name="first"), fallback={"tool": "second"})

    with pytest.raises(ConnectionError, match="second"):
        first()

    assert third.count == 0
    assert second() == ["third"]


def test_two_tools_may_stand_in_for_each_other(shape: Shape, hf: Holdfast) -> None:
    one = shape(hf, Script(fail(ConnectionError("one")), name="one"), fallback={"tool": "two"})
    shape(hf, Script(fail(ConnectionError("two")), name="two"), fallback={"tool": "one"})

    with pytest.raises(ConnectionError, match="two"):
        one()


def test_the_fallback_is_guarded_itself(shape: Shape, hf: Holdfast) -> None:
    shape(hf, Script(ok(["other"]), name="other"), rate={"per_second": 0.1, "burst": 1})
    call = shape(hf, Script(fail(ConnectionError)), breaker=False, fallback={"tool": "other"})

    assert call() == ["other"]
    with pytest.raises(RateLimited) as caught:
        call()
    assert caught.value.tool == "other"


def test_the_fallback_of_one_call_is_the_value_that_this_call_brought(hf: Holdfast) -> None:
    tool = hf.tool(breaker=False)(Script(fail(ConnectionError)).function)
    values: list[Any] = [[], [], ()]

    answers = [hf.call(tool, policy={"fallback": {"value": value}}) for value in values]

    assert list(map(id, answers)) == list(map(id, values))


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    category = ErrorCategory.NETWORK


@pytest.mark.parametrize("other", ["nobody", "stream"])
def test_an_error_that_takes_no_note_leaves_as_it_is_where_the_fallback_cannot_answer(hf: Holdfast, other: str) -> None:
    hf.tool("stream")(Script(ok()).generator)
    tool = hf.tool(fallback={"tool": other})(Script(fail(Frozen())).function)

    with pytest.raises(Frozen):
        tool()


# --- what is counted ---


@pytest.mark.parametrize(
    ("fallback", "by"), [({"value": ["instead"]}, "a fixed value"), ({"tool": "other"}, "other")], ids=["value", "tool"]
)
def test_events_name_what_answered_instead(shape: Shape, hf: Holdfast, fallback: Any, by: str) -> None:
    recorder = Recorder()
    hf.bus.add(recorder)
    shape(hf, Script(ok(["instead"]), name="other"))
    call = shape(hf, Script(ok(["the tool"]), fail(ConnectionError)), breaker=EASY, fallback=fallback)

    for _ in range(3):  # it answers, it fails, and it is refused
        call()

    ended = [event.payload.get("fallback") for event in recorder.of("tool_ended") if event.tool == "script"]
    assert ended == [None, by]
    assert [event.payload.get("fallback") for event in recorder.of("tool_denied")] == [by]


def test_the_statistics_keep_the_original_outcome(shape: Shape, hf: Holdfast) -> None:
    shape(hf, Script(ok(["other"]), name="other"))
    call = shape(hf, Script(fail(ConnectionError)), breaker=EASY, fallback={"tool": "other"})

    call()
    call()

    stats, other = hf.tracker.stats("script"), hf.tracker.stats("other")
    assert (stats.failed, stats.denied, stats.successful) == (1, 1, 0)
    assert (other.successful, other.failed) == (2, 0)
    assert hf.breaker.state("script") is CircuitState.OPEN


def test_events_tell_the_original_outcome(shape: Shape, hf: Holdfast) -> None:
    recorder = Recorder()
    hf.bus.add(recorder)

    shape(hf, Script(fail(ConnectionError)), **INSTEAD)()

    (ended,) = recorder.of("tool_ended")
    assert (ended.payload["status"], ended.payload["category"]) == ("failed", "network")


def test_a_call_can_do_without_the_fallback(hf: Holdfast) -> None:
    tool = hf.tool(**INSTEAD)(Script(ok()).function)
    hf.breaker.force_open("script")

    with pytest.raises(CircuitOpen):
        hf.call(tool, policy={"fallback": False})
