"""Runs and their events in words: what `holdfast runs`, `holdfast top` and the page have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from rich.text import Text

from holdfast import events
from holdfast.errors import printable
from holdfast.history import ActiveCall, CheckStatus, RunEventRecord, RunSnapshot, RunStatus
from holdfast.wording import one_line, plural, time_of_day

NARROW: Final = 80  # columns; below, an event's line leaves out what is least needed

STYLES: Final[Mapping[RunStatus, str]] = {
    RunStatus.CREATED: "dim",
    RunStatus.PLANNING: "cyan",
    RunStatus.EXECUTING: "cyan",
    RunStatus.VERIFYING: "cyan",
    RunStatus.COMPLETED: "green",
    RunStatus.FAILED: "bold red",
    RunStatus.CANCELLED: "magenta",
}
CHECK_STYLES: Final[Mapping[CheckStatus, str]] = {
    CheckStatus.PASSED: "green",
    CheckStatus.SKIPPED: "dim",
    CheckStatus.NEEDS_REVIEW: "bold yellow",
    CheckStatus.FAILED: "bold red",
}
_EVENT_STYLES: Final[Mapping[str, str]] = {
    events.RUN_COMPLETED: "bold green",
    events.RUN_FAILED: "bold red",
    events.RUN_CANCELLED: "bold magenta",
    events.RUN_CANCEL_REQUESTED: "magenta",
    events.RUN_INTERRUPTED: "bold yellow",
    events.RUN_RESUMED: "bold cyan",
    events.RUN_DIVERGED: "yellow",
    events.TOOL_ATTEMPT_FAILED: "yellow",
    events.TOOL_DENIED: "yellow",
    events.CIRCUIT_OPENED: "red",
    events.LOOP_DETECTED: "red",
    events.BUDGET_WARNING: "yellow",
}
_UNSAID: Final = {"call_id", "key", "parent"}  # of no use to people; JSON has them
# The usual values, which are not worth showing.
_DULL: Final[Mapping[str, tuple[object, ...]]] = {"attempts": (1,), "cached": (False,), "waited_ms": (0,)}
_LEADING: Final = ("tool", "name")
_FIRST: Final = ("status", "error", "category", "reason", "arguments", "result")


def identity(run_id: str) -> str:
    """An id, whole, so that it can be copied."""
    return printable(run_id, 200)


def standing(run: RunSnapshot) -> Text:
    """The status of a run; one that no process runs any more is interrupted."""
    if run.interrupted:
        return Text("interrupted", style="bold yellow")
    return Text(run.status.value, style=STYLES[run.status])


def calls(run: RunSnapshot) -> str:
    """How many calls were made, how many of them failed, and those that were not made."""
    failed = f" ({run.tool_failures} failed)" if run.tool_failures else ""
    rest = [(run.tool_denials, "refused"), (run.cached_hits, "cached")]
    not_made = ", ".join(f"{count} {what}" for count, what in rest if count)
    return f"{plural(run.tool_calls, 'call')}{failed}{f'; {not_made}' if not_made else ''}"


def current(run: RunSnapshot) -> ActiveCall | None:
    """The call that a run is making: of several, the one begun last; of an interrupted run, the one it was making."""
    if run.status.is_terminal or not run.active_calls:
        return None
    return next(reversed(run.active_calls.values()))


def active(run: RunSnapshot) -> str:
    """The tools that are being called; of an interrupted run, those that were."""
    tools = () if run.status.is_terminal else run.active_tools
    return ", ".join(printable(tool) for tool in dict.fromkeys(tools))


def gist(run: RunSnapshot) -> Text:
    """What a run is about, or why it went wrong."""
    if run.error:
        return Text(one_line(run.error), style="red" if run.status is RunStatus.FAILED else "")
    return Text(one_line(run.prompt))


def event_line(event: RunEventRecord, width: int) -> Text:
    """An event on one line."""
    narrow = width < NARROW
    at = time_of_day(event.timestamp_ms)
    line = Text(f"{event.sequence:>4}  {at[:8] if narrow else at}  ", style="dim")
    type = printable(event.type, 200)
    line.append(type if narrow else f"{type:<20}", style=f"not dim {_style(event)}")
    subject = next((event.payload[key] for key in _LEADING if isinstance(event.payload.get(key), str)), None)
    if subject is not None:
        line.append(f"  {one_line(subject, 120)}", style="not dim bold")
    rest = [f"{printable(key)}={_value(event.payload[key])}" for key in _said(event.payload)]
    if rest:
        line.append(f"  {' '.join(rest)}", style="not dim")
    if event.late:
        line.append("  (late)", style="not dim yellow")
    return line


def _said(payload: Mapping[str, object]) -> list[str]:
    """The keys of the values that are worth showing, the most important first."""
    keys = sorted(payload, key=lambda key: _FIRST.index(key) if key in _FIRST else len(_FIRST))
    return [key for key in keys if key not in _UNSAID | {*_LEADING} and payload[key] not in _DULL.get(key, (None, ""))]


def _style(event: RunEventRecord) -> str:
    if event.type == events.TOOL_ENDED and event.payload.get("status") in ("failed", "timed_out"):
        return "red"
    return _EVENT_STYLES.get(event.type, "")


def _value(value: object) -> str:
    """A value as people read it: plain words as they are, all else as JSON; a text on one line."""
    if isinstance(value, str):
        value = " ".join(value.split())
    if isinstance(value, str) and value and not any(letter.isspace() or letter in '"=' for letter in value):
        return printable(value, 500)
    return printable(msgspec.json.encode(value).decode(), 500)
