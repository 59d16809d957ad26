"""Hooks around the calls of a run: asked before the tool, told after it, with what happened; in every shape."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests import shapes
from tests.runs import durable
from tests.runs.durable import Place, of, stopped, types
from tests.shapes import Shape

from holdfast import CircuitOpen, Denied, Holdfast, Hook, HookContext, RateLimited
from holdfast.testing import Script, fail, ok

place, memory = durable.place, durable.memory
shape = shapes.shape


class Diary:
    """Writes down what hooks are told."""

    def __init__(self) -> None:
        self.calls: list[HookContext] = []

    def __call__(self, call: HookContext) -> None:
        self.calls.append(call)

    @property
    def kinds(self) -> list[str]:
        return [str(call.kind) for call in self.calls]


ALL = ("before_tool", "after_tool", "on_denied", "on_error", "on_cancel")


def with_diary(place: Place, **more: Any) -> tuple[Holdfast, Diary]:
    diary = Diary()
    return place.open(hooks=[Hook(kind, diary) for kind in ALL], **more), diary


def test_a_call_is_asked_about_before_and_told_of_after(place: Place, shape: Shape) -> None:
    hf, diary = with_diary(place)

    def add(a: int, b: int = 2) -> list[int]:
        return [a + b]

    tool = shape(hf, add)
    with hf.run() as run:
        tool(1)

    before, after = diary.calls
    key = of(hf, run.id, "tool_started")[0].payload["key"]
    assert diary.kinds == ["before_tool", "after_tool"]
    assert (before.tool, before.arguments, before.run_id) == ("add", {"a": 1, "b": 2}, run.id)
    assert (after.key, after.call_id) == (key, key[:16])
    assert after.result == ([3] if not shape.is_stream else None)


def test_a_hook_gets_the_arguments_as_they_are_not_redacted(memory: Place) -> None:
    hf, diary = with_diary(memory)
    log_in = hf.tool("log_in")(lambda password: {"token": password})

    with hf.run():
        log_in("hunter2")

    assert diary.calls[0].arguments == {"password": "hunter2"}
    assert diary.calls[1].result == {"token": "hunter2"}


def test_a_refusal_of_a_hook_is_denied_and_the_tool_is_not_called(place: Place, shape: Shape) -> None:
    hf = place.open(hooks=[Hook("before_tool", lambda call: "not today")])
    script = Script(ok([1]), name="pay")
    pay = shape(hf, script)

    with hf.run() as run, pytest.raises(Denied, match="not today"):
        pay()

    assert script.count == 0
    assert types(hf, run.id) == ["run_started", "tool_denied", "run_completed"]
    assert of(hf, run.id, "tool_denied")[0].payload["reason"] == "not today"


def test_a_refusal_of_a_hook_counts_for_no_budget(memory: Place) -> None:
    hf = memory.open(hooks=[Hook("before_tool", lambda call: "no" if call.arguments["number"] == 1 else None)])
    pay = hf.tool("pay")(lambda number: number)

    with hf.run(budget={"calls": 1}):
        with pytest.raises(Denied, match="no"):
            pay(1)
        assert pay(2) == 2


def test_a_hook_that_fails_is_a_no(memory: Place) -> None:
    hf = memory.open(hooks=[Hook("before_tool", lambda call: 1 / 0)])
    pay = hf.tool("pay")(lambda: pytest.fail("was called"))

    with hf.run(), pytest.raises(Denied, match="ZeroDivisionError"):
        pay()


def test_a_hook_has_no_longer_than_its_call(memory: Place, shape: Shape) -> None:
    hf = memory.open(hooks=[Hook("before_tool", lambda call: memory.clock.advance(2.0), name="slow", timeout=30.0)])
    pay = shape(hf, Script(ok([1]), name="pay"), deadline=2.0)

    with pytest.raises(Denied, match="the hook 'slow' took longer than 2 s"):
        pay()

    assert memory.clock.monotonic() == 2.0


def test_a_refusal_of_a_guard_is_told(memory: Place) -> None:
    hf, diary = with_diary(memory)
    pay = hf.tool("pay", rate={"per_second": 1.0, "burst": 1.0}, max_wait=0.0)(lambda: 1)

    with hf.run():
        pay()
        with pytest.raises(RateLimited) as caught:
            pay()

    assert diary.kinds == ["before_tool", "after_tool", "before_tool", "on_denied"]
    assert diary.calls[-1].error is caught.value
    assert diary.calls[-1].reason == caught.value.reason


def test_a_failure_is_told(memory: Place, shape: Shape) -> None:
    hf, diary = with_diary(memory)
    error = ValueError("no")
    pay = shape(hf, Script(fail(error), name="pay"))

    with hf.run(), pytest.raises(ValueError, match="no"):
        pay()

    assert diary.kinds == ["before_tool", "on_error"]
    assert diary.calls[-1].error is error


@pytest.mark.parametrize("error", [KeyboardInterrupt, asyncio.CancelledError])
def test_what_is_no_error_is_not_told_as_one(memory: Place, error: type[BaseException]) -> None:
    hf, diary = with_diary(memory)
    pay = hf.tool("pay")(Script(fail(error), name="pay").function)

    with pytest.raises(error), hf.run():
        pay()

    assert diary.kinds == ["before_tool"]


def test_attempts_of_one_call_are_one_call_for_hooks(memory: Place) -> None:
    hf, diary = with_diary(memory)
    fetch = hf.tool(idempotent=True)(Script(fail(ConnectionError), ok(1), name="fetch").function)

    with hf.run():
        fetch()

    assert diary.kinds == ["before_tool", "after_tool"]


def test_hooks_are_asked_again_when_a_call_is_answered_from_the_cache_but_not_from_the_log(memory: Place) -> None:
    hf, diary = with_diary(memory)
    fetch = hf.tool("fetch", read_only=True, cache=60.0)(lambda: 1)
    run_id = stopped(hf, lambda: [fetch(), fetch()])
    asked = list(diary.kinds)
    diary.calls.clear()

    with hf.resume(run_id):
        fetch(), fetch()

    assert asked == ["before_tool", "after_tool"] * 2
    assert diary.calls == []


async def test_a_coroutine_may_be_a_hook_and_runs_in_the_callers_loop(memory: Place) -> None:
    loops: list[Any] = []

    async def note(call: HookContext) -> None:
        await asyncio.sleep(0)
        loops.append(asyncio.get_running_loop())

    hf = memory.open(hooks=[Hook("before_tool", note), Hook("after_tool", note)])

    @hf.tool
    async def fetch() -> int:
        return 1

    async with hf.run():
        await fetch()

    assert loops == [asyncio.get_running_loop()] * 2


def test_calls_that_a_hook_makes_are_not_asked_about(memory: Place) -> None:
    def audit(call: HookContext) -> None:
        noted.append(note())

    noted: list[int] = []
    hf = memory.open(hooks=[Hook("before_tool", audit)])
    note = hf.tool("note")(lambda: 1)
    fetch = hf.tool("fetch")(lambda: 2)

    with hf.run():
        assert fetch() == 2

    assert noted == [1]


def test_hooks_work_outside_of_runs_too(memory: Place, shape: Shape) -> None:
    hf, diary = with_diary(memory)
    hf.breaker.force_open("broken")
    good = shape(hf, Script(ok([1]), name="good"))
    broken = shape(hf, Script(ok([1]), name="broken"))

    good()
    with pytest.raises(CircuitOpen):
        broken()

    assert diary.kinds == ["before_tool", "after_tool", "before_tool", "on_denied"]
    assert {call.run_id for call in diary.calls} == {None}


def test_a_guarded_block_is_asked_about_and_told_of(memory: Place) -> None:
    hf, diary = with_diary(memory)

    with hf.run(), hf.guard("block"):
        pass

    assert diary.kinds == ["before_tool", "after_tool"]
    assert [call.tool for call in diary.calls] == ["block", "block"]


def test_a_hook_may_not_change_what_the_caller_gets(memory: Place) -> None:
    hf = memory.open(hooks=[Hook("after_tool", lambda call: "another"), Hook("on_error", lambda call: "another")])
    fetch = hf.tool()(Script(ok(1), fail(ValueError("no")), name="fetch").function)

    with hf.run():
        assert fetch() == 1
        with pytest.raises(ValueError, match="no"):
            fetch()
