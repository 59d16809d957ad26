"""The drivers: the one place that waits and that calls a tool. A function, a coroutine, a generator and an async
generator each have one, of a few lines, around the same `Execution`.

A function or coroutine whose guards have nothing to say takes the quick path: no lock, no `Execution`, two clock
readings, one note of the duration. Whatever is not plain success goes the long way.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, aclosing, nullcontext
from typing import Any

from holdfast.attempt import Attempt
from holdfast.errors import ConfigError, ToolTimeout
from holdfast.execution import Execution, Made
from holdfast.guards.circuit import Grant
from holdfast.guards.concurrency import Slots
from holdfast.kit import Kit
from holdfast.runs import current_run
from holdfast.shape import Shape, name_of, shape_of
from holdfast.threads import Job
from holdfast.tools import Pass, Plan, Tool
from holdfast.waiting import Wait, apause, pause


class Bound:
    """A function and the tool that guards it."""

    __slots__ = ("kit", "fn", "shape", "tool")

    def __init__(self, kit: Kit, tool: Tool, fn: Callable[..., Any]) -> None:
        self.kit = kit
        self.tool = tool
        self.fn = fn
        self.shape = shape_of(fn)
        if tool.policy.cache is not None and self.shape in (Shape.GENERATOR, Shape.ASYNC_GENERATOR):
            raise ConfigError(f"policy of {tool.name!r}: cache: a stream cannot be cached, only a tool with one answer")

    def execution(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], call: Mapping[str, object] | None = None
    ) -> Execution:
        """A call to be driven; *call* holds settings for this one."""
        policy = self.tool.override(call)
        return Execution(self.kit, self.tool, policy, self.kit.running(), self.fn, args, kwargs)

    def failed(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        error: BaseException,
        plan: Plan,
        begun: float,
        slots: Slots | bool | None,
    ) -> Execution:
        """A call whose first attempt was made by the quick path, and failed."""
        execution = self.execution(args, kwargs)
        taken = slots if isinstance(slots, Slots) else None
        execution.made = Made(error, Pass(self.tool.circuit, Grant(plan[0]), taken), begun)
        return execution

    def guarded(self) -> Callable[..., Any]:
        """The function that users call."""
        make = {
            Shape.FUNCTION: _guard_function,
            Shape.COROUTINE: _guard_coroutine,
            Shape.GENERATOR: _guard_generator,
            Shape.ASYNC_GENERATOR: _guard_async_generator,
        }
        guarded = functools.wraps(self.fn)(make[self.shape](self))
        if not hasattr(self.fn, "__name__"):  # a partial, or an object that can be called
            guarded.__name__ = guarded.__qualname__ = name_of(self.fn)
        guarded.__holdfast__ = self  # type: ignore[attr-defined]
        return guarded


# -- the four drivers --------------------------------------------------------------------------------------------------


def drive(execution: Execution, bound: Bound, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call a function."""
    clock = bound.kit.clock
    policy = execution.policy
    execution.driver = Shape.FUNCTION
    execution.threaded = policy.timeout is not None or policy.deadline is not None
    with execution:
        for wait in execution.lookup():
            pause(clock, wait)
        for attempt in execution:
            with attempt:
                for wait in attempt.waits():
                    pause(clock, wait)
                execution.value = _call(execution, attempt, bound, lambda: bound.fn(*args, **kwargs))
    if execution.fallback is None:
        return execution.value
    other = instead(execution, bound)
    return drive(other.execution(args, kwargs, ONE_HOP), other, args, kwargs)


