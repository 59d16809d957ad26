"""The tables of a store on PostgreSQL: made once, left alone where they are not ours, in a schema of their own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from tests.stores.kinds import claim

from holdfast.errors import RunNotFound, StoreError
from holdfast.stores import PostgresRunStore, schema
from holdfast.stores.postgres.schema import SCHEMA, statements


@pytest.fixture
def server(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


def schemas(server: psycopg.Connection[Any]) -> list[str]:
    rows = server.execute("SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' ORDER BY 1")
    return [name for (name,) in rows if name not in {"information_schema", "public"}]


def test_looking_makes_no_tables(database: str, server: psycopg.Connection[Any]) -> None:
    with PostgresRunStore(database) as store:
        assert store.list_runs() == []
        with pytest.raises(RunNotFound):
            store.snapshot("r")

    assert schemas(server) == []


def test_all_tables_are_in_a_schema_of_their_own(database: str, server: psycopg.Connection[Any]) -> None:
    server.execute("CREATE TABLE public.runs (mine text)")
    server.execute("CREATE SCHEMA mine")

    for url in (database, f"{database}?schema=mine"):
        with PostgresRunStore(url) as store:
            store.create_run("s", "p", run_id=url[-4:])
            assert len(store.list_runs()) == 1

    assert schemas(server) == ["holdfast", "mine"]
    rows = server.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
    assert rows == [("runs",)]


def test_of_many_who_come_at_once_one_makes_the_tables(database: str, server: psycopg.Connection[Any]) -> None:
    stores = [PostgresRunStore(database) for _ in range(6)]
    threads = [threading.Thread(target=store.create_run, args=("s", "p")) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    secrets = {store.secret() for store in stores}
    runs = stores[0].list_runs()
    for store in stores:
        store.close()
    assert (len(runs), len(secrets)) == (6, 1)
    assert server.execute("SELECT number FROM holdfast.migrations").fetchall() == [(n + 1,) for n in range(SCHEMA)]


def test_one_that_is_frozen_while_it_makes_the_tables_does_not_keep_others_waiting(
    database: str, server: psycopg.Connection[Any]
) -> None:
    server.execute("CREATE TABLE public.bounds (bound text)")
    server.execute(
        "CREATE FUNCTION public.look() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN "
        "INSERT INTO public.bounds VALUES (current_setting('idle_in_transaction_session_timeout')); END $$"
    )
    server.execute("CREATE EVENT TRIGGER look ON ddl_command_start EXECUTE FUNCTION public.look()")

    with PostgresRunStore(database) as store:
        store.create_run("s", "p")

    assert server.execute("SELECT DISTINCT bound FROM public.bounds").fetchall() == [("5s",)]


@pytest.fixture
def poor(server: psycopg.Connection[Any], database: str) -> Iterator[str]:
    """The database, for a user who may do nothing there."""
    server.execute("CREATE ROLE poor LOGIN")
    yield database.replace(f"{urlsplit(database).username}@", "poor@")
    server.execute("DROP OWNED BY poor")
    server.execute("DROP ROLE poor")


def test_who_may_not_make_the_tables_is_told_so_and_may_once_it_is_granted(
    poor: str, database: str, server: psycopg.Connection[Any]
) -> None:
    with PostgresRunStore(poor) as store:
        for _ in range(2):
            with pytest.raises(StoreError, match="permission denied"):
                store.secret()
        server.execute(f"GRANT CREATE ON DATABASE {urlsplit(database).path[1:]} TO poor".encode())

        assert store.secret()


def test_who_may_not_read_the_tables_is_told_so_and_may_once_it_is_granted(
    poor: str, database: str, server: psycopg.Connection[Any]
) -> None:
    with PostgresRunStore(database) as store:
        store.create_run("s", "p")
    with PostgresRunStore(poor) as store:
        with pytest.raises(StoreError, match="permission denied"):
            store.list_runs()
        server.execute("GRANT USAGE ON SCHEMA holdfast TO poor")
        server.execute("GRANT SELECT ON ALL TABLES IN SCHEMA holdfast TO poor")

        assert len(store.list_runs()) == 1


def test_a_newer_schema_is_left_alone(database: str, server: psycopg.Connection[Any]) -> None:
    with PostgresRunStore(database) as store:
        store.create_run("s", "p")
    server.execute("INSERT INTO holdfast.migrations (number) VALUES (99)")

    with PostgresRunStore(database) as store:
        for use in (store.list_runs, lambda: store.create_run("s", "p")):
            with pytest.raises(StoreError, match=r"newer Holdfast \(schema 99; this one knows \d+\).*upgrade"):
                use()


def test_a_schema_of_something_else_is_left_alone(database: str, server: psycopg.Connection[Any]) -> None:
    server.execute("CREATE SCHEMA holdfast")
    server.execute("CREATE TABLE holdfast.wheels (size int)")

    with PostgresRunStore(database) as store, pytest.raises(StoreError, match="is of something else"):
        store.create_run("s", "p")

    assert server.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'holdfast'").fetchone() == (1,)


def test_a_schema_that_somebody_made_for_us_is_used(database: str, server: psycopg.Connection[Any]) -> None:
    server.execute("CREATE SCHEMA holdfast")

    with PostgresRunStore(database) as store:
        assert store.create_run("s", "p").event_count == 0


def test_a_schema_may_be_called_as_a_word_of_sql_is(database: str, server: psycopg.Connection[Any]) -> None:
    with PostgresRunStore(f"{database}?schema=order") as store:
        store.create_run("s", "p", run_id="r")

        assert store.record_event("r", "note").event_count == 1
    assert schemas(server) == ["order"]


def test_what_others_have_put_on_the_search_path_is_not_called(database: str, server: psycopg.Connection[Any]) -> None:
    server.execute("CREATE FUNCTION public.cardinality(bigint[]) RETURNS int LANGUAGE sql AS 'SELECT 7'")
    with PostgresRunStore(database) as store:
        store.create_run("s", "p", run_id="r")

        claim(store, "r")

        assert store.snapshot("r").owner is not None


def test_a_new_run_has_a_number_of_its_own_where_the_sequence_was_left_behind(
    database: str, server: psycopg.Connection[Any]
) -> None:
    with PostgresRunStore(database) as store:
        for _ in range(3):
            store.create_run("s", "p")
    server.execute("UPDATE holdfast.runs SET key = key + 5000")

    with PostgresRunStore(database) as store:
        store.create_run("s", "p", run_id="r")

    rows = server.execute("SELECT key > 5003, nextval('holdfast.run_keys') > key FROM holdfast.runs WHERE id = 'r'")
    assert rows.fetchall() == [(True, True)]


def test_a_database_that_cannot_hold_every_text_is_refused(postgres: Any) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as server:
        server.execute("CREATE DATABASE plain ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
        try:
            url = postgres.url.replace("/postgres", "/plain")
            with PostgresRunStore(url) as store, pytest.raises(StoreError, match="encoding is SQL_ASCII; use one with"):
                store.create_run("s", "p")
        finally:
            server.execute("DROP DATABASE plain WITH (FORCE)")


def test_every_statement_of_an_embedded_store_is_there_under_its_name() -> None:
    ours = {name for name in schema.statements() if not name.startswith(("stage", "leave_out"))}
    written_in_groups = {"next_key", "add_run", "change_run", "change_standing", "queue_run"}

    assert ours - written_in_groups - set(statements("holdfast")) == set()


def test_a_page_of_events_is_read_without_all_that_follow(database: str, server: psycopg.Connection[Any]) -> None:
    with PostgresRunStore(database) as store:
        run = store.create_run("s", "p")
    server.execute(
        "INSERT INTO holdfast.events (run, sequence, at, by, late, type, payload) "
        "SELECT run, number, 0, 0, 0, 'a', '{}' FROM generate_series(1001, 3000) run, generate_series(0, 9) number "
        "UNION ALL SELECT key, number, 0, 0, 0, 'note', '{}' FROM holdfast.runs, generate_series(0, 9999) AS number"
    )
    server.execute("ANALYZE")

    asked = psycopg.RawCursor(server)
    asked.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statements('holdfast')['page_of']}", (-1, run.id, 11))

    ((plans,),) = asked.fetchall()
    assert max(rows(plans[0]["Plan"])) == 11


def rows(plan: dict[str, Any]) -> Iterator[int]:
    """How many each step of a plan gave."""
    yield plan["Actual Rows"]
    for step in plan.get("Plans", ()):
        yield from rows(step)
