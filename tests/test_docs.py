"""The documents keep their word: examples run, links lead somewhere, what tables say is what the code says."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import socket
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec
import pytest
from tests.test_architecture import ROWS, code

import holdfast
from holdfast import BreakerConfig, ErrorCategory, Holdfast, LoggingSink, events
from holdfast.fleet.link import Away
from holdfast.guards.concurrency import ConcurrencyConfig
from holdfast.guards.loop import LoopConfig
from holdfast.guards.rate import Priority, RateConfig
from holdfast.guards.retry import RetryConfig
from holdfast.policy import Policy, PolicyBook
from holdfast.policy.settings import CacheConfig
from holdfast.testing import ManualClock, Recorder, Script, fail, ok

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = {page.name: page.read_text("utf-8") for page in PAGES}
RUN_BY_THEIR_OWN_TESTS = {"testing.md"}  # its examples are tests, which tests/testing/test_testing.py runs
NOT_RUN = "<!-- not run -->"


class Block(NamedTuple):
    """A fenced block; *line* is the first line of *text*, *before* the line above its fence."""

    page: str
    line: int
    language: str
    text: str
    before: str


def blocks(page: str, language: str) -> list[Block]:
    found = []
    lines = TEXTS[page].splitlines()
    start = None
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = number
            continue
        text = "\n".join(lines[start + 1 : number]) + "\n"
        found.append(Block(page, start + 2, lines[start][3:], text, lines[start - 1]))
        start = None
    assert start is None, f"{page}:{(start or 0) + 1} opens a block that is never closed"
    return [block for block in found if block.language == language]


# --- examples ---


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder of one's own, no settings of this machine, no network."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("an example wants to use the network")

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_POLICY", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def runnable(page: str) -> list[Block]:
    return [block for block in blocks(page, "python") if block.before != NOT_RUN]


@pytest.mark.parametrize("page", [page for page in TEXTS if runnable(page) and page not in RUN_BY_THEIR_OWN_TESTS])
def test_the_examples_of_a_page_run_in_order(page: str, nowhere: None) -> None:
    names: dict[str, Any] = {"__name__": page}
    if page == "policies.md":  # a reference, which does not open a Holdfast of its own
        names["hf"] = holdfast.open(policies={}, clock=ManualClock())

    try:
        with contextlib.redirect_stdout(io.StringIO()):
            for block in runnable(page):
                exec(compile("\n" * (block.line - 1) + block.text, str(ROOT / page), "exec"), names)
    finally:
        for value in list(names.values()):
            if isinstance(value, Holdfast):
                value.close()


def test_an_example_that_is_not_run_says_so_right_above() -> None:
    marks = sum(text.count(NOT_RUN) for text in TEXTS.values())
    marked = [block for page in TEXTS for block in blocks(page, "python") if block.before == NOT_RUN]

    assert len(marked) == marks > 0


TOML = [block for page in TEXTS if page != "policies.md" for block in blocks(page, "toml")]


@pytest.mark.parametrize("block", [pytest.param(block, id=f"{block.page}:{block.line}") for block in TOML])
def test_a_policy_file_in_a_page_is_a_good_one(block: Block, tmp_path: Path) -> None:
    path = tmp_path / "holdfast.toml"
    path.write_text(block.text, "utf-8")

    book = PolicyBook.load(path)

    for name in tomllib.loads(block.text).get("tool", {}):
        assert isinstance(book.resolve(name), Policy)


def test_the_readme_is_short_and_shows_code_early() -> None:
    lines = TEXTS["README.md"].splitlines()

    assert len(lines) < 200
    assert lines.index("```python") < 40


# --- links and names ---


def links() -> Iterator[tuple[Path, str]]:
    for page in [*PAGES, *sorted((ROOT / "docs").glob("*/*.md")), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        prose = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", prose):
            if not re.match(r"[a-z]+:", target):
                yield page, target


@pytest.mark.parametrize(("page", "target"), [pytest.param(*link, id=f"{link[0].name}→{link[1]}") for link in links()])
def test_a_link_leads_somewhere(page: Path, target: str) -> None:
    path, _, place = target.partition("#")
    file = (page.parent / path).resolve() if path else page

    assert file.exists()
    assert not place or place in places(file)


def places(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them of its headings."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", holdfast.__all__)
def test_every_public_name_is_documented(name: str) -> None:
    text = "\n".join(text for page, text in TEXTS.items() if page != "README.md")

    assert re.search(rf"`(holdfast\.)?{name}\b", text)


# --- tables ---


def test_the_index_lists_all_names_and_no_others() -> None:
    listed = re.findall(r"`(\w+)`", TEXTS["index.md"].partition("\n## All names\n")[2])

    assert sorted(listed) == sorted(holdfast.__all__)


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of all tables of a section, without the header of each."""
    section = TEXTS[page].partition(f"\n{heading}\n")[2].partition("\n##")[0]
    assert section, f"{page} has no section {heading!r}"
    lines = re.findall(r"^\| .*$", section, re.MULTILINE)
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0].startswith("`")]