async def adrive(execution: Execution, bound: Bound, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call a coroutine function, or a function in a thread."""
    clock = bound.kit.clock
    execution.driver = Shape.COROUTINE
    execution.threaded = bound.shape is Shape.FUNCTION
    with execution:
        for wait in execution.lookup():
            await apause(clock, wait)
        for attempt in execution:
            with attempt:
                for wait in attempt.waits():
                    await apause(clock, wait)
                if bound.shape is Shape.FUNCTION:
                    value = await _acall(execution, attempt, bound, lambda: bound.fn(*args, **kwargs))
                else:
                    value = bound.fn(*args, **kwargs)
                if inspect.isawaitable(value):
                    with limiting(bound.kit, bound.tool, attempt):
                        value = await value
                execution.value = value
    if execution.fallback is None:
        return execution.value
    other = instead(execution, bound)
    return await adrive(other.execution(args, kwargs, ONE_HOP), other, args, kwargs)


def drive_stream(
    execution: Execution, bound: Bound, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Generator[Any, Any, Any]:
    """Iterate a generator function, or any function that returns an iterable."""
    clock = bound.kit.clock
    policy = execution.policy
    execution.driver = Shape.GENERATOR
    execution.threaded = policy.timeout is not None or policy.deadline is not None
    with execution:
        for wait in execution.lookup():
            pause(clock, wait)
        for attempt in execution:
            with attempt:
                for wait in attempt.waits():
                    pause(clock, wait)
                execution.value = yield from _items(execution, attempt, bound, lambda: bound.fn(*args, **kwargs))
    if execution.fallback is not None:
        other = instead(execution, bound)
        return (yield from drive_stream(other.execution(args, kwargs, ONE_HOP), other, args, kwargs))
    if execution.fell_back:
        yield from _fallback_items(execution.value)
        return None
    return execution.value


async def adrive_stream(
    execution: Execution, bound: Bound, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> AsyncGenerator[Any]:
    """Iterate an async generator function; a generator function's items are made in a thread."""
    clock = bound.kit.clock
    execution.driver = Shape.ASYNC_GENERATOR
    execution.threaded = bound.shape in (Shape.GENERATOR, Shape.FUNCTION)
    with execution:
        for wait in execution.lookup():
            await apause(clock, wait)
        for attempt in execution:
            with attempt:
                for wait in attempt.waits():
                    await apause(clock, wait)
                source = _aitems(execution, attempt, bound, lambda: bound.fn(*args, **kwargs))
                async with aclosing(source) as items:
                    async for item in items:
                        execution.yielded = True
                        handed = clock.monotonic()
                        try:
                            yield item
                        except BaseException:
                            execution.left = True
                            raise
                        attempt.rest(clock.monotonic() - handed)
    if execution.fallback is not None:
        other = instead(execution, bound)
        async with aclosing(adrive_stream(other.execution(args, kwargs, ONE_HOP), other, args, kwargs)) as items:
            async for item in items:
                yield item
    elif execution.fell_back:
        for item in _fallback_items(execution.value):
            yield item


ONE_HOP: Mapping[str, object] = {"fallback": False}


def instead(execution: Execution, bound: Bound) -> Bound:
    """The tool that answers in place of the one that could not."""
    other = bound.kit.bound[execution.fallback or ""]
    assert isinstance(other, Bound)
    return other


# -- one attempt -------------------------------------------------------------------------------------------------------


def _call(execution: Execution, attempt: Attempt, bound: Bound, fn: Callable[[], Any]) -> Any:
    """Call *fn* here, or in a thread if it must end in time."""
    clock = bound.kit.clock
    now = clock.monotonic() if execution.threaded else 0.0
    limit = attempt.limit(now)
    if limit is None:
        return fn()
    job = Job(bound.kit.workers, clock, fn)
    try:
        pause(clock, Wait(now + limit, job.signal, job.start))
    finally:
        job.abandon()
    if not job.ended_before(now + limit):
        raise ToolTimeout(bound.tool.name, limit)
    return job.result()


async def _acall(execution: Execution, attempt: Attempt, bound: Bound, fn: Callable[[], Any]) -> Any:
    """Call *fn* in a thread."""
    clock = bound.kit.clock
    now = clock.monotonic()
    limit = attempt.limit(now)
    job = Job(bound.kit.workers, clock, fn)
    until = math.inf if limit is None else now + limit
    try:
        await apause(clock, Wait(until, job.signal, job.start))
    finally:
        job.abandon()
    if not job.ended_before(until):
        raise ToolTimeout(bound.tool.name, limit or 0.0)
    return job.result()


def _items(execution: Execution, attempt: Attempt, bound: Bound, fn: Callable[[], Any]) -> Generator[Any, Any, Any]:
    clock = bound.kit.clock
    stream: Iterator[Any] = iter(_call(execution, attempt, bound, fn) if bound.shape is Shape.FUNCTION else fn())
    sent = None
    try:
        while True:
            step = functools.partial(stream.send, sent) if sent is not None else functools.partial(next, stream)  # type: ignore[attr-defined]
            try:
                item = _call(execution, attempt, bound, step)
            except StopIteration as stop:
                return stop.value
            execution.yielded = True
            handed = clock.monotonic()
            try:
                sent = yield item
            except BaseException:
                execution.left = True
                raise
            attempt.rest(clock.monotonic() - handed)
    finally:
        _close(stream)


async def _aitems(execution: Execution, attempt: Attempt, bound: Bound, fn: Callable[[], Any]) -> AsyncGenerator[Any]:
    source = await _acall(execution, attempt, bound, fn) if bound.shape is Shape.FUNCTION else fn()
    if inspect.isawaitable(source):
        with limiting(bound.kit, bound.tool, attempt):
            source = await source
    if hasattr(source, "__aiter__"):
        stream = aiter(source)
        try:
            while True:
                try:
                    with limiting(bound.kit, bound.tool, attempt):
                        item = await anext(stream)
                except StopAsyncIteration:
                    return
                yield item
        finally:
            if hasattr(stream, "aclose"):
                await stream.aclose()
    items = iter(source)
    try:
        while True:
            item = await _acall(execution, attempt, bound, lambda: next(items, _END))
            if item is _END:
                return
            yield item
    finally:
        _close(items)


_END = object()


def _close(stream: Iterator[Any]) -> None:
    """Close a generator, unless it still runs in a thread that was abandoned."""
    if not getattr(stream, "gi_running", False) and (close := getattr(stream, "close", None)) is not None:
        close()


def limiting(kit: Kit, tool: Tool, attempt: Attempt) -> AbstractContextManager[None]:
    """Around an await that must end in time."""
    now = kit.clock.monotonic()
    seconds = attempt.limit(now)
    if seconds is None:
        return nullcontext()
    if seconds == tool.limit:
        return tool.deadlines.within(seconds, now)
    return tool.deadlines.once_within(seconds, now)


def _fallback_items(value: object) -> list[Any]:
    """A stream's fixed answer: the items of a list, else the value as the only item."""
    return value if isinstance(value, list) else [value]


# -- what users call ---------------------------------------------------------------------------------------------------


def _guard_function(bound: Bound) -> Callable[..., Any]:
    kit, fn, tool = bound.kit, bound.fn, bound.tool
    name, monotonic, journal, runs = tool.name, kit.clock.monotonic, kit.tracker.journal, kit.runs
    full = kit.tracker.journal_is_full

    def guarded(*args: Any, **kwargs: Any) -> Any:
        plan = tool.plan_untimed
        if plan is not None and (not runs or current_run.get() is None):
            generation, gate, _, slow, due = plan
            begun = monotonic()
            if begun < due and (gate is None or (slots := gate(begun))):
                try:
                    result = fn(*args, **kwargs) if kwargs else fn(*args)
                except BaseException as error:
                    execution = bound.failed(args, kwargs, error, plan, begun, None if gate is None else slots)
                else:
                    now = monotonic()
                    duration = now - begun
                    if gate is not None:
                        tool.leave(now, duration, slots)
                    if duration < slow and plan is tool.plan_untimed:
                        journal.extend((name, now, duration))
                        if len(journal) >= full:
                            kit.tracker.file()
                    else:
                        tool.succeeded(now, duration, generation)
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

    async def guarded(*args: Any, **kwargs: Any) -> Any:
        plan = tool.plan
        if plan is not None and (not runs or current_run.get() is None):
            generation, gate, limit, slow, due = plan
            begun = monotonic()
            if begun < due and (gate is None or (slots := gate(begun))):
                try:
                    if limit is None:
                        result = await (fn(*args, **kwargs) if kwargs else fn(*args))
                    else:
                        with tool.deadlines.within(limit, begun):
                            result = await fn(*args, **kwargs)
                except BaseException as error:
                    execution = bound.failed(args, kwargs, error, plan, begun, None if gate is None else slots)
                else:
                    now = monotonic()
                    duration = now - begun
                    if gate is not None:
                        tool.leave(now, duration, slots)
                    if duration < slow and plan is tool.plan:
                        journal.extend((name, now, duration))
                        if len(journal) >= full:
                            kit.tracker.file()
                    else:
                        tool.succeeded(now, duration, generation)
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
