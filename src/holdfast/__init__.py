"""Holdfast: the reliability layer for the tool calls of AI agents.

import holdfast

hf = holdfast.open()

@hf.tool(timeout=10, rate="5/s", read_only=True)
def search(query: str) -> list[str]: ...
"""

from __future__ import annotations

from holdfast.app import Holdfast, open
from holdfast.breaker import BreakerMetrics, BreakerSnapshot, CircuitBreaker, CircuitDiagnostics
from holdfast.bus import Bus, LoggingSink
from holdfast.category import ErrorCategory, classify, retry_after
from holdfast.clock import Clock, SystemClock
from holdfast.errors import (
    BudgetExceeded,
    CircuitOpen,
    ConcurrencyFull,
    ConfigError,
    Denied,
    HoldfastError,
    InDoubt,
    LeaseLost,
    LoopDetected,
    RateLimited,
    RecordedError,
    RunCancelled,
    RunConflict,
    RunDiverged,
    RunError,
    RunNotFound,
    StoreError,
    ToolTimeout,
)
from holdfast.events import Event
from holdfast.guards.circuit import BreakerConfig, CircuitState
from holdfast.guards.rate import Priority
from holdfast.history import (
    CancelResult,
    Check,
    CheckStatus,
    EventPage,
    Report,
    RunEventRecord,
    RunHeader,
    RunRecord,
    RunSnapshot,
    RunStatus,
    VerificationSummary,
    fold,
)
from holdfast.hooks import Hook, HookContext, HookKind
from holdfast.limiters import AdaptiveRateLimiter, RateLimiter
from holdfast.permit import Permit
from holdfast.protecting import protecting
from holdfast.redaction import redact
from holdfast.resilience import CallOutcome, ToolResilience, default_resilience
from holdfast.retrying import retrying
from holdfast.runs import Run
from holdfast.stores import MemoryRunStore, RunHandle, RunStore, SqliteRunStore, open_store
from holdfast.tracker import ExecutionRecord, ExecutionStats, ExecutionStatus, ExecutionTracker

__all__ = [
    "AdaptiveRateLimiter",
    "BreakerConfig",
    "BreakerMetrics",
    "BreakerSnapshot",
    "BudgetExceeded",
    "Bus",
    "CallOutcome",
    "CancelResult",
    "Check",
    "CheckStatus",
    "CircuitBreaker",
    "CircuitDiagnostics",
    "CircuitOpen",
    "CircuitState",
    "Clock",
    "ConcurrencyFull",
    "ConfigError",
    "Denied",
    "ErrorCategory",
    "Event",
    "EventPage",
    "ExecutionRecord",
    "ExecutionStats",
    "ExecutionStatus",
    "ExecutionTracker",
    "Holdfast",
    "HoldfastError",
    "Hook",
    "HookContext",
    "HookKind",
    "InDoubt",
    "LeaseLost",
    "LoggingSink",
    "LoopDetected",
    "MemoryRunStore",
    "Permit",
    "Priority",
    "RateLimited",
    "RateLimiter",
    "RecordedError",
    "Report",
    "Run",
    "RunCancelled",
    "RunConflict",
    "RunDiverged",
    "RunError",
    "RunEventRecord",
    "RunHandle",
    "RunHeader",
    "RunNotFound",
    "RunRecord",
    "RunSnapshot",
    "RunStatus",
    "RunStore",
    "SqliteRunStore",
    "StoreError",
    "SystemClock",
    "ToolResilience",
    "ToolTimeout",
    "VerificationSummary",
    "classify",
    "default_resilience",
    "fold",
    "open",
    "open_store",
    "protecting",
    "redact",
    "retry_after",
    "retrying",
]