def defaults(page: str, heading: str) -> dict[str, str]:
    return {row[0].strip("`"): row[1] for row in rows(page, heading)}


def said(field: Any) -> str:
    """The default of a field or parameter, as the tables say it."""
    value = field.default
    if value is msgspec.NODEFAULT:
        return "must be given"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, frozenset):
        return ", ".join(category for category in ErrorCategory if category in value)
    return "none" if value is None else f"{value:g}" if isinstance(value, int | float) else str(value)


def of_struct(config: type[msgspec.Struct], *names: str) -> dict[str, str]:
    fields = {field.name: said(field) for field in msgspec.structs.fields(config)}
    return {name: fields[name] for name in names or fields}


@pytest.mark.parametrize(
    ("heading", "settings"),
    [
        ("## Circuit breaker", of_struct(BreakerConfig)),
        ("## Rate", of_struct(RateConfig)),
        ("## Concurrency", of_struct(ConcurrencyConfig)),
        ("## The line", of_struct(Policy, "max_wait", "priority")),
        ("## Time limits", of_struct(Policy, "timeout", "deadline")),
        ("## Retry", of_struct(RetryConfig)),
        ("## Cache", of_struct(CacheConfig)),
        ("## Loop guard", of_struct(LoopConfig)),
    ],
)
def test_the_guards_page_has_the_settings_and_defaults_of_the_code(heading: str, settings: dict[str, str]) -> None:
    assert defaults("guards.md", heading) == settings


def test_the_parts_page_has_the_settings_and_defaults_of_retrying() -> None:
    parameters = inspect.signature(holdfast.retrying).parameters.values()

    assert defaults("parts.md", "## retrying") == {
        parameter.name: said(parameter) for parameter in parameters if parameter.name not in ("fn", "clock")
    }


def test_the_readme_says_what_a_bare_tool_has() -> None:
    policy = Policy()
    table = {row[1]: row[2] for row in readme_guards()}
    breaker, retry, loop = policy.breaker, RetryConfig(), policy.loop
    assert breaker is not None
    assert loop is not None

    assert table["`breaker`"].startswith(f"{breaker.failure_threshold} failures in a row: no calls for 5 s")
    assert (breaker.min_backoff, breaker.max_backoff, breaker.backoff_factor) == (5.0, 120.0, 2.0)
    assert table["`retry`"].startswith(f"{retry.attempts} attempts if")
    assert f"failed {loop.repeats} times in the last {loop.window} calls" in table["`loop`"]
    assert table["`max_wait`"].startswith(f"up to {policy.max_wait:g} s")


def test_the_readme_lists_all_guards_and_says_none_where_there_is_none() -> None:
    said_none = {key for row in readme_guards() if row[2].startswith("none") for key in re.findall(r"`(\w+)`", row[1])}
    policy = Policy()

    assert said_none == {
        key
        for key in ("rate", "concurrency", "timeout", "deadline", "cache", "budget", "fallback", "breaker", "loop")
        if not getattr(policy, key)
    }


def readme_guards() -> list[list[str]]:
    section = TEXTS["README.md"].partition("\n## Guards\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| [a-z].*$", section, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines][1:]


def test_the_guards_page_says_what_each_priority_costs() -> None:
    costs = ", ".join(
        f"{priority} {priority.cost:g}{' tokens' if priority is Priority.LOW else ''}" for priority in Priority
    )

    assert f"what a call costs: {costs}." in TEXTS["guards.md"]


def test_the_errors_page_has_the_categories_of_the_code() -> None:
    def answer(yes: bool) -> str:
        return "yes" if yes else "no"

    table = [row for row in rows("errors.md", "## Categories") if len(row) == 3]

    assert table == [
        [f"`{category}`", answer(category.retryable), answer(category.trips_breaker)] for category in ErrorCategory
    ]


def test_the_errors_page_draws_the_tree_of_the_code() -> None:
    tree = re.findall(r"^[│├└─ ]*([A-Z]\w+)", blocks("errors.md", "")[0].text, re.MULTILINE)
    errors = [name for name in holdfast.__all__ if is_error(getattr(holdfast, name))]

    assert sorted(tree) == sorted(errors)


def is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def test_the_design_page_places_the_rooms_as_the_architecture_test_does() -> None:
    table = {cells[0]: set(re.findall(r"`(\w+)`", cells[1])) for cells in design_rows()}
    there = {module.room for module in code()} - {"holdfast"}

    assert list(table) == list(ROWS)
    for row, rooms in table.items():
        assert rooms == ROWS[row] & there, row


def design_rows() -> list[list[str]]:
    section = TEXTS["design.md"].partition("\n## Rooms\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| .*$", section, re.MULTILINE)
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] in ROWS]


# --- events ---

TYPES = {value for name, value in vars(events).items() if name.isupper() and isinstance(value, str)}


def test_the_events_page_lists_every_type() -> None:
    listed = [*rows("events.md", "## Types"), *rows("events.md", "## The log of a run")]

    assert {name for row in listed for name in re.findall(r"`(\w+)`", row[0])} == TYPES


