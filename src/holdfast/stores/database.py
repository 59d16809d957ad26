"""What a run store needs of a database; an SQLite file and a PostgreSQL server both provide it.

Statements are called by name; each kind of database has its own text for them. One thread at a time writes, in
transactions that are begun, written and committed as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from holdfast.clock import Clock
from holdfast.stores.ledger import Tables
from holdfast.stores.neighbours import Locks, News


class Again(Exception):
    """Another process wrote first, or connection or log was lost: the group was not written and must be made again."""


class NotNow(Again):
    """Nothing was begun, as a hasty writer would have to wait."""


class Lost(Again):
    """The outcome of a commit is unknown: *was_committed* finds out whether the group was written.

    If it was not and there is a *failure*, making the same group again is of no use. If it was, its writes have these
    *outcomes*; made again, they would have other ones.
    """

    outcomes: Sequence[tuple[Any, BaseException | None]] = ()

    def __init__(self, was_committed: Callable[[], bool], said: str, failure: Exception | None = None) -> None:
        super().__init__(f"the answer to a commit was lost: {said}")
        self.was_committed = was_committed
        self.failure = failure


class Cursor(Protocol):
    """The rows that a statement returned."""

    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """Executes statements."""

    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> Cursor: ...
    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> object: ...


class Database(Tables, Protocol):
    """Where a store keeps everything; *path* says where that is, None if no other process can open it."""

    path: str | None
    name: str  # for messages; contains no password
    url: str  # what `open_store` takes to open it

    @property
    def exists(self) -> bool: ...

    # -- time, and others who use it -----------------------------------------------------------------------------------

    def clock(self, given: Clock | None) -> Clock: ...
    def locks(self) -> Locks | None: ...
    def watch(self) -> News: ...

    # -- writing -------------------------------------------------------------------------------------------------------

    alone: AbstractContextManager[object]  # held while a group is written
    silence: float  # seconds in which no process could write before the transaction was begun; 0 if it did not wait
    later: Later | None  # for transactions that are synced later; None if there can be none

    def begin(self, *, trusting: bool) -> bool: ...
    def writing(self) -> Connection: ...
    def commit(self) -> None: ...
    def is_committed(self) -> bool: ...
    def rollback(self, *, afresh: bool) -> None: ...
    def give_back(self, most: int) -> int: ...

    # -- reading -------------------------------------------------------------------------------------------------------

    def fetch(self, name: str, *parameters: object) -> list[tuple[Any, ...]]: ...
    def meta(self, name: str) -> Any: ...
    def sql(self, name: str) -> str: ...
    def consistent_reader(self) -> AbstractContextManager[Connection]: ...
    def explained(self, error: BaseException) -> Exception | None: ...
    def concerns_all(self, error: BaseException) -> bool: ...

    # -- ending --------------------------------------------------------------------------------------------------------

    def close(self) -> None: ...
    def hold(self, patience: float) -> bool: ...
    def put_away(self) -> None: ...
    def let_go(self) -> None: ...
    def after_fork(self) -> None: ...


class Later(Protocol):
    """Makes transactions whose commits do not sync, and syncs them later."""

    def begin(self) -> None: ...
    def log(self) -> int: ...
    def sync(self) -> None: ...
    def distrust(self) -> None: ...
