"""Runs are found by what they are and by the tools they used, also where they came from elsewhere."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import ConfigError, RunNotFound
from holdfast.stores import RunStore, SqliteRunStore, schema
from holdfast.stores.searching import Wanted, every, ids_like, search


@pytest.fixture
def store(tmp_path: Path) -> SqliteRunStore:
    return SqliteRunStore(tmp_path / "runs.db")


@pytest.fixture(autouse=True)
def closed(store: SqliteRunStore) -> object:
    with store:
        yield


def use(store: RunStore, run: str, *tools: str) -> None:
    store.create_run("s", "p", run_id=run)
    for number, tool in enumerate(tools):
        store.record_event(run, "tool_started", {"call_id": str(number), "tool": tool})


def found(store: RunStore, **wanted: str) -> list[str]:
    return [run.id for run in search(store, Wanted(**wanted)).runs]


def test_a_run_is_found_by_each_tool_it_used(store: RunStore) -> None:
    use(store, "one", "search", "fetch", "search")
    use(store, "two", "fetch")

    assert found(store, tool="search") == ["one"]
    assert found(store, tool="fetch") == ["two", "one"]


def test_ids_are_found_by_how_they_begin_the_newest_first(store: RunStore) -> None:
    for run_id in ("ab", "abc", "ac", "ab~", "abé", "abé𝄞", "Ab", "b"):
        store.create_run("s", "p", run_id=run_id)

    assert ids_like(store, "ab") == ["abé𝄞", "abé", "ab~", "abc", "ab"]
    assert ids_like(store, "abé") == ["abé𝄞", "abé"]
    assert ids_like(store, "ab~") == ["ab~"]
    assert ids_like(store, "x") == []


@pytest.mark.parametrize("beginning", ["", "a\n", "\ud800", chr(sys.maxunicode), "a" * 201])
def test_no_id_begins_as_none_may(store: RunStore, beginning: str) -> None:
    use(store, "a")

    assert ids_like(store, beginning) == []


@pytest.mark.parametrize(
    ("name", "parameters", "index"),
    [("owned", [100], "runs_of_owner"), ("named_like", ["a", "b"], "sqlite_autoindex_runs_1")],
)
def test_a_few_runs_are_found_without_looking_at_all(
    store: SqliteRunStore, name: str, parameters: list[object], index: str
) -> None:
    use(store, "a")

    rows = store.file.reader().execute(f"EXPLAIN QUERY PLAN {store.file.sql(name)}", parameters).fetchall()

    assert f"INDEX {index}" in rows[0][3], rows


def test_a_tool_that_a_run_wanted_and_did_not_get_counts(store: RunStore) -> None:
    store.create_run("s", "p", run_id="one")
    store.record_event("one", "tool_denied", {"tool": "search"})

    assert found(store, tool="search") == ["one"]


def test_a_tool_that_answered_a_run_from_its_cache_counts(store: RunStore) -> None:
    store.create_run("s", "p", run_id="one")
    store.record_event("one", "tool_ended", {"tool": "search", "status": "success", "cached": True})

    assert found(store, tool="search") == ["one"]


@pytest.mark.parametrize("tool", [None, 3, ["search"], {"cut": "x"}])
def test_what_is_no_name_of_a_tool_is_passed_over(store: RunStore, tool: object) -> None:
    store.create_run("s", "p", run_id="one")

    store.record_event("one", "tool_started", {"tool": tool})

    assert found(store, tool="search") == []


def test_a_run_that_makes_names_up_is_found_by_the_first_of_them(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.stores.ledger.MOST_TOOLS", 2)

    use(store, "one", "a", "b", "c")

    assert (found(store, tool="b"), found(store, tool="c")) == (["one"], [])


def test_runs_that_were_imported_are_found_by_their_tools(store: RunStore, tmp_path: Path) -> None:
    text = io.StringIO()
    with SqliteRunStore(tmp_path / "other.db") as other:
        use(other, "one", "search", "naïve \U0001f980")
        other.record_event("one", "tool_started", {"tool": 3})
        other.export(text)

    store.import_(io.StringIO(text.getvalue()))

    assert found(store, tool="search") == ["one"]
    assert found(store, tool="naïve \U0001f980") == ["one"]


def test_runs_of_an_older_store_are_found_by_their_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "old.db"
    with monkeypatch.context() as old, SqliteRunStore(path) as store:
        old.setattr(schema, "SCHEMA", 1)
        old.setattr("holdfast.stores.ledger.MOST_TOOLS", 0)  # that version knew nothing of them
        use(store, "one", "search", "fetch")
        store.file.writing().execute("UPDATE events SET payload = 'garbage' WHERE sequence = 1")

    with SqliteRunStore(path) as store:
        assert found(store, tool="search") == ["one"]


def test_a_run_that_is_pruned_leaves_nothing(store: SqliteRunStore) -> None:
    use(store, "one", "search")
    store.mark_failed("one", "oh")

    store.prune(max_runs=0)

    assert found(store, tool="search") == []
    assert store.file.writing().execute("SELECT count(*) FROM tools_of_runs").fetchone() == (0,)


def test_records_that_are_replaced_are_found_by_their_own_tools(store: RunStore) -> None:
    use(store, "one", "search")
    records = list(store.records())
    use(store, "two", "search")

    store.replace_records(records)

    assert found(store, tool="search") == ["one"]


def test_tools_of_a_durable_run_are_found(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "hf.db", policies={}) as hf:
        with hf.run(run_id="one"):
            hf.call(len, "abc")

        assert found(hf.runs, tool="len") == ["one"]


def test_a_search_is_bounded_and_goes_on_where_it_stopped(store: RunStore) -> None:
    for number in range(10):
        store.create_run("s", "even" if number % 2 == 0 else "odd", run_id=f"r{number}")

    first = search(store, Wanted(text="even"), most_looked_at=4)
    second = search(store, Wanted(text="even"), most_looked_at=100, before=first.next)

    assert ([run.id for run in first.runs], first.next) == (["r8", "r6"], "r6")
    assert ([run.id for run in second.runs], second.next) == (["r4", "r2", "r0"], None)


def test_every_run_is_found_though_those_found_before_go_meanwhile(store: RunStore) -> None:
    for run_id in ("a", "b", "c"):
        store.create_run("s", "p", run_id=run_id)
    store.mark_cancelled("c")

    found = every(store, Wanted(), first=1)
    first = next(found).id
    store.prune(max_runs=0)

    assert (first, [run.id for run in found]) == ("c", ["b", "a"])


def test_a_full_page_says_that_there_is_more_only_if_there_is(store: RunStore) -> None:
    for number in range(4):
        store.create_run("s", "p", run_id=f"r{number}")

    assert search(store, Wanted(), limit=3).next == "r1"
    assert search(store, Wanted(), limit=4).next is None


def test_runs_that_have_not_ended_are_found_as_alive(store: RunStore) -> None:
    use(store, "one", "search")
    use(store, "two", "search")
    store.mark_failed("two", "oh")

    assert found(store, status="alive") == ["one"]
    assert found(store, status="alive", tool="search") == ["one"]


@pytest.mark.parametrize("name", ["session_id", "tool", "text"])
def test_what_is_searched_for_must_be_a_text(store: RunStore, name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} = 3"):
        search(store, Wanted(**{name: 3}))  # type: ignore[arg-type]


def test_a_search_that_cannot_be_is_refused(store: RunStore) -> None:
    store.create_run("s", "p")

    with pytest.raises(ConfigError, match="status = 'running'"):
        search(store, Wanted(status="running"))
    with pytest.raises(ConfigError, match="limit = 0"):
        search(store, Wanted(), limit=0)
    with pytest.raises(RunNotFound):
        search(store, Wanted(), before="nobody")
