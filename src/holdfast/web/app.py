"""The app: routes put together behind the gate. Whatever goes wrong is answered with an error that says what it is."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
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
from holdfast.web.asking import asked
from holdfast.web.desk import Desk
from holdfast.web.feed import Feed
from holdfast.web.files import Files
from holdfast.web.openapi import description
from holdfast.web.security import Gate, Rules

_log = logging.getLogger("holdfast")


class App:
    """The page and the API over *store*, by *rules*; an ASGI app. The store is the caller's to close.

    *book* names tools that are to be shown before any process has them; *named* is what commands have to call the store
    by, where it is not the one they use anyway.
    """

    def __init__(
        self, store: RunStore, rules: Rules, *, book: PolicyBook | None = None, named: str | None = None
    ) -> None:
        self.desk = Desk(store, book, named)
        api, files = Api(self.desk, Feed(self.desk, read_only=rules.read_only)), Files(self.desk)
        inner = Starlette(
            routes=[_get("/openapi.json", _describing(rules)), *_routes(api, files)],
            exception_handlers={
                Problem: _problem,
                RunNotFound: _run_not_found,
                ConfigError: _config_error,
                StoreError: _store_error,
                HTTPException: _http_error,
                ClientDisconnect: _gone,
                Exception: _failed,
            },
            lifespan=self._live,
        )
        inner.router.redirect_slashes = False
        self.routes = [route for route in inner.routes if isinstance(route, Route)]
        self._app = Gate(inner, rules)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; its path is taken as it was sent, so that a slash in a name stays one."""
        if scope["type"] == "http":
            raw = scope.get("raw_path")
            path = raw.decode("latin-1") if raw is not None else quote(scope["path"])
            scope = {**scope, "path": path, "root_path": ""}
        await self._app(scope, receive, send)

    def end(self) -> None:
        """Let all streams end: the server is about to."""
        self.desk.end()

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
        _get("/api/runs", api.runs),
        _post("/api/runs/cancel", api.cancel_many),
        _get("/api/runs/{id}", api.run),
        _get("/api/runs/{id}/events", api.events),
        _get("/api/runs/{id}/stream", api.stream),
        _get("/api/runs/{id}/export", api.export),
        _post("/api/runs/{id}/cancel", api.cancel),
        _get("/api/stream", api.feed),
        _get("/static/{file:path}", files.file),
        _get("/", files.page),
    ]


def _get(path: str, endpoint: Callable[[Request], Awaitable[ASGIApp]]) -> Route:
    return Route(path, endpoint, methods=["GET"])


def _post(path: str, endpoint: Callable[[Request], Awaitable[ASGIApp]]) -> Route:
    return Route(path, endpoint, methods=["POST"])


def _describing(rules: Rules) -> Callable[[Request], Awaitable[Response]]:
    text = description(None if rules.token is None else rules.cookie)

    async def describe(request: Request) -> Response:
        asked(request)
        return Response(text, media_type="application/json")

    return describe


# -- what goes wrong ---------------------------------------------------------------------------------------------------


async def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return refusal(error)


async def _run_not_found(request: Request, error: Exception) -> Response:
    return refusal(Problem(404, "run_not_found", str(error), "see /api/runs; a run that was pruned is gone"))


async def _config_error(request: Request, error: Exception) -> Response:
    return refusal(Problem(400, "bad_request", str(error), "see /openapi.json"))


async def _store_error(request: Request, error: Exception) -> Response:
    return refusal(Problem(503, "store", str(error), "holdfast doctor says more"))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        problem = Problem(405, "method_not_allowed", "this path is not asked so", "see /openapi.json")
    elif error.status_code == 404:
        problem = Problem(404, "not_found", "there is nothing at this path", "see /openapi.json; the page is at /")
    else:
        problem = Problem(error.status_code, "bad_request", error.detail, "see /openapi.json")
    answer = refusal(problem)
    answer.headers.update(error.headers or {})
    return answer


async def _gone(request: Request, error: Exception) -> Response:
    return refusal(Problem(400, "bad_request", "the request ended before its end"))


async def _failed(request: Request, error: Exception) -> Response:
    _log.error("a request has failed: %s", in_words(error))
    return refusal(Problem(500, "failed", "the server has failed at this request", "see what holdfast ui says"))
