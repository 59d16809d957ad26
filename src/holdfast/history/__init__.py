"""History: a run as it is recorded. Its records, and the fold that turns its events into its state."""

from __future__ import annotations

from holdfast.history.fold import apply, begin, fold
from holdfast.history.records import (
    ActiveCall,
    CancelResult,
    EventPage,
    RunEventRecord,
    RunHeader,
    RunRecord,
    RunSnapshot,
    RunStatus,
)
from holdfast.history.verification import (
    Check,
    CheckStatus,
    Report,
    VerificationSummary,
    write_reports,
)

__all__ = [
    "ActiveCall",
    "CancelResult",
    "Check",
    "CheckStatus",
    "EventPage",
    "Report",
    "RunEventRecord",
    "RunHeader",
    "RunRecord",
    "RunSnapshot",
    "RunStatus",
    "VerificationSummary",
    "apply",
    "begin",
    "fold",
    "write_reports",
]
