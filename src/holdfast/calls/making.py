"""Runs the tool's own code: in the caller's thread or a worker, as a whole or item by item, within its time limit."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from holdfast.calls.attempt import Attempt
from holdfast.calls.execution import Execution
from holdfast.category import ErrorCategory
from holdfast.errors import ConcurrencyFull, ToolTimeout
from holdfast.shape import Shape, kind_of
from holdfast.tools.verdicts import Refusal
from holdfast.waiting.threads import Job
from holdfast.waiting.waits import Wait, apause, pause

if TYPE_CHECKING:
    from holdfast.calls.bound import Bound


def call(execution: Execution, attempt: Attempt, bound: Bound, fn: Callable[[], Any]) -> Any:
    """Call *fn* in the caller's thread, or in a worker thread if it has a time limit."""
    clock = bound.kit.clock
    now = clock.monotonic() if execution.threaded else 0.0
    limit = attempt.limit(now)
    with execution.inside():
        if limit is None:
            return fn()
        job = Job(bound.kit.workers, clock, fn)
    try:
        pause(clock, Wait(now + limit, job.signal, job.begin))
    finally:
        job.abandon()
    return _outcome(execution, attempt, job, now + limit, limit)


async def acall(execution: Execution, attempt: Attempt, bound: Bound, fn: Callable[[], Any]) -> Any:
    """Call *fn* in a worker thread."""
    clock = bound.kit.clock
    now = clock.monotonic()
    limit = attempt.limit(now)
    with execution.inside():
        job = Job(bound.kit.workers, clock, fn)
    until = math.inf if limit is None else now + limit
    try:
        await apause(clock, Wait(until, job.signal, job.begin))
    finally:
        job.abandon()
    return _outcome(execution, attempt, job, until, limit)


def items(execution: Execution, attempt: Attempt, bound: Bound, fn: Callable[[], Any]) -> Generator[Any, Any, Any]:
    clock = bound.kit.clock
    source = call(execution, attempt, bound, fn) if bound.shape is Shape.FUNCTION else fn()
    kind_of(source, bound.tool.name)
    stream: Iterator[Any] = iter(source)
    step = functools.partial(next, stream)
    try:
        while True:
            try:
                item = call(execution, attempt, bound, step)
            except StopIteration as stop:
                return stop.value
            finally:
                del step  # it may hold an error whose traceback holds this frame: a reference cycle
            execution.give(item)
            handed = clock.monotonic()
            try:
                sent = yield item
                step = functools.partial(stream.send, sent) if sent is not None else functools.partial(next, stream)  # type: ignore[attr-defined]
            except BaseException as error:
                step = functools.partial(_throw, stream, execution.hand_in(error))
            attempt.exclude_seconds(clock.monotonic() - handed)
    finally:
        _close(stream)


async def aitems(execution: Execution, attempt: Attempt, bound: Bound, fn: Callable[[], Any]) -> AsyncGenerator[Any]:
    source = await acall(execution, attempt, bound, fn) if bound.shape is Shape.FUNCTION else fn()
    if inspect.isawaitable(source):
        with limiting(execution, attempt), execution.inside():
            source = await source
    if hasattr(source, "__aiter__"):
        stream = aiter(source)
        try:
            while True:
                try:
                    with limiting(execution, attempt), execution.inside():
                        item = await (anext(stream) if execution.thrown is None else _athrow(stream, execution.thrown))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            if hasattr(stream, "aclose"):
                await stream.aclose()
    items = iter(source)
    try:
        while True:
            item = await acall(execution, attempt, bound, functools.partial(_next, items, execution.thrown))
            if item is _END:
                return
            yield item
    finally:
        _close(items)


_END = object()
_UNLIMITED: AbstractContextManager[None] = nullcontext()


def _outcome(execution: Execution, attempt: Attempt, job: Job, until: float, limit: float | None) -> Any:
    """The result of *job*, or its error, once the wait for it is over."""
    if job.unstarted is not None:
        raise _without_thread(execution, attempt)
    if not job.ended_before(until):
        raise ToolTimeout(execution.tool.name, limit or 0.0)
    return job.result()


def _without_thread(execution: Execution, attempt: Attempt) -> BaseException:
    """The error to raise if no thread can be started; the guards treat the attempt as never made."""
    tool, why, passed = execution.tool, "no thread can be started for it", attempt._pass
    if execution.is_stream or passed is None:  # a part of the stream may have run already
        return ConcurrencyFull(tool.name, why)
    attempt._pass = None
    tool.settle(execution.kit.clock.monotonic(), passed, attempt.begun, ErrorCategory.CANCELLED)
    if execution.record is not None and execution.attempts == 1:
        execution.record.called = False
    return attempt._refuse(Refusal(ConcurrencyFull, math.inf, why=why))


def _next(stream: Iterator[Any], thrown: BaseException | None) -> Any:
    """The next item, or `_END` if there is none: a StopIteration could not pass through the coroutine `acall`."""
    try:
        return next(stream) if thrown is None else _throw(stream, thrown)
    except StopIteration:
        return _END


def _throw(stream: Any, error: BaseException) -> Any:
    """Throw the consumer's *error* into the stream; raise it at once if the stream cannot take it."""
    if not hasattr(stream, "throw"):
        raise error
    return stream.throw(error)


async def _athrow(stream: Any, error: BaseException) -> Any:
    """The same for an async stream."""
    if not hasattr(stream, "athrow"):
        raise error
    return await stream.athrow(error)


def _close(stream: Iterator[Any]) -> None:
    """Close a generator, unless it still runs in a thread that was abandoned."""
    if not getattr(stream, "gi_running", False) and (close := getattr(stream, "close", None)) is not None:
        close()


def limiting(execution: Execution, attempt: Attempt) -> AbstractContextManager[None]:
    """The context for an await that must end within the time limit of the attempt."""
    tool, now = execution.tool, execution.kit.clock.monotonic()
    seconds = attempt.limit(now)
    if seconds is None:
        return _UNLIMITED
    if seconds == tool.limit:
        return tool.deadlines.within(seconds, now)
    return tool.deadlines.once_within(seconds, now)
