"""The memo of a failed call, for resume only: builtin errors come back as they were, others as `RecordedError`."""

from __future__ import annotations

import builtins
from typing import Any

from holdfast.category import ErrorCategory
from holdfast.category.looking import attribute, leaves
from holdfast.errors import RecordedError, ToolTimeout
from holdfast.values.memo import LIMIT
from holdfast.values.objects import TREES, refuse
from holdfast.values.tagged import is_utf8, pack_plain, unpack, unpack_plain

_ERROR = b"e"  # the first byte: no other memo begins with it
_LONGEST_MESSAGE = 10_000  # characters
_MOST_LEAVES = 10_000  # errors of a group


def dump_error(error: Exception, category: ErrorCategory) -> bytes:
    """The memo of a failure; never fails itself."""
    name, message = _name(type(error)), _message(error)
    if type(error) is RecordedError:  # raised again from the log of an earlier run
        category, name, message = error.category, error.type, error.message
    notes = [_message(note) for note in attribute(error, "__notes__", list) or () if isinstance(note, str)]
    try:
        body = _error_body(error, category)
        if len(body) > LIMIT or type(_error_of(name, body)) is not type(error):
            body = b""
    except Exception:  # an error of the user's, or one that cannot be made again from its arguments
        body = b""
    return _ERROR + pack_plain([str(category), _utf8(name), _utf8(message)[:_LONGEST_MESSAGE], notes, body])


def load_error(data: bytes) -> Exception:
    """The failure: a builtin error or a `ToolTimeout` as itself, any other as `RecordedError`."""
    if not is_error(data):
        raise LookupError("the memo holds no error")
    try:
        category, name, message, notes, body = unpack_plain(data[1:])
        if category not in ErrorCategory.__members__.values():  # written by a later version
            category = ErrorCategory.EXECUTION_ERROR
        error = _error_of(name, body) if body else RecordedError(name, message, ErrorCategory(category))
        for note in notes:
            error.add_note(note)
    except Exception as failure:
        raise LookupError(f"the error cannot be rebuilt: {type(failure).__name__}: {failure}") from failure
    return error


def is_error(data: bytes) -> bool:
    """Whether the memo holds a failure."""
    return data[:1] == _ERROR


def _error_body(error: Any, category: ErrorCategory) -> bytes:
    """What `_error_of` needs to make the error again; raises if that is not possible."""
    kind = type(error)
    if kind is ToolTimeout:
        return TREES.pack([[error.tool, error.seconds], {}])
    if getattr(builtins, kind.__name__, None) is not kind:
        raise TypeError("not builtin")
    if kind is ExceptionGroup:
        if len(leaves(error, _MOST_LEAVES)) == _MOST_LEAVES:  # one error may be in it a million times
            raise ValueError("too many errors")
        return TREES.pack([[error.message, [dump_error(each, category) for each in error.exceptions]], {}])
    _, arguments, *state = error.__reduce__()
    own = state[0] if state else {}
    attributes = {name: value for name, value in own.items() if name != "__notes__" and _keeps(value)}
    return TREES.pack([[each if _keeps(each) else _message(each) for each in arguments], attributes])


def _error_of(name: str, body: bytes) -> Exception:
    arguments, state = unpack(body, refuse)
    if name == _name(ToolTimeout):
        return ToolTimeout(*arguments)
    kind = getattr(builtins, name)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        raise LookupError(f"{name}: no error")
    if kind is ExceptionGroup:
        message, members = arguments
        return ExceptionGroup(message, [load_error(member) for member in members])
    error: Exception = kind(*arguments)
    if state:
        error.__setstate__(state)
    return error


def _keeps(value: object) -> bool:
    try:
        TREES.pack(value)
    except Exception:
        return False
    return True


def _message(error: object) -> str:
    try:
        return _utf8(str(error))
    except Exception:  # the text comes from the error's own code
        return f"<{type(error).__name__}>"


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _utf8(text: str) -> str:
    return text if is_utf8(text) else text.encode(errors="backslashreplace").decode()
