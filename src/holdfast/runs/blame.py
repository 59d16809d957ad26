"""Finds the calls of a run that an error came out of: a fork of the failed run makes them again, and does not raise
their errors from the log.
"""

from __future__ import annotations

from holdfast.category.looking import attribute, inside
from holdfast.runs.identity import is_made_by

MOST_MARKS = 100  # marks on one error, which may be raised again and again
MOST_LOOKED_AT = 1000  # errors that are searched for marks

_MARKS = "__holdfast_calls__"  # on an error: run, key and name of each call that it came out of, the innermost first

_Mark = tuple[str, str, str]


def mark(error: BaseException, run_id: str, key: str, name: str) -> None:
    """Note on *error* that it came out of this call."""
    this, marks = (run_id, key, name), _marks(error)
    if this not in marks:
        try:
            setattr(error, _MARKS, (*marks[-MOST_MARKS:], this))
        except Exception:  # it takes no attributes: a fork of its run raises it from the log, like any other error
            return


def fatal_calls(error: BaseException | None, run_id: str) -> list[tuple[str, str]]:
    """The keys and names of the calls of this run that *error* came out of; of a group, those of each member.

    Also those of calls within them whose failure led to *error*, but not of calls whose failure was handled before
    another call failed.
    """
    found: dict[str, str] = {}
    # Each error comes with makers: where there are any, its own calls count only if a maker made one of them.
    todo: list[tuple[BaseException | None, list[str]]] = [(error, [])]
    seen: set[int] = set()
    while todo and len(seen) < MOST_LOOKED_AT:
        each, makers = todo.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        calls = {key: name for run, key, name in _marks(each) if run == run_id}
        if calls:
            if makers and not any(is_made_by(key, maker) for key in calls for maker in makers):
                continue
            found |= calls
            makers = [key for key in calls if not any(is_made_by(other, key) for other in calls)]
        links = (attribute(each, name, BaseException) for name in ("__cause__", "__context__"))
        inner = inside(each) or (next((link for link in links if link is not None), None),)
        todo += [(other, makers) for other in inner]
    return list(found.items())


def _marks(error: BaseException) -> tuple[_Mark, ...]:
    held = attribute(error, "__dict__", dict) or {}  # not `getattr`: the error's class may answer anything
    marks = held.get(_MARKS, ())
    return marks if isinstance(marks, tuple) else ()
