"""`import holdfast` loads nothing before it is asked for; all of it is cheap and leaves the process as it was.

What it costs in milliseconds, the benchmarks print.
"""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import holdfast
from holdfast.fleet import script
from holdfast.stores import schema
from holdfast.stores.postgres import schema as postgres

PACKAGE = Path(holdfast.__file__).parent
EVERYTHING = "from holdfast import *"
# What a program with an event loop and logging has loaded anyway.
BASELINE = "import asyncio, contextvars, dataclasses, enum, inspect, logging, threading, typing"
OPTIONAL = ("aiohttp", "click", "mcp", "opentelemetry", "psycopg", "redis", "rich", "starlette", "textual", "uvicorn")
# Beyond the baseline: what msgspec brings, what pathlib brings, what we use ourselves.
STANDARD = {
    "__future__", "datetime", "decimal", "numbers", "platform", "uuid",
    "fnmatch", "glob", "grp", "ipaddress", "ntpath", "pathlib", "pwd", "urllib",
    "array", "bisect", "hashlib", "json", "queue", "random", "struct",
}  # fmt: skip
FOREIGN = {"holdfast", "msgspec", "typing_extensions"}  # msgspec asks for typing_extensions, where it is installed

PROBE = """
import atexit, gc, json, locale, os, signal, sys, warnings
{baseline}

def lowest_free_descriptor():
    number = os.open(os.devnull, os.O_RDONLY)
    os.close(number)
    return number

def state():
    return {{
        "at exit": atexit._ncallbacks(),
        "descriptors": lowest_free_descriptor(),
        "environment": dict(os.environ),
        "garbage collector": [gc.isenabled(), *gc.get_threshold()],
        "hooks": [repr(hook) for hook in (sys.excepthook, threading.excepthook, sys.displayhook, *sys.meta_path)],
        "locale": locale.setlocale(locale.LC_ALL),
        "logging": [logging.root.level, repr(logging.root.handlers), repr(logging.getLoggerClass())],
        "path": sys.path[:],
        "recursion": sys.getrecursionlimit(),
        "signals": [repr(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
        "switch interval": sys.getswitchinterval(),
        "threads": [thread.name for thread in threading.enumerate()],
        "trace": [repr(sys.gettrace()), repr(sys.getprofile())],
        "warnings": repr(warnings.filters),
    }}

before, loaded = state(), set(sys.modules)
{statement}
print(json.dumps({{"before": before, "after": state(), "loaded": sorted(set(sys.modules) - loaded)}}))
"""


@pytest.mark.parametrize("library", OPTIONAL)
def test_an_optional_library_is_not_loaded(library: str) -> None:
    assert library not in loaded_by(EVERYTHING)


def test_no_other_foreign_library_is_loaded() -> None:
    foreign = loaded_by(EVERYTHING) - sys.stdlib_module_names

    assert foreign - FOREIGN == set(), "load it where it is used, inside the function"


def test_no_costly_part_of_the_standard_library_is_loaded() -> None:
    standard = {name for name in loaded_by(EVERYTHING) & sys.stdlib_module_names if not name.startswith("_")}

    assert standard - STANDARD == set(), "load it where it is used, or allow it in STANDARD if it is cheap"


@pytest.mark.parametrize("module", ["fleet.desk", "fleet.script", "tools.sharing", "stores.entries"])
def test_what_is_for_a_fleet_or_for_who_looks_is_loaded_where_there_is_one(module: str) -> None:
    assert f"holdfast.{module}" not in probed(EVERYTHING).loaded


def test_a_name_is_loaded_when_it_is_asked_for_and_not_before() -> None:
    asked = probed("import holdfast; holdfast.Permit")

    assert [name for name in probed("import holdfast").loaded if name != "__future__"] == ["holdfast"]
    assert "holdfast.parts.permit" in asked.loaded
    assert "holdfast.app" not in asked.loaded


@pytest.mark.parametrize("arguments", [["--help"], [], ["--version"]], ids=["help", "nothing", "version"])
def test_the_command_line_says_what_it_can_do_without_loading_what_does_it(arguments: list[str]) -> None:
    code = f"import sys; from holdfast.cli import main; main({arguments}); print('loaded', *sys.modules)"

    loaded = printed(code).rpartition("loaded ")[2].split()

    assert "holdfast.cli" in loaded
    assert {"asyncio", "holdfast.errors", "importlib.metadata", "msgspec", "rich"} & set(loaded) == set()


