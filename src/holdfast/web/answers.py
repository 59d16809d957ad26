"""The answers of the API: one struct each, so that the description of the API is made from what is really sent.

The docstrings of these structs are part of that description. Texts of runs are cut in lists; one run alone is whole.
"""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from holdfast.history import CancelResult, EventPage, RunSnapshot, RunStatus
from holdfast.history.verification import VerificationSummary
from holdfast.stores.entries import (
    PolicyValue,
    RecentCall,
    ServerLine,
    ToolDetail,
    ToolInProcess,
    ToolLine,
    Transition,
)
from holdfast.wording.runs import current
from holdfast.wording.tools import why

LONGEST = 1000  # characters of a prompt, a result or an error in a list

encode = msgspec.json.Encoder().encode


class Problem(Exception):
    """A request that cannot be answered; becomes an `Errors` with this status."""

    def __init__(self, status: int, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.hint = hint


class ErrorFacts(msgspec.Struct, kw_only=True):
    """*code* is for programs, *message* says what is wrong, *hint* what to do about it."""

    code: str
    message: str
    hint: str = ""


class Errors(msgspec.Struct, kw_only=True):
    """The answer to a request that failed."""

    error: ErrorFacts


class Health(msgspec.Struct, kw_only=True):
    """The server is up."""

    status: str = "ok"


class Tools(msgspec.Struct, kw_only=True):
    """All tools, the worst first."""

    at_ms: int
    tools: list[ToolLine]


class Change(Transition, kw_only=True):
    """A change of a circuit's state; *why* says in words what caused it."""

    why: str


class DetailLine(msgspec.Struct, kw_only=True):
    """What one process reports about a tool, beyond the line in the list of tools."""

    process: str
    host: str
    pid: int
    process_name: str
    policy: list[PolicyValue]
    transitions: list[Change]
    histogram: list[tuple[float | None, int]]
    recent: list[RecentCall]


class OneTool(msgspec.Struct, kw_only=True):
    """A tool, and what each process that has it reports about it."""

    at_ms: int
    tool: ToolLine
    details: list[DetailLine]


class Ordered(msgspec.Struct, kw_only=True):
    """A tool as it is after an order."""

    tool: ToolLine


class Servers(msgspec.Struct, kw_only=True):
    """All servers behind proxies."""

    at_ms: int
    servers: list[ServerLine]


class Current(msgspec.Struct, kw_only=True):
    """The call or step that a run began last and that has not ended."""

    name: str
    attempt: int
    since_ms: int


class RunView(msgspec.Struct, kw_only=True):
    """A run: its snapshot, and what it is doing now. *interrupted* says that its process is gone."""

    id: str
    session_id: str
    prompt: str
    created_at_ms: int
    updated_at_ms: int
    status: RunStatus
    started_at_ms: int | None
    finished_at_ms: int | None
    result_text: str | None
    error: str | None
    event_count: int
    tool_calls: int
    tool_failures: int
    tool_denials: int
    cached_hits: int
    spend: dict[str, float]
    verification: VerificationSummary | None
    active_tools: tuple[str, ...]
    forked_from: str | None
    owner: str | None
    interrupted: bool
    current: Current | None


class Runs(msgspec.Struct, kw_only=True):
    """One page of runs, the newest first; *next* is the `before` of the next page. A page may be short or empty."""

    at_ms: int
    runs: list[RunView]
    next: str | None


class OneRun(msgspec.Struct, kw_only=True):
    """A run; *resume* is the command that goes on with it, *export* where its JSON lines are."""

    at_ms: int
    run: RunView
    resume: str | None
    export: str


class Events(EventPage, frozen=True):
    """Some events of a run; *gap* says that some of those asked for are no longer kept."""


class Gap(msgspec.Struct, kw_only=True):
    """The event `gap` of a run's stream: earlier events are no longer kept."""

    first_available: int


class Note(msgspec.Struct, kw_only=True):
    """The event `note` of a stream: *code* is `slow` where a page is let go, `store` where the store cannot be read,
    `failed` where the server is to blame.
    """

    code: str
    message: str


class End(msgspec.Struct, kw_only=True):
    """The event `end` of a run's stream: nothing more will come."""

    status: RunStatus


class Cancelled(msgspec.Struct, kw_only=True):
    """The outcome of a request to cancel a run."""

    result: CancelResult


class ManyCancelled(msgspec.Struct, kw_only=True):
    """The outcome of a request to cancel many runs; *next* is the `before` of the next one, if there may be more."""

    requested: int
    already_finished: int
    ids: list[str]
    next: str | None


class Reason(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The reason for a request, for the record."""

    reason: str | None = None


def answer(value: msgspec.Struct, status: int = 200) -> Response:
    """*value* as JSON."""
    return Response(encode(value), status, media_type="application/json")


def refusal(problem: Problem) -> Response:
    """*problem* as JSON."""
    facts = ErrorFacts(code=problem.code, message=problem.message, hint=problem.hint)
    return answer(Errors(error=facts), problem.status)


def detail_line(where: ToolInProcess, detail: ToolDetail) -> DetailLine:
    """What one process reports about a tool, as it is sent."""
    threshold = where.tool.failure_threshold
    changes = [Change(**msgspec.structs.asdict(each), why=why(each, threshold)) for each in detail.transitions]
    return DetailLine(
        process=where.process, host=where.host, pid=where.pid, process_name=where.process_name,
        policy=detail.policy, transitions=changes, histogram=detail.histogram, recent=detail.recent,
    )  # fmt: skip


def view(run: RunSnapshot, *, whole: bool = False) -> RunView:
    """A run as it is sent; if *whole*, its texts are not cut."""
    fields = {name: getattr(run, name) for name in _SHARED}
    if not whole:
        for name in ("prompt", "result_text", "error"):
            fields[name] = _cut(fields[name])
    return RunView(**fields, current=_current(run))


_SHARED = tuple(name for name in RunView.__struct_fields__ if name != "current")


def _current(run: RunSnapshot) -> Current | None:
    call = current(run)
    return None if call is None else Current(name=call.name, attempt=call.attempt, since_ms=call.at_ms)


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= LONGEST else f"{text[:LONGEST]}…"
