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
    LoopDetected,
    RateLimited,
    ToolTimeout,
)
from holdfast.events import Event
from holdfast.guards.circuit import BreakerConfig, CircuitState
from holdfast.guards.rate import Priority
from holdfast.limiters import AdaptiveRateLimiter, RateLimiter
from holdfast.permit import Permit
from holdfast.protecting import protecting
from holdfast.resilience import CallOutcome, ToolResilience, default_resilience
from holdfast.retrying import retrying
from holdfast.runs import Run
from holdfast.tracker import ExecutionRecord, ExecutionStats, ExecutionStatus, ExecutionTracker

__all__ = [
    "AdaptiveRateLimiter",
    "BreakerConfig",
    "BreakerMetrics",
    "BreakerSnapshot",
    "BudgetExceeded",
    "Bus",
    "CallOutcome",
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
    "ExecutionRecord",
    "ExecutionStats",
    "ExecutionStatus",
    "ExecutionTracker",
    "Holdfast",
    "HoldfastError",
    "LoggingSink",
    "LoopDetected",
    "Permit",
    "Priority",
    "RateLimited",
    "RateLimiter",
    "Run",
    "SystemClock",
    "ToolResilience",
    "ToolTimeout",
    "classify",
    "default_resilience",
    "open",
    "protecting",
    "retry_after",
    "retrying",
]
