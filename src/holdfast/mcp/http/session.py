"""A session with a server over HTTP, in protocol versions with a handshake. If the server has forgotten it, a new one
is begun, once for all requests that notice. Below it are functions for all code that asks a server over HTTP.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing, closing
from typing import Any, Final

import msgspec

from holdfast.mcp import frames
from holdfast.mcp.frames import Head, Id
from holdfast.mcp.handshake import Handshake
from holdfast.mcp.http.client import Response
from holdfast.mcp.http.endpoint import JSON, SESSION, VERSION, Endpoint, rpc_error
from holdfast.mcp.http.sse import MEDIA_TYPE
from holdfast.mcp.wire import Condition, ServerLost

ACCEPT: Final = {"accept": f"{JSON}, {MEDIA_TYPE}", "content-type": JSON}
GRACE: Final = 2.0  # seconds for a server to say how a cancelled request ended
PATIENCE: Final = 30.0  # seconds for a server to begin a session anew
_SESSION: Final = re.compile(r"\bsession", re.IGNORECASE)


class HttpSession:
    """The server's *id* for the session of one client; *on_renewed* is called when a new session has replaced it."""

    def __init__(
        self,
        endpoint: Endpoint,
        condition: Condition,
        id: str | None = None,
        on_renewed: Callable[[], object] = lambda: None,
    ) -> None:
        self.id = id
        self.handshake = Handshake()
        self._endpoint = endpoint
        self._condition = condition
        self._on_renewed = on_renewed
        self._renewing: asyncio.Task[None] | None = None

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every request except `initialize`."""
        headers = {} if self.id is None else {SESSION: self.id}
        if self.handshake.is_done and self.handshake.protocol is not None:
            headers[VERSION] = self.handshake.protocol
        return headers

    async def settled(self) -> None:
        """Wait until no new session is being begun."""
        if self._renewing is not None and not self._renewing.done():
            await asyncio.shield(self._renewing)

    async def renew(self, id: str, lost: ServerLost, headers: Mapping[str, str]) -> None:
        """Begin a new session in place of *id*, with *headers*; raise *lost* if the client's handshake is not known."""
        if self.id == id and (self._renewing is None or self._renewing.done()):
            if (begins := self.handshake.begins) is None:
                raise lost
            self._renewing = asyncio.ensure_future(self._begin_anew(begins, headers))
            self._renewing.add_done_callback(lambda task: task.cancelled() or task.exception())
        await self.settled()  # even if there is a new id already: the server may not have been told the rest

    async def close(self) -> None:
        """Stop beginning a new session."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)

    async def _begin_anew(self, begins: bytes, headers: Mapping[str, str]) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                await self._replay(begins, headers)
        except TimeoutError:
            raise ServerLost(
                f"{self._endpoint.target} has forgotten the session, and did not begin another within {PATIENCE:g} s",
                sent=False,
            ) from None
        except ServerLost as error:
            error.sent = False  # the client's request was refused together with the old session
            raise
        self._condition.restarts += 1
        self._on_renewed()

    async def _replay(self, begins: bytes, headers: Mapping[str, str]) -> None:
        """Tell the server what it was told when the session began, and since."""
        given, answer = await self._ask(begins, headers)
        if answer is None or answer.is_refusal:
            raise ServerLost(f"{self._endpoint.target} has forgotten the session, and gives no other", sent=False)
        self.id = given.get(SESSION)
        self.handshake.answered(answer)
        for data in self.handshake.restores():
            await self._ask(data, {**headers, **self.headers})

    async def _ask(self, data: bytes, headers: Mapping[str, str]) -> tuple[Mapping[str, str], Head | None]:
        """Send a frame of our own; return the headers of the response, and the answer if one is due."""
        with closing(await self._endpoint.open("POST", {**headers, **ACCEPT}, data)) as response:
            if not response.is_success:
                raise await self._endpoint.refusal(response)
            try:
                wanted = frames.head(data).id
                if response.is_stream:
                    found = await self._answer_to(wanted, response) if isinstance(wanted, str) else None
                else:
                    body = await response.body()
                    found = frames.head(body) if body.strip() else None
            except msgspec.DecodeError as error:
                raise ServerLost(f"{self._endpoint.target} gave an answer that is no frame: {error}") from error
            return response.headers, found

    async def _answer_to(self, id: str, response: Response) -> Head | None:
        """The answer to *id* in a stream, without waiting for the end of the stream."""
        async with aclosing(response.events()) as stream:
            async for event in stream:
                head = frames.head(event.data) if event.data else None
                if head is not None and head.is_answer and head.id == id:
                    return head
        return None


def take_off(waiting: set[Any], ids: Iterable[Any]) -> None:
    """Remove *ids*, which are answered, from *waiting*; a number may have come back as a text."""
    for id in ids:
        waiting.discard(id if id in waiting else frames.as_number(id))


def forgo_later(waiting: set[Any] | list[Any], id: Id | None, end: Callable[[], object]) -> None:
    """Remove *id*, which was cancelled, from *waiting* after GRACE seconds; if nothing else waits then, call *end*."""

    def forgo() -> None:
        if id in waiting:
            waiting.remove(id)
            if not waiting:
                end()

    asyncio.get_running_loop().call_later(GRACE, forgo)


def says_lost(refusal: ServerLost) -> bool:
    """True if the refusal of a request with a session id says that there is no such session."""
    answer = refusal.answer
    if answer is None or answer.status not in (400, 404):
        return False
    head = rpc_error(answer)
    if answer.status == 404:
        # An unknown method is also a 404, but says nothing about the session.
        return head is None or frames.rpc_error(head).code != frames.METHOD_NOT_FOUND
    # Many servers report a lost session with a 400, against the letter of the protocol; some as plain text.
    said = answer.body[:300].decode(errors="replace") if head is None else frames.rpc_error(head).message
    return bool(_SESSION.search(said))


def one_line(data: bytes) -> bytes:
    """A frame without the line breaks that may stand between its parts."""
    return data.replace(b"\n", b" ").replace(b"\r", b" ") if b"\n" in data or b"\r" in data else data
