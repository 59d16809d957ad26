"""The app: routes put together behind the gate. Whatever goes wrong is answered with an error that says what it is."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.errors import ConfigError, RunNotFound, StoreError, in_words
from holdfast.policy import PolicyBook
from holdfast.stores import RunStore
from holdfast.stores.board import ORDERS
from holdfast.web.answers import Problem, refusal
from holdfast.web.api import Api
from holdfast.web.asking import FILTERS, Question
from holdfast.web.desk import Desk
from holdfast.web.feed import Feed
from holdfast.web.files import Files
from holdfast.web.openapi import description
from holdfast.web.security import Gate, Rules

Endpoint = Callable[[Question], Awaitable[ASGIApp]]

_log = logging.getLogger("holdfast")


class App:
    """The page and the API over *store*, by *rules*; an ASGI app. The caller closes the store.

    *book* names tools that are shown even before a process has them; *named* is the store that commands shown to the
    user must name, if they would not use it by default.
    """

    def __init__(
        self, store: RunStore, rules: Rules, *, book: PolicyBook | None = None, named: str | None = None
    ) -> None:
        self.desk = Desk(store, book, named)
        api, files = Api(self.desk, Feed(self.desk, read_only=rules.read_only)), Files(self.desk)
        inner = Starlette(
            routes=[_get("/openapi.json", _describing(rules)), *_routes(api, files)],
            exception_handlers=dict.fromkeys(_ANSWERED, _failed),
            lifespan=self._live,
        )
        inner.router.redirect_slashes = False
        self.routes = [route for route in inner.routes if isinstance(route, Route)]
        self._app = Gate(inner, rules)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; its path is routed undecoded, so that a percent-encoded slash may be in a name."""
        if scope["type"] == "http":
            raw = scope.get("raw_path")
            path = raw.decode("latin-1") if raw is not None else quote(scope["path"])
            scope = {**scope, "path": path, "root_path": ""}
        await self._app(scope, receive, send)

    @asynccontextmanager
    async def _live(self, app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self.desk.close()


def _routes(api: Api, files: Files) -> list[Route]:
    return [
        _get("/healthz", api.health),
        _get("/metrics", api.metrics),
        _get("/api/tools", api.tools),
        _get("/api/tools/{name}", api.tool),
        *(_post(f"/api/tools/{{name}}/{order}", api.order) for order in ORDERS),
        _get("/api/servers", api.servers),
        _get("/api/runs", api.runs, *FILTERS, "limit", "before"),
        _post("/api/runs/cancel", api.cancel_many, *FILTERS, "limit", "before", "all"),
        _get("/api/runs/{id}", api.run),
        _get("/api/runs/{id}/events", api.events, "after", "limit"),
        _get("/api/runs/{id}/stream", api.stream, "after"),
        _get("/api/runs/{id}/export", api.export),
        _post("/api/runs/{id}/cancel", api.cancel),
        _get("/api/stream", api.feed),
        Route("/static/{file:path}", files.file, methods=["GET"]),
        Route("/", files.page, methods=["GET"]),
    ]


def _get(path: str, endpoint: Endpoint, *known: str) -> Route:
    return _route("GET", path, endpoint, known)


def _post(path: str, endpoint: Endpoint, *known: str) -> Route:
    return _route("POST", path, endpoint, known)


def _route(method: str, path: str, endpoint: Endpoint, known: Sequence[str]) -> Route:
    """A route whose *endpoint* is called only with parameters that are *known*."""

    async def asked(request: Request) -> ASGIApp:
        return await endpoint(Question(request, *known))

    return Route(path, asked, methods=[method])


def _describing(rules: Rules) -> Endpoint:
    text = description(None if rules.token is None else rules.cookie)

    async def describe(question: Question) -> Response:
        return Response(text, media_type="application/json")

    return describe


# -- what goes wrong ---------------------------------------------------------------------------------------------------


_HTTP = {
    404: Problem(404, "not_found", "there is nothing at this path", "see /openapi.json; the page is at /"),
    405: Problem(405, "method_not_allowed", "this path does not take this method", "see /openapi.json"),
}


async def _failed(request: Request, error: Exception) -> Response:
    answer = refusal(_problem(error))
    if isinstance(error, HTTPException):
        answer.headers.update(error.headers or {})
    return answer


def _problem(error: Exception) -> Problem:
    match error:
        case Problem():
            return error
        case RunNotFound():
            return Problem(404, "run_not_found", str(error), "see /api/runs; a run that was pruned is gone")
        case ConfigError():
            return Problem(400, "bad_request", str(error), "see /openapi.json")
        case StoreError():
            return Problem(503, "store", str(error), "holdfast doctor says more")
        case HTTPException(status_code=status):
            return _HTTP.get(status) or Problem(status, "bad_request", error.detail, "see /openapi.json")
        case ClientDisconnect():
            return Problem(400, "bad_request", "the request ended before its end")
    _log.error("a request has failed: %s", in_words(error))
    return Problem(500, "failed", "the server has failed at this request", "see what holdfast ui says")


# Each type is listed, though one function answers all: Starlette raises what only Exception matches again after it is
# answered.
_ANSWERED = (Problem, RunNotFound, ConfigError, StoreError, HTTPException, ClientDisconnect, Exception)
