"""Room on the stack. What has begun must be able to end: a slot is given back, a transaction undone, a mark taken.

An endless recursion through guarded calls ends anywhere, in the middle of ours too. So whoever takes something that has
to be given back looks first whether there is room to do so: where there is none, the `RecursionError` comes before it.
"""

from __future__ import annotations

import sys
from typing import Final

TO_WRITE: Final = 70  # levels that a transaction needs, with what explains its failure and logs that
TO_CALL: Final = 140  # those of a whole call, its writes among them; what the tool needs is the tool's affair

_FEW = 150  # frames; with so few there is room under any limit that a program can live with


def check_room(levels: int) -> None:
    """Raise the `RecursionError` now that would come within the next *levels*."""
    try:
        sys._getframe(_FEW)
    except ValueError:  # that many there are not: by far the most calls, and a tenth of the cost of trying it out
        return
    _descend(levels)


def _descend(levels: int) -> None:
    if levels:
        _descend(levels - 1)
