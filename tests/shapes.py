"""One test body for all four shapes of a tool: the fixture `shape` guards a tool and calls it to its end.

A list is the answer of a function and the items of a stream, so that one script gives one result in every shape.
A test file takes the fixtures up with `shape, hf = shapes.shape, shapes.hf`.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any

import pytest

import holdfast
from holdfast.testing import ManualClock, Script

PATIENCE = 30.0  # real seconds after which a thread that should have come is missed
NAMES = ("function", "coroutine", "generator", "async_generator")

Call = Callable[..., Any]


class Shape:
    """How a tool is called; *name* is that of the attribute of a `Script`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_stream = name.endswith("generator")
        self.is_async = name in {"coroutine", "async_generator"}

    def __call__(self, hf: holdfast.Holdfast, tool: Script | Call, /, **policy: object) -> Call:
        """Guard *tool*, a script or a plain function that is put into this shape, and have it called to its end."""
        fn = getattr(tool, self.name) if isinstance(tool, Script) else self.of(tool)
        return self.run(hf.tool(None, **policy)(fn))

    def of(self, fn: Call) -> Call:
        """The plain function *fn* in this shape; a list it returns is what a stream gives."""

        @functools.wraps(fn)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs)

        @functools.wraps(fn)
        def generator(*args: Any, **kwargs: Any) -> Iterator[Any]:
            yield from fn(*args, **kwargs) or ()

        @functools.wraps(fn)
        async def async_generator(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            for item in fn(*args, **kwargs) or ():
                yield item

        shapes: dict[str, Call] = {"function": fn, "coroutine": coroutine, "generator": generator}
        return shapes.get(self.name, async_generator)

    def run(self, guarded: Call) -> Call:
        """A plain function that calls *guarded* and gives its answer, or all its items."""

        async def collect(*args: Any, **kwargs: Any) -> list[Any]:
            async with aclosing(guarded(*args, **kwargs)) as items:
                return [item async for item in items]

        def call(*args: Any, **kwargs: Any) -> Any:
            if self.is_async:
                return asyncio.run((collect if self.is_stream else guarded)(*args, **kwargs))
            return list(guarded(*args, **kwargs)) if self.is_stream else guarded(*args, **kwargs)

        return call


@pytest.fixture(params=NAMES)
def shape(request: pytest.FixtureRequest) -> Shape:
    return Shape(request.param)


@pytest.fixture
def hf(clock: ManualClock) -> Iterator[holdfast.Holdfast]:
    with holdfast.open(":memory:", policies={}, clock=clock) as opened:
        yield opened


class Thread:
    """A call in a thread of its own, begun at once; `result` waits for its answer or raises its error."""

    def __init__(self, fn: Call, *args: Any) -> None:
        self._answer: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(fn, *args))
        self._thread.start()

    def result(self) -> Any:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the call did not end"
        if self._error is not None:
            raise self._error
        return self._answer

    @property
    def error(self) -> BaseException | None:
        try:
            self.result()
        except BaseException as error:
            return error
        return None

    def _run(self, fn: Call, *args: Any) -> None:
        try:
            self._answer = fn(*args)
        except BaseException as error:
            self._error = error


class Gate:
    """A tool's door: who comes is noted in `entered` and waits until it is let out."""

    def __init__(self) -> None:
        self.entered: list[Any] = []
        self._open = threading.Semaphore(0)

    def __call__(self, who: Any = None) -> list[Any]:
        self.entered.append(who)
        assert self._open.acquire(timeout=PATIENCE), "nobody let it out"
        return [who]

    def let_out(self, number: int = 1) -> None:
        self._open.release(number)


def eventually(condition: Callable[[], object]) -> None:
    """Give other threads the processor until *condition* holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0)


async def settled(turns: int = 20) -> None:
    """Let every task that can run do so, until it waits; the clock stands still meanwhile."""
    for _ in range(turns):
        await asyncio.sleep(0)
