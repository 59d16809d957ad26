"""A fork while others write: stores are held still until it is over, and put right in the child, with all else.

The system is told once, for all that live: what it is told to call at forks it calls for ever.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Callable, Iterable
from typing import Final, Protocol, TypeVar
from weakref import WeakValueDictionary

_log = logging.getLogger("holdfast")


class Renewable(Protocol):
    """What is put right in forked children."""

    def after_fork(self) -> None:
        """Begin anew in the child."""


class Forkable(Renewable, Protocol):
    """What can be forked along with its process."""

    def hold(self) -> Callable[[], object]:
        """Be in nobody's hands: what a thread holds at that moment is held for ever in the child. Gives what has it go
        on in the parent.
        """


T = TypeVar("T")


def survive_forks(thing: Forkable) -> None:
    """Have *thing* survive forks for as long as it lives."""
    _forkable[next(_numbers)] = thing
    renew_in_children(thing)


def renew_in_children(thing: Renewable) -> None:
    """Have *thing* put right in forked children, for as long as it lives."""
    _renewable[next(_numbers)] = thing


_numbers: Final = itertools.count()
_forkable: Final[WeakValueDictionary[int, Forkable]] = WeakValueDictionary()
_renewable: Final[WeakValueDictionary[int, Renewable]] = WeakValueDictionary()
_held: Final[dict[int, list[Callable[[], object]]]] = {}  # what lets go, by the thread that forks: others may, too


def _before() -> None:
    held = _held[threading.get_ident()] = []
    _each(lambda thing: held.append(thing.hold()), reversed(_living(_forkable)))


def _in_parent() -> None:
    _each(lambda let_go: let_go(), _held.pop(threading.get_ident(), []))


def _in_child() -> None:
    _each(lambda thing: thing.after_fork(), _living(_renewable))
    _held.clear()  # only now, as it keeps alive what is held


def _living(things: WeakValueDictionary[int, T]) -> list[T]:
    """All of them, the oldest first; others may come and go meanwhile."""
    return [thing for ref in things.valuerefs() if (thing := ref()) is not None]


def _each(do: Callable[[T], object], things: Iterable[T]) -> None:
    """*do* something with each of *things*; the trouble with one is none of the others'."""
    for thing in things:
        try:
            do(thing)
        except BaseException:  # an interrupt, say: nobody is above to hear of it
            _log.exception("something went wrong as the process was forked")


if hasattr(os, "register_at_fork"):  # here, not at the first use: two threads at once would tell it twice
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
