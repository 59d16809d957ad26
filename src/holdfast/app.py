"""`Holdfast`, which puts all parts together, and `open`, which finds out where its store and policies are."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from holdfast import checks, events
from holdfast.bus import Bus
from holdfast.calls.bound import Bound, guards_of
from holdfast.calls.drivers import adrive, adrive_stream, drive, drive_stream
from holdfast.calls.guarding import Guard
from holdfast.clock import Clock
from holdfast.defaults import default_store, named_redis, named_store, policy_file
from holdfast.errors import ConfigError, HoldfastError
from holdfast.guards.circuit import CircuitState
from holdfast.hooks import Hook
from holdfast.loops import beside
from holdfast.parts.breaker import CircuitBreaker, CircuitDiagnostics
from holdfast.policy import OUTAGES, PolicyBook
from holdfast.runs import Home, Keeper, Plan, Run, running
from holdfast.runs.current import still_open
from holdfast.runs.recovery import POLICIES, Recovered, recover
from holdfast.shape import DRIVES, Shape, name_of, shape_of, static_too
from holdfast.stores import RunStore, open_store
from holdfast.stores.forking import renew_in_children
from holdfast.tools.kit import Kit
from holdfast.tools.toolbox import Toolbox
from holdfast.tracking.tracker import ExecutionTracker
from holdfast.values.redaction import Payloads, Redactor
from holdfast.waiting.threads import Job

if TYPE_CHECKING:
    from holdfast.fleet.fleet import Fleet
    from holdfast.history import RunSnapshot
    from holdfast.publishing import Servers
    from holdfast.stores.entries import ToolEntry
    from holdfast.workers import Ended, Worker

_log = logging.getLogger("holdfast")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Settings = Mapping[str, object] | None  # those of one call
Tool = Callable[..., Any] | str  # a function, or the name of a decorated one
Items = AsyncIterable[T] | Iterable[T]

_VERBS = {
    Shape.FUNCTION: "call",
    Shape.COROUTINE: "acall",
    Shape.GENERATOR: "stream",
    Shape.ASYNC_GENERATOR: "astream",
}
EASY = 10  # ticks that writes wait to share a commit, once there is a noted run: soon enough for viewers, and cheap
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
    redis: str | None = None,
    on_store_error: str = "stop",
    on_outage: str | None = None,
    redactor: Redactor | None = None,
    hooks: Sequence[Hook] = (),
    defaults: Mapping[str, object] | None = None,
) -> Holdfast:
    """Make a Holdfast that keeps its runs in *store* and applies *policies*, a TOML file or a mapping of that shape.

    Default policies: `$HOLDFAST_POLICY`, else `./holdfast.toml`, else one in the user's configuration folder, if any.
    Default store: `$HOLDFAST_STORE`, else the policy file's `store`, else a file in the user's data folder. The disk is
    not touched before a run, or, if the store was named, a call: processes on a store show each other their tools.

    *redis* (else `$HOLDFAST_REDIS`, else the file's `redis`) is the address of a Redis; all processes that name it
    share their guards. While it is away, each process guards by itself; with *on_outage* "refuse", calls are refused.
    *on_store_error* "continue" lets a run go on if its store fails. *redactor* masks arguments and results in events.
    *hooks* are called before and after tool calls. *defaults* are settings that all others override.
    """
    checks.choice("on_store_error", on_store_error, ("stop", "continue"))
    if on_outage is not None:
        checks.choice("on_outage", on_outage, OUTAGES)
    book = PolicyBook.load(policies if policies is not None else policy_file()[0], defaults=defaults)
    clock = checks.clock(clock)
    named = store if store is not None else named_store(book.store)
    url = named if named is not None else default_store()
    runs = open_store(url if url is not None else ":memory:", clock=clock)
    if redactor is not None:
        runs.payloads = Payloads(redactor)
    shared = redis if redis is not None else named_redis(book.redis)
    fleet = _fleet(shared, on_outage or book.on_outage or "local") if shared is not None else None
    hf = Holdfast(book, clock, runs, survives_store_errors=on_store_error == "continue", hooks=hooks, fleet=fleet)
    hf._has_store = url is not None
    hf._prunes = url is not None and url == default_store()
    if named is not None:
        hf._publisher.begin()
    return hf


class Holdfast:
    """Guards tools and keeps their runs; made by `open`. Usable in `with` and `async with`, which close it."""

    def __init__(
        self,
        book: PolicyBook,
        clock: Clock,
        store: RunStore,
        *,
        survives_store_errors: bool = False,
        hooks: Sequence[Hook] = (),
        fleet: Fleet | None = None,
    ) -> None:
        self.runs = store  # first: if this is pickled, the store's error says why it cannot be
        self._clock = clock
        self._has_store = True
        self._prunes = False  # True for the default store, which nothing else keeps small
        self.bus = Bus(clock)
        self.breaker = CircuitBreaker(clock=clock, on_transition=self._on_transition)
        self.tracker = ExecutionTracker(clock=clock)
        self._kit = Kit(
            book=book, clock=clock, bus=self.bus, breaker=self.breaker, tracker=self.tracker, hooks=hooks, fleet=fleet
        )
        self._box = Toolbox(self._kit)
        keeper = Keeper(store, clock)
        self._home = Home(store, self.bus, clock, keeper, self._kit.hooks, self._kit.workers, survives_store_errors)
        from holdfast.publishing import Publisher  # not loaded before there is a Holdfast

        self._publisher = Publisher(store, self._kit, self._box)
        for each in (self._box, keeper, self._publisher):
            renew_in_children(each)
        if fleet is not None:
            fleet.begin(self._tell, self._fleet_changed)

    # -- guarding ------------------------------------------------------------------------------------------------------

    @overload
    def tool(self, name: Callable[P, R], **policy: object) -> Callable[P, R]: ...
    @overload
    def tool(self, name: str | None = None, **policy: object) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
    def tool(self, name: str | Callable[..., Any] | None = None, **policy: object) -> Any:
        """Decorate a function, coroutine function, generator function or async generator function with guards.

        *name* is the tool's name, by default the function's; *policy* are its settings, such as `timeout=10`.
        """
        if callable(name) or hasattr(name, "__get__"):  # for a class method, the error says where to decorate
            return self.tool(None, **policy)(name)  # type: ignore[arg-type]
        if name is not None:
            checks.tool_name(name)

        @static_too
        def decorate(fn: Callable[P, R]) -> Callable[P, R]:
            return self.bind(name if name is not None else name_of(fn), fn, policy).guarded()

        return decorate

    @overload
    def call(self, tool: str, /, *args: object, policy: Settings = None, **kwargs: object) -> Any: ...
    @overload
    def call(self, tool: Callable[..., T], /, *args: object, policy: Settings, **kwargs: object) -> T: ...
    @overload
    def call(self, tool: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    def call(self, tool: Tool, /, *args: object, policy: Settings = None, **kwargs: object) -> Any:
        """Call *tool*, a function or the name of a decorated one, with guards; *policy* holds for this call only."""
        bound = self._bound(tool, Shape.FUNCTION, policy)
        return drive(bound.execution(args, kwargs, policy), bound, args, kwargs)

    @overload
    async def acall(self, tool: str, /, *args: object, policy: Settings = None, **kwargs: object) -> Any: ...
    @overload
    async def acall(
        self, tool: Callable[..., Awaitable[T]], /, *args: object, policy: Settings, **kwargs: object
    ) -> T: ...
    @overload
    async def acall(self, tool: Callable[..., T], /, *args: object, policy: Settings, **kwargs: object) -> T: ...
    @overload
    async def acall(self, tool: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def acall(self, tool: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def acall(self, tool: Tool, /, *args: object, policy: Settings = None, **kwargs: object) -> Any:
        """Call a coroutine function with guards, like `call`; a plain function is called in a thread."""
        bound = self._bound(tool, Shape.COROUTINE, policy)
        return await adrive(bound.execution(args, kwargs, policy), bound, args, kwargs)

    @overload
    def stream(
        self, tool: str, /, *args: object, policy: Settings = None, **kwargs: object
    ) -> Generator[Any, Any, Any]: ...
    @overload
    def stream(
        self, tool: Callable[..., Iterable[T]], /, *args: object, policy: Settings, **kwargs: object
    ) -> Generator[T, Any, Any]: ...
    @overload
    def stream(
        self, tool: Callable[P, Iterable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Generator[T, Any, Any]: ...
    def stream(
        self, tool: Tool, /, *args: object, policy: Settings = None, **kwargs: object
    ) -> Generator[Any, Any, Any]:
        """Iterate a generator function, or a function that returns an iterable, with guards, like `call`."""
        bound = self._bound(tool, Shape.GENERATOR, policy)
        return drive_stream(bound.execution(args, kwargs, policy), bound, args, kwargs)

    @overload
    def astream(
        self, tool: str, /, *args: object, policy: Settings = None, **kwargs: object
    ) -> AsyncGenerator[Any]: ...
    @overload
    def astream(
        self, tool: Callable[..., Items[T]], /, *args: object, policy: Settings, **kwargs: object
    ) -> AsyncGenerator[T]: ...
    @overload
    def astream(self, tool: Callable[P, Items[T]], /, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[T]: ...
    def astream(self, tool: Tool, /, *args: object, policy: Settings = None, **kwargs: object) -> AsyncGenerator[Any]:
        """Iterate an async generator function with guards, like `call`; a plain generator runs in a thread."""
        bound = self._bound(tool, Shape.ASYNC_GENERATOR, policy)
        return adrive_stream(bound.execution(args, kwargs, policy), bound, args, kwargs)

    def guard(self, tool_name: str, **policy: object) -> Guard:
        """Guard a block of code: `with hf.guard("name"):` or `async with hf.guard("name"):`."""
        return Guard(self._kit, self._box.tool(tool_name, policy), policy)

    def forget(self, tool: Tool) -> None:
        """Drop the cached answers of *tool*, a function or the name of a decorated one, when they are out of date."""
        bound = guards_of(self._kit, tool)
        known = self._box.find(name_of(tool)) if bound is None else bound.tool
        if known is not None and known.cache is not None:
            known.cache.clear()

    def bind(self, name: str, fn: Callable[..., Any], given: Mapping[str, object]) -> Bound:
        """Make *fn* the tool *name*, with the settings *given* in code; for adapters."""
        bound = Bound(self._kit, self._box.keep(name, given, shape_of(fn)), fn)
        self._kit.bound[name] = bound
        return bound

    def note(self, session: str = "default", prompt: str = "") -> Run:
        """Make a run whose calls are recorded but never wait for the disk, and that cannot be resumed; for proxies."""
        if self._has_store:  # otherwise the run is kept in memory
            self._prepare()
        self.runs.writer.ticks = EASY
        return Run(self._home, Plan(session, prompt, is_noted=True))

    def run(
        self,
        session: str = "default",
        prompt: str = "",
        *,
        run_id: str | None = None,
        budget: Mapping[str, float] | None = None,
        entry: Mapping[str, Any] | None = None,
    ) -> Run:
        """Make a run: inside its `with`, calls are recorded and share *budget*, such as `{"calls": 100, "usd": 2}`.

        *entry* says how to call the whole run again: `{"target": "module:function", "args": […]}`.
        """
        if entry is not None:
            entry = checks.plain("entry", entry)
            if not isinstance(entry, dict) or not isinstance(entry.get("target"), str):
                raise ConfigError(f"entry = {checks.shown(entry)}: must be a mapping with a target and its args")
        self._prepare()
        return Run(self._home, Plan(session, prompt, run_id, budget, entry))

    def resume(self, run_id: str, *, in_doubt: str = "raise", diverged: str = "record") -> Run:
        """Go on with an interrupted run: finished calls are answered from its log. A failed or cancelled run goes on
        as a new run that knows the same calls.

        *in_doubt* "repeat" makes calls again if it is unknown whether they were made, instead of raising `InDoubt`.
        *diverged* "raise" raises `RunDiverged` if the code does not ask for all finished calls.
        """
        checks.choice("in_doubt", in_doubt, ("raise", "repeat"))
        checks.choice("diverged", diverged, ("record", "raise"))
        checks.text("run_id", run_id)
        self._prepare()
        return Run(self._home, Plan(resumed=run_id, repeats=in_doubt == "repeat", diverges=diverged == "record"))

    def submit(
        self,
        target: str | Callable[..., Any],
        *args: object,
        session: str = "default",
        prompt: str = "",
        priority: int = 0,
        run_id: str | None = None,
    ) -> RunSnapshot:
        """Put a run of *target*, a function or `module:function`, into the queue, from which a worker takes it."""
        from holdfast.workers.submitting import submit

        self._prepare()
        return submit(self.runs, target, args, session=session, prompt=prompt, priority=priority, run_id=run_id)

    def worker(
        self, *targets: str | Callable[..., Any], on_end: Callable[[Ended], object] | None = None, **settings: Any
    ) -> Worker:
        """Make a worker that takes runs of *targets* (see `submit`) from the queue; *settings*: see `WorkerConfig`."""
        from holdfast.workers import Worker, WorkerConfig
        from holdfast.workers.submitting import target_of

        config = WorkerConfig(targets=tuple(map(target_of, targets)), **settings)
        self._prepare()
        return Worker(self._home, config, on_end=on_end)

    def recover(self, policy: str = "fail") -> Recovered:
        """Deal with the runs whose process has died: those with an entry point are called again.

        Of the others, those with a request to cancel are cancelled; the rest is ended as failed with *policy* "fail",
        and left to be resumed with "resume". "leave" touches no run at all.
        """
        checks.choice("policy", policy, POLICIES)

        def resume(run_id: str) -> Run:
            self._prepare()
            return Run(self._home, Plan(resumed=run_id, forks=False))

        return recover(self.runs, policy, resume)

    @property
    def policies(self) -> PolicyBook:
        """The policies in force, as a `PolicyBook`."""
        return self._kit.book

    @property
    def clock(self) -> Clock:
        """The clock that all its parts use."""
        return self._clock

    @property
    def fleet(self) -> Fleet | None:
        """The fleet with which it shares its guards, if it has a Redis."""
        return self._kit.fleet

    @property
    def current_run(self) -> Run | None:
        """The run that the caller is in, or None."""
        return running()

    def check_store(self) -> None:
        """Raise a `ConfigError` if no store was named and there is no home folder to keep one in; for adapters."""
        if not self._has_store:
            raise ConfigError("store: there is no home folder to keep runs in; give a path, or set $HOLDFAST_STORE")

    # -- seen from elsewhere -------------------------------------------------------------------------------------------

    def publish(self, *, kind: str = "library", name: str | None = None, servers: Servers | None = None) -> None:
        """Show the tools to other processes on the store, and follow their orders at any time, also while idle.

        *kind* and *name* say what this process is; *servers* returns the servers behind it, each as a mapping.
        """
        self._publisher.stay(kind, name, servers)

    def publish_soon(self) -> None:
        """Show a change, such as a server's new state, to other processes now. Never blocks."""
        self._publisher.show_now()

    def entries(self) -> list[ToolEntry]:
        """Its tools as other processes on the store see them: circuits, limits, statistics."""
        return self._publisher.entries()

    # -- closing -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write what is queued and let idle threads end; guarded functions keep working."""
        self._kit.workers.close()
        self._publisher.close()
        if self._kit.fleet is not None:
            self._kit.fleet.close()
        self._home.keeper.close()
        self.runs.close()

    async def aclose(self) -> None:
        """Write what is queued and let idle threads end, while other tasks go on; guarded functions keep working."""
        await beside(self.close)

    def __enter__(self) -> Holdfast:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Holdfast:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _bound(self, tool: object, driver: Shape, policy: Settings) -> Bound:
        """The guards of *tool*; none are made before all arguments are checked."""
        if policy is not None and not isinstance(policy, Mapping):
            raise ConfigError(f"policy = {checks.shown(policy)}: must be a mapping, such as {{'timeout': 5.0}}")
        bound = guards_of(self._kit, tool)
        shape, name = (shape_of(tool), name_of(tool)) if bound is None else (bound.shape, bound.tool.name)
        if shape not in DRIVES[driver]:
            right = Shape.ASYNC_GENERATOR if driver is Shape.COROUTINE else shape  # a task must not block
            raise ConfigError(f"{name!r} is {shape.value}: use {_VERBS[right]}, not {_VERBS[driver]}")
        return bound or Bound(self._kit, self._box.tool(name, policy), tool)  # type: ignore[arg-type]

    def _on_transition(self, tool: str, old: CircuitState, new: CircuitState, diagnostics: CircuitDiagnostics) -> None:
        run = still_open()
        tell = run.tell if run is not None else self._tell
        tell(
            _TRANSITIONS[new],
            tool,
            before=str(old),
            failures=diagnostics.failure_count,
            backoff=diagnostics.current_backoff,
            category=None if diagnostics.last_error_category is None else str(diagnostics.last_error_category),
        )
        self._publisher.changed(tool, str(old), str(new), diagnostics)

    def _fleet_changed(self) -> None:
        self._box.replan()
        self._publisher.fleet_changed()

    def _tell(self, type: str, tool: str | None, /, **payload: object) -> None:
        self.bus.emit(type, tool, None, **payload)

    def _prepare(self) -> None:
        """Check that there is a store for runs, show the tools there, and prune it once if it is the default one."""
        self.check_store()
        self._publisher.begin()
        if self._prunes:
            self._prunes = False
            Job(self._kit.workers, self._clock, self._prune).start()

    def _prune(self) -> None:
        from holdfast.stores import retention

        try:
            retention.prune_if_due(self.runs, retention.DEFAULT)
        except HoldfastError as error:
            _log.warning("old runs could not be pruned: %s", error)


def _fleet(url: str, on_outage: str) -> Fleet:
    from holdfast.fleet.fleet import Fleet  # most processes have no fleet

    return Fleet(url, on_outage=on_outage)
