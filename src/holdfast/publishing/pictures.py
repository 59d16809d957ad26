"""Pictures of tools, as other processes on the store are shown them: a small one each time, a larger one now and then.

The larger one has the details for a user who looks at one tool. It is made at once if a tool is new, has changed its
circuit or comes to rest, and rarely if a tool is called all the time.
"""

from __future__ import annotations

import math
import random
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from holdfast.errors import printable
from holdfast.guards.circuit import Circuit, CircuitState
from holdfast.parts.breaker import CircuitDiagnostics
from holdfast.policy.explaining import explain
from holdfast.stores.entries import (
    BOUNDS,
    FINE_BOUNDS,
    MOST_OF_EACH,
    OFF,
    PolicyValue,
    RecentCall,
    ToolDetail,
    ToolEntry,
    Transition,
    histogram,
    pack,
)
from holdfast.tools.kit import Kit
from holdfast.tools.tool import Tool
from holdfast.tools.toolbox import Toolbox
from holdfast.tracking.records import ExecutionRecord

DETAILS_EVERY = 5.0  # seconds between two looks at the details of a tool that is being called all the time
MOST_DETAILS = 20  # such tools whose details are made in one look
MOST_REMEMBERED = 1000  # tools whose transitions are kept


class Pictures:
    """Makes pictures of the tools in *box*, and remembers how their circuits changed."""

    def __init__(self, kit: Kit, box: Toolbox) -> None:
        self._kit = kit
        self._box = box
        self._transitions: OrderedDict[str, list[Transition]] = OrderedDict()  # the newest first
        # Tells the Holdfasts of a process apart: two may have begun in the same millisecond.
        self._counter = random.getrandbits(52)
        self._held: set[str] = set()  # those of these tools whose circuit was held by hand after its last transition
        self.forget()

    def forget(self) -> None:
        """Start over: no picture was shown so far. The lock is new, too, as in a forked child its holder is missing."""
        self._lock = threading.Lock()
        # When the details of a tool were last made; a circuit that changes, at any time, removes its tool.
        self._detailed: dict[str, float] = {}
        self._stale: set[str] = set()  # tools that have changed since

    def owe(self, details: Sequence[tuple[str, bytes]]) -> None:
        """Make these *details* due again, as they could not be shown."""
        for name, _ in details:
            self._stale.add(name)
            self._detailed.pop(name, None)

    def drop(self, names: Iterable[str]) -> None:
        """Forget the tools *names*, which are no longer shown."""
        for name in names:
            self._stale.discard(name)
            self._detailed.pop(name, None)

    def remember(self, tool: str, before: str, after: str, seen: CircuitDiagnostics) -> None:
        """Note a change of the circuit of *tool*, for its next picture."""
        circuit = self._kit.breaker.circuit(tool)
        is_held = circuit.forced is not None
        transition = Transition(
            at_ms=int(self._kit.clock.time() * 1000), before=before, after=after, failures=seen.failure_count,
            backoff_ms=_ms(seen.current_backoff) or 0,
            category=None if seen.last_error_category is None else str(seen.last_error_category),
        )  # fmt: skip
        with self._lock:
            transition.by_hand = is_held or tool in self._held or self._is_reset(after, circuit)
            (self._held.add if is_held else self._held.discard)(tool)
            self._transitions[tool] = [transition, *self._transitions.get(tool, ())][:MOST_OF_EACH]
            self._transitions.move_to_end(tool)
            if len(self._transitions) > MOST_REMEMBERED:
                self._held.discard(self._transitions.popitem(last=False)[0])
            self._detailed.pop(tool, None)

    def _is_reset(self, after: str, circuit: Circuit) -> bool:
        """True if the circuit was closed by hand: one that closes by itself notes when, except in a fleet."""
        return after == CircuitState.CLOSED and circuit.closed_at is None and self._kit.fleet is None

    def entry(self, name: str, *, is_known: bool) -> ToolEntry | None:
        """Return what to show of *name*; None if this process only holds its circuit open or closed, as ordered."""
        now, wall = self._kit.clock.monotonic(), self._kit.clock.time()
        tool = self._box.find(name)
        seen, parts = self._kit.breaker.diagnostics(name), self._kit.tracker.breakdown(name, BOUNDS)
        stats = parts.stats
        if tool is None and not is_known and not stats.total and not stats.denied and not seen.times_opened:
            return None
        entry = ToolEntry(
            name=name, state=str(seen.state), automatic=str(seen.state), failure_count=seen.failure_count,
            until_ms=_ms(None if seen.remaining_backoff is None else wall + seen.remaining_backoff),
            backoff_ms=_ms(seen.current_backoff) or 0, opened_at_ms=_ms(seen.opened_at),
            times_opened=seen.times_opened, probes_in_flight=seen.probes_in_flight,
            calls=stats.total, successful=stats.successful, failed=stats.failed, timed_out=stats.timed_out,
            cancelled=stats.cancelled, cached=stats.cached_hits, denied=stats.denied,
            mean_ms=_duration(stats.mean), p50_ms=_duration(stats.p50), p95_ms=_duration(stats.p95),
            p99_ms=_duration(stats.p99), spent_ms=_duration(stats.total_duration) or 0.0,
            spread=parts.spread, errors=parts.errors, refusals=parts.refusals,
            fallbacks=parts.fallbacks, counter=self._counter, era=parts.era,
        )  # fmt: skip
        if seen.state == "open" and seen.remaining_backoff is None:
            entry.forced = "open"
        if tool is not None:
            self._add(entry, tool, now)
        return entry

    def _add(self, entry: ToolEntry, tool: Tool, now: float) -> None:
        """Add what only the tool itself knows."""
        if tool.policy.breaker is None:
            entry.state = entry.automatic = OFF
            entry.forced = entry.until_ms = None
        else:
            forced = tool.circuit.forced
            entry.forced = None if forced is None else str(forced)
            entry.automatic = str(tool.circuit.state)
            entry.failure_threshold = tool.policy.breaker.failure_threshold
            entry.failure_rate = tool.policy.breaker.failure_rate
        entry.rate, entry.full_rate, entry.in_flight, entry.limit, entry.waiting = tool.limits(now)
        if (error := tool.last_error) is not None:
            entry.last_error_at_ms, entry.last_error = _ms(error[0]), printable(error[1], 300)
        if (share := tool.share) is not None and (shared := share.decided) is not None:
            entry.fleet, entry.shared = share.fleet.name, shared
            if not shared:
                entry.shut = share.fleet.refuses
                meanwhile = "calls are refused" if entry.shut else "each guards by itself"
                entry.alone = printable(f"{meanwhile}: {share.trouble}", 300)

    def details(self, changed: Mapping[str, object], resting: set[str], now: float) -> list[tuple[str, bytes]]:
        """Return the details of *changed* tools: at once if they are new or *resting*, otherwise now and then.

        A tool whose value is None must not be shown.
        """
        for name, entry in changed.items():
            (self._stale.discard if entry is None else self._stale.add)(name)
        told = {name: self._detailed.get(name, -math.inf) for name in self._stale}
        due = [name for name, at in told.items() if name in resting or at == -math.inf]
        busy = [name for name, at in told.items() if name not in resting and -math.inf < at <= now - DETAILS_EVERY]
        due += sorted(busy, key=told.__getitem__)[:MOST_DETAILS]
        if not due:
            return []
        self._stale.difference_update(due)
        calls: dict[str, list[RecentCall]] = {name: [] for name in due}
        for record in self._kit.tracker.recent(self._kit.tracker.max_history):
            if (recent := calls.get(record.tool)) is not None and len(recent) < MOST_OF_EACH:
                recent.append(_recent(record))
        self._detailed.update(dict.fromkeys(due, now))  # before transitions are read: what changes later is due again
        return [(name, pack(self._detail(name, calls[name]))) for name in due]

    def _detail(self, name: str, recent: list[RecentCall]) -> ToolDetail:
        tool = self._box.find(name)
        settings = explain(self._kit.book, name, None if tool is None else tool.given)
        return ToolDetail(
            policy=[
                PolicyValue(key=key, value=value, origin=printable(origin, 300)) for key, value, origin in settings
            ],
            transitions=self._transitions.get(name, []),
            histogram=histogram(self._kit.tracker.breakdown(name, FINE_BOUNDS).spread),
            recent=recent,
        )


def _recent(record: ExecutionRecord) -> RecentCall:
    return RecentCall(
        at_ms=int(record.at * 1000), status=str(record.status), duration_ms=_duration(record.duration) or 0.0,
        attempts=record.attempts, category=None if record.category is None else str(record.category),
        cached=record.was_cached,
    )  # fmt: skip


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * 1000)


def _duration(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
