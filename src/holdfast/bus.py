"""The bus hands events to sinks, in the caller's thread. A sink that fails is logged and dropped; no call notices.

Besides the sinks there may be one watcher. It is told of calls and runs where they happen, so that it can put something
around the tool's own code: a span, say. Without a watcher, calls on the quick path do not look for one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import ClassVar, Protocol

import msgspec

from holdfast import checks, events
from holdfast.clock import Clock
from holdfast.errors import ConfigError, printable
from holdfast.events import Event

Sink = Callable[[Event], object]

_log = logging.getLogger("holdfast")


class Origin(msgspec.Struct, frozen=True):
    """Where a call that another program asked for comes from and goes to; *carried* is the metadata it came with."""

    server: str
    tool: str
    id: str
    protocol: str | None
    transport: str  # pipe or tcp, between the client and us
    onward: str  # the same, between us and the server
    carried: Mapping[str, str]


class Named(Protocol):
    """An object with a name."""

    @property
    def name(self) -> str: ...


class Call(Protocol):
    """A call, as its watcher sees it."""

    @property
    def tool(self) -> Named: ...
    @property
    def call_id(self) -> int | str: ...
    @property
    def run_id(self) -> str | None: ...
    @property
    def origin(self) -> Origin | None: ...
    @property
    def attempts(self) -> int: ...
    @property
    def waited(self) -> float: ...
    @property
    def value(self) -> object: ...
    @property
    def substitute(self) -> str | None: ...
    def told(self) -> object: ...


class Verdict(msgspec.Struct, frozen=True):
    """How a call ended: *status* as in the statistics, or denied; *spent* are the seconds inside the tool."""

    status: str
    category: str | None
    cached: bool
    spent: float


class WatchedCall(Protocol):
    """One call that is being watched."""

    def inside(self, inner: AbstractContextManager[None]) -> AbstractContextManager[None]:
        """Return the context for one piece of the tool's own code; *inner* is to be entered inside it."""

    def admitted(self) -> None:
        """The guards have admitted an attempt."""

    def failed(self, error: BaseException, category: str, retry_in: float | None) -> None:
        """An attempt failed; the next begins in *retry_in* seconds, if there is one."""

    def carried(self, id: str) -> Mapping[str, str]:
        """Return the metadata to send with the request *id*, so that the receiver can link its work to this call."""

    def end(self, error: BaseException | None, verdict: Verdict) -> None:
        """The call has ended; perhaps in another thread."""


class Run(Protocol):
    """A run, as its watcher sees it."""

    @property
    def id(self) -> str: ...
    @property
    def session_id(self) -> str: ...
    @property
    def forked_from(self) -> str | None: ...
    def emit(self, type: str, /, **payload: object) -> None: ...


class WatchedRun(Protocol):
    """One run that is being watched."""

    def end(self, error: BaseException | None, *, here: bool) -> None:
        """The run is left; not *here* if that is in another task or thread than it was entered in."""


class Watcher(Protocol):
    """Told of calls and runs in their own context; must not raise."""

    def call(self, call: Call) -> WatchedCall | None:
        """A call begins; return None if it is not to be watched."""

    def run(self, run: Run, *, resumed: bool) -> WatchedRun | None:
        """A run begins, and all that follows in this context is part of it; return None if it is not to be watched."""


