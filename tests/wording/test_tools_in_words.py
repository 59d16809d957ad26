"""What people read of a tool."""

from __future__ import annotations

import pytest

from holdfast.stores.entries import ToolEntry, ToolInProcess, ToolLine, Transition, line
from holdfast.wording.tools import pace, probe, why

NOW = 1_000_000  # milliseconds


@pytest.mark.parametrize(
    ("rate", "full", "said"),
    [
        (None, None, ""),
        (10.0, 10.0, "10/s"),
        (1 / 3, None, "0.333/s"),
        (99.95, None, "100/s"),
        (1000.0, 1000.0, "1000/s"),
        (12345.6, 50000.0, "12346/s of 50000/s"),
    ],
)
def test_calls_a_second_are_plain_numbers(rate: float | None, full: float | None, said: str) -> None:
    assert pace(rate, full) == said


@pytest.mark.parametrize(
    ("before", "failures", "threshold", "said"),
    [
        ("closed", 7, 7, "7 failures, last: network"),
        ("closed", 7, None, "7 failures, last: network"),
        ("closed", 1, 7, "too many calls failed or were slow, last: network"),
        ("half_open", 7, 7, "the probe failed, last: network"),
    ],
)
def test_what_opened_a_circuit_is_told_apart(before: str, failures: int, threshold: int | None, said: str) -> None:
    change = Transition(at_ms=1, before=before, after="open", failures=failures, category="network")

    assert why(change, threshold) == said


@pytest.mark.parametrize(
    ("until_ms", "forced", "said"),
    [(NOW + 36_000, None, "36 s"), (NOW - 1, None, "now"), (None, "open", "")],
)
def test_a_circuit_probes_after_its_wait_and_not_while_it_is_held(
    until_ms: int | None, forced: str | None, said: str
) -> None:
    entry = ToolEntry(name="x", state="open", until_ms=until_ms, forced=forced)

    assert probe(one(entry)) == said


def one(entry: ToolEntry) -> ToolLine:
    """The line of a tool that one process shows."""
    where = ToolInProcess(
        process="a", host="h", pid=1, kind="library", process_name="", at_ms=0, pending=False, tool=entry
    )
    return line(entry.name, None, [where], NOW, is_server=False)
