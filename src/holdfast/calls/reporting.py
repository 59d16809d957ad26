"""Reports a call to the limits of its run, the statistics, the sinks, the hooks and the run's log."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast import events
from holdfast.category import ErrorCategory
from holdfast.errors import Denied, in_lines, printable
from holdfast.guards.retry import note
from holdfast.hooks import HookContext, HookKind
from holdfast.tracking.records import ExecutionStatus

if TYPE_CHECKING:
    from holdfast.calls.execution import Execution


def denied(execution: Execution, denied: Denied) -> str:
    """Report that a guard refused the call; returns its status."""
    tool = execution.tool.name
    if execution.counted and execution.run is not None:
        execution.run.limits.forget(tool)
    if execution.attempts:  # an attempt was admitted, but no thread could be started for it
        _write_end(execution, ExecutionStatus.CANCELLED, denied)
    elif execution.record is not None:
        execution.record.refuse()
    execution.kit.tracker.denied(tool, type(denied).__name__)
    wait = denied.retry_after
    emit(
        execution,
        events.TOOL_DENIED,
        kind=type(denied).__name__,
        reason=printable(denied.reason, 500),
        retry_after_ms=None if wait is None else math.ceil(wait * 1000),
        **_substituted(execution),
    )
    _tell_hooks(execution, HookKind.ON_DENIED, error=denied, reason=denied.reason)
    return "denied"


def ended(execution: Execution, error: BaseException | None) -> str:
    """Report the end of a call that no guard refused; returns its status."""
    tool, category = execution.tool, execution.category
    if (error is None and category is None) or execution.left:
        status = ExecutionStatus.SUCCESS
    elif category is None or category is ErrorCategory.CANCELLED:
        status = ExecutionStatus.CANCELLED
    else:
        status = ExecutionStatus.TIMED_OUT if category is ErrorCategory.TIMEOUT else ExecutionStatus.FAILED
        if isinstance(error, Exception) and not execution.cached:
            note(error, tool.name, execution.attempts, execution.why, execution.waited)
    if execution.counted and execution.run is not None and status is not ExecutionStatus.CANCELLED:
        same = execution.subject.same(tool.name)
        execution.run.limits.settle(same, failed=status is not ExecutionStatus.SUCCESS)
    if execution.noted_at is not None and status is ExecutionStatus.SUCCESS:
        tool.note(execution.noted_at, execution.spent)
    else:
        attempts = max(1, execution.attempts)
        execution.kit.tracker.record(
            tool.name, status, execution.spent, execution.cached, attempts=attempts, category=category
        )
    if execution.record is not None or execution.kit.bus.sinks:  # otherwise there is nowhere to write it
        _write_end(execution, status, error)
    if execution.kit.hooks is not None:
        if error is None or execution.left:
            _tell_hooks(execution, HookKind.AFTER_TOOL, result=execution.value)
        elif isinstance(error, Exception):
            _tell_hooks(execution, HookKind.ON_ERROR, error=error)
    return status


def emit(execution: Execution, type: str, **payload: object) -> None:
    """Emit an event to the call's run, or to the sinks if it is in no run."""
    if execution.run is None:
        execution.kit.bus.emit(type, execution.tool.name, None, call_id=execution.call_id, **payload)
    else:
        execution.run.tell(type, execution.tool.name, call_id=execution.call_id, **payload)


def context(execution: Execution, kind: HookKind, **facts: Any) -> HookContext:
    """The context that a hook of *kind* is called with."""
    arguments, record = execution.subject.arguments(), execution.record
    return HookContext(
        kind=kind,
        tool=execution.tool.name,
        arguments=arguments if isinstance(arguments, Mapping) else {},
        run_id=execution.run_id,
        call_id=execution.call_id,
        key=(record.step.key or None) if record is not None else None,
        **facts,
    )


def _write_end(execution: Execution, status: ExecutionStatus, error: BaseException | None) -> None:
    bus, record, category = execution.kit.bus, execution.record, execution.category
    facts: dict[str, object] = {
        "status": str(status),
        "duration_ms": round(execution.spent * 1000),
        "waited_ms": round(execution.waited * 1000),
        "attempts": execution.attempts,
        "cached": execution.cached,
        "category": None if category is None else str(category),
        "error": None if error is None else in_lines(error),
        **({} if error is None else _substituted(execution)),
    }
    if bus.sinks:
        bus.emit(events.TOOL_ENDED, execution.tool.name, execution.run_id, call_id=execution.call_id, **facts)
    if record is not None:
        record.end(execution, facts, error)


def _substituted(execution: Execution) -> dict[str, str]:
    """The payload that names the fallback, if one answers in place of the tool."""
    return {} if (by := execution.substitute) is None else {"fallback": by}


def _tell_hooks(execution: Execution, kind: HookKind, **facts: object) -> None:
    """Have the hooks of *kind* told after the call has ended (by `Execution.after`)."""
    hooks = execution.kit.hooks
    if hooks is not None and hooks.has(kind) and not execution.forsaken:
        execution.to_tell = context(execution, kind, **facts)
