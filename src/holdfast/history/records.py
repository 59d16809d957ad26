"""The records of a run: its header, its events, and the snapshot that folds from both."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from holdfast.history.verification import VerificationSummary


class RunStatus(StrEnum):
    """How far a run is; the first terminal status is final."""

    CREATED = "created"
    PLANNING = "planning"
    EXECUTING = "executing"
    VERIFYING = "verifying"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    is_terminal: bool  # no event can change it any more

    def __init__(self, name: str) -> None:
        self.is_terminal = name in ("completed", "failed", "cancelled")


class CancelResult(StrEnum):
    """The answer to a request to cancel a run."""

    REQUESTED = "requested"
    ALREADY_FINISHED = "already_finished"
    NOT_FOUND = "not_found"


class RunHeader(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of a run before its first event; after that only *keys* may change."""

    id: str
    session_id: str
    prompt: str
    created_at_ms: int
    forked_from: str | None = None
    root: str | None = None  # the first run of a chain of forks, which all make the same idempotency keys
    entry: Mapping[str, Any] | None = None  # what to call to resume it: {"target": "module:function", "args": […]}
    budget: Mapping[str, int | float] | None = None  # int, too: a number of calls must come back whole
    noted: bool = False  # its calls did not wait for the disk, so it cannot be resumed
    priority: int | None = None  # set if it was submitted: workers may take it, higher ones first
    keys: int = 0  # version of the scheme that makes the keys of its calls; 0 if not recorded

    def elsewhere(self) -> RunHeader:
        """The same header for another store, where the keys of its calls mean nothing."""
        return msgspec.structs.replace(self, keys=0)


class RunEventRecord(msgspec.Struct, frozen=True):
    """One event of a run; *late* if it came after the run's end, and so changed nothing."""

    sequence: int
    timestamp_ms: int
    type: str
    payload: dict[str, Any] = {}
    late: bool = False


class ActiveCall(msgspec.Struct, frozen=True, array_like=True):
    """A call or step that has started and not ended."""

    name: str
    at_ms: int
    key: str = ""
    is_step: bool = False
    attempt: int = 1


class RunSnapshot(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The state of a run after its events; what a store returns is a copy, which the caller may change.

    *owner* and *interrupted* come from leases and time, all other fields from the events.
    """

    id: str
    session_id: str
    prompt: str
    created_at_ms: int
    updated_at_ms: int
    status: RunStatus = RunStatus.CREATED
    started_at_ms: int | None = None
    finished_at_ms: int | None = None
    result_text: str | None = None
    error: str | None = None
    event_count: int = 0
    tool_calls: int = 0
    tool_failures: int = 0
    tool_denials: int = 0
    cached_hits: int = 0
    spend: dict[str, float] = {}
    verification: VerificationSummary | None = None
    active_calls: dict[str, ActiveCall] = {}
    forked_from: str | None = None
    owner: str | None = None
    interrupted: bool = False

    @property
    def active_tools(self) -> tuple[str, ...]:
        """The tools that are being called, in the order in which their calls began."""
        return tuple(call.name for call in self.active_calls.values() if not call.is_step)

    def copy(self) -> RunSnapshot:
        """An independent copy."""
        return msgspec.structs.replace(self, spend=dict(self.spend), active_calls=dict(self.active_calls))

    def to_dict(self) -> dict[str, Any]:
        """The snapshot as plain data for JSON, with `active_tools` in the place of `active_calls`."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in self.__struct_fields__}
        fields["active_tools"] = self.active_tools
        del fields["active_calls"]
        plain: dict[str, Any] = msgspec.to_builtins(fields)
        return plain


class RunRecord(msgspec.Struct, frozen=True):
    """A whole run: its state and all its events."""

    snapshot: RunSnapshot
    events: tuple[RunEventRecord, ...]


class EventPage(msgspec.Struct, frozen=True):
    """Some events of a run in order; the next page is the one after *next_after*.

    *first_available* is the oldest sequence still kept; *gap* is True if requested events were removed.
    """

    events: tuple[RunEventRecord, ...]
    first_available: int
    next_after: int
    has_more: bool
    gap: bool
