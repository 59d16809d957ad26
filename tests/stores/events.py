"""Every event type with a payload of its shape, for tests of the fold and of the stores."""

from __future__ import annotations

from typing import Any

EVENTS: list[tuple[str, dict[str, Any]]] = [
    ("run_started", {"prompt": "p"}),
    ("planning_started", {}),
    ("planning_ended", {}),
    ("turn_started", {"turn": 1}),
    ("turn_ended", {"turn": 1}),
    ("step_started", {"call_id": "s1", "name": "think", "key": "aa"}),
    ("step_ended", {"call_id": "s1", "name": "think", "status": "success"}),
    ("tool_started", {"call_id": "c1", "tool": "search", "arguments": {"q": "x"}, "key": "bb"}),
    ("tool_attempt_failed", {"call_id": "c1", "tool": "search", "error": "timeout"}),
    ("tool_ended", {"call_id": "c1", "tool": "search", "status": "failed", "duration_ms": 3, "attempts": 2}),
    ("tool_denied", {"tool": "search", "reason": "rate", "retry_after_ms": 100}),
    ("circuit_opened", {"tool": "search"}),
    ("circuit_half_opened", {"tool": "search"}),
    ("circuit_closed", {"tool": "search"}),
    ("loop_detected", {"tool": "search"}),
    ("budget_warning", {"unit": "calls"}),
    ("spent", {"unit": "tokens", "amount": 12}),
    ("verification_started", {}),
    ("verification_ended", {"reports": [{"name": "ci", "checks": [{"name": "builds", "status": "passed"}]}]}),
    ("run_interrupted", {"reason": "stopped"}),
    ("run_resumed", {"host": "here", "pid": 1}),
    ("run_cancel_requested", {"reason": "enough"}),
    ("run_diverged", {"calls": ["search"], "count": 1}),
    ("run_completed", {"text": "done"}),
    ("run_failed", {"error": "broken"}),
    ("run_cancelled", {"reason": "enough"}),
    ("something_of_a_user", {"mood": "good"}),
]
