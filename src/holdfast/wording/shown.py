"""What all views show of a store: its tools, those that policies name, and how to resume a run."""

from __future__ import annotations

from holdfast.history import RunSnapshot, RunStatus
from holdfast.policy import PolicyBook
from holdfast.policy.explaining import explain
from holdfast.stores import RunStore
from holdfast.stores.board import Board
from holdfast.stores.entries import PolicyValue, ToolDetail, ToolEntry, ToolInProcess, ToolLine
from holdfast.stores.rates import Rates
from holdfast.stores.searching import header_of
from holdfast.wording import resume_command


class ShownTools:
    """The tools of *store*, and those that *book* names before any process has them. Blocks; threads may share it."""

    def __init__(self, store: RunStore, book: PolicyBook | None = None) -> None:
        self._clock = store.clock
        self._board = Board(store)
        self._book = book or PolicyBook()
        self._rates = Rates()

    def all(self) -> list[ToolLine]:
        """Return all tools, the worst first, with their calls a second."""
        found = self._board.tools()
        shown = {line.name for line in found}
        found += [_named(name) for name in self._names() if name not in shown]
        self._rates.note(found, self._clock.monotonic())
        return found

    def one(self, name: str) -> ToolLine | None:
        """Return one tool, if anything is known of it; its calls a second are those that `all` found last."""
        line = self._board.tool(name)
        if line is None and name in self._names():
            line = _named(name)
        if line is not None:
            self._rates.fill(line)
        return line

    def details(self, line: ToolLine) -> list[tuple[ToolInProcess, ToolDetail]]:
        """Return what each process shows of its tool beyond *line*; if none has it yet, what the policies here say.

        The policies come as if from a process without an id.
        """
        if line.processes or line.name not in self._names():
            return self._board.details(line)
        settings = [PolicyValue(key=key, value=value, origin=who) for key, value, who in explain(self._book, line.name)]
        nobody = ToolInProcess(
            process="", host="", pid=0, kind="", process_name="", at_ms=0, pending=False, tool=ToolEntry(name=line.name)
        )
        return [(nobody, ToolDetail(policy=settings))]

    def _names(self) -> list[str]:
        self._book.refresh(self._clock.monotonic())
        return self._book.tools


def _named(name: str) -> ToolLine:
    return ToolLine(name=name, state="closed")


def resume_of(store: RunStore, run: RunSnapshot, named: str | None) -> str | None:
    """Return the command that resumes *run*, if the run has stopped and says what to call; *named* is what the user
    named the store by. Blocks.
    """
    if not run.interrupted and run.status not in (RunStatus.FAILED, RunStatus.CANCELLED):
        return None
    header = header_of(store, run.id)
    if header is None or header.entry is None or header.noted:
        return None
    return resume_command(run.id, named)
