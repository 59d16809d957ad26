"""Fake tools that do what a script says, call by call. The script is played once for all four shapes of a tool."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterable

import msgspec

from holdfast import checks
from holdfast.clock import Clock
from holdfast.errors import ConfigError


class Script:
    """A fake tool in all four shapes: each call plays the next of *steps*, then *then* (the last step) for ever.

    `function`, `coroutine`, `generator` and `async_generator` share the script and carry *name*. Steps that take time
    sleep on *clock*. A stream gives the items of a list or tuple one by one, any other value as its one item.
    """

    def __init__(
        self, *steps: Step, clock: Clock | None = None, then: Step | None = None, name: str = "script"
    ) -> None:
        last = then if then is not None else steps[-1] if steps else None
        if last is None or not all(isinstance(step, Step) for step in (*steps, last)):
            raise ConfigError("steps: at least one is needed, made by ok(), fail(), hang(), slow() and the like")
        if clock is None and any(step.lead or step.pace or step.tail for step in (*steps, last)):
            raise ConfigError("clock: a script with steps that take time needs one, Script(..., clock=clock)")
        self._steps = steps
        self._then = last
        self._clock = clock
        self._calls: list[tuple[tuple[object, ...], dict[str, object]]] = []
        self._lock = threading.Lock()
        self._make_shapes(name)

    @property
    def calls(self) -> list[tuple[tuple[object, ...], dict[str, object]]]:
        """Positional and keyword arguments of each call, in order; a coroutine or stream counts once it runs."""
        with self._lock:
            return list(self._calls)

    @property
    def count(self) -> int:
        """How often it was called."""
        return len(self._calls)

    def _make_shapes(self, name: str) -> None:
        def function(*args: object, **kwargs: object) -> object:
            step = self._begin(args, kwargs)
            self._sleep(step.lead + step.pace + step.tail)
            return step.answer(step.value)

        async def coroutine(*args: object, **kwargs: object) -> object:
            step = self._begin(args, kwargs)
            await self._asleep(step.lead + step.pace + step.tail)
            return step.answer(step.value)

        def generator(*args: object, **kwargs: object) -> Generator[object]:
            step = self._begin(args, kwargs)
            self._sleep(step.lead)
            for item in step.items:
                self._sleep(step.pace)
                yield item
            self._sleep(step.tail)
            step.answer(None)

        async def async_generator(*args: object, **kwargs: object) -> AsyncGenerator[object]:
            step = self._begin(args, kwargs)
            await self._asleep(step.lead)
            for item in step.items:
                await self._asleep(step.pace)
                yield item
            await self._asleep(step.tail)
            step.answer(None)

        for shape in (function, coroutine, generator, async_generator):
            shape.__name__ = shape.__qualname__ = name
        self.function = function
        self.coroutine = coroutine
        self.generator = generator
        self.async_generator = async_generator

    def _begin(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Step:
        with self._lock:
            turn = len(self._calls)
            self._calls.append((args, kwargs))
        return self._steps[turn] if turn < len(self._steps) else self._then

    def _sleep(self, seconds: float) -> None:
        if seconds and self._clock is not None:
            self._clock.sleep(seconds)

    async def _asleep(self, seconds: float) -> None:
        if seconds and self._clock is not None:
            await self._clock.asleep(seconds)


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What one call of a `Script` does; made by the functions below."""

    value: object = None
    items: tuple[object, ...] = ()
    error: Callable[[], BaseException] | None = None
    lead: float = 0.0
    pace: float = 0.0
    tail: float = 0.0

    def answer(self, value: object) -> object:
        """Return *value*, or raise the step's error."""
        if self.error is not None:
            raise self.error()
        return value


def ok(value: object = None) -> Step:
    """Answer *value*."""
    return Step(value=value, items=_items(value))


def fail(error: BaseException | type[BaseException]) -> Step:
    """Raise *error*: an instance as it is, a class as a new instance each time."""
    return fail_after((), error)


def fail_after(items: Iterable[object], error: BaseException | type[BaseException]) -> Step:
    """In a stream, give *items*, then raise *error*; elsewhere raise it at once."""
    return Step(items=tuple(items), error=_raiser(error))


def hang(seconds: float = 3600.0) -> Step:
    """Sleep *seconds*, then answer None."""
    checks.number("seconds", seconds, least=0.0)
    return Step(items=(None,), lead=seconds)


def hang_after(items: Iterable[object], seconds: float = 3600.0) -> Step:
    """In a stream, give *items*, sleep *seconds*, then end; elsewhere sleep, then answer the items as a list."""
    checks.number("seconds", seconds, least=0.0)
    items = tuple(items)
    return Step(value=list(items), items=items, tail=seconds)


def slow(seconds: float, value: object = None) -> Step:
    """Answer *value* after *seconds*; in a stream sleep so long before each item."""
    checks.number("seconds", seconds, least=0.0)
    return Step(value=value, items=_items(value), pace=seconds)


def rate_limit(retry_after: float | str | None = None) -> Step:
    """Raise a new `TooManyRequests`, as the client of an HTTP service does on a 429; a text is sent as it is."""
    if isinstance(retry_after, float | int):
        checks.number("retry_after", retry_after, least=0.0)
        retry_after = f"{retry_after:.15g}"
    header = retry_after
    return Step(error=lambda: TooManyRequests(header))


class TooManyRequests(Exception):
    """A 429 with its response, shaped as the common HTTP clients shape theirs."""

    status_code = 429

    def __init__(self, retry_after: str | None = None) -> None:
        super().__init__("429 Too Many Requests")
        self.response = Response({} if retry_after is None else {"Retry-After": retry_after})


class Response(msgspec.Struct, frozen=True):
    """What a scripted service answered."""

    headers: dict[str, str]
    status_code: int = 429


def _items(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _raiser(error: BaseException | type[BaseException]) -> Callable[[], BaseException]:
    if isinstance(error, BaseException):
        return lambda: error.with_traceback(None)
    if isinstance(error, type) and issubclass(error, BaseException):
        return error
    raise ConfigError(f"error = {checks.shown(error)}: must be an exception or a class of exceptions")
