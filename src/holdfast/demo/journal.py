"""The journal of the first scene: what the guards did, in words and numbers. A sink for events, and for mishaps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from holdfast import events
from holdfast.category import ErrorCategory
from holdfast.clock import Clock
from holdfast.events import Event

TOGETHER: Final = 1.0  # seconds within which equal lines are merged into one
PACED: Final = 100  # milliseconds of waiting from which on a call counts as held back

GOOD, CARE, BAD = "green", "yellow", "red"  # what a line means to the viewer


class Line(NamedTuple):
    """One line of the journal; *who* is a tool, or the agent that had a mishap."""

    at: float
    who: str
    text: str
    style: str
    times: int = 1


class Journal:
    """Writes lines, and counts what the guards did, by keyword."""

    def __init__(self, clock: Clock, policies: Mapping[str, Mapping[str, Any]]) -> None:
        self.lines: list[Line] = []
        self.did: Counter[str] = Counter()
        self._clock = clock
        self._policies = policies

    def __call__(self, event: Event) -> None:
        """Take note of an event."""
        tool = event.tool
        facts: Mapping[str, Any] = event.payload
        if tool is None:
            return
        match event.type:
            case events.TOOL_ATTEMPT_FAILED:
                self._attempt_failed(tool, facts)
            case events.TOOL_ENDED if facts["cached"]:
                self.did["cached"] += 1
            case events.TOOL_ENDED if facts["attempts"] == 1 and facts["waited_ms"] >= PACED:
                self.did["paced"] += 1
            case events.TOOL_DENIED if facts["kind"] == "CircuitOpen":
                self._count(tool, "spared", f"not called, circuit open; {self._fallback(tool)} answers", GOOD)
            case events.TOOL_DENIED:
                self._count(tool, "refused", "refused, the same call keeps failing; the model is told", GOOD)
            case events.CIRCUIT_OPENED:
                why = "the probe failed" if facts["before"] == "half_open" else f"{facts['failures']} failures in a row"
                self.write(tool, f"circuit OPEN, {why}: left alone for {facts['backoff']:g} s", BAD)
            case events.CIRCUIT_HALF_OPENED:
                self.write(tool, "circuit HALF-OPEN: one call is let through as a probe", CARE)
            case events.CIRCUIT_CLOSED:
                self.write(tool, "circuit CLOSED: the probe was answered", GOOD)

    def write(self, who: str, text: str, style: str) -> None:
        """Add a line, or count the last one once more if it says the same."""
        now = self._clock.monotonic()
        last = self.lines[-1] if self.lines else None
        if last is not None and (last.who, last.text) == (who, text) and now - last.at < TOGETHER:
            self.lines[-1] = last._replace(times=last.times + 1)
        else:
            self.lines.append(Line(now, who, text, style))

    def _count(self, tool: str, word: str, text: str, style: str) -> None:
        self.did[word] += 1
        self.write(tool, text, style)

    def _attempt_failed(self, tool: str, facts: Mapping[str, Any]) -> None:
        error = str(facts["error"]).partition(": ")[2].removeprefix(f"{tool}: ")
        category, wait = ErrorCategory(facts["category"]), facts["retry_in_ms"]
        self.did["cut_off"] += category is ErrorCategory.TIMEOUT
        if wait is None:
            self.write(tool, f"{error}; {self._instead(tool, category)}", CARE)
            return
        slower = "slowed, " if category is ErrorCategory.RATE_LIMIT else ""
        after = f"after {wait / 1000:.1f} s" if wait >= 50 else "at once"
        self._count(tool, "retried", f"{error}; {slower}retried {after}", CARE)

    def _instead(self, tool: str, category: ErrorCategory) -> str:
        """What happens after a failure that is not tried again."""
        policy = self._policies[tool]
        if "fallback" in policy:
            return f"{self._fallback(tool)} answers instead"
        if not policy.get("read_only") and category.retryable:
            return "not repeated, it may have been done"
        return "the model is told"

    def _fallback(self, tool: str) -> str:
        return str(self._policies[tool]["fallback"]["tool"])
