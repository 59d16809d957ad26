"""The handle on one run of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.history import CancelResult, RunEventRecord, RunSnapshot, RunStatus

if TYPE_CHECKING:
    from holdfast.stores.store import RunStore


class RunHandle:
    """One run of a store, for any process, not only the one that runs it."""

    def __init__(self, store: RunStore, run_id: str) -> None:
        self._store = store
        self.id = run_id

    @property
    def session_id(self) -> str:
        """The session that the run belongs to."""
        return self.snapshot().session_id

    def snapshot(self) -> RunSnapshot:
        """The run's state."""
        return self._store.snapshot(self.id)

    def events(self) -> list[RunEventRecord]:
        """The run's events, as far as they are kept."""
        return self._store.events(self.id)

    def status(self) -> RunStatus:
        """The run's status."""
        return self.snapshot().status

    def cancel(self, reason: str | None = None) -> CancelResult:
        """Cancel the run, whichever process runs it."""
        return self._store.cancel(self.id, reason)
