"""Hooks: the user's own code, asked before a tool call and told after it, on refusal, on error and on cancel.

A hook that can stop a call fails closed: anything except a clear yes in time is a no. Other hooks change nothing: an
error in them is logged and ignored. A plain function runs in a worker thread, a coroutine function as a task of the
caller's event loop, so no hook holds up a caller for longer than the hook's time limit.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping
from contextvars import ContextVar
from enum import StrEnum
from typing import Any

import msgspec

from holdfast import checks
from holdfast.clock import Clock
from holdfast.errors import ConfigError, Denied, in_words
from holdfast.guards.line import Signal
from holdfast.shape import Shape, name_of, shape_of, signature_of
from holdfast.waiting.threads import Job, Workers, elsewhere, may_hold_a_lock
from holdfast.waiting.waits import Wait

_log = logging.getLogger("holdfast")


class HookKind(StrEnum):
    """When a hook is called; only `before_tool` can stop the call."""

    BEFORE_TOOL = "before_tool"
    AFTER_TOOL = "after_tool"
    ON_DENIED = "on_denied"
    ON_CANCEL = "on_cancel"
    ON_ERROR = "on_error"


class HookContext(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """What a hook is told: *tool* and *arguments*, by name, as given, not redacted (neither on cancel); *result* after
    a tool call; *error* on error and refusal; *reason* on refusal and cancel. What does not apply is None or empty.
    """

    kind: HookKind
    tool: str | None = None
    arguments: Mapping[str, Any] = {}
    run_id: str | None = None
    call_id: int | str | None = None
    key: str | None = None
    result: object = None
    error: BaseException | None = None
    reason: str | None = None


class _Subject(msgspec.Struct, frozen=True):
    kind: str
    fn: Callable[[HookContext], object]


class Hook(_Subject, frozen=True, kw_only=True):
    """A function or coroutine function that takes a `HookContext`, and when to call it; higher *priority* first.

    A `before_tool` hook allows the call by returning None or True, and refuses it by raising `Denied` or returning the
    reason as a text. If it returns anything else, fails, or takes longer than *timeout* seconds, the call is refused.
    What other hooks return is ignored. A plain function costs a thread hop; one that is quick and only listens is
    cheaper as a sink of the bus.
    """

    priority: float = 0
    timeout: float = 30.0
    name: str | None = None

    def __post_init__(self) -> None:
        checks.choice("kind", self.kind, [*HookKind])
        msgspec.structs.force_setattr(self, "kind", HookKind(self.kind))
        _check_function(self.fn)
        if self.name is None:
            msgspec.structs.force_setattr(self, "name", name_of(self.fn))
        elif not isinstance(self.name, str) or not self.name or not self.name.isprintable():
            raise ConfigError(f"name = {checks.shown(self.name)}: must be a printable text")
        checks.number(f"hook {self.name!r}: priority", self.priority)
        checks.number(f"hook {self.name!r}: timeout", self.timeout, above=0)


class Hooks:
    """The hooks of a Holdfast, in the order in which they are called: by priority, then as given.

    The hooks are neither asked about nor told of calls that a hook makes, or that anything it starts makes: otherwise
    an audit that uses a tool would never end.
    """

    def __init__(self, hooks: Iterable[Hook], workers: Workers, clock: Clock) -> None:
        if not isinstance(hooks, Iterable):
            raise ConfigError(f"hooks = {checks.shown(hooks)}: must be a list of Hook")
        self._workers = workers
        self._clock = clock
        self._cancelled: set[asyncio.Task[object]] = set()  # not ended yet; the event loop keeps no task alive
        self._by_kind: dict[str, list[Hook]] = {}
        for hook in hooks:
            if not isinstance(hook, Hook):
                raise ConfigError(f"hooks: {checks.shown(hook)}: must be a Hook")
            self._by_kind.setdefault(hook.kind, []).append(hook)
        for group in self._by_kind.values():
            group.sort(key=lambda hook: -hook.priority)

    def has(self, kind: HookKind) -> bool:
        """True if there is any hook of *kind*; this never changes."""
        return kind in self._by_kind

    def ask(self, context: HookContext, *, as_task: bool, deadline: float = math.inf) -> Iterator[Wait]:
        """Ask one hook after the other whether the call may be made; raises `Denied` at the first no.

        Yields what to wait for, not beyond *deadline*; *as_task* says that the caller waits with `apause`.
        """
        tool = context.tool or ""
        for hook in self._callable(HookKind.BEFORE_TOOL):
            try:
                answer = yield from self._call(hook, context, as_task, deadline)
            except Denied as denied:
                if denied.tool == tool:
                    raise
                why = f"the hook {hook.name!r} was refused a call of {checks.shown(denied.tool)}: {denied.reason}"
                raise Denied(tool, why, denied.retry_after) from denied
            except _Trouble as trouble:
                raise Denied(tool, f"the hook {hook.name!r} {trouble}") from trouble.__cause__
            if answer is not None and answer is not True:
                raise Denied(tool, _reason(hook, answer))

    def tell(self, context: HookContext, *, as_task: bool) -> Iterator[Wait]:
        """Tell one hook after the other what happened; their errors are logged, not raised.

        Yields what to wait for; *as_task* says that the caller waits with `apause`.
        """
        for hook in self._callable(context.kind):
            try:
                yield from self._call(hook, context, as_task)
            except Denied as denied:
                _log.error("the %s hook %r can refuse nothing", hook.kind, hook.name, exc_info=denied)
            except _Trouble as trouble:
                _log.error("the %s hook %r %s", hook.kind, hook.name, trouble, exc_info=trouble.__cause__)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _callable(self, kind: HookKind) -> Iterable[Hook]:
        return self._by_kind.get(kind, ()) if self not in _around.get() else ()

    def _call(
        self, hook: Hook, context: HookContext, as_task: bool, deadline: float = math.inf
    ) -> Generator[Wait, None, object]:
        """What *hook* returned; raises the `Denied` that it raised, and `_Trouble` for any other failure."""
        call, job = self._prepare(hook, context, as_task)
        now = self._clock.monotonic()
        until = min(now + hook.timeout, deadline)
        try:
            yield Wait(until, job.signal, job.begin)
        except GeneratorExit:  # the caller was cancelled, or garbage-collected
            _leave_behind(call, job)
            raise
        call.leave()
        job.abandon()
        if job.unstarted is not None:
            raise _Trouble(f"could not be started ({job.unstarted})")
        if not job.ended_before(until):
            raise _Trouble(f"took longer than {until - now:g} s")
        return _result(job)

    def _prepare(self, hook: Hook, context: HookContext, as_task: bool) -> tuple[_Call, Job | _TaskJob]:
        call = _Call(hook.fn, context, (*_around.get(), self))
        asynchronous = shape_of(hook.fn) is Shape.COROUTINE
        if asynchronous and as_task:
            return call, _TaskJob(self._cancelled, self._clock, call.awaited)
        if self._workers.full:
            raise _Trouble("was not called: too many timed-out calls still run in threads")
        return call, Job(self._workers, self._clock, call.in_a_loop if asynchronous else call.plain)


_around: ContextVar[tuple[Hooks, ...]] = ContextVar("holdfast_hooks", default=())


class _Trouble(Exception):
    """What went wrong with a hook, in words that follow its name."""


class _Call:
    """One call of a hook, in a context of its own that marks all calls in it as a hook's."""

    __slots__ = ("_around", "_context", "_fn", "_left", "_task")

    def __init__(self, fn: Callable[[HookContext], Any], context: HookContext, around: tuple[Hooks, ...]) -> None:
        self._fn = fn
        self._context = context
        self._around = around
        self._left = False
        self._task: asyncio.Task[object] | None = None

    def plain(self) -> object:
        """Call a function."""
        _around.set(self._around)
        answer = self._fn(self._context)
        if inspect.isawaitable(answer):
            if inspect.iscoroutine(answer):
                answer.close()
            raise TypeError("a plain function that returns an awaitable: must be a coroutine function")
        return answer

    async def awaited(self) -> object:
        """Call a coroutine function."""
        _around.set(self._around)
        return await self._fn(self._context)

    def in_a_loop(self) -> object:
        """Call a coroutine function in an event loop of its own."""
        return asyncio.run(self._cancellable())

    def leave(self) -> None:
        """Cancel a coroutine that has a loop of its own; each side sets its mark before it reads the other's."""
        self._left = True
        if self._task is not None:
            _cancel(self._task)

    async def _cancellable(self) -> object:
        self._task = asyncio.current_task()
        if self._left:
            raise asyncio.CancelledError
        return await self.awaited()


