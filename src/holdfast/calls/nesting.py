"""Whether a call is made by another of the same tool, which cannot end before it. Looked at when it is refused: calls
that pass pay nothing for it. One that was handed to another task or thread is not recognised.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from holdfast.tools.tool import Tool

_HERE: Final = __name__.rpartition(".")[0]


def is_within_itself(tool: Tool) -> bool:
    """Whether beyond the frames of the call that asks there are those of another call of *tool*."""
    frame, outside = sys._getframe(), False
    while (back := frame.f_back) is not None:
        frame = back
        if frame.f_globals.get("__name__", "").rpartition(".")[0] != _HERE:
            outside = True
        elif outside and getattr(frame.f_locals.get("bound"), "tool", None) is tool:
            return True
    return False
