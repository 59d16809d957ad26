"""The torture on PostgreSQL: in a schema of its own, which is gone when it ends, however it ends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import psycopg
import pytest
from tests.children import eventually, said
from tests.servers import PgBouncer

from holdfast import cli
from holdfast.errors import ConfigError, StoreError
from holdfast.stores import PostgresRunStore
from holdfast.torture import session
from holdfast.torture.promises import Kept, Progress, Promise, Verdict
from holdfast.torture.server import COMMENT, PREFIX, ServerPlace, borrowed
from holdfast.torture.session import torture

SEED = 20
BROKEN = Verdict(seed=7, progress=Progress(), promises=(Kept(Promise.FINISHED, 5, ("charge came again",)),))


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the evidence would be."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture
def server(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def poor(server: psycopg.Connection[Any], database: str) -> Iterator[str]:
    """The database, for a user who may do nothing there."""
    server.execute('CREATE ROLE "po""or" LOGIN')
    yield database.replace(f"{urlsplit(database).username}@", "po%22or@")
    server.execute('DROP ROLE "po""or"')


def schemas(server: psycopg.Connection[Any]) -> list[str]:
    rows = server.execute("SELECT nspname FROM pg_namespace WHERE starts_with(nspname, 'holdfast') ORDER BY 1")
    return [name for (name,) in rows]


def sessions(server: psycopg.Connection[Any], schema: str) -> int:
    """How many there are of processes of a torture."""
    named = "SELECT count(*) FROM pg_stat_activity WHERE starts_with(application_name, %s)"
    ((count,),) = server.execute(named, (schema,)).fetchall()
    return int(count)


def driver(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    monkeypatch.setattr(session, "DRIVER", (sys.executable, "-c", script))


def told(verdict: Verdict) -> str:
    return "\n".join(f"{kept.promise}: {breach}" for kept in verdict.promises for breach in kept.breaches)


# --- promises ---

SHORT = """
from holdfast.torture import __main__, driver
{damage}
driver.MOST_LIVES = 2
driver.SCENES = ({scenes})
__main__.main()
"""
BELIEVES_ALL_ALIVE = """
from holdfast.stores.postgres.ears import Ears
Ears.is_living = lambda ears, owner: None
"""


@pytest.mark.timeout(180)
def test_every_promise_is_kept_while_processes_are_killed_frozen_raced_and_cancelled(
    database: str, server: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    scenes = "driver.killed, driver.frozen, driver.raced, driver.cancelled, driver.forked"
    driver(monkeypatch, SHORT.format(damage="", scenes=scenes))

    with PostgresRunStore(database) as like:
        verdict = torture(0.0, like=like, seed=SEED)

    assert verdict.is_clean, told(verdict)
    assert [kept.promise for kept in verdict.promises if not kept.tested] == []
    assert verdict.progress.kills >= 5
    assert verdict.progress.zombies >= 1
    assert schemas(server) == []


@pytest.mark.timeout(180)
def test_a_library_that_breaks_a_promise_is_found_out(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver(monkeypatch, SHORT.format(damage=BELIEVES_ALL_ALIVE, scenes="driver.killed,"))

    with PostgresRunStore(database) as like:
        verdict = torture(0.0, like=like, seed=SEED)

    assert {kept.promise for kept in verdict.promises if kept.breaches} == {Promise.AT_ONCE}


def test_a_store_with_events_of_no_run_is_damaged(database: str, server: psycopg.Connection[Any]) -> None:
    with borrowed(database, print) as place:
        with place.open() as store:
            store.create_run("s", "p", run_id="r")
            store.record_event("r", "note")
        sound = place.damage()
        server.execute(f"DELETE FROM {place.schema}.runs".encode())

        assert sound is None
        assert place.damage() == "events of no run"


# --- the schema ---


def test_nothing_of_the_users_is_touched_and_nothing_is_left(
    database: str, server: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver(monkeypatch, f"print({msgspec.json.encode(BROKEN).decode()!r})")
    with PostgresRunStore(database) as store:
        store.create_run("s", "p", run_id="mine")

        torture(1.0, like=store)

        assert [run.id for run in store.list_runs()] == ["mine"]
    assert schemas(server) == ["holdfast"]


def test_tortured_runs_are_in_the_schema_alone_with_the_settings_of_the_address(
    database: str, server: psycopg.Connection[Any]
) -> None:
    with borrowed(f"{database}?schema=holdfast_mine&options=-c%20work_mem%3D5MB", print) as place:
        with place.open() as store:
            store.create_run("s", "p")
            with store.file.consistent_reader() as link:
                memory = link.execute("SHOW work_mem").fetchone()

        assert schemas(server) == [place.schema]
        assert memory == ("5MB",)


def test_the_runs_are_kept_where_a_promise_was_not(
    database: str, server: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver(monkeypatch, f"print({msgspec.json.encode(BROKEN).decode()!r})")

    with PostgresRunStore(database) as like:
        verdict = torture(1.0, like=like)

    assert verdict.folder is not None
    assert (Path(verdict.folder) / "runs.jsonl").read_text().startswith('{"holdfast":')
    assert schemas(server) == []


def test_no_password_is_among_the_arguments_of_a_process(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f"""
import sys
password = "hunter" + "2"
assert password in sys.stdin.read() and password not in repr(sys.orig_argv)
print({msgspec.json.encode(BROKEN).decode()!r})
"""
    driver(monkeypatch, script)
    url = database.replace("@", ":hunter2@")

    with PostgresRunStore(url) as like:
        verdict = torture(1.0, like=like)

    assert verdict.seed == BROKEN.seed


def test_a_torture_that_is_stopped_leaves_nothing(
    database: str, server: psycopg.Connection[Any], temporary_folder: Path
) -> None:
    command = [sys.executable, "-m", "holdfast", "doctor", "--store", database, "--torture", "600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert eventually(lambda: any(temporary_folder.glob("*/*.journal")))

        process.terminate()
        out, err = process.communicate()

    assert (process.returncode, out, err.strip()) == (130, "", "holdfast: interrupted")
    assert schemas(server) == []
    assert list(temporary_folder.iterdir()) == []


def test_what_a_killed_torture_left_is_dropped_by_the_next_which_says_so(
    database: str, server: psycopg.Connection[Any], child: Any
) -> None:
    killed = child("borrow", database)
    left = said(killed).split()[0]
    killed.kill()
    assert eventually(lambda: sessions(server, left) == 0)
    notes: list[str] = []

    with borrowed(database, notes.append) as place:
        assert schemas(server) == [place.schema]

    assert notes == [f"dropped the schema {left}, which a torture that broke off had left"]


def test_a_torture_that_lives_keeps_its_schema(database: str, server: psycopg.Connection[Any], child: Any) -> None:
    living = said(child("borrow", database)).split()[0]
    notes: list[str] = []

    with borrowed(database, notes.append):
        assert living in schemas(server)

    assert schemas(server) == [living]
    assert notes == []


def test_a_schema_that_is_left_but_in_use_is_named_with_its_processes(
    database: str, server: psycopg.Connection[Any]
) -> None:
    left = f"{PREFIX}{'ab' * 6}"
    server.execute(f"CREATE SCHEMA {left}".encode())
    server.execute(f"COMMENT ON SCHEMA {left} IS '{COMMENT}'".encode())
    server.execute(f"SET application_name = '{left} 4711 session'".encode())
    notes: list[str] = []

    with borrowed(database, notes.append):
        pass

    assert schemas(server) == [left]
    assert [note.partition(": ")[2] for note in notes] == ["kill 4711"]


@pytest.mark.parametrize(
    ("name", "comment"),
    [
        pytest.param(f"{PREFIX}{'ab' * 6}", None, id="no comment"),
        pytest.param(f"{PREFIX}{'ab' * 6}", "mine", id="another comment"),
        pytest.param(f"{PREFIX}results", COMMENT, id="another name"),
    ],
)
def test_a_schema_that_only_looks_like_one_of_a_torture_stays(
    name: str, comment: str | None, database: str, server: psycopg.Connection[Any]
) -> None:
    server.execute(f"CREATE SCHEMA {name}".encode())
    if comment is not None:
        server.execute(f"COMMENT ON SCHEMA {name} IS '{comment}'".encode())

    with borrowed(database, print):
        pass

    assert schemas(server) == [name]


def test_a_schema_that_cannot_be_dropped_is_said(database: str, server: psycopg.Connection[Any]) -> None:
    notes: list[str] = []

    with borrowed(database, notes.append) as place:
        server.execute(f"ALTER DATABASE {urlsplit(database).path[1:]} SET default_transaction_read_only = on".encode())

    assert schemas(server) == [place.schema]
    (note,) = notes
    assert note.startswith(f"the schema {place.schema} could not be dropped; the next torture tries again")
    assert "read-only" in note


def test_a_schema_may_be_dropped_twice(database: str) -> None:
    with borrowed(database, pytest.fail) as place:
        place.clear()
        place.clear()


# --- what may be wrong ---


def test_a_user_who_may_make_no_schema_is_told_what_to_grant(poor: str, database: str) -> None:
    name = urlsplit(database).path[1:]

    with (
        pytest.raises(StoreError, match=re.escape(f'GRANT CREATE ON DATABASE {name} TO "po""or"')),
        borrowed(poor, pytest.fail),
    ):
        pass


def test_a_server_that_cannot_be_reached_ends_with_4_and_shows_no_password(capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["doctor", "--torture", "1", "--store", "postgresql://me:hunter2@127.0.0.1:1/db"])

    said = capsys.readouterr().err
    assert code == 4
    assert "cannot be reached" in said
    assert "hunter2" not in said


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)

    with (
        pytest.raises(ConfigError, match=r"pip install 'holdfast\[postgres\]'"),
        borrowed("postgresql://me@127.0.0.1:1/db", pytest.fail),
    ):
        pass


def test_behind_a_pool_alone_a_direct_address_is_asked_for(database: str, pgbouncer: PgBouncer) -> None:
    with (
        pytest.raises(ConfigError, match=r"\?session=postgresql://"),
        borrowed(pgbouncer.through(database), pytest.fail),
    ):
        pass


def test_behind_a_pool_with_a_direct_address_beside_it_runs_go_through_the_pool(
    database: str, pgbouncer: PgBouncer, server: psycopg.Connection[Any]
) -> None:
    with borrowed(f"{pgbouncer.through(database)}?session={database}", pytest.fail) as place:
        with place.open() as store:
            store.create_run("s", "p", run_id="r")
        with place.open() as store:
            assert [run.id for run in store.list_runs()] == ["r"]
        assert schemas(server) == [place.schema]

    assert schemas(server) == []


def test_whoever_looks_waits_until_the_server_has_noticed_who_is_dead(
    database: str, server: psycopg.Connection[Any]
) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        dead.wait()
    order: list[str] = []

    def look(place: ServerPlace) -> None:
        place.open().close()
        order.append("looked")

    with borrowed(database, pytest.fail) as place:
        with psycopg.connect(database, application_name=f"{place.schema} {dead.pid}"):
            looking = threading.Thread(target=look, args=(place,))
            looking.start()
            assert eventually(lambda: sessions(server, f"{place.schema} {os.getpid()}") > 1)
            order.append("noticed")
        looking.join()

    assert order == ["noticed", "looked"]
