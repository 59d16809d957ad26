"""Tools in words: what `holdfast tools`, `holdfast top` and the page have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rich.text import Text

from holdfast.errors import printable
from holdfast.stores.entries import ToolEntry, ToolLine, Transition
from holdfast.wording import plural, span

STYLES: Final[Mapping[str, str]] = {"open": "bold red", "half_open": "bold yellow", "closed": "green", "off": "dim"}


def name_of(line: ToolLine) -> Text:
    """The name of a tool; bold if it refuses calls."""
    server = " (server)" if line.is_server else ""
    return Text(f"{printable(line.name, 200)}{server}", style="bold" if line.refuses else "")


def circuit(state: str, forced: str | None) -> Text:
    """The state of a circuit, and whether it is held there by hand."""
    word = printable(state).replace("_", "-")
    return Text(f"{word} (held)" if forced is not None and forced == state else word, style=STYLES.get(state, ""))


def state_of(line: ToolLine) -> Text:
    """The circuit of a tool in all processes, and whether some of them are without their fleet."""
    word = circuit(line.state, line.forced)
    return Text.assemble(word, (", fleet away", "yellow")) if line.alone else word


def fleet(line: ToolLine) -> str:
    """Which guards of a tool processes share, or how many of them are without the fleet; empty if none shares it."""
    if not line.sharing:
        return ""
    if line.alone:
        return f"away for {line.alone} of {plural(line.sharing, 'process')}: {printable(line.why_alone or '', 300)}"
    shared = dict.fromkeys(name for each in line.processes for name in each.tool.shared or ())
    return f"{', '.join(shared)} shared by {plural(line.sharing, 'process')}"


def probe(line: ToolLine) -> str:
    """How long until an open circuit lets one call through as a probe; "now" if the next call is the probe."""
    if line.remaining_ms is not None:
        return span(line.remaining_ms / 1000)
    return "now" if line.state == "open" and not line.refuses else ""


def why(change: Transition, threshold: int | None) -> str:
    """Why a circuit changed its state; if it opened with fewer failures in a row than *threshold*, a rate opened it."""
    if change.by_hand:
        return "by hand"
    if change.after == "half_open":
        return "the wait was over: one call probes"
    if change.after == "closed":
        return "the probe succeeded" if change.before == "half_open" else "by hand"
    kind = f", last: {printable(change.category).replace('_', ' ')}" if change.category else ""
    if change.before == "half_open":
        return f"the probe failed{kind}"
    if not change.failures:
        return f"calls were slow{kind}"
    is_row = threshold is None or change.failures >= threshold
    return f"{plural(change.failures, 'failure') if is_row else 'too many calls failed or were slow'}{kind}"


def percent(share: float | None) -> str:
    """A share of a whole."""
    if share is None:
        return ""
    return "<1%" if 0 < share < 0.01 else f"{share:.0%}"


def duration(milliseconds: float) -> str:
    """How long a call takes."""
    return span(milliseconds / 1000) if milliseconds >= 1 else f"{milliseconds * 1000:.0f} µs"


def pace(rate: float | None, full: float | None) -> str:
    """Calls a second that a limiter lets through; also of how many, if it has slowed down."""
    if rate is None:
        return ""
    return _a_second(rate) if full is None or rate >= full else f"{_a_second(rate)} of {_a_second(full)}"


def _a_second(rate: float) -> str:
    return f"{rate:.0f}/s" if rate >= 100 else f"{rate:.3g}/s"


def in_flight(line: ToolLine) -> str:
    """How many calls are being made, how many may be at most, and how many wait in line."""
    if line.in_flight is None:
        return ""
    limit = "" if line.limit is None else f" / {line.limit}"
    return f"{line.in_flight}{limit}{f' + {line.waiting}' if line.waiting else ''}"


def calls(tool: ToolEntry) -> str:
    """How many calls there were, how many failed, timed out, were cancelled or cached, and how many were refused."""
    rest = [
        (tool.failed, "failed"), (tool.timed_out, "timed out"), (tool.cancelled, "cancelled"), (tool.cached, "cached"),
    ]  # fmt: skip
    said = ", ".join(f"{count} {what}" for count, what in rest if count)
    refused = f"; {tool.denied} refused" if tool.denied else ""
    return f"{tool.calls}{f' ({said})' if said else ''}{refused}"
