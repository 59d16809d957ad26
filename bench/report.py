"""Tables for people and JSON for machines: what was measured, and whether each aim was met."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path

from bench.harness import Group, Row
from bench.peers import PEERS


@dataclass(frozen=True)
class Verdict:
    """One aim and whether it was met; *met* is None where it could not be judged."""

    text: str
    met: bool | None

    def __str__(self) -> str:
        return f"{'----' if self.met is None else 'PASS' if self.met else 'MISS'}  {self.text}"


@dataclass
class Table:
    """Rows under a head; the first column is a name, the others are numbers."""

    title: str
    head: Sequence[str]
    rows: list[tuple[str, *tuple[float | None, ...]]] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        widths = [max(10, len(name)) for name in self.head]
        lines = [f"{self.title:<44}" + "".join(f"  {name:>{w}}" for name, w in zip(self.head, widths, strict=True))]
        for name, *numbers in self.rows:
            lines.append(f"  {name:<42}" + "".join(f"  {_short(n):>{w}}" for n, w in zip(numbers, widths, strict=True)))
        lines += [f"  {verdict}" for verdict in self.verdicts]
        lines += [f"  ({note})" for note in self.notes]
        return "\n".join(lines)


def timed(group: Group, rows: Sequence[Row]) -> Table:
    """The table of a group that was timed, with its aims judged by the mean."""
    by_name = {row.name: row for row in rows}
    reference = by_name.get(group.reference)
    table = Table(group.title, ("mean ns", "median ns", f"x {group.reference}"))
    for row in rows:
        table.rows.append((row.name, row.mean, row.median, row.mean / reference.mean if reference else None))
    for aim in group.aims:
        ours, peer = by_name.get(aim.ours), by_name.get(aim.peer)
        ratio = ours.mean / peer.mean if ours and peer else None
        table.verdicts.append(at_most(aim.ours, ratio, aim.at_most, f" x {aim.peer}"))
    if group.missing:
        table.notes.append(f"not installed: {', '.join(group.missing)}")
    return table


def at_most(name: str, value: float | None, limit: float, unit: str) -> Verdict:
    """The verdict on a value that should not exceed *limit*."""
    shown = "not measured" if value is None else f"{_short(value)}{unit}"
    return Verdict(f"{name}: {shown} (aim: at most {_short(limit)}{unit})", None if value is None else value <= limit)


def at_least(name: str, value: float | None, limit: float, unit: str) -> Verdict:
    """The verdict on a value that should not fall below *limit*."""
    shown = "not measured" if value is None else f"{_short(value)}{unit}"
    return Verdict(f"{name}: {shown} (aim: at least {_short(limit)}{unit})", None if value is None else value >= limit)


def machine() -> str:
    """One line on where this was measured."""
    return f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"


def versions() -> dict[str, str]:
    """The peers that are installed, with their versions."""
    found = {}
    for name in PEERS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def save(path: Path, tables: Sequence[Table]) -> None:
    """Write everything that was printed as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"machine": machine(), "versions": versions(), "tables": [asdict(table) for table in tables]}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _short(number: float | None) -> str:
    if number is None:
        return "-"
    if number == int(number) or abs(number) >= 100:
        return f"{number:,.0f}"
    return f"{number:.2f}"
