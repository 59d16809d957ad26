"""The functions that users call instead of their own, in four shapes.

A function or coroutine whose guards have no objection takes the quick path: no lock, no `Execution`, two clock
readings, one note of the duration. Anything except plain success takes the long way, through the `drivers`. The path is
written twice: a function that both share would cost one more call, a tenth of the whole.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from holdfast.calls.drivers import adrive, adrive_stream, drive, drive_stream
from holdfast.fleet.question import Question
from holdfast.runs import current_run
from holdfast.shape import Shape, kind_of
from holdfast.tools.verdicts import Plan

if TYPE_CHECKING:
    from holdfast.calls.bound import Bound


def guard_function(bound: Bound) -> Callable[..., Any]:
    kit, fn, tool = bound.kit, bound.fn, bound.tool
    name, monotonic, journal, runs = tool.name, kit.clock.monotonic, kit.tracker.journal, kit.runs
    full = kit.tracker.journal_is_full
    leave: Callable[[float, float, Any], object] = tool.limiting.leave  # gets no Question: see `_ask_first`
    kind: type | None = None  # the type of its last result: the next one mostly has the same

    def guarded(*args: Any, **kwargs: Any) -> Any:
        nonlocal kind
        plan = tool.plan_untimed
        if plan is not None and (not runs or current_run.get() is None):
            basis, gate, _, slow, due = plan
            begun = monotonic()
            if begun < due and (gate is None or (taken := gate(begun))):
                if gate is not None and taken.__class__ is Question:
                    return _ask_first(bound, plan, taken, args, kwargs)
                try:
                    result = fn(*args, **kwargs) if kwargs else fn(*args)
                    if type(result) is not kind:
                        kind = kind_of(result, name)
                except BaseException as error:
                    execution = bound.failed(args, kwargs, error, begun, basis, gate is None or taken)
                else:
                    now = monotonic()
                    duration = now - begun
                    if duration < slow and plan is tool.plan_untimed:
                        if gate is not None:
                            leave(now, duration, taken)
                        journal.extend((name, now, duration))
                        if len(journal) >= full:
                            kit.tracker.file()
                    else:
                        tool.succeeded(now, begun, basis, gate is None or taken)
                    return result
                return drive(execution, bound, args, kwargs)
        elif tool.refuses_at_once and tool.circuit.shut_until > (now := monotonic()) and not runs:
            raise tool.turn_away(now)
        return drive(bound.execution(args, kwargs), bound, args, kwargs)

    return guarded


def guard_coroutine(bound: Bound) -> Callable[..., Any]:
    kit, fn, tool = bound.kit, bound.fn, bound.tool
    name, monotonic, journal, runs = tool.name, kit.clock.monotonic, kit.tracker.journal, kit.runs
    full = kit.tracker.journal_is_full
    leave: Callable[[float, float, Any], object] = tool.limiting.leave  # gets no Question: see `_ask_first`

    async def guarded(*args: Any, **kwargs: Any) -> Any:
        plan = tool.plan
        if plan is not None and (not runs or current_run.get() is None):
            basis, gate, limit, slow, due = plan
            begun = monotonic()
            if begun < due and (gate is None or (taken := gate(begun))):
                if gate is not None and taken.__class__ is Question:
                    return await _aask_first(bound, plan, taken, args, kwargs)
                try:
                    if limit is None:
                        result = await (fn(*args, **kwargs) if kwargs else fn(*args))
                    else:
                        with tool.deadlines.within(limit, begun):
                            result = await fn(*args, **kwargs)
                except BaseException as error:
                    execution = bound.failed(args, kwargs, error, begun, basis, gate is None or taken)
                else:
                    now = monotonic()
                    duration = now - begun
                    if duration < slow and plan is tool.plan:
                        if gate is not None:
                            leave(now, duration, taken)
                        journal.extend((name, now, duration))
                        if len(journal) >= full:
                            kit.tracker.file()
                    else:
                        tool.succeeded(now, begun, basis, gate is None or taken)
                    return result
                return await adrive(execution, bound, args, kwargs)
        elif tool.refuses_at_once and tool.circuit.shut_until > (now := monotonic()) and not runs:
            raise tool.turn_away(now)
        return await adrive(bound.execution(args, kwargs), bound, args, kwargs)

    return guarded


def guard_generator(bound: Bound) -> Callable[..., Any]:
    def guarded(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        return (yield from drive_stream(bound.execution(args, kwargs), bound, args, kwargs))

    return guarded


def guard_async_generator(bound: Bound) -> Callable[..., Any]:
    async def guarded(*args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
        async with aclosing(adrive_stream(bound.execution(args, kwargs), bound, args, kwargs)) as items:
            step = anext(items)
            while True:
                try:
                    item = await step
                except StopAsyncIteration:
                    return
                try:
                    yield item
                    step = anext(items)
                except GeneratorExit:
                    raise
                except BaseException as error:  # thrown by the consumer, for the tool to handle
                    step = items.athrow(error)

    return guarded


GUARDS: Mapping[Shape, Callable[[Bound], Callable[..., Any]]] = {
    Shape.FUNCTION: guard_function,
    Shape.COROUTINE: guard_coroutine,
    Shape.GENERATOR: guard_generator,
    Shape.ASYNC_GENERATOR: guard_async_generator,
}


def _ask_first(bound: Bound, plan: Plan, question: Question, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Make a call of the quick path that has to ask the fleet, and no other guard."""
    kit, tool = bound.kit, bound.tool
    try:
        question.settle()
    except BaseException:
        tool.forsake(question, plan[0].policy)
        raise
    if not question.passes:
        return drive(bound.asked(args, kwargs, plan[0], question), bound, args, kwargs)
    begun = kit.clock.monotonic()
    try:
        result = bound.fn(*args, **kwargs)
        kind_of(result, tool.name)
    except BaseException as error:
        execution = bound.failed(args, kwargs, error, begun, plan[0], question)
    else:
        tool.answered(kit.clock.monotonic(), begun, plan, question)
        return result
    return drive(execution, bound, args, kwargs)


async def _aask_first(
    bound: Bound, plan: Plan, question: Question, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """The same for a coroutine."""
    kit, tool, limit = bound.kit, bound.tool, plan[2]
    try:
        await question.asettle()
    except BaseException:
        tool.forsake(question, plan[0].policy)
        raise
    if not question.passes:
        return await adrive(bound.asked(args, kwargs, plan[0], question), bound, args, kwargs)
    begun = kit.clock.monotonic()
    try:
        if limit is None:
            result = await bound.fn(*args, **kwargs)
        else:
            with tool.deadlines.within(limit, begun):
                result = await bound.fn(*args, **kwargs)
    except BaseException as error:
        execution = bound.failed(args, kwargs, error, begun, plan[0], question)
    else:
        tool.answered(kit.clock.monotonic(), begun, plan, question)
        return result
    return await adrive(execution, bound, args, kwargs)
