"""The screen Tool: why its circuit changed, how long calls take, recent calls, the policy in force, the processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Final

import msgspec
from rich.text import Text

from holdfast.errors import printable
from holdfast.stores.entries import ToolDetail, ToolInProcess, ToolLine
from holdfast.top.reading import Picture
from holdfast.top.signs import outcome, sign, sparkline, tool_state
from holdfast.top.tools import speed, trip
from holdfast.wording import age, one_line, plural, span, time_of_day
from holdfast.wording.tools import (
    STYLES,
    calls,
    circuit,
    duration,
    fleet,
    in_flight,
    name_of,
    pace,
    percent,
    probe,
    why,
)

WIDE: Final = 150  # columns from which on there are two blocks side by side
MOST: Final = 50  # transitions or recent calls that are shown
LABEL: Final = 12  # columns of the name of a fact
VALUE: Final = 12  # columns of a setting's value; a longer one shifts its origin to the right

Details = Sequence[tuple[ToolInProcess, ToolDetail]]


def lines(picture: Picture, width: int) -> list[Text]:
    """All that is known of one tool."""
    line, details = picture.tool, picture.details or []
    if line is None:
        name = printable(picture.look.name, 200)
        return [Text(""), Text(f"  No process on this store has a tool called {name} now; 1 shows all of them.")]
    left = [*_facts(line, picture), *_transitions(line, details), *_histogram(details, width)]
    right = [*_recent(line, details, picture), *_policy(details), *_processes(line, picture.at)]
    if width < WIDE:
        return [*left, *right]
    return _beside(left, right, width // 2 - 1)


def _facts(line: ToolLine, picture: Picture) -> Iterator[Text]:
    state = tool_state(line)
    if wait := probe(line):
        state.append(f", probe: {wait}", style="yellow")
    if any(each.pending for each in line.processes):
        state.append(", ordered and on its way", style="dim")
    yield _fact("server" if line.is_server else "tool", name_of(line))
    yield _fact("circuit", state)
    if line.forced is not None:
        yield _fact("held", Text(f"{line.forced} by hand, in processes to come, too; A lets go of it"))
    now = "" if line.calls_per_second is None else f"{speed(line.calls_per_second)}/s  "
    yield _fact("calls", Text(f"{now}{sparkline(picture.speeds.get(line.name, ()), 60)}  {line.calls} in all"))
    yield _fact("failed", Text(f"{line.failed} ({percent(line.error_rate) or 'none ended'})"))
    if (opens := trip(line)) and line.state != "open":
        yield _fact("opens at", Text(f"{opens} failed calls" if "%" in opens else f"{opens} failures"))
    yield _fact("refused", Text(f"{line.denied}, from cache {line.cached}"))
    times = [("p50", line.p50_ms), ("p95", line.p95_ms), ("p99", line.p99_ms)]
    if line.p50_ms is not None:
        yield _fact("durations", Text(", ".join(f"{name} {duration(ms)}" for name, ms in times if ms is not None)))
    if flight := in_flight(line):
        yield _fact("in flight", Text(flight))
    if line.rate is not None:
        yield _fact("rate", Text(pace(line.rate, line.full_rate)))
    if shared := fleet(line):
        yield _fact("fleet", Text(shared, style="yellow" if line.alone else ""))
    if line.last_error:
        when = "" if line.last_error_at_ms is None else f", {age(line.last_error_at_ms, picture.at)} ago"
        yield _fact("last error", Text(f"{one_line(line.last_error, 500)}{when}", style="red"))


def _transitions(line: ToolLine, details: Details) -> Iterator[Text]:
    yield from _heading("Transitions")
    found = [(each, where) for where, detail in details for each in detail.transitions]
    for each, where in sorted(found, key=lambda pair: -pair[0].at_ms)[:MOST]:
        change = Text(f"  {time_of_day(each.at_ms)[:8]}  ", style="dim")
        change.append_text(Text(f"{circuit(each.before, None)} → ", style="not dim"))
        change.append(f"{sign(each.after)} {circuit(each.after, None)}", style=f"not dim {STYLES.get(each.after, '')}")
        waits = each.after == "open" and each.backoff_ms and not each.by_hand
        wait = f", waits {span(each.backoff_ms / 1000)}" if waits else ""
        change.append(f"  {why(each, where.tool.failure_threshold)}{wait}", style="not dim")
        yield change.append(f"  process {where.pid}" if len(line.processes) > 1 else "")
    if not found:
        yield Text("  its circuit has not changed since its processes began", style="dim")


def _histogram(details: Details, width: int) -> Iterator[Text]:
    yield from _heading("Durations")
    counts: Counter[float] = Counter()
    for _, detail in details:
        for upper, count in detail.histogram:
            counts[float("inf") if upper is None else upper] += count
    most = max(counts.values(), default=0)
    room = max(10, min(60, (width // 2 if width >= WIDE else width) - 30))
    for upper in sorted(counts):
        label = "more" if upper == float("inf") else f"≤ {duration(upper)}"
        bar = "█" * round(counts[upper] / most * room) or ("▏" if counts[upper] else "")
        yield Text.assemble((f"  {label:>10}  ", "dim"), (bar, "cyan"), f" {counts[upper] or ''}")
    if not most:
        yield Text("  no call has ended yet", style="dim")


def _recent(line: ToolLine, details: Details, picture: Picture) -> Iterator[Text]:
    only = picture.look.failed
    yield from _heading("Recent calls that failed" if only else "Recent calls")
    found = sorted((call for _, detail in details for call in detail.recent), key=lambda call: -call.at_ms)
    shown = [call for call in found if not only or call.status != "success"][:MOST]
    for call in shown:
        state = outcome("cached" if call.cached else call.status)
        state.truncate(13, pad=True)
        said = Text.assemble((f"  {time_of_day(call.at_ms)[:8]}  ", "dim"), state, f" {duration(call.duration_ms):>8}")
        if call.attempts > 1:
            said.append(f"  {call.attempts} attempts")
        if call.category:
            said.append(f"  {printable(call.category).replace('_', ' ')}", style="dim")
        yield said
    if not shown and found:
        yield Text("  none of the last calls failed", style="dim")
    elif not shown:  # a process keeps the last calls of all its tools together: those of a rarely used one may be gone
        was = "of the last calls of its processes, none was of this tool" if line.calls else "no call has ended yet"
        yield Text(f"  {was}", style="dim")


def _policy(details: Details) -> Iterator[Text]:
    yield from _heading("Policy in force (times in seconds), and where it comes from")
    alike: dict[bytes, list[tuple[ToolInProcess, ToolDetail]]] = {}
    for where, detail in details:
        alike.setdefault(msgspec.json.encode(detail.policy), []).append((where, detail))
    for group in alike.values():
        if len(alike) > 1:
            yield Text(f"  process {', '.join(str(where.pid) for where, _ in group)}", style="bold")
        rows = [(printable(each.key), _value(each.value), one_line(each.origin)) for each in group[0][1].policy]
        keys, values = (max((len(row[at]) for row in rows), default=0) for at in (0, 1))
        for key, value, origin in rows:
            shown = (f"{value:<{min(values, VALUE)}}", "cyan")
            yield Text.assemble(f"  {key:<{keys}}  ", shown, (f"  {origin}", "dim"))
    if not details:
        yield Text("  no living process tells its policy", style="dim")


def _value(value: object) -> str:
    return "-" if value is None else one_line(msgspec.json.encode(value).decode(), 200)


def _processes(line: ToolLine, now: float) -> Iterator[Text]:
    yield from _heading("Processes")
    for each in line.processes:
        tool = each.tool
        who = (
            f"{each.pid} on {printable(each.host, 60)} ({printable(each.process_name, 60)}, {printable(each.kind, 40)})"
        )
        state = Text(f"{sign(tool.state)} ").append_text(circuit(tool.state, tool.forced))
        told = f"calls {calls(tool)}; opened {plural(tool.times_opened, 'time')}; told {age(each.at_ms, now)} ago"
        yield Text.assemble(f"  {who}  ", state, (", fleet away" if tool.alone else "", "yellow"))
        yield Text(f"    {told}", style="dim")
    if not line.processes:
        yield Text("  none has it now", style="dim")


def _fact(label: str, value: Text) -> Text:
    return Text.assemble((f"{label:<{LABEL}}", "bold"), value)


def _heading(title: str) -> tuple[Text, Text]:
    return Text(""), Text.assemble((title, "bold underline"))


def _beside(left: list[Text], right: list[Text], width: int) -> list[Text]:
    """Two blocks side by side."""
    lines = []
    for one, other in zip_longest(left, right[1:], fillvalue=Text("")):  # the right one begins with an empty line
        cut = one.copy()
        cut.truncate(width, overflow="ellipsis", pad=True)
        lines.append(Text.assemble(cut, "  ", other))
    return lines
