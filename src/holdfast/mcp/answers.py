"""What a server answered to a `tools/call`, and what that says about the tool."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.category import ErrorCategory, classify, of_rpc
from holdfast.mcp import frames
from holdfast.mcp.frames import Head
from holdfast.mcp.wire import Event

ASKS_FIRST: Final = -32042  # the user has to visit a page first: nothing is wrong with the tool, and nothing has failed


class ToolFailed(Exception):
    """The server's answer says that the tool failed; the answer goes to the client as it came."""

    def __init__(self, text: str, category: ErrorCategory, code: int | None = None) -> None:
        super().__init__(text)
        self.category = category
        self.code = code  # of the JSON-RPC error; None if the result reports the failure
        self.answer: tuple[Event, Head]  # to the call that was made; identical calls may have waited for it


def judge(head: Head) -> msgspec.Raw:
    """The result of a tool that did its work; raise a `ToolFailed` otherwise."""
    if head.is_refusal:
        error = frames.rpc_error(head)
        asks = error.code == ASKS_FIRST
        category = ErrorCategory.CANCELLED if asks else of_rpc(error.code, error.message)
        raise ToolFailed(error.message, category, error.code)
    try:
        result = frames.tool_result(head)
    except msgspec.DecodeError as error:
        raise ToolFailed(f"the answer is no result of a tool: {error}", ErrorCategory.EXECUTION_ERROR) from None
    if result.isError:
        text = frames.texts(result.content)
        raise ToolFailed(text, classify(text))
    if result.resultType != "complete":  # it asks for input first: not a failure, and not to be cached
        raise ToolFailed(result.resultType, ErrorCategory.CANCELLED)
    return head.result