class Bus:
    """Hands events to sinks. Emitting is best effort: it never raises and never waits."""

    def __init__(self, clock: Clock) -> None:
        self._clock = checks.clock(clock)
        self._lock = threading.Lock()
        self.sinks: tuple[Sink, ...] = ()
        self.watcher: Watcher | None = None
        self.on_change: Callable[[], object] | None = None

    def add(self, sink: Sink) -> None:
        """Hand every later event to *sink*, in the order in which sinks were added."""
        if not callable(sink):
            raise ConfigError(f"sink = {checks.shown(sink)}: must be callable with an event")
        with self._lock:
            self.sinks = (*self.sinks, sink)
        self._changed()

    def remove(self, sink: Sink) -> None:
        """Hand *sink* no more events; harmless if it was not added."""
        with self._lock:
            self.sinks = tuple(other for other in self.sinks if other != sink)
        self._changed()

    def watch(self, watcher: Watcher | None) -> None:
        """Tell *watcher* of every later call and run, in place of the previous watcher; None removes that one."""
        self.watcher = watcher
        self._changed()

    def emit(self, type: str, tool: str | None = None, run: str | None = None, /, **payload: object) -> None:
        """Hand an event to all sinks; adding or removing a sink meanwhile takes effect with the next event."""
        if not self.sinks:
            return
        event = Event(type, int(self._clock.time() * 1000), tool, run, payload)
        for sink in self.sinks:
            try:
                sink(event)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException:  # a sink that looks at a cancelled task must not cancel the call
                self.remove(sink)
                _log.exception("an event sink failed at %s and was dropped: %s", printable(str(type)), _shown(sink))

    def after_fork(self) -> None:
        """Reset in a forked child: a thread that holds the lock does not exist there."""
        self._lock = threading.Lock()

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()


class LoggingSink:
    """Writes events to standard `logging`, each at a level that says how much it matters to the agent's operator."""

    levels: ClassVar[Mapping[str, int]] = {
        events.TOOL_STARTED: logging.DEBUG,
        events.TOOL_ENDED: logging.DEBUG,
        events.STEP_STARTED: logging.DEBUG,
        events.STEP_ENDED: logging.DEBUG,
        events.TURN_STARTED: logging.DEBUG,
        events.TURN_ENDED: logging.DEBUG,
        events.PLANNING_STARTED: logging.DEBUG,
        events.PLANNING_ENDED: logging.DEBUG,
        events.VERIFICATION_STARTED: logging.DEBUG,
        events.SPENT: logging.DEBUG,
        events.TOOL_ATTEMPT_FAILED: logging.INFO,
        events.CIRCUIT_HALF_OPENED: logging.INFO,
        events.CIRCUIT_CLOSED: logging.INFO,
        events.POLICY_RELOADED: logging.INFO,
        events.FLEET_RETURNED: logging.INFO,
        events.FLEET_LOST: logging.WARNING,
        events.RUN_STARTED: logging.INFO,
        events.RUN_RESUMED: logging.INFO,
        events.RUN_COMPLETED: logging.INFO,
        events.RUN_CANCEL_REQUESTED: logging.INFO,
        events.RUN_CANCELLED: logging.INFO,
        events.VERIFICATION_ENDED: logging.INFO,
        events.TOOL_DENIED: logging.WARNING,
        events.CIRCUIT_OPENED: logging.WARNING,
        events.LOOP_DETECTED: logging.WARNING,
        events.BUDGET_WARNING: logging.WARNING,
        events.RUN_INTERRUPTED: logging.WARNING,
        events.RUN_DIVERGED: logging.WARNING,
        events.POLICY_REJECTED: logging.ERROR,
        events.RUN_FAILED: logging.ERROR,
    }

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger if logger is not None else _log
        if not callable(getattr(self._logger, "isEnabledFor", None)):
            raise ConfigError(f"logger = {checks.shown(logger)}: must be a logger, such as logging.getLogger(NAME)")

    def __call__(self, event: Event) -> None:
        """Write one line: type, tool, run, and what else the event says."""
        level = self.levels.get(event.type, logging.INFO)
        if self._logger.isEnabledFor(level):
            known = [*([] if event.run is None else [("run", event.run)]), *event.payload.items()]
            facts = "".join(f" {printable(key)}={_shown(value)}" for key, value in known)
            self._logger.log(level, "%s %s%s", printable(event.type), printable(event.tool or "-"), facts)


def _shown(value: object) -> str:
    """*value* in one line; a value that cannot be shown must not keep the whole event out of the log."""
    try:
        return printable(str(value))
    except Exception:
        return f"<{type(value).__name__}>"
