"""Finding runs: by status, session, tool and text, the newest first, a bounded piece of the store at a time.

Status, session and tool have an index; a text is looked for in the runs themselves. The next search goes on where the
last one ended, whether that found anything or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import checks
from holdfast.errors import RunNotFound
from holdfast.history import RunHeader, RunSnapshot, RunStatus
from holdfast.stores.rows import unpack_header
from holdfast.stores.trouble import errors_of

if TYPE_CHECKING:
    from holdfast.stores.store import RunStore

INTERRUPTED = "interrupted"  # not a status in the table: it depends on whether the run's process is alive
ALIVE = "alive"  # all runs that have not ended
STATUSES = (*RunStatus, INTERRUPTED, ALIVE)
MOST_A_PAGE = 10_000
MOST_LOOKED_AT = 20_000  # runs in one search
PIECE = 1000  # runs that are read at once
LATEST = 2**62  # milliseconds; later than any run


class Wanted(msgspec.Struct, frozen=True):
    """Which runs to find; None means any. *text* is looked for in id, session, prompt, result and error."""

    status: str | None = None
    session_id: str | None = None
    tool: str | None = None
    text: str | None = None

    def check(self) -> None:
        """Raise a `ConfigError` if a value is not allowed."""
        if self.status is not None:
            checks.choice("status", self.status, STATUSES)
        for name in ("session_id", "tool", "text"):
            if (value := getattr(self, name)) is not None:
                checks.text(name, value)

    def fits(self, run: RunSnapshot) -> bool:
        """True if a run is wanted, as far as its snapshot tells, which does not know the run's tools."""
        if self.status == INTERRUPTED:
            if not run.interrupted:
                return False
        elif self.status == ALIVE:
            if run.status.is_terminal:
                return False
        elif self.status is not None and run.status != self.status:
            return False
        if self.session_id is not None and run.session_id != self.session_id:
            return False
        return self.text is None or _has(run, self.text.casefold())


class RunPage(msgspec.Struct, frozen=True):
    """Some runs; *next* is the *before* of the next search, None if there are no more."""

    runs: list[RunSnapshot]
    next: str | None


def search(
    store: RunStore,
    wanted: Wanted,
    *,
    limit: int = 100,
    before: str | None = None,
    most_looked_at: float = MOST_LOOKED_AT,
) -> RunPage:
    """The newest runs that are *wanted*, at most *limit*; fewer if *most_looked_at* runs were looked at before that."""
    checks.whole("limit", limit, most=MOST_A_PAGE)
    wanted.check()
    found: list[RunSnapshot] = []
    last: str | None = None
    for looked_at, run in enumerate(_candidates(store, wanted, before, limit + 1)):
        if len(found) >= limit or looked_at >= most_looked_at:
            return RunPage(found, last)
        last = run.id
        if wanted.fits(run):
            found.append(run)
    return RunPage(found, None)


def every(
    store: RunStore, wanted: Wanted, *, before: str | None = None, first: int = MOST_A_PAGE
) -> Iterator[RunSnapshot]:
    """All runs that are *wanted*, the newest first, read in pieces as they are asked for.

    The first piece has at most *first* runs. Runs may be deleted meanwhile.
    """
    wanted.check()
    return filter(wanted.fits, _candidates(store, wanted, before, first))


def _candidates(store: RunStore, wanted: Wanted, before: str | None, first: int) -> Iterator[RunSnapshot]:
    """All runs that an index can find, the newest first, read in small pieces as they are asked for."""
    name, filters = _statement(wanted)
    place = _where(store, before)
    piece = min(PIECE, first) if wanted.text is None else PIECE
    while True:
        rows = store.file.fetch(name, *filters, *place, piece)
        yield from store.snapshots([row[:4] for row in rows])
        if len(rows) < piece:
            return
        place = (rows[-1][4], rows[-1][5])
        piece = PIECE


def _statement(wanted: Wanted) -> tuple[str, list[Any]]:
    """The name of the statement that looks at the fewest runs, and its first parameters."""
    if wanted.tool is not None:
        return "list_of_tool", [wanted.tool]
    if wanted.status in (INTERRUPTED, ALIVE):
        return "list_of_living", []
    name, filters = "list", []
    if wanted.status is not None:
        name, filters = "list_of_status", [str(wanted.status)]
    if wanted.session_id is not None:
        name = f"{name}_and_session" if filters else "list_of_session"
        filters.append(wanted.session_id)
    return name, filters


def _where(store: RunStore, before: str | None) -> tuple[int, int]:
    """The place of the run *before* in the list; the list's beginning if that is None."""
    if before is None:
        return (LATEST, 0)
    checks.text("before", before)
    rows = store.file.fetch("place", before)
    if not rows:
        raise RunNotFound(before)
    at, key = rows[0]
    return (at, key)


def header_of(store: RunStore, run_id: str) -> RunHeader | None:
    """The header of a run; None if there is no such run."""
    rows = store.file.fetch("head", run_id)
    with errors_of(store.file):
        return unpack_header(rows[0][1]) if rows else None


def ids_like(store: RunStore, beginning: str) -> list[str]:
    """The ids that start with *beginning*, those of the newest runs first."""
    if not checks.is_name(beginning):
        return []  # no id can start with it
    behind = beginning[:-1] + chr(ord(beginning[-1]) + 1)
    return [run_id for (run_id,) in store.file.fetch("named_like", beginning, behind)]


def _has(run: RunSnapshot, text: str) -> bool:
    return any(
        text in value.casefold()
        for value in (run.id, run.session_id, run.prompt, run.error, run.result_text)
        if value is not None
    )
