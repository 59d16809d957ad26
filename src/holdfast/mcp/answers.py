"""What a server answered to a `tools/call`, and what that says about the tool."""

from __future__ import annotations

import msgspec

from holdfast.category import ErrorCategory, classify
from holdfast.mcp import frames
from holdfast.mcp.frames import Head
from holdfast.mcp.wire import Event

# What the codes of JSON-RPC and MCP say; the text of others is read.
_CODES = {
    -32700: ErrorCategory.INVALID_PARAMETERS,
    -32600: ErrorCategory.INVALID_PARAMETERS,
    -32601: ErrorCategory.TOOL_NOT_FOUND,
    -32602: ErrorCategory.INVALID_PARAMETERS,
    -32002: ErrorCategory.RESOURCE_NOT_FOUND,
    -32042: ErrorCategory.CANCELLED,  # the user is to visit a page first: nothing is wrong with the tool
}


class ToolFailed(Exception):
    """The server's answer says that the tool failed; it goes to the client as it came."""

    def __init__(self, text: str, category: ErrorCategory, code: int | None = None) -> None:
        super().__init__(text)
        self.category = category
        self.code = code  # of JSON-RPC; None if the result itself says so
        self.answer: Event  # as it came; of the call that got it, which others may have waited for


def judge(head: Head) -> msgspec.Raw:
    """The result of a tool that did its work; else a `ToolFailed`."""
    if head.is_refusal:
        error = frames.rpc_error(head)
        raise ToolFailed(error.message, _CODES.get(error.code) or classify(error.message), error.code)
    try:
        result = frames.tool_result(head)
    except msgspec.DecodeError as error:
        raise ToolFailed(f"the answer is no result of a tool: {error}", ErrorCategory.EXECUTION_ERROR) from None
    if result.isError:
        text = frames.texts(result.content)
        raise ToolFailed(text, classify(text))
    if result.resultType != "complete":  # it asks for something first: no failure, and nothing to be kept
        raise ToolFailed(result.resultType, ErrorCategory.CANCELLED)
    return head.result
