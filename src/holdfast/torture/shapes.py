"""The two shapes of an agent: plain code, and tasks. An agent is written once, as a coroutine.

As plain code it calls only functions, which return at once: such a coroutine never waits, and needs no event loop.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

PLAIN, TASKS = "plain", "tasks"
SHAPES: Final = (PLAIN, TASKS)

T = TypeVar("T")


class Shape:
    """What differs between the two shapes."""

    def __init__(self, name: str) -> None:
        self._is_plain = name == PLAIN

    def live(self, work: Coroutine[Any, Any, T]) -> T:
        """Run *work* to its end."""
        return _now(work) if self._is_plain else asyncio.run(work)

    def tool(self, body: Callable[[str], Coroutine[Any, Any, T]]) -> Callable[[str], Any]:
        """Return a function, or a coroutine function, that does *body*."""

        def plain(label: str) -> T:
            return _now(body(label))

        async def task(label: str) -> T:
            return await body(label)

        return plain if self._is_plain else task

    def stream(self, body: Callable[[str], Iterator[T]]) -> Callable[[str], Any]:
        """Return a generator function, or an async one, that yields what *body* yields."""

        def plain(label: str) -> Iterator[T]:
            yield from body(label)

        async def task(label: str) -> AsyncIterator[T]:
            for item in body(label):
                yield item

        return plain if self._is_plain else task

    async def do(self, owner: object, verb: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of *owner*; for tasks its async twin, whose name has an `a` in front."""
        return await given(getattr(owner, verb if self._is_plain else f"a{verb}")(*args, **kwargs))

    @asynccontextmanager
    async def inside(self, run: Any) -> AsyncIterator[None]:
        """Enter *run*, and leave it at the end."""
        if self._is_plain:
            with run:
                yield
        else:
            async with run:
                yield

    async def together(self, *works: Awaitable[T]) -> list[T]:
        """Return the results of several works; as tasks they run at once."""
        return [await work for work in works] if self._is_plain else await asyncio.gather(*works)

    async def in_thread(self, fn: Callable[[str], T], label: str) -> T:
        """Call a function; for tasks in another thread."""
        return fn(label) if self._is_plain else await asyncio.to_thread(fn, label)

    async def pause(self) -> None:
        """Let other tasks have a turn, if there are any."""
        if not self._is_plain:
            await asyncio.sleep(0)


async def given(what: Any) -> Any:
    """Return the result of a call, of whatever shape it was; for a stream, all items."""
    if inspect.isawaitable(what):
        return await what
    if isinstance(what, AsyncIterator):
        return [item async for item in what]
    return list(what) if isinstance(what, Iterator) else what


def _now(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("plain code waits for nobody")
