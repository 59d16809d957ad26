"""What a model is told in place of a tool's answer, and what it can do then."""

from __future__ import annotations

from holdfast.errors import Denied, ToolTimeout, printable


def for_model(error: BaseException, *, called: bool, repeatable: bool, what: str | None = None) -> str:
    """Say why there is no answer, in the words *what* if given, else in those of *error*; a refusal has its own words.

    *called* says that the tool may have been called, whatever *error* says of the last attempt; *repeatable* that
    calling it again is safe.
    """
    if isinstance(error, Denied):
        text = error.for_model()
        if called:
            text += " It was wanted by a tool that had been called, or in its place. "
            text += _outcome(called=called, repeatable=repeatable)
        return text
    return f"{what or _what(error)} {_outcome(called=called, repeatable=repeatable)}"


def _what(error: BaseException) -> str:
    if isinstance(error, ToolTimeout):
        return f"The tool {printable(error.tool)!r} gave no answer within {_seconds(error.seconds)} s."
    return f"The call was stopped: {printable(str(error), 500) or type(error).__name__}."


def _seconds(seconds: float) -> str:
    return f"{round(seconds, 1 if seconds >= 1 else 3):g}"  # what is left of a deadline is not a round number


def _outcome(*, called: bool, repeatable: bool) -> str:
    if not called:
        return "The tool was not called. Try again later, or go on without it."
    if repeatable:
        return "It changes nothing that could be repeated by mistake: try again later, or go on without it."
    return (
        "Its outcome is unknown: it may have done its work or not. "
        "Look whether its effect is there before you call it again."
    )
