"""Values in words, for people: times, sizes, foreign texts. Shared by everything that shows something in a terminal.

Prompts, errors and names come from models and tools: no text returned here can control a terminal.
"""

from __future__ import annotations

import shlex
from time import localtime, strftime, struct_time
from typing import TYPE_CHECKING

from holdfast.errors import LINES, printable

if TYPE_CHECKING:
    from holdfast.history import RunHeader, RunSnapshot

LONGEST = 2000  # characters of one value where nothing else limits it
LATEST = 253_000_000_000_000  # milliseconds since the epoch, in the year 9987: a later year has no four digits


def one_line(text: str, limit: int = LONGEST) -> str:
    """*text* on one line, safe to show, at most *limit* characters of it."""
    line = " ".join(text.split())
    return printable(line if len(line) <= limit else f"{line[: limit - 1]}…", limit)


def in_full(text: str) -> str:
    """*text* with its lines and tabs, otherwise safe to show."""
    return printable(text, len(text), kept=LINES)


def span(seconds: float) -> str:
    """A time in words: 350 ms, 12 s, 5 min, 3 h, 12 d."""
    if seconds < 1:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{round(seconds, 1 if seconds < 10 else 0):g} s"


def age(then_ms: int, now: float) -> str:
    """How long ago something was; a time in the future counts as now, since clocks differ."""
    return span(max(1, int(now - then_ms / 1000)))


def size(count: float) -> str:
    """Bytes in words: 850 B, 12 kB, 3.4 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if count >= 10 or unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def moment(at_ms: int) -> str:
    """Date and time of day, in the local time zone."""
    return strftime("%Y-%m-%d %H:%M:%S", _local(at_ms))


def time_of_day(at_ms: int) -> str:
    """The time of day to the millisecond, in the local time zone."""
    return f"{strftime('%H:%M:%S', _local(at_ms))}.{at_ms % 1000:03}"


def plural(count: int, word: str) -> str:
    """A number of things: 1 process, 2 processes."""
    return f"{count} {word if count == 1 else f'{word}es' if word.endswith('s') else f'{word}s'}"


def _local(at_ms: int) -> struct_time:
    return localtime(min(max(0, at_ms), LATEST) // 1000)


def resume_command(run_id: str, store: str | None, *options: str) -> str:
    """The command that resumes a run; *store* is what the user named the store by, *options* are added."""
    given = [*options] if store is None else ["--store", store, *options]
    words = [*given, "--", run_id] if run_id.startswith("-") else [run_id, *given]
    return f"holdfast runs resume {shlex.join(words)}"


def standstill(run: RunSnapshot, header: RunHeader, store: str | None) -> str | None:
    """Why nothing happens in a run, and what would change that; None if a process runs it, or if it has ended."""
    if run.interrupted:
        return f"nobody runs it any more; {way_on(header, store)}"
    if run.status == "created" and header.priority is not None and header.entry is not None:
        words = [str(header.entry.get("target")), *([] if store is None else ["--store", store])]
        return f"it waits for a worker: holdfast worker {shlex.join(words)}"
    return None


def way_on(header: RunHeader, store: str | None) -> str:
    """How to go on with a run whose process is gone; *store* is what the user named the store by."""
    if header.noted:
        return "it was a proxy's session, and cannot be resumed"
    if header.entry is None:
        return f"to go on, in code: with hf.resume({header.id!r}): …"
    return f"to go on: {resume_command(header.id, store)}"
