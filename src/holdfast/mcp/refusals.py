"""What the client is told when a tool gave no answer of its own: a result with `isError`, text for the model, and the
facts in `_meta`, since `structuredContent` belongs to the tool's own schema.
"""

from __future__ import annotations

import math
from typing import Final

from holdfast.category import ErrorCategory, classify
from holdfast.errors import Denied, ToolTimeout, printable
from holdfast.mcp.wire import ServerLost

META: Final = "holdfast/failure"


def refusal(error: BaseException, *, called: bool, repeatable: bool, modern: bool) -> dict[str, object]:
    """The result that says why a tool was not called, or gave no answer.

    *called* if an attempt may have reached it, whatever *error* says of the last; *repeatable* if calling it again is
    safe.
    """
    called = called or _may_have_called(error)
    facts: dict[str, object] = {"kind": type(error).__name__, "category": str(_category(error)), "called": called}
    if isinstance(error, Denied):
        text = error.for_model()
        facts["tool"] = error.tool
        facts["reason"] = error.reason
        if error.retry_after is not None and math.isfinite(error.retry_after):
            facts["retry_after_ms"] = math.ceil(error.retry_after * 1000)
        if called:
            text += " It was to answer in place of a tool that had been called. "
            text += _outcome(called=called, repeatable=repeatable)
    else:
        text = f"{_what(error)} {_outcome(called=called, repeatable=repeatable)}"
    result: dict[str, object] = {
        "content": [{"type": "text", "text": text}],
        "isError": True,
        "_meta": {META: facts},
    }
    return {"resultType": "complete", **result} if modern else result


def _may_have_called(error: BaseException) -> bool:
    return error.sent if isinstance(error, ServerLost) else not isinstance(error, Denied)


def _what(error: BaseException) -> str:
    if isinstance(error, ToolTimeout):
        return f"The tool {printable(error.tool)!r} gave no answer within {round(error.seconds, 1):g} s."
    if isinstance(error, ServerLost):
        return f"The tool's server gave no answer: {printable(str(error), 500)}."
    return f"The call was stopped: {printable(str(error), 500) or type(error).__name__}."


def _outcome(*, called: bool, repeatable: bool) -> str:
    if not called:
        return "The tool was not called. Try again later, or go on without it."
    if repeatable:
        return "It changes nothing that could be repeated by mistake: try again later, or go on without it."
    return (
        "Its outcome is unknown: it may have done its work or not. "
        "Look whether its effect is there before you call it again."
    )


def _category(error: BaseException) -> ErrorCategory:
    return error.category if isinstance(error, Denied) else classify(error)
