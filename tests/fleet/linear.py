"""Is a history of concurrent operations linearizable: is there one order, true to real time, that a model accepts?

The search of Wing and Gong, with a memory of what was tried (Lowe): an operation may come next if none that is left
had ended before it began. A hint says what to try first; it decides how long the search takes, never its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar

State = TypeVar("State", bound=Hashable)


class Operation(NamedTuple):
    """What somebody asked and was answered, between two readings of one clock."""

    began: int
    ended: int
    asked: Any
    answered: Any
    hint: int = 0


def order_of(
    history: Sequence[Operation], start: State, step: Callable[[State, Operation], State | None]
) -> list[Operation] | None:
    """An order in which a single client would have been answered the same, or None.

    *step* gives the state after an operation, or None if the operation's answer is wrong in that state.
    """
    left = sorted(history, key=lambda one: one.hint)
    tried: set[tuple[int, State]] = set()
    done: list[tuple[int, State]] = []  # which operation, and the state before it
    state, todo, after = start, (1 << len(left)) - 1, 0
    while todo:
        chosen = _next(left, todo, after, state, step, tried)
        if chosen is not None:
            index, reached = chosen
            done.append((index, state))
            state, todo, after = reached, todo & ~(1 << index), 0
        elif done:
            index, state = done.pop()
            todo, after = todo | 1 << index, index + 1
        else:
            return None
    return [left[index] for index, _ in done]


def _next(
    left: Sequence[Operation],
    todo: int,
    after: int,
    state: State,
    step: Callable[[State, Operation], State | None],
    tried: set[tuple[int, State]],
) -> tuple[int, State] | None:
    """The first operation, from *after* on, that may come next and leads somewhere new."""
    waiting = [index for index in range(len(left)) if todo >> index & 1]
    first_end = min(left[index].ended for index in waiting)
    for index in waiting:
        if index < after or left[index].began > first_end:
            continue
        reached = step(state, left[index])
        if reached is None:
            continue
        place = (todo & ~(1 << index), reached)
        if place not in tried:
            tried.add(place)
            return index, reached
    return None
