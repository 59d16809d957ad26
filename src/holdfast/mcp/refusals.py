"""What the client is told when a tool gave no answer of its own: a result with `isError`, text for the model, and the
facts in `_meta`, since `structuredContent` belongs to the tool's own schema.
"""

from __future__ import annotations

import copy
import math
from typing import Final

from holdfast.category import classify
from holdfast.errors import ConfigError, Denied, ToolTimeout, printable
from holdfast.mcp.wire import ServerLost
from holdfast.wording.refusals import for_model

META: Final = "holdfast/failure"


def refusal(error: BaseException, server: str, *, called: bool, repeatable: bool, modern: bool) -> dict[str, object]:
    """The result that says why a tool of *server* was not called, or gave no answer.

    It names the tool without *server*, as the client knows it. *called* if an attempt may have reached the tool, even
    if *error* says that the last one did not; *repeatable* if calling it again is safe. Only *called* says whether a
    call that took too long was sent at all.
    """
    called = called or _may_have_called(error)
    if isinstance(error, Denied | ToolTimeout):
        error = copy.copy(error)
        error.tool = error.tool.removeprefix(f"{server}.")
    facts: dict[str, object] = {"kind": type(error).__name__, "category": str(classify(error)), "called": called}
    if isinstance(error, Denied):
        facts["tool"] = error.tool
        facts["reason"] = error.reason
    if isinstance(error, Denied | ServerLost) and error.retry_after is not None and math.isfinite(error.retry_after):
        facts["retry_after_ms"] = math.ceil(error.retry_after * 1000)
    text = for_model(error, called=called, repeatable=repeatable, what=_what(error, called=called))
    result: dict[str, object] = {
        "content": [{"type": "text", "text": text}],
        "isError": True,
        "_meta": {META: facts},
    }
    return {"resultType": "complete", **result} if modern else result


def _may_have_called(error: BaseException) -> bool:
    return error.sent if isinstance(error, ServerLost) else not isinstance(error, ConfigError | Denied | ToolTimeout)


def _what(error: BaseException, *, called: bool) -> str | None:
    """What happened, in words of the proxy; None if it has none for *error*."""
    if isinstance(error, ServerLost):
        return _lost(error)
    if isinstance(error, ToolTimeout) and not called:
        return f"The call of {printable(error.tool)!r} could not be sent within {round(error.seconds, 3):g} s."
    return None


def _lost(error: ServerLost) -> str:
    how = "gave no answer" if error.answer is None else "said no"
    pause = error.retry_after
    asked = f" It asks for a pause of {math.ceil(pause * 10) / 10:g} s." if pause and math.isfinite(pause) else ""
    return f"The tool's server {how}: {printable(str(error), 500)}.{asked}"
