"""Compares the recorded outcomes of calls with what a file's policies, and the defaults, would have made of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.backtest.playing import Played, play
from holdfast.backtest.reading import Call
from holdfast.errors import ConfigError
from holdfast.policy import Policy, PolicyBook

Counts = TypeVar("Counts", "Recorded", Played)


class Recorded(msgspec.Struct):
    """How the calls of a tool went; *failing* is the seconds spent in calls that failed."""

    calls: int = 0
    succeeded: int = 0
    failed: int = 0
    refused: int = 0
    unknown: int = 0
    failing: float = 0.0


class Line(msgspec.Struct, frozen=True):
    """One tool; *file* is None if no file was played, or if it is *incomplete* without the tool's settings in code."""

    tool: str
    recorded: Recorded
    file: Played | None
    defaults: Played
    incomplete: str | None = None

    @property
    def badness(self) -> tuple[int, int, int, str]:
        """What to sort by: successes lost, then calls refused, then failures, under the file or else the defaults."""
        played = self.file or self.defaults
        return -played.lost, -played.refused, -self.recorded.failed, self.tool


def compare(calls: Sequence[Call], book: PolicyBook | None) -> list[Line]:
    """Return a line per tool of *calls*, under the policies of *book*, if any, and the defaults; the worst first."""
    recorded = _tally(calls)
    bare = PolicyBook.load(None)
    incomplete: dict[str, str] = {}

    def under(tool: str) -> Policy:
        try:
            return (book or bare).resolve(tool)
        except ConfigError as error:
            incomplete[tool] = str(error)
            return bare.resolve(tool)  # its calls still count for the loop guard of other tools

    file = play(calls, under) if book is not None else {}
    for tool in incomplete:
        del file[tool]
    defaults = play(calls, bare.resolve)
    lines = [Line(tool, recorded[tool], file.get(tool), each, incomplete.get(tool)) for tool, each in defaults.items()]
    return sorted(lines, key=lambda line: line.badness)


def total(lines: Sequence[Line]) -> Line:
    """Return the sum of all *lines*, whose tool is ""; without the file's if it is incomplete for one of them."""
    files = [line.file for line in lines if line.file is not None]
    return Line(
        "",
        _sum(Recorded, [line.recorded for line in lines]),
        _sum(Played, files) if files and len(files) == len(lines) else None,
        _sum(Played, [line.defaults for line in lines]),
    )


def _sum(kind: type[Counts], parts: Sequence[Counts]) -> Counts:
    def summed(name: str) -> Any:
        counts = [getattr(part, name) for part in parts]
        return max(counts, default=0.0) if name == "longest_wait" else sum(counts)

    return kind(**{name: summed(name) for name in kind.__struct_fields__})


def _tally(calls: Sequence[Call]) -> dict[str, Recorded]:
    tools: defaultdict[str, Recorded] = defaultdict(Recorded)
    for call in calls:
        tool = tools[call.tool]
        tool.calls += 1
        if call.failed:
            tool.failed += 1
            tool.failing += call.duration
        elif call.known:
            tool.succeeded += 1
        elif call.refused:
            tool.refused += 1
        else:
            tool.unknown += 1
    return dict(tools)