def test_a_name_that_is_asked_for_by_many_threads_at_once_is_the_same_for_all() -> None:
    code = """
import holdfast, threading
found, together = [], threading.Barrier(8)
def ask():
    together.wait()
    found.append(holdfast.Holdfast)
threads = [threading.Thread(target=ask) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len(found), len(set(found)))
"""

    assert printed(code) == "8 1\n"


def test_what_is_loaded_later_is_what_type_checkers_see_and_all_names() -> None:
    assert holdfast.__file__ is not None
    seen = {
        (statement.module, alias.name)
        for block in ast.parse(Path(holdfast.__file__).read_text()).body
        if isinstance(block, ast.If)
        for statement in block.body
        if isinstance(statement, ast.ImportFrom) and statement.module and statement.module.startswith("holdfast.")
        for alias in statement.names
    }

    homes = {(f"holdfast.{home}", name) for home, names in holdfast._HOMES.items() for name in names}

    assert homes == seen
    assert sorted(name for _, name in homes) == list(holdfast.__all__)


def test_the_process_is_left_as_it_was() -> None:
    probe = probed(EVERYTHING)

    assert probe.after == probe.before


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("import atexit; atexit.register(print)", "at exit"),
        ("import os; file = os.open(os.devnull, os.O_RDONLY)", "descriptors"),
        ("import os; os.environ['CARELESS'] = '1'", "environment"),
        ("import gc; gc.disable()", "garbage collector"),
        ("import sys; sys.excepthook = print", "hooks"),
        ("import logging; logging.basicConfig()", "logging"),
        ("import sys; sys.path.append('.')", "path"),
        ("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)", "signals"),
        ("import sys; sys.setswitchinterval(0.1)", "switch interval"),
        ("import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()", "threads"),
        ("import warnings; warnings.simplefilter('ignore')", "warnings"),
    ],
)
def test_the_probe_sees_what_a_careless_module_changes(tmp_path: Path, line: str, changed: str) -> None:
    (tmp_path / "careless.py").write_text(line)

    probe = probed("import careless", folder=tmp_path)

    assert [key for key, value in probe.after.items() if value != probe.before[key]] == [changed]


def test_the_probe_sees_what_a_careless_module_loads(tmp_path: Path) -> None:
    (tmp_path / "careless.py").write_text("def load():\n    import click\nload()")

    probe = probed("import careless", folder=tmp_path)

    assert {"careless", "click"} <= set(probe.loaded)


class Probe(NamedTuple):
    """The state of a fresh process around an import, and the modules that it loaded."""

    before: dict[str, object]
    after: dict[str, object]
    loaded: list[str]


def loaded_by(statement: str) -> set[str]:
    """The top-level modules that *statement* loads beyond the baseline."""
    return {name.partition(".")[0] for name in probed(statement).loaded}


@cache
def probed(statement: str, *, folder: Path | None = None) -> Probe:
    return Probe(**json.loads(printed(PROBE.format(baseline=BASELINE, statement=statement), folder=folder)))


def printed(code: str, *, folder: Path | None = None) -> str:
    """What *code* prints in an interpreter of its own."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


FROM_AN_ARCHIVE = """
import sys
sys.path.insert(0, sys.argv[1])
import holdfast
from holdfast.fleet.script import Script
from holdfast.stores.postgres.schema import statements
from holdfast.top.app import Top
from holdfast.web.files import _read as file_of_page

assert holdfast.__file__.startswith(sys.argv[1]), holdfast.__file__
with holdfast.open(sys.argv[2], policies={}) as hf, hf.run() as run:
    run.emit("note")
print(hf.runs.snapshot(run.id).status, len(Script().digest), "load" in statements("holdfast"))
print(b"<html" in file_of_page("index.html"), file_of_page("missing.js"), "Screen" in Top.CSS)
"""


def test_the_package_works_from_an_archive(tmp_path: Path) -> None:
    archive = shutil.make_archive(str(tmp_path / "holdfast"), "zip", PACKAGE.parent, PACKAGE.name)
    words = [sys.executable, "-P", "-c", FROM_AN_ARCHIVE, archive, str(tmp_path / "runs.db")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=50, check=False)

    assert (done.stdout, done.stderr) == ("completed 40 True\nTrue None True\n", "")


@pytest.mark.parametrize(
    ("folder", "pattern", "named"),
    [
        ("stores/sql", "0*.sql", schema.MIGRATIONS),
        ("stores/postgres/sql", "0*.sql", postgres.MIGRATIONS),
        ("fleet/decide", "*.lua", script.PARTS),
    ],
)
def test_files_that_are_read_in_order_are_all_named(folder: str, pattern: str, named: tuple[str, ...]) -> None:
    assert named == tuple(sorted(path.name for path in (PACKAGE / folder).glob(pattern)))