class _TaskJob:
    """Like a `Job`, but a coroutine that runs as a task of the running event loop; if abandoned, it is cancelled."""

    __slots__ = ("signal", "_cancelled", "_clock", "_ended", "_fn", "_task")
    unstarted: str | None = None

    def __init__(
        self, cancelled: set[asyncio.Task[object]], clock: Clock, fn: Callable[[], Coroutine[None, None, object]]
    ) -> None:
        self.signal = Signal()
        self._cancelled = cancelled
        self._clock = clock
        self._fn = fn
        self._ended = math.inf
        self._task: asyncio.Task[object] | None = None

    def begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._fn())
        self._task.add_done_callback(self._end)

    def ended_before(self, when: float) -> bool:
        return self.signal.fired and self._ended < when

    def result(self) -> object:
        assert self._task is not None
        try:
            return self._task.result()
        finally:
            self._task = None  # its error's traceback holds this frame: a reference cycle

    def abandon(self) -> None:
        if (task := self._task) is None or not _cancel(task):
            return
        for other in list(self._cancelled):
            if other.get_loop().is_closed():  # then its task never ends
                self._cancelled.discard(other)
        self._cancelled.add(task)
        if task.done():  # it ended meanwhile, in the thread of its loop
            self._cancelled.discard(task)

    def _end(self, task: asyncio.Task[object]) -> None:
        self._cancelled.discard(task)
        self._ended = self._clock.monotonic()
        self.signal.fire()


