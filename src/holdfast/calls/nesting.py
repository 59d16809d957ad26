"""Finds out whether a call is made inside another call of the same tool, which cannot end before it does.

The stack is searched only after a refusal, so that calls that pass pay nothing. A call that was handed to another task
or thread is not recognised.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from holdfast.tools.tool import Tool

_HERE: Final = __name__.rpartition(".")[0]


def is_within_itself(tool: Tool) -> bool:
    """True if the stack holds another call of *tool*, beyond the frames of the call that asks."""
    frame, outside = sys._getframe(), False
    while (back := frame.f_back) is not None:
        frame = back
        if frame.f_globals.get("__name__", "").rpartition(".")[0] != _HERE:
            outside = True
        elif outside and getattr(frame.f_locals.get("bound"), "tool", None) is tool:
            return True
    return False
