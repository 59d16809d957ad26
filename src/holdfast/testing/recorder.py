"""A sink that remembers the events it was called with."""

from __future__ import annotations

import threading
from collections import deque

from holdfast import checks
from holdfast.events import Event


class Recorder:
    """A sink that keeps the newest *limit* events it is called with."""

    def __init__(self, limit: int = 10_000) -> None:
        checks.whole("limit", limit)
        self._events: deque[Event] = deque(maxlen=limit)
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        with self._lock:
            self._events.append(event)

    @property
    def events(self) -> list[Event]:
        """The recorded events, oldest first."""
        with self._lock:
            return list(self._events)

    def types(self) -> list[str]:
        """The type of each recorded event, oldest first."""
        return [event.type for event in self.events]

    def of(self, event_type: str) -> list[Event]:
        """The recorded events of one *event_type*, oldest first."""
        return [event for event in self.events if event.type == event_type]

    def clear(self) -> None:
        """Forget all recorded events."""
        with self._lock:
            self._events.clear()
