"""`Holdfast`: everything put together, and `open`, which reads where it all is."""

from __future__ import annotations

import os
import weakref
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Generator, Iterable, Mapping
from types import MethodType, TracebackType
from typing import Any, ParamSpec, TypeVar, overload

from holdfast import events
from holdfast.breaker import CircuitBreaker, CircuitDiagnostics
from holdfast.bus import Bus
from holdfast.calls import Bound, adrive, adrive_stream, drive, drive_stream
from holdfast.checks import shown
from holdfast.clock import Clock, SystemClock
from holdfast.errors import ConfigError
from holdfast.guarding import Guard
from holdfast.guards.circuit import CircuitState
from holdfast.kit import Kit
from holdfast.policy import PolicyBook
from holdfast.runs import Run
from holdfast.shape import Shape, name_of, shape_of
from holdfast.toolbox import Toolbox
from holdfast.tracker import ExecutionTracker

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_TRANSITIONS = {
    CircuitState.OPEN: events.CIRCUIT_OPENED,
    CircuitState.HALF_OPEN: events.CIRCUIT_HALF_OPENED,
    CircuitState.CLOSED: events.CIRCUIT_CLOSED,
}


def open(
    store: str | os.PathLike[str] | None = None,
    *,
    policies: str | os.PathLike[str] | Mapping[str, object] | None = None,
    clock: Clock | None = None,
) -> Holdfast:
    """A Holdfast under *policies*: a TOML file, or a mapping of the same shape.

    Without them `$HOLDFAST_POLICY`, `./holdfast.toml` or one in the user's configuration folder is read, if any.
    """
    if store is not None and store != ":memory:":
        raise ConfigError(f"store = {shown(store)}: this version keeps everything in memory; must be ':memory:'")
    return Holdfast(PolicyBook.load(policies if policies is not None else _policy_file()), clock or SystemClock())


