"""Metrics in the text format of Prometheus: of one process, or of all that share a store.

Counters never fall: the counts of a process stay after it is gone, since Prometheus takes a fall for a restart from
zero, and would count everything before it as new. Labels are few: server, tool, outcome, error_type, state, status.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from holdfast.clock import Clock
from holdfast.history import RunStatus
from holdfast.stores import RunStore
from holdfast.stores.board import Board
from holdfast.stores.entries import BOUNDS, OFF, SEVERITY, Process, ToolEntry, allowed, total

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MOST_GONE: Final = 5000  # tools that their process no longer shows, each remembered in case it comes back
MOST_NAMES: Final = 5000  # names of tools forgotten after that whose counts are kept apart; the rest is one sum
OTHERS: Final = "(others)"  # server and tool of that sum

Where = tuple[str, str]  # server and tool
Labels = tuple[tuple[str, str], ...]
Key = tuple[str, Labels]  # a sample's name and labels
Numbers = dict[Key, float]
# Host, process id, start of the process, and which Holdfast in it (an owner's id would change when it closes its
# store); or a fleet. And the era of the tool: when it begins anew from zero, what it counted before stays, as if it
# were gone.
Life = tuple[str, int, int, int, int]
Shown = tuple[Life, Where]  # a tool as one process shows it


class Shared(Protocol):
    """The part of a fleet that is needed here."""

    is_available: bool
    outages: int
    fallbacks: int


class Showing(Protocol):
    """The part of a Holdfast that is needed here."""

    @property
    def clock(self) -> Clock: ...
    @property
    def fleet(self) -> Shared | None: ...

    def entries(self) -> list[ToolEntry]: ...


def metrics(hf: Showing) -> str:
    """Return the metrics of one process, for an endpoint of its own."""
    entries = hf.entries()
    counts: Numbers = {}
    for entry in entries:
        _add(counts, _counted(entry, ("", entry.name)))
    gauges = _gauges([(("", entry.name), entry) for entry in entries], hf.clock.time() * 1000)
    if (fleet := hf.fleet) is not None:
        counts[_key("holdfast_fleet_outages_total")] = fleet.outages
        counts[_key("holdfast_fleet_fallbacks_total")] = fleet.fallbacks
        gauges[_key("holdfast_fleet_up")] = float(fleet.is_available)
    return _text(counts, gauges)


class StoreMetrics:
    """The metrics of all processes on *store*; to be kept from scrape to scrape. Any number of threads may use it."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._board = Board(store)
        self._lock = threading.Lock()
        self._turns = itertools.count(1)
        self._turn = 0  # number of the scrape that began last, of those that have read the board
        self._latest: dict[Shown, Numbers] = {}  # each tool's counts when it was last seen, the longest gone first
        self._ended: set[tuple[str, int]] = set()  # processes whose last counts were taken, and when they wrote them
        self._base: dict[Where, Numbers] = {}  # counts by tool of those forgotten, the longest forgotten first
        self._others: Numbers = {}  # counts of tools whose names are forgotten, too
        self._keys: dict[Key, Key] = {}  # the keys of all these, so that each is kept in memory once

    def render(self) -> str:
        """Return the metrics as they are now; blocks for as long as it takes to read the board."""
        turn, now = next(self._turns), self._store.clock.time() * 1000
        processes, tools, ended = self._board.processes(), self._board.tools(), self._board.ended()
        known = [*processes, *(process for process, _ in ended)]
        names = sorted({server.name for process in known for server in process.servers}, key=len, reverse=True)
        lines = [(_place(line.name, names, is_server=line.is_server), line) for line in tools]
        placed = [(each.process, where, each.tool) for where, line in lines for each in line.processes]
        held = [(where, ToolEntry(name=line.name, state=line.state)) for where, line in lines if not line.processes]
        living = {process.id: process for process in processes}
        seen = _seen([(living[id], where, entry) for id, where, entry in placed if id in living], processes)
        gauges = _gauges([*((where, entry) for _, where, entry in placed), *held], now)
        gauges.update(_fleet((id, entry) for id, _, entry in placed))
        gauges.update(_gauges_of_store(processes, self._store.counts()))
        last = {(process.id, process.at_ms): (process, entries) for process, entries in ended}
        news = [_of_ended(*each, names) for sign, each in last.items() if sign not in self._ended]
        with self._lock:
            if turn > self._turn:  # otherwise a later scrape was quicker, and may have forgotten what this one has seen
                self._turn, self._ended = turn, set(last)
                self._take([seen, *news])
            summed = self._summed()
        return _text(summed, gauges)

    def _take(self, many: Sequence[Mapping[Shown, Numbers]]) -> None:
        """Take in what was seen; the caller holds the lock."""
        seen = {shown for each in many for shown in each}
        for shown, counts in itertools.chain.from_iterable(each.items() for each in many):
            latest = {self._keys.setdefault(key, key): number for key, number in counts.items()}
            # A process may end between two looks at the board.
            for key, number in self._latest.pop(shown, {}).items():
                latest[key] = max(number, latest.get(key, 0))
            self._latest[shown] = latest
        self._forget(len(self._latest) - len(seen) - MOST_GONE)

    def _summed(self) -> Numbers:
        """Return the sum of all that was counted; the caller holds the lock."""
        total = dict(self._others)
        for counts in itertools.chain(self._base.values(), self._latest.values()):
            _add(total, counts)
        self._keys = {key: key for key in total}
        return total

    def _forget(self, surplus: int) -> None:
        """Add up, by name, the counts of the *surplus* tools that have been gone for longest."""
        for shown in list(itertools.islice(self._latest, max(0, surplus))):
            where = shown[1]
            self._base[where] = base = self._base.pop(where, {})
            _add(base, self._latest.pop(shown))
        if (surplus := len(self._base) - MOST_NAMES) > 0:
            there = {where for _, where in self._latest}  # a counter that is still shown must not fall
            for where in list(itertools.islice((each for each in self._base if each not in there), surplus)):
                for (name, labels), number in self._base.pop(where).items():
                    _add(self._others, {(name, _of_others(labels)): number})