def _result(job: Job | _TaskJob) -> object:
    try:
        return job.result()
    except (Denied, KeyboardInterrupt, SystemExit):
        raise
    except asyncio.CancelledError as error:  # the hook's own: passed on, it would cancel the caller
        raise _Trouble("was cancelled") from error
    except BaseException as error:
        raise _Trouble(f"failed ({in_words(error)})") from error


def _reason(hook: Hook, answer: object) -> str:
    if isinstance(answer, str) and answer.strip():
        return answer
    if answer is False or isinstance(answer, str):
        return f"the hook {hook.name!r} refused it"
    return f"the hook {hook.name!r} answered with {type(answer).__name__}: must be None, True or the reason as a text"


def _leave_behind(call: _Call, job: Job | _TaskJob) -> None:
    """Cancel or abandon the call; in another thread if this one may hold locks that are needed for it."""

    def leave() -> None:
        call.leave()
        job.abandon()

    if may_hold_a_lock():
        elsewhere(leave)
    else:
        leave()


def _cancel(task: asyncio.Task[object]) -> bool:
    """Cancel *task* from any thread; False if it has ended, or never will because its event loop is closed."""
    if task.done():
        return False
    try:
        task.get_loop().call_soon_threadsafe(task.cancel)
    except RuntimeError:
        return False
    return True


def _check_function(fn: object) -> None:
    if not callable(fn):
        raise ConfigError(f"fn = {checks.shown(fn)}: must be a function or coroutine function")
    shape = shape_of(fn)
    if shape not in (Shape.FUNCTION, Shape.COROUTINE):
        raise ConfigError(f"fn = {checks.shown(fn)}: is {shape.value}; must be a function or coroutine function")
    try:
        signature = signature_of(fn)
    except (TypeError, ValueError):  # some builtins have no signature
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise ConfigError(f"fn = {checks.shown(fn)}: must take one argument, a HookContext ({error})") from None
