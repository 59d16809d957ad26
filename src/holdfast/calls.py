"""The drivers: the one place that waits and that calls a tool. A function, a coroutine, a generator and an async
generator each have one, of a few lines, around the same `Execution`.

A function or coroutine whose guards have nothing to say takes the quick path: no lock, no `Execution`, two clock
readings, one note of the duration. Whatever is not plain success goes the long way.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Mapping
from contextlib import aclosing
from types import MethodType
from typing import Any

from holdfast import checks, making
from holdfast.attempt import Made
from holdfast.errors import ConfigError
from holdfast.execution import Execution
from holdfast.fleet.desk import Question
from holdfast.guards.concurrency import Slots
from holdfast.kit import Kit
from holdfast.memo import Memo
from holdfast.recording import Record
from holdfast.runs import Step, current_run, running
from holdfast.shape import Shape, dressed, kind_of, shape_of
from holdfast.tools import Tool
from holdfast.verdicts import Plan
from holdfast.waiting import apause, pause


class Bound:
    """A function and the tool that guards it."""

    __slots__ = ("kit", "face", "fn", "shape", "tool", "_memo")

    def __init__(self, kit: Kit, tool: Tool, fn: Callable[..., Any]) -> None:
        self.kit = kit
        self.tool = tool
        self.fn = fn
        self.shape = shape_of(fn)
        self.face: Callable[..., Any] | None = None  # what `guarded` gave
        self._memo: Memo | None = None

    def execution(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        call: Mapping[str, object] | None = None,
        arguments: object = None,
    ) -> Execution:
        """A call to be driven; *call* holds settings for this one, *arguments* what it is about if *args* do not."""
        policy = self.tool.override(call)
        execution = Execution(self.kit, self.tool, policy, running(), self.fn, args, kwargs, arguments=arguments)
        execution.callee = self
        return execution

    @property
    def memo(self) -> Memo:
        """How the function's results are remembered."""
        if self._memo is None:
            self._memo = Memo(self.fn)
        return self._memo

    def repeat(self, before: Execution, step: Step | None) -> Any:
        """Make a call in doubt again, as the same *step* of its run; without one, as another call."""
        args, kwargs, run = before._args, before._kwargs, before.run
        assert run is not None
        execution = Execution(self.kit, self.tool, before.policy, run, self.fn, args, kwargs, arguments=before.given)
        execution.callee = self
        execution.record = None if step is None else Record(run, self, step)
        drivers: dict[Shape | None, Callable[..., Any]] = {
            Shape.FUNCTION: drive,
            Shape.COROUTINE: adrive,
            Shape.GENERATOR: drive_stream,
            Shape.ASYNC_GENERATOR: adrive_stream,
        }
        return drivers[before.driver](execution, self, args, kwargs)

    def failed(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        error: BaseException,
        plan: Plan,
        begun: float,
        taken: Slots | Question | bool,
    ) -> Execution:
        """A call whose first attempt was made by the quick path, and failed."""
        execution = self.execution(args, kwargs)
        execution.made = Made(error, self.tool.passed(plan[0], taken), begun)
        return execution

    def asked(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], question: Question) -> Execution:
        """A call whose first question to the fleet was asked by the quick path, and not answered by a plain yes."""
        execution = self.execution(args, kwargs)
        execution.asked = question
        return execution

    def guarded(self) -> Callable[..., Any]:
        """The function that users call."""
        make = {
            Shape.FUNCTION: _guard_function,
            Shape.COROUTINE: _guard_coroutine,
            Shape.GENERATOR: _guard_generator,
            Shape.ASYNC_GENERATOR: _guard_async_generator,
        }
        self.face = dressed(self.fn, make[self.shape](self))
        self.face.__holdfast__ = self  # type: ignore[attr-defined]
        return self.face


def guards_of(kit: Kit, tool: object) -> Bound | None:
    """What guards *tool*, if it is a decorated function, the name of one, or a method or a partial of one.

    What only wraps one is refused. It looks like it, having its attributes, and would be guarded twice.
    """
    if isinstance(tool, str):
        return _named(kit, tool)
    if isinstance(tool, functools.partial):
        inner = guards_of(kit, tool.func)
        return inner and Bound(kit, inner.tool, functools.partial(inner.fn, *tool.args, **tool.keywords))
    fn = tool.__func__ if isinstance(tool, MethodType | staticmethod) else tool
    bound = getattr(fn, "__holdfast__", None)
    if not isinstance(bound, Bound) or bound.kit is not kit:
        return None
    if bound.face is not fn:
        raise ConfigError(
            f"{bound.tool.name!r} is guarded already, inside of what wraps it: call that directly, or put the other "
            "decorators below @hf.tool"
        )
    return Bound(kit, bound.tool, MethodType(bound.fn, tool.__self__)) if isinstance(tool, MethodType) else bound


