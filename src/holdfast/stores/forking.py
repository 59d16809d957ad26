"""Forks: stores are held still while the process forks, and reset in the child, as is all else that is registered here.

`os.register_at_fork` is called once for all living objects, because what it registers can never be removed.
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
    """An object that is reset in forked children."""

    def after_fork(self) -> None:
        """Start over in the child."""


class Forkable(Renewable, Protocol):
    """An object that is also held still while its process forks."""

    def hold(self) -> Callable[[], object]:
        """Wait until no thread uses it: a lock that is held during the fork stays locked for ever in the child.

        Return a function that lets it go on in the parent.
        """


T = TypeVar("T")


def survive_forks(thing: Forkable) -> None:
    """Hold *thing* still during forks, and reset it in the child, for as long as it lives."""
    _forkable[next(_numbers)] = thing
    renew_in_children(thing)


def renew_in_children(thing: Renewable) -> None:
    """Reset *thing* in forked children, for as long as it lives."""
    _renewable[next(_numbers)] = thing


_numbers: Final = itertools.count()
_forkable: Final[WeakValueDictionary[int, Forkable]] = WeakValueDictionary()
_renewable: Final[WeakValueDictionary[int, Renewable]] = WeakValueDictionary()
_held: Final[dict[int, list[Callable[[], object]]]] = {}  # what to call afterwards, by forking thread (may be several)


def _before() -> None:
    held = _held[threading.get_ident()] = []
    _each(lambda thing: held.append(thing.hold()), reversed(_living(_forkable)))


def _in_parent() -> None:
    _each(lambda let_go: let_go(), _held.pop(threading.get_ident(), []))


def _in_child() -> None:
    _each(lambda thing: thing.after_fork(), _living(_renewable))
    _held.clear()  # only now, as it keeps alive what was held


def _living(things: WeakValueDictionary[int, T]) -> list[T]:
    """All that are alive, the oldest first; other threads may add and drop some meanwhile."""
    return [thing for ref in things.valuerefs() if (thing := ref()) is not None]


def _each(do: Callable[[T], object], things: Iterable[T]) -> None:
    """Call *do* with each of *things*; an error with one does not stop the others."""
    for thing in things:
        try:
            do(thing)
        except BaseException:  # even an interrupt: there is no caller to raise it to
            _log.exception("something went wrong as the process was forked")


if hasattr(os, "register_at_fork"):  # on import, not at the first use: two threads at once would register twice
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
