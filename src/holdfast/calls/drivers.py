"""The drivers: the one place that waits and that calls a tool. A function, a coroutine, a generator and an async
generator each have one, of a few lines, around the same `Execution`.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from holdfast.calls import making
from holdfast.calls.execution import Execution
from holdfast.shape import Shape, kind_of
from holdfast.waiting.waits import apause, pause

if TYPE_CHECKING:
    from holdfast.calls.bound import Bound

ONE_HOP: Mapping[str, object] = {"fallback": False}


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
    return drive(*bound.handed_on(execution, args, kwargs))


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
                        with making.limiting(execution, attempt), execution.inside():
                            value = await value
                    execution.value = value
    finally:
        for wait in execution.after():
            await apause(clock, wait)
    if execution.fallback is None:
        return execution.value
    return await adrive(*bound.handed_on(execution, args, kwargs))


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
        return (yield from drive_stream(*bound.handed_on(execution, args, kwargs)))
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
                with attempt, attempt.held():
                    for wait in attempt.waits():
                        await apause(clock, wait)
                    source = making.aitems(execution, attempt, bound, lambda: bound.fn(*args, **kwargs))
                    async with aclosing(source) as items:
                        async for item in items:
                            execution.give(item)
                            handed = clock.monotonic()
                            try:
                                yield item
                            except BaseException as error:
                                execution.hand_in(error)
                            attempt.exclude_seconds(clock.monotonic() - handed)
    finally:
        for wait in execution.after():
            await apause(clock, wait)
    for item in execution.remembered or ():
        yield item
    if execution.fallback is not None:
        async with aclosing(adrive_stream(*bound.handed_on(execution, args, kwargs))) as items:
            async for item in items:
                yield item
    elif execution.fell_back:
        for item in _fallback_items(execution.value):
            yield item


DRIVERS: Mapping[Shape | None, Callable[..., Any]] = {
    Shape.FUNCTION: drive,
    Shape.COROUTINE: adrive,
    Shape.GENERATOR: drive_stream,
    Shape.ASYNC_GENERATOR: adrive_stream,
}


def _items(made: Iterable[Any]) -> Iterator[Any]:
    """The items *made* before, as a generator: unlike an iterator of a list, it accepts `send`."""
    return (item for item in made)


def _fallback_items(value: object) -> list[Any]:
    """A stream's fixed answer: the items of a list, otherwise the value as the only item."""
    return value if isinstance(value, list) else [value]
