"""Finding things: the store, the runs in it by the first letters of their ids, policies, the libraries of an extra."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.showing import say
from holdfast.errors import ConfigError, RunNotFound, printable

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.history import RunHeader, RunSnapshot
    from holdfast.policy import PolicyBook
    from holdfast.stores import RunStore

MOST_NAMED = 10  # runs listed when the beginning of an id is ambiguous


@contextmanager
def opened(store: str | None, *, keeps: bool = False, **how: Any) -> Iterator[Holdfast]:
    """Open a Holdfast on *store*, or the configured one, and close it at the end; only a write creates files on disk.

    With *keeps*, raise ConfigError unless the store outlives the command or was named by the user. *how* is passed to
    `holdfast.open`.
    """
    from holdfast.app import open

    with config_errors_as_usage():
        hf = open(store, **how)
    with hf:
        if keeps:
            hf.check_store()
        yield hf


@contextmanager
def opened_leniently(store: str | None, *, keeps: bool = False) -> Iterator[Holdfast]:
    """Like `opened`, for commands that call no tool: a mistake in the policy file is reported, and the file ignored."""
    from holdfast.defaults import named_store, policy_file
    from holdfast.policy import PolicyBook

    path, how = policy_file()[0], dict[str, Any]()
    try:
        PolicyBook.load(path)
    except ConfigError as error:
        with config_errors_as_usage():
            store = store or named_store(None) or _store_in(path or "", error)
        for problem in (*error.problems, "the policy file is passed over"):
            say(problem)
        how = {"policies": {}}
    with opened(store, keeps=keeps, **how) as hf:
        yield hf


def _store_in(path: str, wrong: ConfigError) -> str | None:
    """The store that the file at *path* names, despite a mistake in it; raise *wrong* if that may be the store."""
    from holdfast.policy.file import absolute_store, read_file

    store = read_file(path, path)[0].get("store")
    if isinstance(store, str) and store:
        return absolute_store(store, os.path.abspath(path))
    if store is not None:
        raise wrong
    return None


def warn_if_not_lasting(hf: Holdfast) -> None:
    """Warn that there is no lasting store, in a command that goes on without one."""
    try:
        hf.check_store()
    except ConfigError as error:
        say(f"{error}; till then sessions are kept in memory, and nobody else sees them")


@contextmanager
def config_errors_as_usage() -> Iterator[None]:
    """Wrap code that checks what the user gave: a ConfigError becomes wrong usage."""
    try:
        yield
    except ConfigError as error:
        raise click.UsageError(str(error)) from error


def policies(path: str | None) -> PolicyBook:
    """The policies of a file, or the defaults if *path* is None; a mistake in the file is not wrong usage."""
    from holdfast.policy import PolicyBook

    try:
        return PolicyBook.load(path)
    except ConfigError as error:
        raise click.ClickException(str(error)) from error


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Wrap imports from the libraries of *extra*: if one is not installed, say how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("holdfast"):
            raise
        raise click.UsageError(f"this needs {error.name}: pip install 'holdfast[{extra}]'") from error


def check_temporary() -> None:
    """Raise ClickException if there is no writable folder for temporary files."""
    import tempfile

    try:
        tempfile.gettempdir()
    except OSError as error:
        raise click.ClickException(f"{error.strerror}: name one that can be written, as $TMPDIR") from error


def find(store: RunStore, wanted: str) -> RunSnapshot:
    """The run whose id is *wanted*, else the only one whose id begins with it."""
    if not wanted:
        raise click.UsageError("an id of a run must not be empty")
    try:
        return store.snapshot(wanted)
    except RunNotFound:
        from holdfast.stores.searching import ids_like

        found = ids_like(store, wanted)
    if not found:
        raise RunNotFound(wanted)
    if len(found) > 1:
        names = "\n".join(f"  {printable(run_id, 200)}" for run_id in found[:MOST_NAMED])
        more = f"\n  and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
        raise click.UsageError(f"{printable(wanted, 200)!r} may be one of {len(found)} runs:\n{names}{more}")
    return store.snapshot(found[0])


def header(store: RunStore, run_id: str) -> RunHeader:
    """The header of a run: what was known before its first event."""
    from holdfast.stores.searching import header_of

    if (found := header_of(store, run_id)) is None:
        raise RunNotFound(run_id)
    return found
