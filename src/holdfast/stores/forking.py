"""A fork while others write: the store is held still until it is over, and put right in the child."""

from __future__ import annotations

import os
import weakref
from typing import Protocol, TypeVar


class Renewable(Protocol):
    """What is put right in forked children."""

    def after_fork(self) -> None:
        """Begin anew in the child."""


class Forkable(Renewable, Protocol):
    """What can be forked along with its process."""

    def hold(self) -> None:
        """Be in nobody's hands: what a thread holds at that moment is held for ever in the child."""

    def let_go(self) -> None:
        """Go on in the parent."""


T = TypeVar("T", bound=Forkable)


def survive_forks(thing: T) -> None:
    """Have *thing* survive forks for as long as it lives."""
    alive = weakref.ref(thing)
    held: list[T] = []

    def before() -> None:
        if (there := alive()) is not None:
            there.hold()
            held.append(there)

    def in_parent() -> None:
        if held:
            held.pop().let_go()

    def in_child() -> None:
        if held:
            held.pop().after_fork()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before, after_in_parent=in_parent, after_in_child=in_child)


def renew_in_children(thing: Renewable) -> None:
    """Have *thing* put right in forked children, for as long as it lives."""
    alive = weakref.ref(thing)

    def in_child() -> None:
        if (there := alive()) is not None:
            there.after_fork()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=in_child)
