"""The server that the official conformance suite asks for, on the Python SDK from 2 on: `conformance_server.py PORT`.

The suite names the tools, resources and prompts and says what each must do. The SDK speaks both eras on one address, so
the same server is measured with the handshake and without it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import warnings
from typing import Annotated, Any

import mcp_types as types
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.prompts.base import Message, UserMessage
from mcp.server.streamable_http import EventMessage, EventStore
from pydantic import Field

from mcp import MCPError

warnings.simplefilter("ignore")  # what the newest version deprecates must still be served to the older ones
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
WAV = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="
server = MCPServer("conformance", version="1.0.0")
Text = types.TextContent


# --- tools ---


@server.tool()
def test_simple_text() -> str:
    """Simple text."""
    return "This is a simple text response for testing."


@server.tool()
def test_image_content() -> types.CallToolResult:
    """An image."""
    return _result(types.ImageContent(data=PNG, mime_type="image/png"))


@server.tool()
def test_audio_content() -> types.CallToolResult:
    """A sound."""
    return _result(types.AudioContent(data=WAV, mime_type="audio/wav"))


@server.tool()
def test_embedded_resource() -> types.CallToolResult:
    """A resource inside the answer."""
    return _result(_embedded("test://embedded-resource", "text/plain", "This is an embedded resource content."))


@server.tool()
def test_multiple_content_types() -> types.CallToolResult:
    """Text, an image and a resource."""
    mixed = _embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}')
    image = types.ImageContent(data=PNG, mime_type="image/png")
    return _result(Text(text="Multiple content types test:"), image, mixed)


@server.tool()
async def test_tool_with_logging(ctx: Context) -> str:
    """Three messages while it works."""
    for text in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.info(text)
        await asyncio.sleep(0.05)
    return "Tool with logging executed successfully"


@server.tool()
async def test_tool_with_progress(ctx: Context) -> str:
    """Three steps while it works."""
    for done in (0, 50, 100):
        await ctx.report_progress(done, 100)
        await asyncio.sleep(0.05)
    return "Tool with progress executed successfully"


@server.tool()
def test_error_handling() -> types.CallToolResult:
    """Always an error."""
    return types.CallToolResult(
        content=[Text(text="This tool intentionally returns an error for testing")], is_error=True
    )


@server.tool()
async def test_sampling(prompt: str, ctx: Context) -> str:
    """Asks the client's model."""
    message = types.SamplingMessage(role="user", content=Text(text=prompt))
    answer = await ctx.session.create_message([message], max_tokens=100, related_request_id=ctx.request_id)
    return f"LLM response: {getattr(answer.content, 'text', answer.content)}"


@server.tool()
async def test_elicitation(message: str, ctx: Context) -> str:
    """Asks the user."""
    fields = {"username": ("User's response", {}), "email": ("User's email address", {})}
    properties = {name: {"type": "string", "description": text, **more} for name, (text, more) in fields.items()}
    return await _ask(
        ctx, message, {"type": "object", "properties": properties, "required": list(properties)}, "User response"
    )


@server.tool()
async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
    """Asks with a default for every kind of value."""
    properties = {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    }
    return await _ask(ctx, "Please review", {"type": "object", "properties": properties}, "Elicitation completed")


@server.tool()
async def test_elicitation_sep1330_enums(ctx: Context) -> str:
    """Asks with every kind of choice."""
    plain = {"enum": ["option1", "option2", "option3"]}
    titled = [
        {"const": f"value{n}", "title": f"{word} Option"} for n, word in enumerate(("First", "Second", "Third"), 1)
    ]
    properties = {
        "untitledSingle": {"type": "string", **plain},
        "titledSingle": {"type": "string", "oneOf": titled},
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": {"type": "array", "items": {"type": "string", **plain}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled}},
    }
    return await _ask(ctx, "Please choose", {"type": "object", "properties": properties}, "Elicitation completed")


@server.tool()
async def test_reconnection(ctx: Context) -> str:
    """Closes the stream of its answer in mid-call; the client comes back for the rest."""
    await ctx.close_sse_stream()
    await asyncio.sleep(0.1)
    return "Reconnection test completed"


@server.tool()
def test_custom_headers(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]) -> str:
    """An argument that travels in a header too (2026-07-28)."""
    return region


