"""One group of writes on PostgreSQL: a transaction that is sent ahead as a whole, however much is in it.

It has a number, its token, and writes it to all its runs and events: these show afterwards whether it was committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from holdfast.errors import StoreError
from holdfast.stores.ledger import EventRow, Live, MemoRow
from holdfast.stores.postgres.link import Answer, Link
from holdfast.stores.postgres.values import blobs, encoded, texts, whole
from holdfast.stores.rows import pack, pack_header

BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
OVERHEAD = 64  # bytes of an event besides its payload, about


class _Written(NamedTuple):
    """A run that was written: its version *before*, None if it is new, and the *sequence* of its first new event."""

    key: int
    before: int | None
    sequence: int | None


class Group:
    """A transaction on *link*, begun with its first statement; *token* is a number that no other group has.

    It waits *patience* milliseconds for locks of others; None: as long as the connection is set to wait.
    """

    def __init__(self, link: Link, sql: Mapping[str, str], token: int, patience: str | None) -> None:
        self.link = link
        self._sql = sql
        self._token = token
        self._patience = patience
        self._written: dict[int, _Written] = {}
        self.has_begun = self._hurries = False
        self._single: tuple[str, Sequence[object]] | None = None  # everything that is to be written, in one statement
        self.is_news = False  # whether other processes would want to look
        self.to_wake: set[str] = set()

    @property
    def keys(self) -> list[int]:
        """The keys of the runs that were written."""
        return sorted(self._written)

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to commit."""
        return not self.has_begun and self._single is None

    def commit(self) -> None:
        """Send the commit; a single statement is a transaction by itself."""
        if self._single is not None:
            self._bound()
            self.link.execute(*self._single)
        else:
            self.link.execute("COMMIT")
        self.link.end_batch()

    def ask(self, name: str, *parameters: object) -> Answer:
        """Send the statement *name*, in the transaction."""
        self._begin()
        return self.link.execute(self._sql[name], parameters)

    def hurry(self) -> None:
        """Make the server end the transaction if we fall silent for a while, as others may come to wait for it."""
        if not self._hurries:
            self._hurries = True
            self.ask("hurry")

    def lock(self, keys: Sequence[int]) -> None:
        """Keep other transactions from writing to the runs with these *keys* until this one is over."""
        self.hurry()
        self.ask("lock_runs", whole(keys))

    def confirm(self, lives: Iterable[Live]) -> None:
        """Make the transaction fail if another one has written to *lives*."""
        found = list(lives)
        self.ask("confirm", whole([live.key for live in found]), whole([live.version for live in found]))

    def write(self, lives: Iterable[Live], rows: list[EventRow], memos: list[MemoRow]) -> None:
        """Write what has changed of *lives*, and the new *rows* and *memos*; one statement for all of a kind."""
        self.is_news = True
        payloads = [payload.encode() for *_, payload in rows]
        first: dict[int, int] = {}
        weights: dict[int, int] = {}
        for (run, sequence, *_), payload in zip(rows, payloads, strict=True):
            first.setdefault(run, sequence)
            weights[run] = weights.get(run, 0) + len(payload) + OVERHEAD
        new: list[Live] = []
        changed: list[Live] = []
        for live in lives:
            (new if live.is_new else changed).append(live)
            before = None if live.is_new else live.version
            self._written.setdefault(live.key, _Written(live.key, before, first.get(live.key)))
        used = [(tool, live.header.created_at_ms, live.key) for live in (*changed, *new) for tool in live.new_tools]
        if len(changed) == 1 and rows and not (new or used or memos or self.has_begun):
            self._single = self._of_one_run(changed[0], weights, rows, payloads)
            changed[0].version = self._token
            return
        if changed:
            self._change(changed, weights)
        if new:
            self._add(sorted(new, key=lambda live: live.header.id), weights)
        if rows:
            self._add_events(rows, payloads)
        if memos:
            self._add_memos(memos)
        for live in (*changed, *new):
            live.version = self._token
        for each in used:
            self.ask("add_tool_of_run", *each)

    def is_written(self, link: Link) -> bool:
        """True if the group was committed; False also if it has written to no run, as it can be made again then."""
        if not self._written:
            return False
        key, before, sequence = min(self._written.values(), key=lambda each: each.sequence is None)
        versions = [version for (version,) in link.ask(self._sql["version_of"], key)]  # waits for writers
        if sequence is not None:
            return link.ask(self._sql["writer_of"], key, sequence) == [(self._token,)]
        if versions in ([], [before]):
            return False
        if versions != [self._token]:
            raise StoreError("another process has written to the same run since")
        return True

    # -- inside --------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if not self.has_begun:
            self.has_begun = True
            self.link.execute(BEGIN)
            self._bound()
            if self._single is not None:  # there is more to write after all
                self.link.execute(*self._single)
                self._single = None

    def _bound(self) -> None:
        if self._patience is not None:
            self.link.execute(self._sql["wait_at_most"], (self._patience,))

    def _of_one_run(
        self,
        live: Live,
        weights: Mapping[int, int],
        rows: list[EventRow],
        payloads: list[bytes],
    ) -> tuple[str, Sequence[object]]:
        """The usual case, one call of one run, as one statement: half the work for us and for the server."""
        snapshot = live.snapshot
        _, sequences, times, types, lates, _ = zip(*rows, strict=True)
        return self._sql["change_run"], (
            *(live.key, live.version, live.touched_at, pack(snapshot), str(snapshot.status), live.owner, live.fence),
            *(live.cancel, weights.get(live.key, 0), self._token),
            *(whole(sequences), whole(times), texts(types), whole(lates), encoded(payloads)),
        )

    def _change(self, lives: list[Live], weights: Mapping[int, int]) -> None:
        self.ask(
            "change_runs",
            whole([live.key for live in lives]),
            whole([live.version for live in lives]),
            whole([live.touched_at for live in lives]),
            blobs([pack(live.snapshot) for live in lives]),
            texts([live.snapshot.status for live in lives]),
            texts([live.owner for live in lives]),
            whole([live.fence for live in lives]),
            texts([live.cancel for live in lives]),
            whole([weights.get(live.key, 0) for live in lives]),
            self._token,
        )

    def _add(self, lives: list[Live], weights: Mapping[int, int]) -> None:
        headers = [live.header for live in lives]
        queued = [each if each.priority is not None and each.entry is not None else None for each in headers]
        self.ask(
            "add_runs",
            whole([live.key for live in lives]),
            texts([header.id for header in headers]),
            texts([header.session_id for header in headers]),
            texts([live.snapshot.status for live in lives]),
            whole([header.created_at_ms for header in headers]),
            whole([live.touched_at for live in lives]),
            texts([pack_header(header) for header in headers]),
            blobs([pack(live.snapshot) for live in lives]),
            texts([live.owner for live in lives]),
            whole([live.fence for live in lives]),
            texts([live.cancel for live in lives]),
            texts([live.origin for live in lives]),
            texts([None if each is None or each.entry is None else each.entry.get("target") for each in queued]),
            whole([0 if each is None else each.priority or 0 for each in queued]),
            whole([weights.get(live.key, 0) for live in lives]),
            self._token,
        )

    def _add_events(self, rows: list[EventRow], payloads: list[bytes]) -> None:
        runs, sequences, times, types, lates, _ = zip(*rows, strict=True)
        columns = (whole(runs), whole(sequences), whole(times), texts(types), whole(lates), encoded(payloads))
        self.ask("add_events", *columns, self._token)

    def _add_memos(self, memos: list[MemoRow]) -> None:
        last = {memo[:2]: memo for memo in memos}  # of two memos for one call the later counts
        runs, keys, names, outcomes = zip(*last.values(), strict=True)
        self.ask("add_memos", whole(runs), blobs(keys), texts(names), blobs(outcomes))
