"""Context variables by which a call finds its run, and the call or step that makes it; they follow tasks and
`asyncio.to_thread`.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from holdfast.runs.run import Run

current_run: Final[ContextVar[Run | None]] = ContextVar("holdfast_run", default=None)
current_key: Final[ContextVar[str]] = ContextVar("holdfast_key", default="")  # of the call or step in progress

# The `id()` of each run of this process that a caller may be in, of any Holdfast. While it is empty, no call looks for
# its run, so that calls outside of runs do not pay for them.
open_runs: Final[set[int]] = set()


def running() -> Run | None:
    """The innermost run that the caller is in and that is not over.

    Raises in a task or thread left over from a run that was cancelled, left unfinished or lost to another owner.
    """
    run = current_run.get() if open_runs else None
    while run is not None and not run.is_open:
        run.check()
        run = run.outer
    return run


def still_open() -> Run | None:
    """The same for a caller that only reports something: never raises."""
    run = current_run.get() if open_runs else None
    while run is not None and not run.is_open:
        run = run.outer
    return run


def leave(token: Token[str]) -> None:
    """Reset the key to what it was before *token*: calls from here on no longer belong to that call or step."""
    try:
        current_key.reset(token)
    except ValueError:  # a stream or coroutine that is closed in another context than it was begun in
        return


class inside:  # noqa: N801 - read as a word: with inside(key)
    """Calls made within this block belong to the call or step *key*."""

    __slots__ = ("_key", "_token")

    def __init__(self, key: str) -> None:
        self._key = key
        self._token: Token[str] | None = None

    def __enter__(self) -> None:
        self._token = current_key.set(self._key)

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            leave(self._token)