@server.tool()
def test_missing_capability(ctx: Context) -> str:
    """Refuses a client that cannot sample."""
    if ctx.client_capabilities is None or ctx.client_capabilities.sampling is None:
        needed = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, "The client must be able to sample", needed)
    return "able"


@server.tool()
async def test_trigger_tool_change(ctx: Context) -> str:
    """Tells whoever listens that the tools have changed."""
    await ctx.notify_tools_changed()
    return "told"


@server.tool()
async def test_trigger_prompt_change(ctx: Context) -> str:
    """Tells whoever listens that the prompts have changed."""
    await ctx.notify_prompts_changed()
    return "told"


# --- tools that need an answer first (2026-07-28) ---


@server.tool()
def test_input_required_result_elicitation(ctx: Context) -> types.CallToolResult | types.InputRequiredResult:
    """A name, then a greeting."""
    given = _given(ctx, "user_name")
    if "name" not in given:
        return types.InputRequiredResult(input_requests={"user_name": _form("What is your name?", name="string")})
    return _result(Text(text=f"Hello, {given['name']}!"))


@server.tool()
def test_input_required_result_sampling(ctx: Context) -> types.CallToolResult | types.InputRequiredResult:
    """A question to the model, then its answer."""
    answer = (ctx.input_responses or {}).get("capital_question")
    if answer is None:
        return types.InputRequiredResult(
            input_requests={"capital_question": _prompt("What is the capital of France?", 100)}
        )
    return _result(Text(text=str(getattr(answer.content, "text", answer.content))))


@server.tool()
def test_input_required_result_list_roots(ctx: Context) -> types.CallToolResult | types.InputRequiredResult:
    """The roots, then what they are."""
    roots = (ctx.input_responses or {}).get("client_roots")
    if roots is None:
        return types.InputRequiredResult(input_requests={"client_roots": types.ListRootsRequest()})
    return _result(Text(text=", ".join(str(root.uri) for root in roots.roots)))


@server.tool()
def test_input_required_result_request_state(ctx: Context) -> types.CallToolResult | types.InputRequiredResult:
    """A confirmation that carries state."""
    return _with_state(ctx, "confirm", _form("Please confirm", ok="boolean"))


@server.tool()
def test_input_required_result_tampered_state(ctx: Context) -> types.CallToolResult | types.InputRequiredResult:
    """The same; the SDK refuses a state that is not its own."""
    return _with_state(ctx, "confirm", _form("Please confirm", ok="boolean"))


@server.tool()
def test_input_required_result_multiple_inputs(ctx: Context) -> types.CallToolResult | types.InputRequiredResult:
    """Three questions at once."""
    asked = {
        "user_name": _form("What is your name?", name="string"),
        "greeting": _prompt("Generate a greeting", 50),
        "client_roots": types.ListRootsRequest(),
    }
    if not asked.keys() <= (ctx.input_responses or {}).keys():
        return types.InputRequiredResult(input_requests=asked, request_state="all")
    return _result(Text(text="all inputs received"))


@server.tool()
def test_input_required_result_multi_round(ctx: Context) -> types.CallToolResult | types.InputRequiredResult:
    """Two questions, one after the other."""
    if ctx.request_state == "round-2" and _given(ctx, "step2"):
        return _result(Text(text="both rounds done"))
    if ctx.request_state == "round-1" and _given(ctx, "step1"):
        second = {"step2": _form("Step 2: What is your favorite color?", color="string")}
        return types.InputRequiredResult(input_requests=second, request_state="round-2")
    first = {"step1": _form("Step 1: What is your name?", name="string")}
    return types.InputRequiredResult(input_requests=first, request_state="round-1")


@server.tool()
def test_input_required_result_capabilities(ctx: Context) -> types.CallToolResult | types.InputRequiredResult:
    """Asks only for what the client can do."""
    able = ctx.client_capabilities
    asked: dict[str, Any] = {}
    if able and able.elicitation is not None:
        asked["user_name"] = _form("What is your name?", name="string")
    if able and able.sampling is not None:
        asked["greeting"] = _prompt("Generate a greeting", 50)
    if not asked or ctx.input_responses:
        return _result(Text(text="done"))
    return types.InputRequiredResult(input_requests=asked)


# --- resources, prompts, completion, subscriptions ---


@server.resource("test://static-text", mime_type="text/plain")
def static_text() -> str:
    """A text."""
    return "This is the content of the static text resource."


