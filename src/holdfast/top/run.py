"""The screen Run: what one run did and does, as bars over time and in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from rich.text import Text

from holdfast.errors import in_digits, printable
from holdfast.history import RunEventRecord
from holdfast.top.calls import NO_BAR, Bar, Call, Scale, Story, bars
from holdfast.top.reading import Look, Picture
from holdfast.top.runs import began, doing, took
from holdfast.top.sheet import Contents
from holdfast.top.signs import TONES, outcome, run_state, sign
from holdfast.wording import in_full, one_line, span, way_on
from holdfast.wording.columns import Column
from holdfast.wording.runs import calls, event_line, identity

CALLS: Final = (Column("call", most=32), Column("outcome", most=14), Column("took", right=True), Column(""))
EVENTS: Final = (Column("event"),)
NO_CALLS: Final = ("No call yet.",)
NONE_LIKE: Final = ("No call is like this; esc shows all of them.",)
NO_EVENTS: Final = ("No event yet.",)
LONGEST: Final = 20_000  # characters of one value in full
LETTERS: Final = {"wait": "░", "backoff": "·"}
OUTCOMES: Final = {"failed": "×", "timed_out": "×", "unknown": "?"}  # of an attempt; all others are solid bars


def facts(picture: Picture, first: int, named: str | None = None) -> Text:
    """A run in a few lines; its events are known from *first* on, and commands name its store as *named*."""
    run = picture.run
    if run is None:
        name = printable(picture.look.name, 200)
        return Text(f"There is no run {name} in this store." if name else "No run is chosen; 3 shows all of them.")
    since, lasted = began(run, picture.at), took(run, picture.at)
    when = f"began {since} ago, took {lasted}" if lasted else f"created {since} ago, has not begun"
    spent = "".join(f", {in_digits(used)} {printable(unit)}" for unit, used in list(run.spend.items())[:5])
    text = Text.assemble(run_state(run), ("  run ", "dim"), (identity(run.id), "bold"), ("  session ", "dim"))
    text.append(f"{one_line(run.session_id, 60)}\n")
    if run.prompt:
        text.append(f"{one_line(run.prompt, 300)}\n", style="bold")
    text.append(f"{when}; {calls(run)}{spent}")
    if first and picture.events is not None:
        why = "no longer kept" if first <= picture.events.first_available else "not shown"
        text.append(f"; events before {first} are {why}", style="yellow")
    if (last := doing(run, picture.at)).plain:
        text.append("\n").append_text(last)
    if run.interrupted and picture.header is not None:
        text.append(f"; {way_on(picture.header, named)}", style="yellow")
    return text


def call_contents(story: Story, look: Look, at: float, room: int) -> Contents:
    """The calls of a run, each with its bars, which are *room* columns wide."""
    text, now = look.text.casefold(), at * 1000
    shown = [
        call
        for call in story.calls
        if (not look.failed or call.is_trouble) and (not text or text in call.name.casefold())
    ]
    scale = Scale(story.calls, now, max(8, room))
    return Contents(
        CALLS,
        [call.sequence for call in shown],
        lambda place: _cells(shown[place], scale, now),
        NONE_LIKE if story.calls else NO_CALLS,
    )


def event_contents(story: Story, width: int) -> Contents:
    """The events of a run, the newest first."""
    events = story.events
    return Contents(
        EVENTS,
        range(story.last, story.last - len(events), -1),
        lambda place: (event_line(events[len(events) - 1 - place], width),),
        NO_EVENTS,
    )


def detail(events: Sequence[RunEventRecord]) -> Iterator[Text]:
    """All that events say, arguments and results in full."""
    for event in events:
        yield Text(f"{event.sequence}  {printable(event.type, 200)}{'  (late)' if event.late else ''}", style="bold")
        for key, value in event.payload.items():
            said = (
                value if isinstance(value, str) else msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
            )
            lines = in_full(said[:LONGEST]).splitlines() or [""]
            if len(said) > LONGEST:
                lines.append(f"… {len(said) - LONGEST} more characters; holdfast runs export has them")
            yield Text.assemble((f"  {printable(key, 60)}  ", "dim"), lines[0])
            yield from (Text(f"    {line}") for line in lines[1:])
        yield Text("")


def _cells(call: Call, scale: Scale, now: float) -> list[Text]:
    spent = "" if call.status in NO_BAR else span(((now if call.end is None else call.end) - call.at) / 1000)
    return [
        _name(call),
        Text("") if call.kind == "mark" else _outcome(call),
        Text(spent),
        _drawn(call, scale, now),
    ]


def _name(call: Call) -> Text:
    if call.kind == "mark":
        tool = call.facts.get("tool")
        return Text(call.name.replace("_", " ") + (f": {one_line(tool, 200)}" if isinstance(tool, str) else ""), "dim")
    return Text(f"{'  ' * min(call.depth, 8)}{one_line(call.name, 200)}")


def _outcome(call: Call) -> Text:
    text = outcome(call.status)
    return text.append(f" ×{len(call.fails) + 1}", style="dim") if call.fails and call.status == "running" else text


def _drawn(call: Call, scale: Scale, now: float) -> Text:
    """The bars of a call: ░ waiting in line, × a failed attempt, · the wait before the next, █ in the tool."""
    found = bars(call, now)
    if not found:
        return Text(" " * scale.place(call.at)).append(sign(call.status), style=TONES.get(call.status, ""))
    line: dict[int, tuple[str, str]] = {}
    for bar in sorted(found, key=lambda each: each.kind == "attempt"):  # attempts last: they cover waits
        for place in range(scale.place(bar.start), scale.place(bar.end) + 1):
            line[place] = _letter(bar)
    text = Text(" " * min(line))
    for place in range(min(line), max(line) + 1):
        letter, style = line.get(place, (" ", ""))
        text.append(letter, style=style)
    return text


def _letter(bar: Bar) -> tuple[str, str]:
    if bar.kind != "attempt":
        return LETTERS[bar.kind], "yellow" if bar.kind == "wait" else "dim"
    return OUTCOMES.get(bar.outcome, "█"), TONES.get(bar.outcome, "green")
