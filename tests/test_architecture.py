"""The rooms of Holdfast, drawn from above, and a check that the code keeps to the drawing.

A room is a module or package directly below `holdfast`. Imports point down; inside a row they form no circle.
A new room is in no row until somebody places it here.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROWS = {
    # puts it together; "holdfast" is the package's own __init__
    "outside": {"holdfast", "__main__", "app", "cli", "defaults", "demo", "signals", "torture"},
    # speak to the outside
    "adapters": {"mcp", "web", "top", "wording", "frameworks", "telemetry", "testing"},
    # make things happen
    "doing": {"calls", "tools", "parts", "hooks", "waiting", "runs", "workers", "publishing", "backtest"},
    # stores and fleet touch disk and network
    "knowing": {"policy", "bus", "stores", "fleet"},
    # pure
    "deciding": {"guards", "tracking", "history", "values"},
    # the standard library and msgspec
    "ground": {
        "errors", "category", "clock", "events", "checks", "folders", "loops", "shape", "shipped", "solo", "stack",
        "version",
    },
}  # fmt: skip
PLAIN_ROWS = {"deciding", "ground"}  # import nothing foreign but msgspec
ASKS_ENVIRONMENT = {"cli", "defaults"}  # the only rooms that read environment variables
MOST_LINES = 450
SERVED = {".py", ".typed", ".sql", ".lua", ".tcss", ".html", ".css", ".js", ".svg"}  # what a wheel may hold

PACKAGE = Path(__file__).parents[1] / "src" / "holdfast"
ROW = {room: row for row, rooms in ROWS.items() for room in rooms}
HEIGHT = {room: -depth for depth, rooms in enumerate(ROWS.values()) for room in rooms}
HERE = "tests/test_architecture.py"


# --- the code as it is ---


def test_every_room_has_a_place_in_the_drawing() -> None:
    assert_none(rooms_without_place(code()))


def test_imports_point_down() -> None:
    assert_none(upward_imports(code()))


def test_the_rooms_of_a_row_do_not_import_in_a_circle() -> None:
    assert_none(circles_of_rooms(code()))


def test_the_modules_of_a_room_do_not_import_in_a_circle() -> None:
    assert_none(circles_of_modules(code()))


def test_the_lower_rows_import_nothing_foreign_but_msgspec() -> None:
    assert_none(foreign_imports(code()))


def test_only_the_clock_reads_the_time() -> None:
    assert_none(clock_reads(code()))


def test_only_the_outside_reads_the_environment() -> None:
    assert_none(environment_reads(code()))


def test_no_error_is_swallowed_in_silence() -> None:
    assert_none(swallowed_errors(code()))


def test_no_file_is_too_long_to_hold_one_idea() -> None:
    assert_none(long_files(code()))


def test_no_file_is_left_lying_about() -> None:
    found = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]

    # macOS leaves that one in every folder somebody has looked into; it gets into no wheel.
    assert [path for path in found if path.suffix not in SERVED and path.name != ".DS_Store"] == []


# --- the checks: each names every place that breaks its rule ---


def rooms_without_place(modules: list[Module]) -> Iterator[str]:
    for module in modules:
        if module.room not in ROW:
            yield f"{module.path}: the room {module.room!r} is in no row; place it in ROWS of {HERE}"


def upward_imports(modules: list[Module]) -> Iterator[str]:
    for arrow in arrows(modules):
        source, target = arrow.source.room, room_of(arrow.target)
        if {source, target} <= HEIGHT.keys() and HEIGHT[source] < HEIGHT[target]:
            yield (
                f"{arrow.source.path}:{arrow.line} imports {arrow.target}: {source!r} is {ROW[source]}, "
                f"{target!r} is {ROW[target]}, which is above it; imports point down"
            )


def circles_of_rooms(modules: list[Module]) -> Iterator[str]:
    within_rows = [
        (arrow.source.room, room_of(arrow.target))
        for arrow in arrows(modules)
        if not arrow.for_types and ROW.get(arrow.source.room) == ROW.get(room_of(arrow.target))
    ]
    yield from circle(within_rows)


def circles_of_modules(modules: list[Module]) -> Iterator[str]:
    within_rooms = [
        (arrow.source.name, arrow.target)
        for arrow in arrows(modules)
        if not arrow.for_types and arrow.source.room == room_of(arrow.target)
    ]
    yield from circle(within_rooms)


def foreign_imports(modules: list[Module]) -> Iterator[str]:
    allowed = sys.stdlib_module_names | {"annotationlib", "holdfast", "msgspec"}  # the first is new in 3.14
    for module in modules:
        if ROW.get(module.room) not in PLAIN_ROWS:
            continue
        for names, line, _ in imports(module):
            if names[0].partition(".")[0] not in allowed:
                yield f"{module.path}:{line} imports {names[0]}: {ROW[module.room]} needs no other library"


def clock_reads(modules: list[Module]) -> Iterator[str]:
    for module in modules:
        if module.room == "clock":
            continue
        for name, node in uses(module):
            if name in CLOCK_READS and not yields_to_the_loop(name, node):
                yield f"{module.path}:{node.lineno} uses {name}: take a Clock, so that a test can do without waiting"


def environment_reads(modules: list[Module]) -> Iterator[str]:
    for module in modules:
        if module.room in ASKS_ENVIRONMENT:
            continue
        for name, node in uses(module):
            if name in {"os.environ", "os.environb", "os.getenv"}:
                yield f"{module.path}:{node.lineno} uses {name}: only {sorted(ASKS_ENVIRONMENT)} read the environment"


def swallowed_errors(modules: list[Module]) -> Iterator[str]:
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ExceptHandler) and catches_all(node.type) and does_nothing(node.body):
                yield f"{module.path}:{node.lineno} swallows every error: name the error, or log it"
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
                if any(catches_all(kind) for kind in node.args):
                    yield f"{module.path}:{node.lineno} swallows every error: name the error, or log it"


def long_files(modules: list[Module]) -> Iterator[str]:
    for module in modules:
        if module.lines > MOST_LINES:
            yield f"{module.path}: {module.lines} lines, more than {MOST_LINES}; split it where a second idea begins"


# --- reading the code ---

CLOCK_READS = {
    *(f"time.{name}" for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time", "sleep")),
    *(f"time.{name}_ns" for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time")),
    *(f"datetime.datetime.{name}" for name in ("now", "utcnow", "today")),
    "datetime.date.today",
    "asyncio.sleep",
}


class Module(NamedTuple):
    """One file: *name* is dotted, *room* the part of it that the drawing knows."""

    name: str
    room: str
    path: Path
    tree: ast.Module
    lines: int


class Arrow(NamedTuple):
    """One import of ours; *for_types* if it stands under `if TYPE_CHECKING`."""

    source: Module
    target: str
    line: int
    for_types: bool


@cache
def code() -> list[Module]:
    modules = read(PACKAGE)
    assert modules, "no code found: the checks would pass on nothing"
    return modules


def read(package: Path) -> list[Module]:
    modules = []
    for path in sorted(package.rglob("*.py")):
        shown = path.relative_to(package.parent)
        name = ".".join(shown.with_suffix("").parts).removesuffix(".__init__")
        text = path.read_text(encoding="utf-8")
        modules.append(Module(name, room_of(name), shown, ast.parse(text), text.count("\n")))
    return modules


def room_of(name: str) -> str:
    return [*name.split("."), name][1] if "." in name else name


def arrows(modules: list[Module]) -> Iterator[Arrow]:
    known = {module.name for module in modules}
    for module in modules:
        for names, line, for_types in imports(module):
            # `from holdfast import clock` means the module of that name, where there is one, else the package.
            target = next(name for name in names if name in known or name == names[-1])
            if target.partition(".")[0] == "holdfast":
                yield Arrow(module, target, line, for_types)


def imports(module: Module) -> Iterator[tuple[list[str], int, bool]]:
    """Each import as the names it may mean, most precise first, with its line and whether it is for types only."""
    for node, for_types in nodes(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield [alias.name], node.lineno, for_types
        elif isinstance(node, ast.ImportFrom):
            origin = absolute(node, module)
            for alias in node.names:
                yield [f"{origin}.{alias.name}", origin], node.lineno, for_types


def nodes(tree: ast.AST, for_types: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Every node below *tree*, wherever it stands, with whether type checkers alone see it."""
    for child in ast.iter_child_nodes(tree):
        yield child, for_types
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            for statement in child.body:
                yield statement, True
                yield from nodes(statement, True)
            for statement in child.orelse:
                yield statement, for_types
                yield from nodes(statement, for_types)
        else:
            yield from nodes(child, for_types)


