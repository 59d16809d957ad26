"""One run of a store, as seen from anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.history import CancelResult, RunEventRecord, RunSnapshot, RunStatus

if TYPE_CHECKING:
    from holdfast.stores.store import RunStore


class RunHandle:
    """One run of a store, from anywhere."""

    def __init__(self, store: RunStore, run_id: str) -> None:
        self._store = store
        self.id = run_id

    @property
    def session_id(self) -> str:
        """The session it belongs to."""
        return self.snapshot().session_id

    def snapshot(self) -> RunSnapshot:
        """Its state."""
        return self._store.snapshot(self.id)

    def events(self) -> list[RunEventRecord]:
        """Its events."""
        return self._store.events(self.id)

    def status(self) -> RunStatus:
        """How far it is."""
        return self.snapshot().status

    def cancel(self, reason: str | None = None) -> CancelResult:
        """Cancel it, whoever runs it."""
        return self._store.cancel(self.id, reason)