def _add(numbers: Numbers, more: Numbers) -> None:
    for key, number in more.items():
        numbers[key] = numbers.get(key, 0) + number


# -- what is counted ---------------------------------------------------------------------------------------------------


def _seen(placed: Iterable[tuple[Process, Where, ToolEntry]], processes: Iterable[Process]) -> dict[Shown, Numbers]:
    """Return what tools and servers of *processes* have counted."""
    seen: dict[Shown, Numbers] = {}
    for process, where, entry in placed:
        counts = _counted(entry, where)
        opened = _key("holdfast_circuit_opened_total", *_labels(where))
        times = counts.pop(opened)  # never set back, so it has no era
        if entry.fleet is None:
            _add(seen.setdefault((_life(process, entry.counter), where), {}), {opened: times})
        else:  # a fleet has one circuit, whichever of its processes shows it
            shared = seen.setdefault(((entry.fleet, 0, 0, 0, 0), where), {})
            shared[opened] = max(shared.get(opened, 0), times)
        _add(seen.setdefault((_life(process, entry.counter, entry.era), where), {}), counts)
    for process in processes:
        for server in process.servers:
            key = _key("holdfast_server_restarts_total", ("server", server.name))
            _add(seen.setdefault((_life(process), (server.name, "")), {}), {key: server.restarts})
    return seen


def _of_ended(process: Process, entries: Iterable[ToolEntry], names: Sequence[str]) -> dict[Shown, Numbers]:
    own = {server.name for server in process.servers}
    places = ((_place(entry.name, names, is_server=entry.name in own), entry) for entry in entries)
    return _seen([(process, where, entry) for where, entry in places], [process])


def _life(process: Process, counter: int = 0, era: int = 0) -> Life:
    return process.host, process.pid, process.started_at_ms, counter, era


