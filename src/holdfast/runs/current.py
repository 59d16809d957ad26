"""Where a call finds the run it is in, and the call or step it is made by: context variables, which follow tasks and
`asyncio.to_thread`.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from holdfast.runs.run import Run

current_run: Final[ContextVar[Run | None]] = ContextVar("holdfast_run", default=None)
current_key: Final[ContextVar[str]] = ContextVar("holdfast_key", default="")  # of the call or step that is being made

# The runs of this process that somebody may be in, whichever Holdfast they belong to, by their ids as objects: while
# there are none, no call need ask for its own, which keeps the cost of a run from all calls that are in none.
open_runs: Final[set[int]] = set()


def running() -> Run | None:
    """The innermost run that the caller is in and that is not over.

    Whoever is left over from a run that was cancelled, or lost to another owner, is stopped.
    """
    run = current_run.get() if open_runs else None
    while run is not None and not run.is_open:
        run.check()
        run = run.outer
    return run


def still_open() -> Run | None:
    """The same for who only has something to tell: nobody is stopped."""
    run = current_run.get() if open_runs else None
    while run is not None and not run.is_open:
        run = run.outer
    return run


def leave(token: Token[str]) -> None:
    """What is called from here on no longer belongs to the call or step that the *token* is of."""
    try:
        current_key.reset(token)
    except ValueError:  # a stream or coroutine that is closed in another context than it was begun in
        return


class inside:  # noqa: N801 - read as a word: with inside(key)
    """What is called within belongs to the call or step *key*."""

    __slots__ = ("_key", "_token")

    def __init__(self, key: str) -> None:
        self._key = key
        self._token: Token[str] | None = None

    def __enter__(self) -> None:
        self._token = current_key.set(self._key)

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            leave(self._token)