def _named(kit: Kit, name: str) -> Bound:
    bound = kit.bound.get(name)
    if bound is None:
        known = ", ".join(sorted(kit.bound)) or "none yet"
        raise ConfigError(f"{checks.shown(name)} is not a decorated tool; known are: {known}")
    assert isinstance(bound, Bound)
    return bound


# -- the four drivers --------------------------------------------------------------------------------------------------


def drive(execution: Execution, bound: Bound, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call a function."""
    clock = bound.kit.clock
    policy = execution.policy
    execution.driver = Shape.FUNCTION
    execution.threaded = policy.timeout is not None or policy.deadline is not None
    try:
        with execution:
            for wait in execution.lookup():
                pause(clock, wait)
            for attempt in execution:
                with attempt:
                    for wait in attempt.waits():
                        pause(clock, wait)
                    execution.value = making.call(execution, attempt, bound, lambda: bound.fn(*args, **kwargs))
                    kind_of(execution.value, bound.tool.name)
    finally:
        for wait in execution.after():
            pause(clock, wait)
    if execution.fallback is None:
        return execution.value
    other = instead(execution, bound)
    return drive(other.execution(args, kwargs, ONE_HOP, execution.given), other, args, kwargs)


async def adrive(execution: Execution, bound: Bound, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call a coroutine function, or a function in a thread."""
    clock = bound.kit.clock
    execution.driver = Shape.COROUTINE
    execution.as_task = True
    execution.threaded = bound.shape is Shape.FUNCTION
    try:
        with execution:
            for wait in execution.lookup():
                await apause(clock, wait)
            for attempt in execution:
                with attempt:
                    for wait in attempt.waits():
                        await apause(clock, wait)
                    if bound.shape is Shape.FUNCTION:
                        value = await making.acall(execution, attempt, bound, lambda: bound.fn(*args, **kwargs))
                    else:
                        value = bound.fn(*args, **kwargs)
                    if inspect.isawaitable(value):
                        with making.limiting(bound.kit, bound.tool, attempt), execution.inside():
                            value = await value
                    execution.value = value
    finally:
        for wait in execution.after():
            await apause(clock, wait)
    if execution.fallback is None:
        return execution.value
    other = instead(execution, bound)
    return await adrive(other.execution(args, kwargs, ONE_HOP, execution.given), other, args, kwargs)


def drive_stream(
    execution: Execution, bound: Bound, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Generator[Any, Any, Any]:
    """Iterate a generator function, or any function that returns an iterable."""
    clock = bound.kit.clock
    policy = execution.policy
    execution.driver = Shape.GENERATOR
    execution.threaded = policy.timeout is not None or policy.deadline is not None
    try:
        with execution:
            for wait in execution.lookup():
                pause(clock, wait)
            for attempt in execution:
                with attempt:
                    for wait in attempt.waits():
                        pause(clock, wait)
                    execution.value = yield from making.items(
                        execution, attempt, bound, lambda: bound.fn(*args, **kwargs)
                    )
    finally:
        for wait in execution.after():
            pause(clock, wait)
    if execution.remembered is not None:
        yield from _items(execution.remembered)
        return execution.value
    if execution.fallback is not None:
        other = instead(execution, bound)
        return (yield from drive_stream(other.execution(args, kwargs, ONE_HOP, execution.given), other, args, kwargs))
    if execution.fell_back:
        yield from _items(_fallback_items(execution.value))
        return None
    return execution.value


async def adrive_stream(
    execution: Execution, bound: Bound, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> AsyncGenerator[Any]:
    """Iterate an async generator function; a generator function's items are made in a thread."""
    clock = bound.kit.clock
    execution.driver = Shape.ASYNC_GENERATOR
    execution.as_task = True
    execution.threaded = bound.shape in (Shape.GENERATOR, Shape.FUNCTION)
    try:
        with execution:
            for wait in execution.lookup():
                await apause(clock, wait)
            for attempt in execution:
                with attempt:
                    for wait in attempt.waits():
                        await apause(clock, wait)
                    source = making.aitems(execution, attempt, bound, lambda: bound.fn(*args, **kwargs))
                    async with aclosing(source) as items:
                        async for item in items:
                            execution.give(item)
                            handed = clock.monotonic()
                            try:
                                yield item
                            except BaseException:
                                execution.left = True
                                raise
                            attempt.rest(clock.monotonic() - handed)
    finally:
        for wait in execution.after():
            await apause(clock, wait)
    for item in execution.remembered or ():
        yield item
    if execution.fallback is not None:
        other = instead(execution, bound)
        async with aclosing(
            adrive_stream(other.execution(args, kwargs, ONE_HOP, execution.given), other, args, kwargs)
        ) as items:
            async for item in items:
                yield item
    elif execution.fell_back:
        for item in _fallback_items(execution.value):
            yield item


ONE_HOP: Mapping[str, object] = {"fallback": False}


def instead(execution: Execution, bound: Bound) -> Bound:
    """The tool that answers in place of the one that could not."""
    return _named(bound.kit, execution.fallback or "")


def _items(made: Iterable[Any]) -> Iterator[Any]:
    """What is there already, as a generator: it takes what is sent to it, as a list does not."""
    return (item for item in made)


def _fallback_items(value: object) -> list[Any]:
    """A stream's fixed answer: the items of a list, else the value as the only item."""
    return value if isinstance(value, list) else [value]


# -- what users call ---------------------------------------------------------------------------------------------------


def _ask_first(bound: Bound, plan: Plan, question: Question, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A call of the quick path that has to ask the fleet, and nobody else."""
    kit, tool = bound.kit, bound.tool
    try:
        question.settle()
    except BaseException:
        tool.forsake(question, tool.policy)
        raise
    if not question.passes:
        return drive(bound.asked(args, kwargs, question), bound, args, kwargs)
    begun = kit.clock.monotonic()
    try:
        result = bound.fn(*args, **kwargs)
        kind_of(result, tool.name)
    except BaseException as error:
        execution = bound.failed(args, kwargs, error, plan, begun, question)
    else:
        tool.answered(kit.clock.monotonic(), begun, plan, question, is_plan=plan is tool.plan_untimed)
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
        tool.forsake(question, tool.policy)
        raise
    if not question.passes:
        return await adrive(bound.asked(args, kwargs, question), bound, args, kwargs)
    begun = kit.clock.monotonic()
    try:
        if limit is None:
            result = await bound.fn(*args, **kwargs)
        else:
            with tool.deadlines.within(limit, begun):
                result = await bound.fn(*args, **kwargs)
    except BaseException as error:
        execution = bound.failed(args, kwargs, error, plan, begun, question)
    else:
        tool.answered(kit.clock.monotonic(), begun, plan, question, is_plan=plan is tool.plan)
        return result
    return await adrive(execution, bound, args, kwargs)


def _guard_function(bound: Bound) -> Callable[..., Any]:
    kit, fn, tool = bound.kit, bound.fn, bound.tool
    name, monotonic, journal, runs = tool.name, kit.clock.monotonic, kit.tracker.journal, kit.runs
    full = kit.tracker.journal_is_full
    leave: Callable[[float, float, Any], object] = tool.limiting.leave  # a question is answered elsewhere
    kind: type | None = None  # of what it gave last: mostly it gives the same

    def guarded(*args: Any, **kwargs: Any) -> Any:
        nonlocal kind
        plan = tool.plan_untimed
        if plan is not None and (not runs or current_run.get() is None):
            generation, gate, _, slow, due = plan
            begun = monotonic()
            if begun < due and (gate is None or (taken := gate(begun))):
                if gate is not None and taken.__class__ is Question:
                    return _ask_first(bound, plan, taken, args, kwargs)
                try:
                    result = fn(*args, **kwargs) if kwargs else fn(*args)
                    if type(result) is not kind:
                        kind = kind_of(result, name)
                except BaseException as error:
                    execution = bound.failed(args, kwargs, error, plan, begun, gate is None or taken)
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
                        tool.succeeded(now, duration, generation, gate is None or taken)
                    return result
                return drive(execution, bound, args, kwargs)
        elif tool.brisk and tool.circuit.shut_until > (now := monotonic()) and not runs:
            raise tool.turn_away(now)
        return drive(bound.execution(args, kwargs), bound, args, kwargs)

    return guarded


def _guard_coroutine(bound: Bound) -> Callable[..., Any]:
    kit, fn, tool = bound.kit, bound.fn, bound.tool
    name, monotonic, journal, runs = tool.name, kit.clock.monotonic, kit.tracker.journal, kit.runs
    full = kit.tracker.journal_is_full
    leave: Callable[[float, float, Any], object] = tool.limiting.leave  # a question is answered elsewhere

    async def guarded(*args: Any, **kwargs: Any) -> Any:
        plan = tool.plan
        if plan is not None and (not runs or current_run.get() is None):
            generation, gate, limit, slow, due = plan
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
                    execution = bound.failed(args, kwargs, error, plan, begun, gate is None or taken)
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
                        tool.succeeded(now, duration, generation, gate is None or taken)
                    return result
                return await adrive(execution, bound, args, kwargs)
        elif tool.brisk and tool.circuit.shut_until > (now := monotonic()) and not runs:
            raise tool.turn_away(now)
        return await adrive(bound.execution(args, kwargs), bound, args, kwargs)

    return guarded


def _guard_generator(bound: Bound) -> Callable[..., Any]:
    def guarded(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        return (yield from drive_stream(bound.execution(args, kwargs), bound, args, kwargs))

    return guarded


def _guard_async_generator(bound: Bound) -> Callable[..., Any]:
    async def guarded(*args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
        async with aclosing(adrive_stream(bound.execution(args, kwargs), bound, args, kwargs)) as items:
            async for item in items:
                yield item

    return guarded