@server.resource("test://static-binary", mime_type="image/png")
def static_binary() -> bytes:
    """An image."""
    return base64.b64decode(PNG)


@server.resource("test://template/{id}/data", mime_type="application/json")
def template(id: str) -> str:
    """Data of one id."""
    return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


@server.resource("test://watched-resource", mime_type="text/plain")
def watched() -> str:
    """Something to watch."""
    return "Watched resource content"


@server.prompt()
def test_simple_prompt() -> str:
    """Simple."""
    return "This is a simple prompt for testing."


@server.prompt()
def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """With arguments."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@server.prompt()
def test_prompt_with_embedded_resource(resourceUri: str) -> list[Message]:  # noqa: N803
    """With a resource."""
    embedded = _embedded(resourceUri, "text/plain", "Embedded resource content for testing.")
    return [UserMessage(embedded), UserMessage("Please process the embedded resource above.")]


@server.prompt()
def test_prompt_with_image() -> list[Message]:
    """With an image."""
    return [
        UserMessage(types.ImageContent(data=PNG, mime_type="image/png")),
        UserMessage("Please analyze the image above."),
    ]


@server.prompt()
def test_input_required_result_prompt(ctx: Context) -> list[Message] | types.InputRequiredResult:
    """A prompt that needs an answer first."""
    given = _given(ctx, "user_context")
    if not given:
        asked = _form("What context should the prompt use?", context="string")
        return types.InputRequiredResult(input_requests={"user_context": asked})
    return [UserMessage(f"Context: {given['context']}")]


@server.completion()
async def complete(ref: Any, argument: Any, context: Any) -> types.Completion:
    return types.Completion(values=["paris", "park", "party"], total=3, has_more=False)


async def _accept(ctx: Any, params: Any) -> types.EmptyResult:
    return types.EmptyResult()


for method, kind in (
    ("logging/setLevel", types.SetLevelRequestParams),
    ("resources/subscribe", types.SubscribeRequestParams),
    ("resources/unsubscribe", types.UnsubscribeRequestParams),
):
    server._lowlevel_server.add_request_handler(method, kind, _accept)


# --- what they share ---


def _result(*content: Any) -> types.CallToolResult:
    return types.CallToolResult(content=list(content))


def _embedded(uri: str, kind: str, text: str) -> types.EmbeddedResource:
    return types.EmbeddedResource(resource=types.TextResourceContents(uri=uri, mime_type=kind, text=text))


def _form(message: str, **fields: str) -> types.ElicitRequest:
    schema = {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in fields.items()},
        "required": [*fields],
    }
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def _prompt(text: str, most: int) -> types.CreateMessageRequest:
    message = types.SamplingMessage(role="user", content=Text(text=text))
    return types.CreateMessageRequest(params=types.CreateMessageRequestParams(messages=[message], max_tokens=most))


def _given(ctx: Context, key: str) -> dict[str, Any]:
    answer = (ctx.input_responses or {}).get(key)
    return dict(getattr(answer, "content", None) or {}) if isinstance(answer, types.ElicitResult) else {}


def _with_state(ctx: Context, key: str, asked: Any) -> types.CallToolResult | types.InputRequiredResult:
    if ctx.request_state == "kept" and _given(ctx, key):
        return _result(Text(text="state-ok"))
    return types.InputRequiredResult(input_requests={key: asked}, request_state="kept")


async def _ask(ctx: Context, message: str, schema: dict[str, Any], said: str) -> str:
    answer = await ctx.session.elicit_form(message, schema, related_request_id=ctx.request_id)
    return f"{said}: action={answer.action}, content={json.dumps(answer.content)}"


class Memory(EventStore):
    """Every event that was sent, so that a client that comes back gets the rest."""

    def __init__(self) -> None:
        self._events: list[tuple[str, Any]] = []

    async def store_event(self, stream_id: str, message: Any) -> str:
        self._events.append((stream_id, message))
        return str(len(self._events))

    async def replay_events_after(self, last_event_id: str, send_callback: Any) -> str | None:
        stream = self._events[int(last_event_id) - 1][0]
        for number, (other, message) in enumerate(self._events[int(last_event_id) :], int(last_event_id) + 1):
            if other == stream and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream


if __name__ == "__main__":
    server.run("streamable-http", port=int(sys.argv[1]), event_store=Memory(), retry_interval=100)
