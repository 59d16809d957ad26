"""Run stores: where runs are kept. When a method that writes returns, what it wrote is on disk."""

from __future__ import annotations

from holdfast.stores.handle import RunHandle
from holdfast.stores.kinds import MemoryRunStore, PostgresRunStore, SqliteRunStore
from holdfast.stores.opening import open_store
from holdfast.stores.store import RunStore

__all__ = ["MemoryRunStore", "PostgresRunStore", "RunHandle", "RunStore", "SqliteRunStore", "open_store"]