class Holdfast:
    """Guards for the tools of one process; a sync and an async context manager that closes it."""

    def __init__(self, book: PolicyBook, clock: Clock) -> None:
        self._clock = clock
        self.bus = Bus(clock)
        self.breaker = CircuitBreaker(clock=clock, on_transition=self._on_transition)
        self.tracker = ExecutionTracker(clock=clock)
        self._kit = Kit(book=book, clock=clock, bus=self.bus, breaker=self.breaker, tracker=self.tracker)
        self._box = Toolbox(self._kit)
        _after_fork(self._box)

    # -- guarding ------------------------------------------------------------------------------------------------------

    @overload
    def tool(self, name: Callable[P, R], /) -> Callable[P, R]: ...

    @overload
    def tool(self, name: str | None = None, **policy: object) -> Callable[[Callable[P, R]], Callable[P, R]]: ...

    def tool(self, name: str | Callable[..., Any] | None = None, **policy: object) -> Any:
        """Guard a function, coroutine function, generator function or async generator function; decorates it.

        *name* is the tool's name, the function's own by default; *policy* its settings.
        """
        if callable(name):
            return self.tool()(name)

        def decorate(fn: Callable[P, R]) -> Callable[P, R]:
            shape_of(fn)
            tool = self._box.keep(name if name is not None else name_of(fn), policy)
            bound = Bound(self._kit, tool, fn)
            self._kit.bound[tool.name] = bound
            return bound.guarded()

        return decorate

    def call(
        self, tool: Callable[..., T] | str, *args: object, policy: Mapping[str, object] | None = None, **kwargs: object
    ) -> T:
        """One guarded call of *tool*, a function or the name of a decorated one; *policy* is for this call only."""
        bound = self._bound(tool, (Shape.FUNCTION,), "call", policy)
        result: T = drive(bound.execution(args, kwargs, policy), bound, args, kwargs)
        return result

    @overload
    async def acall(
        self,
        tool: Callable[..., Awaitable[T]],
        *args: object,
        policy: Mapping[str, object] | None = None,
        **kwargs: object,
    ) -> T: ...

    @overload
    async def acall(
        self, tool: Callable[..., T] | str, *args: object, policy: Mapping[str, object] | None = None, **kwargs: object
    ) -> T: ...

    async def acall(
        self,
        tool: Callable[..., Any] | str,
        *args: object,
        policy: Mapping[str, object] | None = None,
        **kwargs: object,
    ) -> Any:
        """One guarded call of a coroutine function; a plain function is called in a thread."""
        bound = self._bound(tool, (Shape.COROUTINE, Shape.FUNCTION), "acall", policy)
        return await adrive(bound.execution(args, kwargs, policy), bound, args, kwargs)

    def stream(
        self,
        tool: Callable[..., Iterable[T]] | str,
        *args: object,
        policy: Mapping[str, object] | None = None,
        **kwargs: object,
    ) -> Generator[T, Any, Any]:
        """One guarded call of a generator function, or of a function that returns an iterable."""
        bound = self._bound(tool, (Shape.GENERATOR, Shape.FUNCTION), "stream", policy)
        return drive_stream(bound.execution(args, kwargs, policy), bound, args, kwargs)

    def astream(
        self,
        tool: Callable[..., AsyncIterable[T]] | Callable[..., Iterable[T]] | str,
        *args: object,
        policy: Mapping[str, object] | None = None,
        **kwargs: object,
    ) -> AsyncGenerator[T]:
        """One guarded call of an async generator function; a plain generator's items are made in a thread."""
        bound = self._bound(tool, tuple(Shape), "astream", policy)
        return adrive_stream(bound.execution(args, kwargs, policy), bound, args, kwargs)

    def guard(self, tool: str, **policy: object) -> Guard:
        """Guard a block of code: `with hf.guard("name"):` or `async with hf.guard("name"):`."""
        return Guard(self._kit, self._box.tool(tool), policy)

    def run(
        self,
        session: str = "default",
        prompt: str = "",
        *,
        run_id: str | None = None,
        budget: Mapping[str, float] | None = None,
    ) -> Run:
        """A run: the calls inside share a loop guard and *budget*, say `{"calls": 100, "seconds": 600, "usd": 2}`."""
        return Run(self._kit.runs, self.bus, self._clock, session=session, prompt=prompt, run_id=run_id, budget=budget)

    # -- closing -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let idle threads end; guarded functions keep working."""
        self._kit.workers.close()

    async def aclose(self) -> None:
        """Let idle threads end; guarded functions keep working."""
        self.close()

    def __enter__(self) -> Holdfast:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Holdfast:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _bound(self, tool: object, shapes: tuple[Shape, ...], verb: str, policy: Mapping[str, object] | None) -> Bound:
        if policy is not None and not isinstance(policy, Mapping):
            raise ConfigError(f"policy = {shown(policy)}: must be a mapping of settings, such as {{'timeout': 5.0}}")
        if isinstance(tool, str):
            bound = self._kit.bound.get(tool)
            if bound is None:
                known = ", ".join(sorted(self._kit.bound)) or "none yet"
                raise ConfigError(f"{shown(tool)} is not a decorated tool; known are: {known}")
        else:
            bound = getattr(tool, "__holdfast__", None)
            if isinstance(bound, Bound) and isinstance(tool, MethodType):
                bound = Bound(bound.kit, bound.tool, MethodType(bound.fn, tool.__self__))
            if not isinstance(bound, Bound) or bound.kit is not self._kit:
                shape_of(tool)
                bound = Bound(self._kit, self._box.tool(name_of(tool)), tool)  # type: ignore[arg-type]
        assert isinstance(bound, Bound)
        if bound.shape not in shapes:
            right = {
                Shape.FUNCTION: "call",
                Shape.COROUTINE: "acall",
                Shape.GENERATOR: "stream",
                Shape.ASYNC_GENERATOR: "astream",
            }
            raise ConfigError(f"{bound.tool.name!r} is {bound.shape.value}: use {right[bound.shape]}, not {verb}")
        return bound

    def _on_transition(self, tool: str, old: CircuitState, new: CircuitState, diagnostics: CircuitDiagnostics) -> None:
        self.bus.emit(
            _TRANSITIONS[new],
            tool,
            None,
            before=str(old),
            failures=diagnostics.failure_count,
            backoff=diagnostics.current_backoff,
            category=None if diagnostics.last_error_category is None else str(diagnostics.last_error_category),
        )


def _policy_file() -> str | None:
    """The policy file to read when the caller names none."""
    if named := os.environ.get("HOLDFAST_POLICY"):
        return named
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.join("~", ".config")
    # Not `Path.expanduser`, which fails where a user has no home, as in many containers.
    for path in ("holdfast.toml", os.path.join(os.path.expanduser(config), "holdfast", "holdfast.toml")):
        if os.path.isfile(path):
            return path
    return None


def _after_fork(box: Toolbox) -> None:
    """Have *box* put right in forked children, for as long as it lives."""
    alive = weakref.ref(box)

    def child() -> None:
        if (there := alive()) is not None:
            there.after_fork()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=child)