def _counted(entry: ToolEntry, where: Where) -> Numbers:
    """Return the counters."""
    labels = _labels(where)
    counts: Numbers = {}

    def count(name: str, number: float, *more: tuple[str, str]) -> None:
        _add(counts, {_key(name, *labels, *more): number})

    outcomes = {
        "success": entry.successful,
        "failed": entry.failed,
        "timed_out": entry.timed_out,
        "cancelled": entry.cancelled,
    }
    for outcome, number in outcomes.items():
        count("holdfast_calls_total", number, ("outcome", outcome))
    for kind, number in entry.errors.items():
        count("holdfast_errors_total", number, ("error_type", kind))
    for kind, number in entry.refusals.items():
        count("holdfast_refusals_total", number, ("error_type", kind))
    if (rest := entry.denied - sum(entry.refusals.values())) > 0 or not entry.refusals:
        count("holdfast_refusals_total", rest, ("error_type", "Denied"))
    count("holdfast_cached_calls_total", entry.cached)
    count("holdfast_fallbacks_total", entry.fallbacks)
    count("holdfast_circuit_opened_total", entry.times_opened)
    for bound, number in zip([*map(_number, BOUNDS), "+Inf"], itertools.accumulate(_spread(entry)), strict=True):
        count("holdfast_call_duration_seconds_bucket", number, ("le", bound))
    count("holdfast_call_duration_seconds_sum", entry.spent_ms / 1000)
    count("holdfast_call_duration_seconds_count", sum(_spread(entry)))
    return counts


def _labels(where: Where) -> Labels:
    return ("server", where[0]), ("tool", where[1])


def _spread(entry: ToolEntry) -> list[int]:
    return entry.spread if len(entry.spread) == len(BOUNDS) + 1 else [0] * (len(BOUNDS) + 1)


def _gauges(entries: Sequence[tuple[Where, ToolEntry]], now_ms: float) -> Numbers:
    """Return the gauges; limits of several processes add up, a fleet's count once; the worst state wins."""
    found: Numbers = {}
    by_tool: dict[Where, list[ToolEntry]] = {}
    for where, entry in entries:
        by_tool.setdefault(where, []).append(entry)
    for where, tools in by_tool.items():
        labels = _labels(where)
        worst = min(tools, key=lambda tool: SEVERITY.get(tool.state, 1)).state
        for state in (*SEVERITY, *(() if worst in SEVERITY else (worst,))):
            if state != OFF:
                found[_key("holdfast_circuit_state", *labels, ("state", state))] = float(state == worst)
        waits = [tool.until_ms - now_ms for tool in tools if tool.until_ms is not None]
        found[_key("holdfast_circuit_wait_seconds", *labels)] = max(0.0, 0.0, *waits) / 1000
        found[_key("holdfast_waiting_calls", *labels)] = sum(tool.waiting for tool in tools)
        for family, number in (
            ("holdfast_calls_in_flight", total([tool.in_flight for tool in tools])),
            ("holdfast_concurrency_limit", allowed(tools, "concurrency", [tool.limit for tool in tools])),
            ("holdfast_rate_limit", allowed(tools, "rate", [tool.rate for tool in tools])),
            ("holdfast_rate_limit_configured", allowed(tools, "rate", [tool.full_rate for tool in tools])),
        ):
            if number is not None:
                found[_key(family, *labels)] = number
    return found


def _fleet(entries: Iterable[tuple[str, ToolEntry]]) -> Numbers:
    """Count the processes that share guards now, and those alone: one that lacks its fleet for one tool is alone."""
    alone: dict[str, bool] = {}
    for process, entry in entries:
        if entry.shared is not None:
            alone[process] = alone.get(process, False) or entry.alone is not None
    counts = {"shared": sum(not each for each in alone.values()), "alone": sum(alone.values())}
    return {_key("holdfast_fleet_processes", ("state", state)): count for state, count in counts.items() if alone}


def _gauges_of_store(processes: Iterable[Process], runs: Mapping[str, int]) -> Numbers:
    found: Numbers = {}
    for process in processes:
        _add(found, {_key("holdfast_processes", ("kind", process.kind)): 1})
        for server in process.servers:
            _add(found, {_key("holdfast_servers", ("server", server.name), ("state", server.state)): 1})
    for status in dict.fromkeys([*map(str, RunStatus), *runs]):
        found[_key("holdfast_runs", ("status", status))] = runs.get(status, 0)
    return found


