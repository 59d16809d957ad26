"""Holdfast: the reliability layer for the tool calls of AI agents.

import holdfast

hf = holdfast.open()

@hf.tool(timeout=10, rate="5/s", read_only=True)
def search(query: str) -> list[str]: ...

A name is loaded when it is first asked for, so that `import holdfast` and `holdfast --help` cost next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.app import Holdfast, open
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
    from holdfast.guards.breaking import BreakerConfig
    from holdfast.guards.circuit import CircuitState
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
    )
    from holdfast.history.fold import fold
    from holdfast.hooks import Hook, HookContext, HookKind
    from holdfast.parts.breaker import BreakerMetrics, BreakerSnapshot, CircuitBreaker, CircuitDiagnostics
    from holdfast.parts.limiters import AdaptiveRateLimiter, RateLimiter
    from holdfast.parts.permit import Permit
    from holdfast.parts.protecting import protecting
    from holdfast.parts.resilience import CallOutcome, ToolResilience, default_resilience
    from holdfast.parts.retrying import retrying
    from holdfast.runs import Run
    from holdfast.stores import MemoryRunStore, PostgresRunStore, RunHandle, RunStore, SqliteRunStore, open_store
    from holdfast.tracking.records import ExecutionRecord, ExecutionStats, ExecutionStatus
    from holdfast.tracking.tracker import ExecutionTracker
    from holdfast.values.redaction import redact

__all__ = [
    "AdaptiveRateLimiter", "BreakerConfig", "BreakerMetrics", "BreakerSnapshot", "BudgetExceeded", "Bus",
    "CallOutcome", "CancelResult", "Check", "CheckStatus", "CircuitBreaker", "CircuitDiagnostics", "CircuitOpen",
    "CircuitState", "Clock", "ConcurrencyFull", "ConfigError", "Denied", "ErrorCategory", "Event", "EventPage",
    "ExecutionRecord", "ExecutionStats", "ExecutionStatus", "ExecutionTracker", "Holdfast", "HoldfastError", "Hook",
    "HookContext", "HookKind", "InDoubt", "LeaseLost", "LoggingSink", "LoopDetected", "MemoryRunStore", "Permit",
    "PostgresRunStore", "Priority", "RateLimited", "RateLimiter", "RecordedError", "Report", "Run", "RunCancelled",
    "RunConflict", "RunDiverged", "RunError", "RunEventRecord", "RunHandle", "RunHeader", "RunNotFound", "RunRecord",
    "RunSnapshot", "RunStatus", "RunStore", "SqliteRunStore", "StoreError", "SystemClock", "ToolResilience",
    "ToolTimeout", "VerificationSummary", "classify", "default_resilience", "fold", "open", "open_store",
    "protecting", "redact", "retry_after", "retrying",
]  # fmt: skip

# The imports above as data. A new name is added there, here and to `__all__`; a test compares the three.
_HOMES = {
    "app": ("Holdfast", "open"),
    "bus": ("Bus", "LoggingSink"),
    "category": ("ErrorCategory", "classify", "retry_after"),
    "clock": ("Clock", "SystemClock"),
    "errors": (
        "BudgetExceeded", "CircuitOpen", "ConcurrencyFull", "ConfigError", "Denied", "HoldfastError", "InDoubt",
        "LeaseLost", "LoopDetected", "RateLimited", "RecordedError", "RunCancelled", "RunConflict", "RunDiverged",
        "RunError", "RunNotFound", "StoreError", "ToolTimeout",
    ),
    "events": ("Event",),
    "guards.breaking": ("BreakerConfig",),
    "guards.circuit": ("CircuitState",),
    "guards.rate": ("Priority",),
    "history": (
        "CancelResult", "Check", "CheckStatus", "EventPage", "Report", "RunEventRecord", "RunHeader", "RunRecord",
        "RunSnapshot", "RunStatus", "VerificationSummary",
    ),
    "history.fold": ("fold",),
    "hooks": ("Hook", "HookContext", "HookKind"),
    "parts.breaker": ("BreakerMetrics", "BreakerSnapshot", "CircuitBreaker", "CircuitDiagnostics"),
    "parts.limiters": ("AdaptiveRateLimiter", "RateLimiter"),
    "parts.permit": ("Permit",),
    "parts.protecting": ("protecting",),
    "parts.resilience": ("CallOutcome", "ToolResilience", "default_resilience"),
    "parts.retrying": ("retrying",),
    "runs": ("Run",),
    "stores": ("MemoryRunStore", "PostgresRunStore", "RunHandle", "RunStore", "SqliteRunStore", "open_store"),
    "tracking.records": ("ExecutionRecord", "ExecutionStats", "ExecutionStatus"),
    "tracking.tracker": ("ExecutionTracker",),
    "values.redaction": ("redact",),
}  # fmt: skip

if not TYPE_CHECKING:  # a type checker would take `__getattr__` for a promise that every name exists
    import sys as _sys
    from importlib import import_module as _import_module

    def __getattr__(name):
        home = next((home for home, names in _HOMES.items() if name in names), None)
        if home is None:
            package = _sys.modules[__name__]
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=package)
        value = globals()[name] = getattr(_import_module(f"{__name__}.{home}"), name)
        return value

    def __dir__():
        return sorted({*globals(), *__all__})
