"""What a request of 2026-07-28 says of itself in headers."""

from __future__ import annotations

import json

import pytest

from holdfast.mcp import frames
from holdfast.mcp.http.mirrored import ToolHeaders, decoded, encoded, mirrored, wanted_by
from holdfast.mcp.wire import Event


def request(method: str, **params: object) -> frames.Head:
    return frames.head(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode())


@pytest.mark.parametrize(
    ("value", "header"),
    [
        ("us-west1", "us-west1"),
        ("two words", "two words"),
        ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
        (" padded ", "=?base64?IHBhZGRlZCA=?="),
        ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
        ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
        ("", ""),
    ],
    ids=["plain", "space", "letters", "padded", "lines", "looks-encoded", "empty"],
)
def test_a_value_is_encoded_where_a_header_could_not_hold_it(value: str, header: str) -> None:
    assert encoded(value) == header
    assert decoded(header) == value


def test_a_header_that_cannot_be_decoded_says_nothing() -> None:
    assert decoded("=?base64?%%%?=") is None


@pytest.mark.parametrize(
    ("head", "headers"),
    [
        (request("tools/call", name="add"), {"mcp-method": "tools/call", "mcp-name": "add"}),
        (request("resources/read", uri="file:///a"), {"mcp-method": "resources/read", "mcp-name": "file:///a"}),
        (request("tools/list"), {"mcp-method": "tools/list"}),
    ],
    ids=["call", "read", "list"],
)
def test_a_request_names_its_method_and_what_it_is_about(head: frames.Head, headers: dict[str, str]) -> None:
    assert mirrored(head, frames.params(head)) == headers


def marked(**properties: object) -> dict[str, object]:
    return {"type": "object", "properties": properties}


REGION = {"type": "string", "x-mcp-header": "Region"}


@pytest.mark.parametrize(
    "schema",
    [
        marked(a={"type": "number", "x-mcp-header": "A"}),
        marked(a={"type": "string", "x-mcp-header": ""}),
        marked(a={"type": "string", "x-mcp-header": "a b"}),
        marked(a=REGION, b={"type": "string", "x-mcp-header": "region"}),
        marked(a={"type": "array", "items": REGION}),
        {"oneOf": [marked(a=REGION)]},
        {**marked(), "x-mcp-header": "Root"},
    ],
    ids=["number", "empty", "no-token", "twice", "items", "one-of", "root"],
)
def test_a_schema_that_asks_for_what_cannot_be_is_none(schema: object) -> None:
    assert wanted_by(schema) is None


def test_a_schema_with_very_many_headers_is_looked_at_once() -> None:
    schema = marked(**{f"p{number}": {"type": "string", "x-mcp-header": f"H{number}"} for number in range(20_000)})

    wanted = wanted_by(schema)

    assert wanted is not None
    assert len(wanted) == 20_000


def test_arguments_that_a_tool_asks_for_go_into_headers() -> None:
    headers = ToolHeaders()
    inner = {"type": "object", "properties": {"n": {"type": "integer", "x-mcp-header": "N"}}}
    dry = {"type": "boolean", "x-mcp-header": "Dry"}
    schema = marked(region=REGION, inner=inner, dry=dry, b={"type": "string"})
    listed = {"tools": [{"name": "query", "inputSchema": schema}]}
    data = json.dumps({"jsonrpc": "2.0", "id": 1, "result": listed}).encode()

    headers.learn(frames.head(data), Event(data))

    call = request("tools/call", name="query", arguments={"region": "süd", "inner": {"n": 7}, "b": "x"})
    assert headers.of(call, "query") == {"mcp-param-Region": "=?base64?c8O8ZA==?=", "mcp-param-N": "7"}
    assert headers.of(request("tools/call", name="query", arguments={"region": None}), "query") == {}
    for value, text in ((True, "true"), (False, "false")):
        call = request("tools/call", name="query", arguments={"dry": value})
        assert headers.of(call, "query") == {"mcp-param-Dry": text}


def test_a_list_that_is_none_stays_as_it_is() -> None:
    event = Event(b'{"jsonrpc": "2.0", "id": 1, "result": {"tools": "x-mcp-header"}}')

    assert ToolHeaders().learn(frames.head(event.data), event) is event


def test_a_tool_that_asks_for_what_cannot_be_leaves_the_list() -> None:
    bad = {"name": "bad", "inputSchema": marked(a={"type": "number", "x-mcp-header": "A"})}
    data = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"tools": [bad, {"name": "good"}]}}).encode()

    event = ToolHeaders().learn(frames.head(data), Event(data))

    assert [tool["name"] for tool in json.loads(event.data)["result"]["tools"]] == ["good"]
