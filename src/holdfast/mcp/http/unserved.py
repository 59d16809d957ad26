"""A server that a gateway cannot serve, since what is listed of it is a mistake: at its path that is told."""

from __future__ import annotations

from holdfast.clock import Clock
from holdfast.mcp import frames
from holdfast.mcp.clients.configs import HTTP, STDIO, ServerEntry
from holdfast.mcp.http.exchange import Exchange
from holdfast.mcp.naming import shown_url
from holdfast.mcp.wire import Condition, Event


class Unserved:
    """The path of *entry*, where each request is answered with *why*."""

    def __init__(self, entry: ServerEntry, why: str, clock: Clock) -> None:
        self._entry = entry
        self._why = why
        self._condition = Condition(clock, "failed")
        self._condition.last_error = why

    def post(self, exchange: Exchange) -> None:
        """A client sends a frame."""
        exchange.due = list(frames.asked(exchange.body, None))
        for id in list(exchange.due):
            exchange.send(Event(frames.error(id, frames.LOST, self._why)))
        self.get(exchange)

    def get(self, exchange: Exchange) -> None:
        """A client listens."""
        exchange.fail(502, self._why, code=frames.LOST)

    delete = get

    def facts(self) -> list[dict[str, object]]:
        """What is to be known of the server."""
        entry = self._entry
        kind, target = (HTTP, shown_url(entry.url)) if entry.url is not None else (STDIO, "")
        known = self._condition.facts(kind, target, restarts=0)
        return [{"name": entry.name, "protocol": None, "server_info": None, **known}]

    async def close(self) -> None:
        """There is nothing to end."""
