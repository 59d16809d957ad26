"""Server-sent events: decoded from a stream of bytes, and encoded. Anything but a message is a sign of life."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from holdfast.mcp.wire import Event

LONGEST_EVENT: Final = 64 * 2**20  # bytes
LONGEST_ID: Final = 2**13  # bytes: a client sends it back in a header, and many of them are kept
MEDIA_TYPE: Final = "text/event-stream"

_END: Final = re.compile(rb"\r\n|\n|\r")
_BOM: Final = b"\xef\xbb\xbf"
_ALIVE: Final = Event(b"")


class TooLong(Exception):
    """An event, or its id, is longer than the limit."""


class Parser:
    """Splits a stream into events; comments, and events that are not messages, come out as an event without data."""

    def __init__(self, limit: int = LONGEST_EVENT) -> None:
        self._limit = limit
        self._begun: list[bytes] = []  # the parts of a line that has no end yet
        self._size = 0
        self._is_first = True
        self._after_cr = False
        self._data: list[bytes] = []
        self._id: str | None = None
        self._retry: int | None = None
        self._is_message = True
        self._is_alive = False

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """The events that *chunk* completes."""
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._after_cr = chunk.endswith(b"\r")
        *whole, rest = _END.split(chunk)
        for part in whole:
            line = b"".join((*self._begun, part)) if self._begun else part
            self._begun.clear()
            if self._is_first:
                self._is_first = False
                line = line.removeprefix(_BOM)
            if line:
                self._take(line)
            elif (event := self._finish()) is not None:
                yield event
        if rest:
            self._begun.append(rest)
            self._grow(len(rest))

    def _take(self, line: bytes) -> None:
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            self._grow(len(line))
            return
        if line.startswith(b":"):
            self._is_alive = True
            return
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(b"")
            self._grow(len(line))
        elif field == b"id" and b"\0" not in value:
            if len(value) > LONGEST_ID:
                raise TooLong(f"the id of an event is longer than {LONGEST_ID} bytes")
            self._id = value.decode(errors="replace")
        elif field == b"retry" and value.isdigit():
            self._retry = int(value[:9])
        elif field == b"event":
            self._is_message = value in (b"", b"message")

    def _finish(self) -> Event | None:
        data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
        event = Event(data if self._is_message else b"", self._id, self._retry)
        is_any = bool(self._data) or self._is_alive or event != _ALIVE
        self._data = []
        self._id = self._retry = None
        self._is_message, self._is_alive = True, False
        self._size = 0
        return event if is_any else None

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > 2 * self._limit:  # a line that came in parts is counted twice: its parts, and the whole
            raise TooLong(f"an event is longer than {self._limit} bytes")


def encode(event: Event) -> bytes:
    """*event* as bytes."""
    if event == _ALIVE:
        return b":\n\n"
    lines = []
    if event.id is not None:
        lines.append(b"id: " + event.id.encode())
    if event.retry is not None:
        lines.append(b"retry: %d" % event.retry)
    if event.data or event.id is not None:
        lines += [b"data: " + part for part in _END.split(event.data)]
    return b"\n".join(lines) + b"\n\n"
