"""Opens a run store from its path or URL."""

from __future__ import annotations

import os

from holdfast.checks import is_path, shown
from holdfast.clock import Clock
from holdfast.errors import ConfigError
from holdfast.stores.kinds import MemoryRunStore, PostgresRunStore, SqliteRunStore
from holdfast.stores.store import RunStore

LONGEST = 4096  # characters in a path or URL
ALLOWED = "must be a path, ':memory:', sqlite:///PATH or postgresql://USER@HOST:PORT/DATABASE"
PARAMETERS = {"": "FULL", "synchronous=FULL": "FULL", "synchronous=NORMAL": "NORMAL"}  # after the ? of sqlite:///PATH?


def open_store(url: str | os.PathLike[str], *, clock: Clock | None = None) -> RunStore:
    """The store at *url*: a path, `:memory:`, `sqlite:///PATH` or `postgresql://…`. Nothing is touched yet.

    `sqlite:///PATH?synchronous=NORMAL` is the file of a `SqliteRunStore` that is NORMAL.
    """
    name = os.fspath(url) if isinstance(url, os.PathLike) else url
    hidden = isinstance(name, str) and ("@" in name or "=" in name)  # there may be a password in it
    store = "store" if hidden else f"store = {shown(url)}"
    if not isinstance(name, str) or not 1 <= len(name) <= LONGEST or "\0" in name:
        raise ConfigError(f"{store}: {ALLOWED}, of at most {LONGEST} characters")
    if name == ":memory:":
        return MemoryRunStore(clock=clock)
    scheme, slashes, rest = name.partition("://")
    if slashes and scheme in ("postgresql", "postgres"):
        return PostgresRunStore(name, clock=clock)
    if slashes and scheme == "sqlite":
        if not rest.startswith("/") or rest == "/":
            raise ConfigError(f"{store}: {ALLOWED}")
        path, mark, query = rest[1:].rpartition("?")
        if not mark:
            path, query = rest[1:], ""
        if not path or query not in PARAMETERS:
            raise ConfigError(
                f"{store}: after ?, an SQLite store takes synchronous=FULL or synchronous=NORMAL; a file with a ? in "
                "its name is given as a path"
            )
        if path == ":memory:":
            return MemoryRunStore(clock=clock)
        return SqliteRunStore(path, synchronous=PARAMETERS[query], clock=clock)
    if slashes and "/" not in scheme:
        what = f" = {shown(f'{scheme}://…')}" if is_path(scheme) else ""  # there may be a password in the rest
        raise ConfigError(f"store{what}: {ALLOWED}")
    if isinstance(url, str) and not is_path(name):
        raise ConfigError(f"store: {ALLOWED}; a file whose name looks like an address is ./NAME or a pathlib.Path")
    return SqliteRunStore(name, clock=clock)
