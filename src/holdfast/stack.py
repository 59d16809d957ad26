"""Room on the stack to finish what has begun: to give back a slot, undo a transaction, remove a mark.

An endless recursion through guarded calls may end anywhere, even in the middle of our code. So code that takes what it
must give back first checks that there is room to do so: if not, the `RecursionError` comes before anything is taken.
"""

from __future__ import annotations

import sys
from typing import Final

TO_WRITE: Final = 70  # levels that a transaction needs, including the explanation and the log of its failure
TO_CALL: Final = 140  # levels that a whole call needs, including its writes, but not those of the tool itself

_FEW = 150  # frames; with fewer than that, there is room under any limit that a program can live with


def check_room(levels: int) -> None:
    """Raise a `RecursionError` now if it would come within the next *levels*."""
    try:
        sys._getframe(_FEW)
    except ValueError:  # there are fewer, as in most calls; this check costs a tenth of trying it out
        return
    _descend(levels)


def _descend(levels: int) -> None:
    if levels:
        _descend(levels - 1)