def test_the_events_page_has_the_payloads_that_are_sent(tmp_path: Path) -> None:
    table = {row[0].strip("`"): re.findall(r"`(\w+)`", row[2]) for row in rows("events.md", "## Types")}

    sent = {event.type: list(event.payload) for event in one_of_each(tmp_path / "holdfast.toml")}

    assert sent == table


def test_the_events_page_has_the_payloads_of_the_log() -> None:
    cells = rows("events.md", "## The log of a run")
    table = {row[0].strip("`"): set(re.findall(r"`(\w+)`", row[2])) for row in cells if row[2] != "any"}
    written: dict[str, set[str]] = {name: set() for name in table}

    for event in one_log():
        written.setdefault(event.type, set()).update(event.payload)

    assert {name: written[name] for name in table} == table
    assert written["tool_started"] == {"call_id", "tool", "key", "arguments", "parent", "repeat"}
    assert written["run_started"] == {"prompt", "forked_from", "host", "pid"}
    assert written["run_resumed"] == {"host", "pid"}
    section = TEXTS["events.md"].partition("\n## The log of a run\n")[2].partition("\n| type")[0]
    named = set(re.findall(r"`(\w+)`", section))
    for name in ("tool_started", "tool_ended", "run_started", "run_resumed"):
        listed = {row[0].strip("`"): set(re.findall(r"`(\w+)`", row[2])) for row in rows("events.md", "## Types")}
        assert written[name] - listed[name] <= named, name


def one_log() -> list[holdfast.RunEventRecord]:
    """What the logs of a few runs have: steps, calls within them, spending, a doubt, a fork, a cancel."""
    with holdfast.open(":memory:", policies={}, clock=ManualClock()) as hf:
        charge = hf.tool("charge")(lambda: run.spend("usd", 1.0))
        cut_off = hf.tool("cut_off")(Script(fail(KeyboardInterrupt), ok("done")).function)
        with contextlib.suppress(KeyboardInterrupt), hf.run() as run:
            run.step("plan", lambda prompt: run.step("think", charge), "tea")
            ignoring(lambda: run.step("fail", Script(fail(ValueError)).function))
            cut_off("now")
        with contextlib.suppress(holdfast.InDoubt), hf.resume(run.id) as run:
            cut_off("now")
        with contextlib.suppress(ValueError), hf.resume(run.id, in_doubt="repeat") as run:
            cut_off("now")
            run.verify(holdfast.Report("taste", (holdfast.Check("sweet", "passed"),)))
            raise ValueError("no tea")
        with hf.resume(run.id):
            pass
        hf.submit("agent:main", run_id="submitted")
        with contextlib.suppress(holdfast.RunCancelled), hf.resume("submitted") as run:
            hf.runs.handle(run.id).cancel("enough")
            charge()
        return [event for record in hf.runs.records() for event in record.events]


def test_the_events_page_has_the_levels_of_the_logging_sink() -> None:
    section = TEXTS["events.md"].partition("\n## LoggingSink\n")[2]
    levels = {
        event: level
        for level, cell in re.findall(r"^\| ([A-Z]+) \| (.*) \|$", section, re.MULTILINE)
        for event in re.findall(r"`(\w+)`", cell)
    }
    names = {10: "DEBUG", 20: "INFO", 30: "WARNING", 40: "ERROR"}

    assert levels == {event: names[level] for event, level in LoggingSink.levels.items()}


def one_of_each(path: Path) -> list[holdfast.Event]:
    """Every type of event at least once."""
    clock, recorder = ManualClock(), Recorder()
    path.write_text("[policy]\n")
    with holdfast.open(policies=path, clock=clock) as hf:
        hf.bus.add(recorder)
        fetch = hf.tool("fetch", breaker={"failure_threshold": 1})(Script(fail(OSError), ok("fine")).function)
        stuck = hf.tool("stuck", breaker=False)(Script(fail(ValueError)).function)
        ignoring(fetch)
        ignoring(fetch)
        clock.advance(10)
        fetch()
        with hf.run(budget={"calls": 4}):
            for _ in range(5):
                ignoring(stuck)
            fetch()
        for error in (KeyboardInterrupt, ValueError):
            with contextlib.suppress(error), hf.run() as run:
                raise error
            with contextlib.suppress(holdfast.RunCancelled), hf.resume(run.id) as again:
                again.cancel()
                fetch()
        with contextlib.suppress(KeyboardInterrupt), hf.run() as run:
            fetch()
            raise KeyboardInterrupt
        with hf.resume(run.id):
            pass  # and ask for nothing
        for text in ("[policy]\ntimeout = 5.0\n", "nonsense"):
            path.write_text(text)
            clock.advance(2)
            fetch()
    with holdfast.open(":memory:", policies={}, redis="redis://127.0.0.1:1") as hf:  # where there is none
        assert hf.fleet is not None
        hf.bus.add(recorder)
        hf.fleet.found()
        hf.fleet.lose(Away("gone"))
    return recorder.events


def ignoring(tool: Callable[[], object]) -> None:
    with contextlib.suppress(OSError, ValueError, holdfast.Denied):
        tool()
