"""The permit: the right to make one attempt, to be answered once. Leaving it as a context manager answers it."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Protocol

from holdfast import checks
from holdfast.category import ErrorCategory, classify
from holdfast.errors import is_refusal
from holdfast.guards.circuit import Circuit, Grant

_CATEGORIES: Final = frozenset(ErrorCategory)


def known(category: ErrorCategory | str) -> ErrorCategory:
    """Return the category of that name; raise a `ConfigError` that lists all categories if there is none."""
    checks.choice("category", category, _CATEGORIES)
    return ErrorCategory(category)


class Owner(Protocol):
    """Issues permits and is told how each attempt ended."""

    def _answer(self, permit: Permit, category: ErrorCategory | None, error: BaseException | None) -> None: ...

    def _take_back(self, permit: Permit) -> None: ...


class Permit:
    """The right to make one attempt on *tool*. The first answer counts, later ones are harmless."""

    __slots__ = ("tool", "_answered", "_at", "_circuit", "_grant", "_owner")

    def __init__(self, owner: Owner, tool: str, circuit: Circuit | None, grant: Grant, at: float) -> None:
        self.tool = tool
        self._owner = owner
        self._circuit = circuit
        self._grant = grant
        self._at = at
        self._answered = False

    def succeed(self) -> None:
        """Report that the attempt succeeded."""
        if not self._answered:
            self._answered = True
            self._owner._answer(self, None, None)

    def fail(self, category: ErrorCategory | str = ErrorCategory.EXECUTION_ERROR) -> None:
        """Report that the attempt failed with an error of *category*."""
        self._fail(known(category), None)

    def release(self) -> None:
        """Give the permit back: the attempt was not made, or was cancelled and says nothing about the tool."""
        if not self._answered:
            self._answered = True
            self._owner._take_back(self)

    def _fail(self, category: ErrorCategory, error: BaseException | None) -> None:
        if category is ErrorCategory.CANCELLED:
            self.release()
        elif not self._answered:
            self._answered = True
            self._owner._answer(self, category, error)

    def __enter__(self) -> Permit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.succeed()
        elif is_refusal(error):  # a guard inside the attempt said no: nothing was learnt about this tool
            self.release()
        else:
            self._fail(classify(error), error)

    async def __aenter__(self) -> Permit:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)
