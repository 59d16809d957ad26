"""Server-sent events: a stream of texts that ends when its source does, when the reader goes, or with the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.types import Receive, Scope, Send

from holdfast.web.answers import Note, encode
from holdfast.web.desk import Desk

BEAT = 15.0  # seconds after which a silent stream gives a sign of life, which also finds readers that are gone
RETRY = b"retry: 1000\n\n"
SIGN = b":\n\n"


def message(data: bytes, *, event: str | None = None, id: str | int | None = None) -> bytes:
    """One event; *data* is JSON, which has no line ends of its own."""
    head = "" if id is None else f"id: {id}\n"
    head += "" if event is None else f"event: {event}\n"
    return b"".join((head.encode(), b"data: ", data, b"\n\n"))


def note(code: str, text: str) -> bytes:
    """The event `note`, which tells the page what is wrong."""
    return message(encode(Note(code=code, message=text)), event="note")


class EventStream:
    """Answers with the pieces of *source*; closes it whatever happens."""

    def __init__(self, desk: Desk, source: AsyncIterator[bytes]) -> None:
        self._desk = desk
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the source ends, the reader goes, or the server ends."""
        self._desk.open_stream()
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            if scope["method"] == "HEAD":
                await send({"type": "http.response.body"})
                return
            tasks = [
                asyncio.create_task(self._send(send)),
                asyncio.create_task(_gone(receive)),
                asyncio.create_task(self._desk.closing.wait()),
            ]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            if tasks[1] not in done:
                await send({"type": "http.response.body"})
            if tasks[0] in done:
                tasks[0].result()  # raises an error of the source, so that the server logs it
        finally:
            self._desk.close_stream()

    async def _send(self, send: Send) -> None:
        try:
            await send({"type": "http.response.body", "body": RETRY, "more_body": True})
            async for piece in self._source:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        finally:
            if (close := getattr(self._source, "aclose", None)) is not None:
                await close()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue


_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
