"""The description of the API (OpenAPI 3.1): every route, parameter, answer and error.

The shapes come from the structs that are sent, and their descriptions from the docstrings of these; tests compare the
rest with the running server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.stores.board import ORDERS
from holdfast.stores.searching import STATUSES
from holdfast.version import VERSION
from holdfast.web import answers, asking, feed

Parts = dict[str, Any]

REF = "#/components/schemas/{name}"
SENT: tuple[type[msgspec.Struct], ...] = (
    answers.Health, answers.Tools, answers.OneTool, answers.Ordered, answers.Servers, answers.Runs, answers.OneRun,
    answers.Events, answers.Cancelled, answers.ManyCancelled, answers.Errors, answers.Gap, answers.End,
    feed.Everything, feed.ToolsChanged, feed.ServersChanged, feed.RunsChanged, answers.Note,
)  # fmt: skip
ERRORS = {
    400: "The request makes no sense: a parameter, the path or the body.",
    401: "The token is missing or wrong.",
    403: "The name, the site or the kind of request is not allowed here.",
    404: "There is no such thing.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    503: "The store cannot be read or written, or too many ask at once.",
}
ORDERED = {
    "open": "Hold a circuit open: every call is refused until auto or reset, in later processes, too.",
    "close": "Hold a circuit closed: every call passes until auto or reset.",
    "auto": "Give a circuit that is held back to its own judgement.",
    "reset": "Close a circuit and forget its failures, and that it was held.",
}
EVENTS = """Server-sent events; `id` is a number of this server start, which `Last-Event-ID` goes on from.
`hello` (Everything) comes first, and whenever too much has changed; then `tools` (ToolsChanged), `servers`
(ServersChanged) and `runs` (RunsChanged), each with what is different. A `note` (Note) with the code `slow` is the last
event of a page that reads too slowly."""
RUN_EVENTS = """Server-sent events; `id` is the sequence of an event, which `Last-Event-ID` goes on from, and `data` the
event (RunEventRecord). `gap` (Gap) says that earlier events are no longer kept, `end` (End) that the run has ended."""


def description(cookie: str | None) -> bytes:
    """The description as JSON; *cookie* is the name of the cookie for the token, None if no token is needed."""
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Holdfast",
                "version": VERSION,
                "description": "See and steer the tools and runs of all processes on a store.",
            },
            "paths": _paths(),
            "components": {"schemas": _schemas(), "securitySchemes": _schemes(cookie)},
            "security": [] if cookie is None else [{"token": []}, {"cookie": []}],
        }
    )


def _paths() -> Parts:
    run, tool = _in_path("id", "The id of a run."), _in_path("name", "The name of a tool, percent-encoded.")
    filters = _filters()
    limit = _query("limit", _whole(1, asking.MOST_RUNS, asking.USUAL_RUNS), "How many runs, at most.")
    before = _query("before", _text(), "The id to go on before: `next` of the last answer.")
    after = _query("after", _whole(-1, asking.LAST, -1), "The sequence to go on after.")
    cancelled = _query("limit", _whole(1, asking.MOST_RUNS, asking.USUAL_CANCELLED), "How many runs, at most.")
    events = _query("limit", _whole(1, asking.MOST_EVENTS, asking.USUAL_EVENTS), "How many events, at most.")
    every = _query("all", {"const": "true"}, "Needed where no filter is given: every run is meant.")
    last = {"in": "header", "name": "Last-Event-ID", "schema": {"type": "string"}, "description": "What came last."}
    return {
        "/healthz": _open("Whether the server is there.", answers.Health),
        "/openapi.json": _get("This description.", {"application/json": {"schema": {}}}),
        "/metrics": _get("Metrics of all processes, for Prometheus.", _plain("text/plain")),
        "/api/tools": _get("All tools, the worst first.", _json(answers.Tools)),
        "/api/tools/{name}": _get("One tool, with its policy and its past.", _json(answers.OneTool), [tool], [404]),
        **{f"/api/tools/{{name}}/{order}": _post(ORDERED[order], answers.Ordered, [tool]) for order in ORDERS},
        "/api/servers": _get("All MCP servers behind proxies.", _json(answers.Servers)),
        "/api/runs": _get("The newest runs.", _json(answers.Runs), [*filters, limit, before], [404]),
        "/api/runs/cancel": _post(
            "Cancel all runs that the filters mean and that have not ended.",
            answers.ManyCancelled,
            [*filters, every, cancelled, before],
        ),
        "/api/runs/{id}": _get("One run.", _json(answers.OneRun), [run], [404]),
        "/api/runs/{id}/events": _get("Some events of a run.", _json(answers.Events), [run, after, events], [404]),
        "/api/runs/{id}/stream": _get(RUN_EVENTS, _plain("text/event-stream"), [run, after, last], [404]),
        "/api/runs/{id}/export": _get("A run as JSON lines.", _plain("application/jsonl"), [run], [404]),
        "/api/runs/{id}/cancel": _post("Cancel a run, whoever runs it.", answers.Cancelled, [run]),
        "/api/stream": _get(EVENTS, _plain("text/event-stream"), [last]),
        "/static/{file}": _file(),
        "/": _page(),
    }


# -- parts -------------------------------------------------------------------------------------------------------------


def _get(summary: str, content: Parts, parameters: Sequence[Parts] = (), errors: Sequence[int] = ()) -> Parts:
    return {"get": _operation(summary, content, parameters, errors)}


def _post(summary: str, sent: type[msgspec.Struct], parameters: Sequence[Parts]) -> Parts:
    reason = {"type": ["string", "null"], "maxLength": asking.LONGEST_REASON, "default": None}
    schema = {"type": "object", "properties": {"reason": reason}, "additionalProperties": False}
    body = {"required": False, "content": {"application/json": {"schema": schema}}}
    return {"post": {**_operation(summary, _json(sent), parameters, [404, 413, 415]), "requestBody": body}}


def _operation(summary: str, content: Parts, parameters: Sequence[Parts] = (), errors: Sequence[int] = ()) -> Parts:
    first, _, rest = summary.partition(". ")
    made: Parts = {"summary": first.split("\n")[0].removesuffix("."), "responses": {"200": _answer("Done.", content)}}
    if rest or "\n" in summary:
        made["description"] = summary
    if parameters:
        made["parameters"] = list(parameters)
    for status in sorted({400, 401, 403, 503, *errors}):
        made["responses"][str(status)] = _answer(ERRORS[status], _json(answers.Errors))
    return made


def _open(summary: str, sent: type[msgspec.Struct]) -> Parts:
    made = _operation(summary, _json(sent))
    for status in ("401", "503"):
        del made["responses"][status]
    return {"get": {**made, "security": []}}


def _file() -> Parts:
    name = {**_in_path("file", "The name of a file of the page."), "schema": {"type": "string"}}
    made = _operation("A file of the page.", _plain("*/*"), [name], [404])
    made["responses"]["304"] = {"description": "It is the one that you have."}
    return {"get": made}


def _page() -> Parts:
    token = _query("token", {"type": "string"}, "The token; becomes a cookie, and leaves the address.")
    made = _operation("The page.", _plain("text/html"), [token], [404])
    made["responses"]["303"] = {"description": "The token was right."}
    made["responses"]["401"] = _answer(ERRORS[401], _plain("text/html"))
    return {"get": made}


def _filters() -> list[Parts]:
    status = {"enum": [str(each) for each in STATUSES]}
    return [
        _query("status", status, "`interrupted`: its process is gone; `alive`: all that have not ended."),
        _query("session", _text(), "The session, exactly."),
        _query("tool", _text(), "A tool that the run used, or wanted to."),
        _query(
            "text", _text(), "A text in id, session, prompt, result or error; large and small letters are the same."
        ),
    ]


def _in_path(name: str, about: str) -> Parts:
    schema = {"type": "string", "minLength": 1, "maxLength": asking.LONGEST_NAME}
    return {"in": "path", "name": name, "required": True, "schema": schema, "description": about}


def _query(name: str, schema: Parts, about: str) -> Parts:
    return {"in": "query", "name": name, "required": False, "schema": schema, "description": about}


def _text() -> Parts:
    return {"type": "string", "maxLength": asking.LONGEST}


def _whole(least: int, most: int, usual: int) -> Parts:
    return {"type": "integer", "minimum": least, "maximum": most, "default": usual}


def _answer(about: str, content: Parts) -> Parts:
    return {"description": about, "content": content}


def _json(sent: type[msgspec.Struct]) -> Parts:
    return {"application/json": {"schema": {"$ref": REF.format(name=sent.__name__)}}}


def _plain(kind: str) -> Parts:
    return {kind: {"schema": {"type": "string"}}}


def _schemas() -> Parts:
    _, found = msgspec.json.schema_components(SENT, ref_template=REF)
    return found


def _schemes(cookie: str | None) -> Parts:
    if cookie is None:
        return {}
    return {
        "token": {"type": "http", "scheme": "bearer", "description": "What $HOLDFAST_TOKEN says, or the address."},
        "cookie": {"type": "apiKey", "in": "cookie", "name": cookie, "description": "Given for the token at /."},
    }