def _place(name: str, servers: Sequence[str], *, is_server: bool) -> Where:
    """Return server and tool; *servers* are the known names, the longest first. A server's own circuit has no tool."""
    if is_server:
        return name, ""
    for server in servers:
        if name.startswith(f"{server}."):
            return server, name[len(server) + 1 :]
    return "", name


# -- as text -----------------------------------------------------------------------------------------------------------

# Each family with its type and what it means; they are written in this order.
FAMILIES: Final[Mapping[str, tuple[str, str]]] = {
    "holdfast_calls_total": ("counter", "Calls that have ended, by outcome: success, failed, timed_out, cancelled."),
    "holdfast_errors_total": ("counter", "Calls that failed or timed out, by the category of the error."),
    "holdfast_refusals_total": ("counter", "Calls refused without touching the tool, by what refused them."),
    "holdfast_cached_calls_total": ("counter", "Calls answered from the cache."),
    "holdfast_fallbacks_total": ("counter", "Calls that failed or were refused and that a fallback answered."),
    "holdfast_call_duration_seconds": ("histogram", "Seconds inside the tool; neither cached nor cancelled calls."),
    "holdfast_calls_in_flight": ("gauge", "Calls being made, of tools with a concurrency limit."),
    "holdfast_concurrency_limit": ("gauge", "Calls that may be made at once; an adaptive limit as it is now."),
    "holdfast_waiting_calls": ("gauge", "Calls that wait for their turn."),
    "holdfast_rate_limit": ("gauge", "Calls a second that may be made; an adaptive limit as it is now."),
    "holdfast_rate_limit_configured": ("gauge", "Calls a second that may be made if nobody complains."),
    "holdfast_circuit_state": ("gauge", "1 for the state the circuit is in: open, half_open or closed; else 0."),
    "holdfast_circuit_wait_seconds": ("gauge", "Seconds until an open circuit lets a probe through."),
    "holdfast_circuit_opened_total": ("counter", "Times that the circuit has opened."),
    "holdfast_fleet_processes": ("gauge", "Living processes of a fleet: guards are shared, or alone while it is away."),
    "holdfast_fleet_up": ("gauge", "1 while guards are shared with the fleet, 0 while Redis is away."),
    "holdfast_fleet_outages_total": ("counter", "Times that Redis was lost."),
    "holdfast_fleet_fallbacks_total": ("counter", "Attempts that were decided without the fleet."),
    "holdfast_servers": ("gauge", "MCP servers behind proxies, by state."),
    "holdfast_server_restarts_total": ("counter", "Times that a server was started again."),
    "holdfast_processes": ("gauge", "Living processes that show their tools, by kind."),
    "holdfast_runs": ("gauge", "Runs in the store, by status."),
}
_PARTS: Final = ("_bucket", "_sum", "_count")


def _text(counts: Numbers, gauges: Numbers) -> str:
    samples: dict[str, list[str]] = {family: [] for family in FAMILIES}
    for (name, labels), number in itertools.chain(counts.items(), gauges.items()):
        family = next((name.removesuffix(part) for part in _PARTS if name.endswith(part)), name)
        shown = ",".join(f'{key}="{_escaped(value)}"' for key, value in labels)
        samples[family].append(f"{name}{{{shown}}} {_number(number)}\n" if shown else f"{name} {_number(number)}\n")
    return "".join(_written(samples))


def _written(samples: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for family, (kind, meaning) in FAMILIES.items():
        if samples[family]:
            yield f"# HELP {family} {meaning}\n# TYPE {family} {kind}\n"
            yield from samples[family]


def _of_others(labels: Labels) -> Labels:
    return tuple((key, OTHERS if key in ("server", "tool") else value) for key, value in labels)


def _key(name: str, *labels: tuple[str, str]) -> Key:
    """Return a sample's name and labels, the same objects if possible; half a surrogate pair, which cannot be encoded,
    becomes a question mark.
    """
    return name, tuple(
        each if each[1].isascii() else (each[0], each[1].encode("utf-8", "replace").decode()) for each in labels
    )


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    """Round to the millionth: sums in another order differ by less, and a counter must not fall even by that."""
    return str(int(value)) if float(value).is_integer() else repr(round(float(value), 6))
