"""What a process shows of its tools and servers to others on the same store, and how that is put together for a reader.

Everything is cut to a bound before it is written: a name, an error, the last lines of a server's stderr. Times of day
are milliseconds since the epoch, so that a later reader can tell what is left of a wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.errors import printable
from holdfast.stores.trouble import reads_rows

LONGEST_NAME = 200
LONGEST_TEXT = 500
MOST_LINES = 20  # of a server's stderr
MOST_SERVERS = 1000  # of one process

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)  # seconds
FINE_BOUNDS = tuple(
    step * 10**power for power in range(-4, 3) for step in (1, 2, 5) if step * 10**power <= 500
)  # seconds, for the details of one tool
MOST_OF_EACH = 50  # transitions and recent calls of a tool

N = TypeVar("N", int, float)

OFF = "off"  # the state of a tool that has no breaker
SEVERITY = {"open": 0, "half_open": 1, "closed": 2, OFF: 3}


class ToolEntry(msgspec.Struct, kw_only=True):
    """One tool in one process: its circuit, its limits, its statistics.

    *state* is closed, open, half_open or off; *forced* is the state in which it is held by hand, *automatic* the one
    that it would have otherwise. *until_ms* is when an open circuit lets a probe through. Rates are per second. What is
    not counted is None. *spent_ms* is the sum of all durations, *spread* how many were up to each of `BOUNDS`, and
    beyond; *errors* are failures by category, *refusals* denied calls by what refused them, *fallbacks* how many of
    both a fallback answered. *shared* lists what a fleet decides now, of circuit, rate and concurrency; None if the
    tool is in no *fleet*. *alone* says in words what happens while the fleet is away, *shut* that no call is made then.
    """

    name: str
    state: str = "closed"
    automatic: str = "closed"
    forced: str | None = None
    failure_count: int = 0
    until_ms: int | None = None
    backoff_ms: int = 0
    opened_at_ms: int | None = None
    times_opened: int = 0
    probes_in_flight: int = 0
    calls: int = 0
    successful: int = 0
    failed: int = 0
    timed_out: int = 0
    cancelled: int = 0
    cached: int = 0
    denied: int = 0
    mean_ms: float | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    spent_ms: float = 0.0
    spread: list[int] = []
    errors: dict[str, int] = {}
    refusals: dict[str, int] = {}
    fallbacks: int = 0
    rate: float | None = None
    full_rate: float | None = None
    in_flight: int | None = None
    limit: int | None = None
    waiting: int = 0
    failure_threshold: int | None = None  # failures in a row at which the circuit opens
    failure_rate: float | None = None  # share of failed calls at which the circuit opens
    last_error: str | None = None
    last_error_at_ms: int | None = None
    fleet: str | None = None
    shared: list[str] | None = None
    alone: str | None = None
    shut: bool = False
    counter: int = 0  # identifies the `Holdfast` that it is from: a process may have several
    era: int = 0  # changes when counting starts over from zero, except for the circuit's counts

    def refuses(self, now_ms: float) -> bool:
        """True if the circuit would refuse a call; an open one whose wait is over lets the next call probe."""
        return self.state == "open" and (self.until_ms is None or self.until_ms > now_ms)


class PolicyValue(msgspec.Struct, kw_only=True):
    """One setting in force, and where it comes from."""

    key: str
    value: Any
    origin: str


class Transition(msgspec.Struct, kw_only=True):
    """A change of a circuit's state: when, from which to which, after how many failures, for how long, of what kind.

    *by_hand* if a user forced, released or reset it; then the other fields do not tell why it changed.
    """

    at_ms: int
    before: str
    after: str
    failures: int = 0
    backoff_ms: int = 0
    category: str | None = None
    by_hand: bool = False


class RecentCall(msgspec.Struct, kw_only=True):
    """One call that has ended."""

    at_ms: int
    status: str
    duration_ms: float
    attempts: int = 1
    category: str | None = None
    cached: bool = False


class ToolDetail(msgspec.Struct, kw_only=True):
    """What one process shows of one tool to a reader that looks at this tool alone.

    *histogram* has pairs of an upper bound of durations, in milliseconds (None: no bound), and how many calls lie
    between it and the bound before; *transitions* and *recent* begin with the newest.
    """

    policy: list[PolicyValue] = []
    transitions: list[Transition] = []
    histogram: list[tuple[float | None, int]] = []
    recent: list[RecentCall] = []


class ServerEntry(msgspec.Struct, kw_only=True):
    """One server behind a proxy; *state* is idle, starting, ready, restarting, stopped or failed."""

    name: str
    kind: str = "stdio"
    target: str = ""
    state: str = "starting"
    pid: int | None = None
    restarts: int = 0
    protocol: str | None = None
    server_info: dict[str, Any] | None = None
    since_ms: int | None = None
    last_error: str | None = None
    stderr: list[str] = []


class Process(msgspec.Struct, kw_only=True):
    """A process that shows its tools; *kind* is library or proxy, *at_ms* when it last wrote."""

    id: str
    host: str
    pid: int
    kind: str = "library"
    name: str = ""
    started_at_ms: int = 0
    at_ms: int = 0
    until_ms: int = 0
    seen: int = 0
    servers: list[ServerEntry] = []


class Order(msgspec.Struct, frozen=True):
    """The last order on a tool: held open or closed, None for automatic; *reset* is the number of its last reset."""

    tool: str
    state: str | None
    number: int
    reset: int


class ToolInProcess(msgspec.Struct, kw_only=True):
    """One process of a line; *pending* if it has still to take up the last order; *tool* is shown as if it had."""

    process: str
    host: str
    pid: int
    kind: str
    process_name: str
    at_ms: int
    pending: bool
    tool: ToolEntry


class ToolLine(msgspec.Struct, kw_only=True):
    """The tools of one name in all processes: the worst state, the sum of calls, the slowest process's percentiles.

    *forced* is the state in which orders hold it, also for processes that start later; *is_server* says that it is the
    circuit of a server. *remaining_ms* is the longest wait until an open circuit lets a probe through. *sharing* is how
    many processes share it in a fleet, *alone* how many of these are cut off from the fleet now, *why_alone* a reason.
    """

    name: str
    state: str
    forced: str | None = None
    is_server: bool = False
    refuses: bool = False
    calls: int = 0
    calls_per_second: float | None = None  # filled in by readers that look more than once, see rates.py
    failed: int = 0
    denied: int = 0
    cached: int = 0
    error_rate: float | None = None
    failure_threshold: int | None = None
    failure_rate: float | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    in_flight: int | None = None
    limit: int | None = None
    waiting: int = 0
    rate: float | None = None
    full_rate: float | None = None
    remaining_ms: int | None = None
    last_error: str | None = None
    last_error_at_ms: int | None = None
    sharing: int = 0
    alone: int = 0
    why_alone: str | None = None
    processes: list[ToolInProcess] = []


class ServerLine(msgspec.Struct, kw_only=True):
    """A server, and the process that has it."""

    process: str
    host: str
    proxy_pid: int
    proxy: str
    at_ms: int
    server: ServerEntry


# -- as they are kept --------------------------------------------------------------------------------------------------

pack = msgspec.msgpack.Encoder().encode
unpack_tool = reads_rows(msgspec.msgpack.Decoder(ToolEntry).decode)
unpack_detail = reads_rows(msgspec.msgpack.Decoder(ToolDetail).decode)
unpack_servers = reads_rows(msgspec.msgpack.Decoder(list[ServerEntry]).decode)


def server(facts: Mapping[str, Any]) -> ServerEntry:
    """A server from the *facts* that its proxy gives, cut to what is kept; unknown facts are left out."""
    stderr = facts.get("stderr") or ()
    lines = list(stderr)[-MOST_LINES:] if not isinstance(stderr, str) else stderr.splitlines()[-MOST_LINES:]
    return ServerEntry(
        name=_text(facts.get("name", ""), LONGEST_NAME),
        kind=_text(facts.get("kind", "stdio"), LONGEST_NAME),
        target=_text(facts.get("target", "")),
        state=_text(facts.get("state", "starting"), LONGEST_NAME),
        pid=_whole(facts.get("pid")),
        restarts=_whole(facts.get("restarts")) or 0,
        protocol=None if facts.get("protocol") is None else _text(facts["protocol"], LONGEST_NAME),
        server_info=_info(facts.get("server_info")),
        since_ms=_whole(facts.get("since_ms")),
        last_error=None if facts.get("last_error") is None else _text(facts["last_error"]),
        stderr=[_text(line) for line in lines],
    )


def _text(value: object, limit: int = LONGEST_TEXT) -> str:
    return printable(str(value), limit).encode("utf-8", "replace").decode()


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53 else None


def _info(value: object) -> dict[str, Any] | None:
    """At most ten short texts of what a server says of itself, which may be anything."""
    if not isinstance(value, Mapping):
        return None
    texts = [(key, text) for key, text in value.items() if isinstance(key, str) and isinstance(text, str)]
    return {_text(key, LONGEST_NAME): _text(text, LONGEST_NAME) for key, text in texts[:10]}


def histogram(spread: Sequence[int]) -> list[tuple[float | None, int]]:
    """How many durations are up to each of `FINE_BOUNDS`, in milliseconds, from just before the first that has any."""
    bounds: list[float | None] = [round(bound * 1000, 1) for bound in FINE_BOUNDS]
    filled = [(bound, count) for bound, count in zip([*bounds, None], spread, strict=True)]
    while filled and not filled[-1][1]:
        filled.pop()
    first = next((place for place, (_, count) in enumerate(filled) if count), 0)
    return filled[max(0, first - 1) :]


# -- put together ------------------------------------------------------------------------------------------------------


def ordered(entry: ToolEntry, order: Order, seen: int) -> ToolEntry:
    """*entry* as it will be once its process has taken up *order*; so far it has taken up the orders up to *seen*."""
    if order.reset > seen:
        state = OFF if entry.state == OFF else "closed"
        entry = msgspec.structs.replace(
            entry, state=state, automatic="closed", forced=None, failure_count=0, until_ms=None, backoff_ms=0,
            opened_at_ms=None, probes_in_flight=0,
        )  # fmt: skip
    if entry.state == OFF:
        return entry
    if order.state is not None:
        return msgspec.structs.replace(entry, state=order.state, forced=order.state, until_ms=None)
    return msgspec.structs.replace(entry, state=entry.automatic, forced=None)


def line(name: str, forced: str | None, processes: list[ToolInProcess], now_ms: float, *, is_server: bool) -> ToolLine:
    """One line for all processes that have a tool of this name."""
    tools = [each.tool for each in processes]
    made = ToolLine(name=name, state=forced or "closed", forced=forced, is_server=is_server, processes=processes)
    if not tools:
        made.refuses = forced == "open"
        return made
    worst = min(tools, key=lambda tool: (not tool.refuses(now_ms), SEVERITY.get(tool.state, 1)))
    slowest = max(tools, key=lambda tool: (tool.p95_ms is not None, tool.p95_ms or 0.0))
    made.state, made.refuses = worst.state, worst.refuses(now_ms) or any(tool.shut for tool in tools)
    made.p50_ms, made.p95_ms, made.p99_ms = slowest.p50_ms, slowest.p95_ms, slowest.p99_ms
    for name_ in ("calls", "denied", "cached", "waiting"):
        setattr(made, name_, sum(getattr(tool, name_) for tool in tools))
    made.failed = sum(tool.failed + tool.timed_out for tool in tools)
    ended = made.failed + sum(tool.successful for tool in tools)
    made.error_rate = made.failed / ended if ended else None
    made.in_flight = total([tool.in_flight for tool in tools])
    made.limit = allowed(tools, "concurrency", [tool.limit for tool in tools])
    made.failure_threshold = min((n for tool in tools if (n := tool.failure_threshold) is not None), default=None)
    made.failure_rate = min((r for tool in tools if (r := tool.failure_rate) is not None), default=None)
    limited = [tool for tool in tools if tool.rate is not None]
    if limited:
        slow = min(limited, key=lambda tool: tool.rate or 0.0)
        made.rate, made.full_rate = slow.rate, slow.full_rate
    waits = [tool.until_ms - now_ms for tool in tools if tool.until_ms is not None and tool.refuses(now_ms)]
    made.remaining_ms = int(max(waits)) if waits else None
    failing = max(tools, key=lambda tool: tool.last_error_at_ms or -1)
    made.last_error, made.last_error_at_ms = failing.last_error, failing.last_error_at_ms
    made.sharing = sum(tool.shared is not None for tool in tools)
    reasons = [tool.alone for tool in sorted(tools, key=lambda tool: not tool.shut) if tool.alone is not None]
    made.alone, made.why_alone = len(reasons), reasons[0] if reasons else None
    return made


def allowed(tools: Sequence[ToolEntry], guard: str, limits: Sequence[N | None]) -> N | None:
    """The limit of *guard* for all *tools* together: each has a limit of its own, but a fleet has one for all."""
    fleets: dict[str | None, N] = {}
    own: list[N] = []
    for tool, limit in zip(tools, limits, strict=True):
        if limit is not None and guard in (tool.shared or ()):
            fleets[tool.fleet] = max(limit, fleets.get(tool.fleet, limit))
        elif limit is not None:
            own.append(limit)
    own += fleets.values()
    return sum(own) if own else None


def total(numbers: Sequence[N | None]) -> N | None:
    """The sum of those that are not None; None if all are."""
    counted = [number for number in numbers if number is not None]
    return sum(counted) if counted else None