def absolute(node: ast.ImportFrom, module: Module) -> str:
    if not node.level:
        return node.module or ""
    here = module.name.split(".")
    package = here if module.path.name == "__init__.py" else here[:-1]
    above = package[: len(package) - node.level + 1]
    return ".".join([*above, *([node.module] if node.module else [])])


def uses(module: Module) -> Iterator[tuple[str, ast.Call | ast.expr | ast.stmt]]:
    """Each foreign name that is imported or reached through an import, written in full: `time.monotonic`."""
    called = {id(node.func): node for node in ast.walk(module.tree) if isinstance(node, ast.Call)}
    meaning: dict[str, str] = {}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            meaning |= {alias.asname or alias.name.partition(".")[0]: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                meaning[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield f"{node.module}.{alias.name}", node
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute):
            first, dot, rest = ast.unparse(node).partition(".")
            yield meaning.get(first, "") + dot + rest, called.get(id(node), node)


def yields_to_the_loop(name: str, node: ast.AST) -> bool:
    """`asyncio.sleep(0)` lets others run and waits for nothing."""
    return name == "asyncio.sleep" and isinstance(node, ast.Call) and ast.unparse(node.args[0]) == "0"


def catches_all(kind: ast.expr | None) -> bool:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(one is None or ast.unparse(one) in {"Exception", "BaseException"} for one in kinds)


def does_nothing(body: list[ast.stmt]) -> bool:
    return all(isinstance(node, ast.Pass) or ast.unparse(node) == "..." for node in body)


def circle(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    below: dict[str, set[str]] = {}
    for source, target in pairs:
        if source != target:
            below.setdefault(source, set()).add(target)
    try:
        TopologicalSorter(below).prepare()
    except CycleError as error:
        # graphlib lists each node before the one that needs it; the arrows of imports run the other way.
        yield f"a circle of imports: {' → '.join(reversed(error.args[1]))}; move what they share to a room below"


def assert_none(complaints: Iterable[str]) -> None:
    found = list(complaints)
    assert not found, "\n".join(["", *found])


# --- the checks can fail: small trees that are wrong, and some that only look it ---

Check = Callable[[list[Module]], Iterable[str]]

BAD: list[tuple[Check, dict[str, str], str]] = [
    (rooms_without_place, {"newcomer.py": ""}, "'newcomer' is in no row"),
    (rooms_without_place, {"newcomer/part.py": ""}, "newcomer/part.py: the room 'newcomer'"),
    (upward_imports, {"errors.py": "import holdfast.calls"}, "errors.py:1 imports holdfast.calls"),
    (upward_imports, {"errors.py": "from holdfast.calls import call"}, "'calls' is doing"),
    (upward_imports, {"errors.py": "from holdfast import calls", "calls.py": ""}, "imports holdfast.calls"),
    (upward_imports, {"errors.py": "from holdfast import Holdfast"}, "'holdfast' is outside"),
    (upward_imports, {"errors.py": "from . import calls", "calls.py": ""}, "imports holdfast.calls"),
    (upward_imports, {"guards/loop.py": "from ..calls import call"}, "imports holdfast.calls"),
    (upward_imports, {"guards/__init__.py": "from ..bus import Bus"}, "imports holdfast.bus"),
    (upward_imports, {"errors.py": "def f():\n    import holdfast.calls"}, "errors.py:2"),
    (upward_imports, {"errors.py": "if TYPE_CHECKING:\n    import holdfast.calls"}, "errors.py:2"),
    (
        circles_of_rooms,
        {"values.py": "import holdfast.history", "history.py": "import holdfast.values"},
        "history → values → history",
    ),
    (
        circles_of_rooms,
        {"guards/loop.py": "import holdfast.values", "values.py": "import holdfast.guards.rate", "guards/rate.py": ""},
        "guards",
    ),
    (
        circles_of_modules,
        {"guards/loop.py": "from holdfast.guards import rate", "guards/rate.py": "from .loop import Loop"},
        "holdfast.guards.loop",
    ),
    (foreign_imports, {"clock.py": "import click"}, "clock.py:1 imports click"),
    (foreign_imports, {"guards/rate.py": "from redis.asyncio import Redis"}, "imports redis.asyncio"),
    (clock_reads, {"bus.py": "import time\ntime.monotonic()"}, "bus.py:2 uses time.monotonic"),
    (clock_reads, {"bus.py": "import time as t\nnow = t.time_ns"}, "bus.py:2 uses time.time_ns"),
    (clock_reads, {"bus.py": "from time import sleep as nap"}, "bus.py:1 uses time.sleep"),
    (clock_reads, {"bus.py": "from datetime import datetime\ndatetime.now()"}, "uses datetime.datetime.now"),
    (clock_reads, {"bus.py": "import asyncio\nasyncio.sleep(1)"}, "uses asyncio.sleep"),
    (environment_reads, {"bus.py": "import os\nos.environ['HOME']"}, "bus.py:2 uses os.environ"),
    (environment_reads, {"bus.py": "from os import getenv"}, "bus.py:1 uses os.getenv"),
    (swallowed_errors, {"bus.py": "try: f()\nexcept: pass"}, "bus.py:2"),
    (swallowed_errors, {"bus.py": "try: f()\nexcept (OSError, Exception): ..."}, "bus.py:2"),
    (swallowed_errors, {"bus.py": "with contextlib.suppress(BaseException): f()"}, "bus.py:1"),
    (long_files, {"bus.py": "x = 1\n" * (MOST_LINES + 1)}, "451 lines"),
]

GOOD: list[tuple[Check, dict[str, str]]] = [
    (rooms_without_place, {"__init__.py": "", "cli/demo.py": "", "guards/loop.py": ""}),
    (upward_imports, {"calls.py": "import time\nfrom holdfast import checks", "checks.py": ""}),
    (upward_imports, {"errors.py": "import holdfast.newcomer", "newcomer.py": "import holdfast.cli"}),
    (upward_imports, {"testing.py": "import mcp\nfrom holdfast.clock import Clock"}),
    (circles_of_rooms, {"values.py": "import holdfast.history", "history.py": "import holdfast.tracking"}),
    (
        circles_of_rooms,
        {"values.py": "import holdfast.history", "history.py": "if TYPE_CHECKING: import holdfast.values"},
    ),
    (foreign_imports, {"clock.py": "import asyncio, msgspec", "cli/demo.py": "import click"}),
    (clock_reads, {"clock.py": "from time import monotonic"}),
    (clock_reads, {"bus.py": "import asyncio, time\nasyncio.sleep(0)\ntime.strftime\nclock.time()\nself.time.time"}),
    (environment_reads, {"cli/demo.py": "import os\nos.environ", "bus.py": "import os\nos.getpid()"}),
    (swallowed_errors, {"bus.py": "try: f()\nexcept OSError: pass\ntry: f()\nexcept Exception: log()"}),
    (long_files, {"bus.py": "x = 1\n" * MOST_LINES}),
]


@pytest.mark.parametrize(("check", "files", "complaint"), BAD)
def test_a_broken_rule_is_named_with_its_place(
    tmp_path: Path, check: Check, files: dict[str, str], complaint: str
) -> None:
    modules = planted(tmp_path, files)

    found = list(check(modules))

    assert len(found) == 1
    assert complaint in found[0]


@pytest.mark.parametrize(("check", "files"), GOOD)
def test_a_rule_that_is_kept_brings_no_complaint(tmp_path: Path, check: Check, files: dict[str, str]) -> None:
    modules = planted(tmp_path, files)

    assert list(check(modules)) == []


def planted(folder: Path, files: dict[str, str]) -> list[Module]:
    for name, text in files.items():
        path = folder / "holdfast" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return read(folder / "holdfast")
