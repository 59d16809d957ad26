"""What happens in the demo, in plain words and in numbers: a sink for the guards' events, and the agents' mishaps."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, NamedTuple

from holdfast import events
from holdfast.category import ErrorCategory
from holdfast.clock import Clock
from holdfast.events import Event

MOST_LINES: Final = 200
TOGETHER: Final = 1.0  # seconds within which lines that say the same are one
HELD_BACK: Final = 100  # milliseconds in line from which on a call counts as held back


class Tone(Enum):
    """What a line means to whoever reads it."""

    GOOD = "good"
    CARE = "care"
    BAD = "bad"
    MINOR = "minor"


class Line(NamedTuple):
    """One line of the journal; *who* is a tool, or the agent that had a mishap."""

    at: float
    who: str
    text: str
    tone: Tone
    times: int = 1


class Journal:
    """Keeps the newest lines and counts by tool what the guards did; *on_line* hears of each line that is complete."""

    def __init__(
        self, clock: Clock, policies: Mapping[str, Mapping[str, object]], on_line: Callable[[Line], object]
    ) -> None:
        self.lines: deque[Line] = deque(maxlen=MOST_LINES)
        self.retried: Counter[str] = Counter()
        self.cut_off: Counter[str] = Counter()
        self.cached: Counter[str] = Counter()
        self.held_back: Counter[str] = Counter()
        self.refused: Counter[tuple[str, str]] = Counter()  # by tool and by the kind of refusal
        self.last_error: dict[str, str] = {}
        self._clock = clock
        self._policies = policies
        self._on_line = on_line
        self._tellers: Mapping[str, Callable[[str, Mapping[str, object]], None]] = {
            events.TOOL_ATTEMPT_FAILED: self._attempt_failed,
            events.TOOL_ENDED: self._ended,
            events.TOOL_DENIED: self._denied,
            events.CIRCUIT_OPENED: self._opened,
            events.CIRCUIT_HALF_OPENED: self._half_opened,
            events.CIRCUIT_CLOSED: self._closed,
        }

    def __call__(self, event: Event) -> None:
        """Take note of an event."""
        teller = self._tellers.get(event.type)
        if teller is not None and event.tool is not None:
            teller(event.tool, event.payload)

    def write(self, who: str, text: str, tone: Tone) -> None:
        """Add a line, or one more time to the last one, if it says the same."""
        now = self._clock.monotonic()
        last = self.lines[-1] if self.lines else None
        if last is not None and (last.who, last.text) == (who, text) and now - last.at < TOGETHER:
            self.lines[-1] = last._replace(times=last.times + 1)
            return
        self.complete()
        self.lines.append(Line(now, who, text, tone))

    def complete(self) -> None:
        """Nothing more is added to the last line."""
        if self.lines:
            self._on_line(self.lines[-1])

    def _attempt_failed(self, tool: str, facts: Mapping[str, object]) -> None:
        error = str(facts["error"]).partition(": ")[2].removeprefix(f"{tool}: ")
        self.last_error[tool] = error
        if facts["category"] == ErrorCategory.TIMEOUT:
            self.cut_off[tool] += 1
        wait = facts["retry_in_ms"]
        if isinstance(wait, int):
            self.retried[tool] += 1
            slower = "slower now, " if facts["category"] == ErrorCategory.RATE_LIMIT else ""
            after = f"after {wait / 1000:.1f} s" if wait >= 50 else "at once"
            self.write(tool, f"{error}; {slower}retried {after}", Tone.CARE)
        else:
            self.write(tool, f"{error}; {self._instead(tool, facts)}", Tone.CARE)

    def _instead(self, tool: str, facts: Mapping[str, object]) -> str:
        """What happens after a failure that is not tried again."""
        policy = self._policies[tool]
        if "fallback" in policy:
            return f"{self._fallback(tool)} answers instead"
        if not policy.get("read_only") and ErrorCategory(str(facts["category"])).retryable:
            return "not repeated, it may have been done"
        return "the model is told"

    def _ended(self, tool: str, facts: Mapping[str, object]) -> None:
        waited = facts["waited_ms"]
        if facts["cached"]:
            self.cached[tool] += 1
            self.write(tool, "answered from memory", Tone.MINOR)
        elif facts["attempts"] == 1 and isinstance(waited, int) and waited >= HELD_BACK:
            self.held_back[tool] += 1
            self.write(tool, "held back, to stay below the limit", Tone.MINOR)

    def _denied(self, tool: str, facts: Mapping[str, object]) -> None:
        kind = str(facts["kind"])
        self.refused[tool, kind] += 1
        if kind == "LoopDetected":
            self.write(tool, "refused, the same call keeps failing; the model is told", Tone.GOOD)
        elif kind == "CircuitOpen":
            self.write(tool, f"not called, circuit open; {self._fallback(tool)} answers", Tone.GOOD)
        else:
            self.write(tool, f"refused: {facts['reason']}", Tone.CARE)

    def _fallback(self, tool: str) -> object:
        fallback = self._policies[tool].get("fallback")
        return fallback["tool"] if isinstance(fallback, dict) else "nobody"

    def _opened(self, tool: str, facts: Mapping[str, object]) -> None:
        why = "the probe failed" if facts["before"] == "half_open" else f"{facts['failures']} failures in a row"
        self.write(tool, f"circuit OPEN, {why}: left alone for {facts['backoff']:g} s", Tone.BAD)

    def _half_opened(self, tool: str, facts: Mapping[str, object]) -> None:
        self.write(tool, "circuit HALF-OPEN: one call is let through as a probe", Tone.CARE)

    def _closed(self, tool: str, facts: Mapping[str, object]) -> None:
        self.write(tool, "circuit CLOSED: the probe was answered", Tone.GOOD)
