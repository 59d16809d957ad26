"""Every kind of run store, for the tests that hold for all of them. A new kind joins with a line in `KINDS`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.stores import MemoryRunStore, RunStore, SqliteRunStore

Open = Callable[..., RunStore]

KINDS: dict[str, Callable[[Path], Open]] = {
    "memory": lambda folder: MemoryRunStore,
    # Not written through to the disk, which takes most of the time and is asked for by default.
    "sqlite": lambda folder: lambda **more: SqliteRunStore(folder / "runs.db", **{"synchronous": "NORMAL", **more}),
}
SHARED = {"sqlite"}  # those that several stores, in one process or many, may have open at once


def opener(kind: str, folder: Path) -> Open:
    """Opens a store of *kind*, each time the same one if it is shared."""
    return KINDS[kind](folder)


def claim(store: RunStore, run_id: str) -> Any:
    """Have this process own a run."""
    owner = store.ownership.row()
    return store.writer.commit(lambda ledger: ledger.claim(ledger.run(run_id), owner))
