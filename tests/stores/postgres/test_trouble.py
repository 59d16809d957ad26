"""What becomes of a write when the server or the network fails, and what is said about it."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from tests.servers import PostgresServer, Toxic

from holdfast.clock import SystemClock
from holdfast.errors import ConfigError, StoreError
from holdfast.runs.beginning import Start
from holdfast.stores import PostgresRunStore, RunStore, open_store
from holdfast.stores.ledger import OwnerRow
from holdfast.stores.postgres import connections, database
from holdfast.stores.postgres.address import parse
from holdfast.stores.postgres.database import PostgresDatabase
from holdfast.stores.postgres.link import Broken, Link, ServerError, Silent
from holdfast.stores.postgres.trouble import explained


@pytest.fixture
def network(url: str) -> Iterator[Toxic]:
    port = urlsplit(url).port
    assert port is not None
    with Toxic(port) as network:
        yield network


@pytest.fixture
def store(url: str, network: Toxic) -> Iterator[RunStore]:
    """A store behind a network that can fail."""
    parts = urlsplit(url)
    there = f"{parts.username}@127.0.0.1:{network.port}"
    with PostgresRunStore(parts._replace(netloc=there).geturl() + "&connect_timeout=5") as store:
        store.create_run("s", "p", run_id="r")
        yield store


def until(found: Callable[[], bool]) -> None:
    for _ in range(2000):
        if found():
            return
        SystemClock.sleep(0.01)
    raise AssertionError("it never came")


def waiting(server: psycopg.Connection[Any], schema: str) -> list[int]:
    """The connections that wait for a lock."""
    server.execute("SELECT pg_stat_clear_snapshot()")
    rows = server.execute(
        "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s", [f'%"{schema}".%']
    )
    return [pid for (pid,) in rows]


def connected(server: psycopg.Connection[Any], schema: str) -> int:
    """How many there are that were used for our tables."""
    seen = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdfast' AND query LIKE %s"
    ((number,),) = server.execute(seen, [f'%"{schema}".%']).fetchall()
    return int(number)


def events(store: RunStore) -> list[int]:
    return [event.sequence for event in store.events("r")]


class Writing(threading.Thread):
    """Records an event while somebody else holds the run, so that it hangs in the middle of its commit."""

    def __init__(self, store: RunStore, server: psycopg.Connection[Any], schema: str) -> None:
        super().__init__()
        self.error: Exception | None = None
        self._store, self._server, self._schema = store, server, schema

    def run(self) -> None:
        try:
            self._store.record_event("r", "note")
        except Exception as error:
            self.error = error

    def __enter__(self) -> Writing:
        self._server.execute("BEGIN")
        self._server.execute(f"SELECT FROM {self._schema}.runs FOR UPDATE".encode())
        self.start()
        until(lambda: len(waiting(self._server, self._schema)) == 1)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.execute("COMMIT")
        self.join()


# --- commits whose answer is lost ---


@pytest.fixture
def strict(server: psycopg.Connection[Any]) -> Iterator[None]:
    """Transactions are serializable, unless somebody says otherwise."""
    server.execute("ALTER ROLE CURRENT_USER SET default_transaction_isolation = 'serializable'")
    yield
    server.execute("ALTER ROLE CURRENT_USER RESET default_transaction_isolation")


@pytest.mark.usefixtures("strict")
def test_a_commit_whose_answer_was_lost_is_found_however_transactions_are_isolated(
    store: RunStore, network: Toxic, server: psycopg.Connection[Any], schema: str
) -> None:
    test_a_commit_whose_answer_was_lost_is_found_and_not_made_twice(store, network, server, schema)


def test_a_commit_whose_answer_was_lost_is_found_and_not_made_twice(
    store: RunStore, network: Toxic, server: psycopg.Connection[Any], schema: str
) -> None:
    with Writing(store, server, schema) as writing:
        network.cut()
        until(lambda: len(waiting(server, schema)) == 2)  # the old one is still at it, the new one asks for it

    assert writing.error is None
    assert events(store) == [0]


def test_a_commit_that_was_not_made_is_made_again(
    store: RunStore, network: Toxic, server: psycopg.Connection[Any], schema: str
) -> None:
    with Writing(store, server, schema) as writing:
        (old,) = waiting(server, schema)
        network.cut()
        server.execute("SELECT pg_terminate_backend(%s)", [old])

    assert writing.error is None
    assert events(store) == [0]


def test_a_commit_of_which_nobody_can_tell_is_no_success(
    store: RunStore, network: Toxic, server: psycopg.Connection[Any], schema: str
) -> None:
    with Writing(store, server, schema) as writing:
        network.refuse()
        writing.join()

    assert isinstance(writing.error, StoreError)
    assert "may have been written or not" in str(writing.error)
    network.heal()
    until(lambda: events(store) == [0])  # the old connection goes on with what it had got
    assert store.record_event("r", "note").event_count == 2


def test_a_commit_that_was_cancelled_is_looked_for_and_made_again(
    store: RunStore, server: psycopg.Connection[Any], schema: str
) -> None:
    with Writing(store, server, schema) as writing:
        (old,) = waiting(server, schema)
        server.execute("SELECT pg_cancel_backend(%s)", [old])
        until(lambda: waiting(server, schema) not in ([], [old]))  # it is looked for on another connection

    assert writing.error is None
    assert events(store) == [0]


# --- errors that belong to another batch, or to none of its statements ---


@pytest.fixture
def line(url: str) -> Iterator[Link]:
    line = Link(parse(url).dsn)
    line.connect()
    yield line
    line.close()


def test_a_commit_stands_although_others_could_not_be_told_of_it(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with PostgresRunStore(url) as store, caplog.at_level(logging.WARNING, "holdfast"):
        store.create_run("s", "p", run_id="r")
        assert isinstance(store.file, PostgresDatabase)
        store.file.ears.channel = "c" * 64  # PostgreSQL takes 63

        for number in range(100):
            assert store.record_event("r", "note").event_count == number + 1

    assert caplog.text.count("others could not be told to look: channel name too long") == 1


def test_an_error_of_a_later_batch_is_none_of_the_one_that_is_waited_for(
    line: Link, server: psycopg.Connection[Any]
) -> None:
    pid = line.ask("SELECT pg_backend_pid()")[0]
    for statement in ("SELECT 1", "SELECT 1 / 0"):
        line.execute(statement)
        line.end_batch()
    seen = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND state = 'idle' AND query LIKE '%%/ 0'"
    until(lambda: server.execute(seen, pid).fetchone() == (1,))  # both answers have come

    line.finish(left=1)

    with pytest.raises(ServerError, match="division by zero"):
        line.check()
    assert line.ask("SELECT 1") == [(1,)]


def test_an_error_at_the_end_of_a_batch_is_told_and_the_connection_goes_on(line: Link) -> None:
    line.ask("CREATE TEMPORARY TABLE t (n bigint UNIQUE DEFERRABLE INITIALLY DEFERRED)")

    with pytest.raises(ServerError, match="duplicate key") as caught:
        line.ask("INSERT INTO t VALUES (1), (1)")

    assert caught.value.code == "23505"
    assert line.ask("SELECT count(*) FROM t") == [(0,)]


# --- connections that break ---


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_connection_that_broke_while_nobody_used_it_is_made_anew(
    store: RunStore, network: Toxic, rounds: int
) -> None:
    for number in range(rounds):
        network.cut()

        assert store.snapshot("r").event_count == number
        network.cut()
        assert store.record_event("r", "note").event_count == number + 1


def test_statements_that_the_server_has_forgotten_are_made_ready_again(url: str) -> None:
    """As behind a pool that nobody has noticed."""
    with PostgresRunStore(url) as store:
        store.create_run("s", "p", run_id="r")
        store.record_event("r", "note")
        assert store.snapshot("r").event_count == 1
        assert isinstance(store.file, PostgresDatabase)
        for each in (store.file.links.write, *store.file.links.idle):
            assert each is not None
            each.ask("DEALLOCATE ALL")

        assert store.snapshot("r").event_count == 1
        assert store.record_event("r", "note").event_count == 2


def test_whoever_reads_may_be_interrupted_anywhere_and_others_still_can(url: str) -> None:
    left, is_struck = 0, True

    def strike(frame: FrameType, what: str, _: object) -> Any:
        nonlocal left, is_struck
        if frame.f_locals.get("self") is links and what in {"call", "return"}:
            left -= 1
            if left < 0 and not is_struck:
                is_struck = True
                raise KeyboardInterrupt
        return strike

    with PostgresRunStore(url) as store:
        assert isinstance(store.file, PostgresDatabase)
        links = store.file.links
        for at in itertools.count():
            left, is_struck = at, False
            traced = sys.gettrace()
            try:
                sys.settrace(strike)
                links.use(lambda link: link.ask("SELECT 1"))
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(traced)
            if not is_struck:
                break

        def nested(deep: int) -> int:
            return links.use(lambda _: nested(deep + 1)) if deep < connections.MOST else deep

        reading = threading.Thread(target=nested, args=(0,), daemon=True)
        reading.start()
        reading.join(20.0)
        assert (at > 5, reading.is_alive()) == (True, False)


def test_a_connection_that_reads_while_the_store_is_closed_is_closed_after_that(
    url: str, server: psycopg.Connection[Any], schema: str
) -> None:
    with PostgresRunStore(url) as store:
        store.create_run("s", "p", run_id="r")
        reading = threading.Thread(target=store.snapshot, args=("r",))
        with server.transaction():
            server.execute(f"LOCK TABLE {schema}.runs".encode())
            reading.start()
            until(lambda: len(waiting(server, schema)) == 1)

            store.close()

        reading.join()
        until(lambda: connected(server, schema) == 0)


def test_a_server_that_is_away_is_named_and_come_back_to(store: RunStore, network: Toxic) -> None:
    network.refuse()

    for use in (lambda: store.record_event("r", "note"), lambda: store.snapshot("r")):
        with pytest.raises(StoreError, match=r"cannot be reached; see that the server runs.*refused"):
            use()

    network.heal()
    assert store.record_event("r", "note").event_count == 1


def test_what_was_queued_while_the_server_was_away_fails_and_what_comes_later_does_not(
    store: RunStore, network: Toxic
) -> None:
    network.refuse()
    pending = [store.writer.submit(lambda ledger: ledger.say(ledger.run("r"), "note")) for _ in range(3)]
    for each in pending:
        store.writer.settle(each)

    network.heal()

    assert [isinstance(each.error, StoreError) for each in pending] == [True] * 3
    assert store.record_event("r", "note").event_count == 1


# --- processes that are stopped in the middle of it ---


def test_the_server_sees_whether_a_transaction_goes_on_and_ends_one_that_does_not(
    url: str, server: psycopg.Connection[Any]
) -> None:
    with PostgresRunStore(url) as store:
        store.create_run("s", "p", run_id="r")
        assert isinstance(store.file, PostgresDatabase)
        store.file.begin()
        store.file.writing().execute(store.file.sql("hold_queue"))

        ((pid,),) = store.file.writing().execute("SELECT pg_backend_pid()").fetchall()

        seen = server.execute("SELECT state FROM pg_stat_activity WHERE pid = %s", [pid]).fetchone()
        ((bound,),) = store.file.writing().execute("SHOW idle_in_transaction_session_timeout").fetchall()
        store.file.rollback(afresh=False)
        assert (seen, bound) == (("idle in transaction",), "5s")


def test_one_that_holds_a_run_in_the_middle_of_what_it_sends_is_ended_by_who_needs_it(
    url: str, schema: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "HELD", 1.0)
    monkeypatch.setattr(database, "STOPPED", 0.2)
    with PostgresRunStore(url) as frozen, PostgresRunStore(url) as store:
        store.create_run("s", "p", run_id="r")
        assert isinstance(frozen.file, PostgresDatabase)
        frozen.file.begin()
        line = frozen.file.writing()
        held = line.execute(f"SELECT 1 FROM {schema}.runs FOR UPDATE")
        line._pgconn.send_flush_request()
        line._pump(lambda: held.is_there)  # and nothing more is sent

        assert store.record_event("r", "note").event_count == 1

        assert "ended 1 connections that held its tables and did not go on" in caplog.text
        frozen.file.rollback(afresh=False)
        assert frozen.record_event("r", "note").event_count == 2


def test_a_commit_that_arrives_after_it_was_given_up_for_lost_is_not_made_twice(url: str) -> None:
    with PostgresRunStore(url) as other:
        other.create_run("s", "p", run_id="r")
        late: list[tuple[str, Sequence[object]]] = []
        arrived: list[bool] = []

        def happen(point: str) -> None:
            assert isinstance(store.file, PostgresDatabase)
            assert isinstance(other.file, PostgresDatabase)
            group = store.file._group
            if point == "written" and group is not None and group._single is not None and not arrived:
                late.append(group._single)  # and the network keeps it for a while
                with socket.socket(fileno=os.dup(group.link._pgconn.socket)) as line:
                    line.shutdown(socket.SHUT_RDWR)
            elif point == "begin" and late:  # nobody has found it, and it is made again
                link = other.file.links.writer()
                link.execute(*late.pop())
                link.end_batch()
                link.finish()
                arrived.append(True)

        with PostgresRunStore(url, crash=happen) as store:
            store.record_event("r", "first")  # so that the run is at hand
            snapshot = store.record_event("r", "second")

        assert arrived == [True]
        assert [event.type for event in other.events("r")] == ["first", "second"]
        assert snapshot.event_count == 2


def test_a_new_run_whose_commit_arrives_late_is_not_refused_to_who_began_it(url: str) -> None:
    stopped: list[int] = []
    asked: list[bool] = []

    def happen(point: str) -> None:
        assert isinstance(store.file, PostgresDatabase)
        group = store.file._group
        if point == "written" and group is not None and not asked[1:]:
            stopped.append(group.link._pgconn.backend_pid)  # it has yet to read what it is sent
            os.kill(stopped[0], signal.SIGSTOP)
            with socket.socket(fileno=os.dup(group.link._pgconn.socket)) as line:
                line.shutdown(socket.SHUT_RD)

    def owner() -> OwnerRow:
        asked.append(True)
        if asked[1:]:  # nobody has found it, and it is made again
            os.kill(stopped[0], signal.SIGCONT)
            until(lambda: bool(other.file.fetch("head", "r")))
        return store.ownership.row()

    with PostgresRunStore(url) as other, PostgresRunStore(url, crash=happen) as store:
        other.create_run("s", "p", run_id="another")
        start = Start(store.header("s", "p", "r"), {"prompt": "p"}, owner, [])
        try:
            begun = store.writer.commit(start.write)
        finally:
            with contextlib.suppress(ProcessLookupError):  # it has ended, as nobody is there to hear it
                os.kill(stopped[0], signal.SIGCONT)

        assert len(asked) == 2
        assert begun.claim[:3] == ("r", store.ownership.id, 1)
        assert [event.type for event in other.events("r")] == ["run_started"]


def test_the_server_notices_soon_that_the_host_of_a_connection_is_gone(url: str) -> None:
    with PostgresRunStore(url) as store:
        store.create_run("s", "p", run_id="r")
        store.snapshot("r")

        assert isinstance(store.file, PostgresDatabase)
        for each in (store.file.links.write, *store.file.links.idle):
            assert each is not None
            assert each.ask("SHOW tcp_keepalives_idle") == [("10",)]


def test_what_another_process_does_not_let_go_of_is_an_error_soon(
    url: str, server: psycopg.Connection[Any], schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HELD", 0.2)
    monkeypatch.setattr(database, "STOPPED", 0.0)  # it is none of ours to end
    with PostgresRunStore(url) as store:
        store.create_run("s", "p", run_id="r")
        with server.transaction():
            server.execute(f"SELECT FROM {schema}.runs FOR UPDATE".encode())

            with pytest.raises(StoreError, match="somebody else holds what is needed"):
                store.record_event("r", "note")

        assert store.record_event("r", "note").event_count == 1


def test_a_run_that_is_held_spoils_no_other_of_the_same_group(
    url: str, server: psycopg.Connection[Any], schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HELD", 0.2)
    monkeypatch.setattr(database, "HELD_AGAIN", 0.1)
    with PostgresRunStore(url) as store:
        for run_id in ("free", "r"):
            store.create_run("s", "p", run_id=run_id)
        with server.transaction():
            server.execute(f"SELECT FROM {schema}.runs WHERE id = 'r' FOR UPDATE".encode())

            with store.writer.turn:  # both are in one group
                free = store.writer.submit(lambda ledger: ledger.say(ledger.run("free"), "note"))
                held = store.writer.submit(lambda ledger: ledger.say(ledger.run("r"), "note"))
            for each in (free, held):
                store.writer.settle(each)

        assert free.error is None
        assert isinstance(held.error, StoreError)
        assert store.snapshot("free").event_count == 1


def test_a_table_that_is_locked_is_no_server_that_is_away_and_nobody_is_left_waiting(
    url: str, server: psycopg.Connection[Any], schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HELD", 0.2)
    with PostgresRunStore(url) as store:
        store.create_run("s", "p", run_id="r")
        with server.transaction():
            server.execute(f"LOCK TABLE {schema}.events".encode())

            with pytest.raises(StoreError, match="somebody else holds what is needed"):
                store.events("r")

            assert waiting(server, schema) == []


def test_what_is_not_answered_in_time_is_stopped_and_not_asked_again(url: str, server: psycopg.Connection[Any]) -> None:
    asked = []

    def ask(line: Link) -> None:
        asked.extend(line.ask("SELECT pg_backend_pid()"))
        line._limits = line._limits._replace(answer=0.2)
        line.ask("SELECT pg_sleep(600)")

    with PostgresRunStore(url) as store:
        assert isinstance(store.file, PostgresDatabase)
        with pytest.raises(Silent, match="no answer from the server"):
            store.file.links.use(ask)

    (pid,) = asked
    until(lambda: server.execute("SELECT FROM pg_stat_activity WHERE pid = %s", pid).fetchone() is None)


# --- what is said ---


def test_a_server_that_ends_what_is_idle_is_not_said_to_be_shutting_down(line: Link) -> None:
    error = explained("s", ServerError("57P05", "terminating connection due to idle-session timeout", line))

    assert "raise its idle_session_timeout" in str(error)


def test_a_server_that_ends_what_takes_long_is_named_with_the_setting(line: Link) -> None:
    error = explained("s", ServerError("25P04", "terminating connection due to transaction timeout", line))

    assert "raise its transaction_timeout" in str(error)


def test_a_password_is_never_shown(network: Toxic) -> None:
    network.refuse()
    with (
        PostgresRunStore(f"postgresql://me:hunter2@127.0.0.1:{network.port}/db?connect_timeout=5") as store,
        pytest.raises(StoreError) as caught,
    ):
        store.list_runs()

    assert "hunter2" not in str(caught.value)
    assert f"postgresql://me@127.0.0.1:{network.port}/db" in str(caught.value)


def test_a_database_that_is_not_there_is_named(url: str) -> None:
    elsewhere = urlsplit(url)._replace(path="/nowhere").geturl()

    with PostgresRunStore(elsewhere) as store, pytest.raises(StoreError, match="no such database; create it first"):
        store.create_run("s", "p")


def test_a_user_that_is_not_there_is_no_missing_database(url: str) -> None:
    parts = urlsplit(url)
    there = parts._replace(netloc=f"stranger@{parts.hostname}:{parts.port}").geturl()

    with PostgresRunStore(there) as store, pytest.raises(StoreError, match="this user may not connect"):
        store.create_run("s", "p")


@pytest.mark.parametrize(
    ("said", "meaning"),
    [
        ('FATAL: too many connections for role "me"', "no connection left"),
        ('FATAL: permission denied for database "d" DETAIL: User does not have CONNECT privilege.', "may not connect"),
        ('root certificate file "/home/me/.postgresql/root.crt" does not exist', "sslrootcert"),
        ("server does not support SSL, but SSL was required", "sslmode"),
        ("SSL connection has been closed unexpectedly", "cannot be reached; see that the server runs"),
    ],
)
def test_what_hinders_a_connection_is_taken_for_nothing_else(said: str, meaning: str) -> None:
    assert meaning in str(explained("s", Broken(said)))


def test_a_server_that_is_read_only_is_named(url: str, server: psycopg.Connection[Any]) -> None:
    with PostgresRunStore(url) as store:
        store.create_run("s", "p", run_id="r")
    server.execute("CREATE ROLE reader LOGIN SUPERUSER")
    server.execute("ALTER ROLE reader SET default_transaction_read_only = on")
    parts = urlsplit(url)
    there = parts._replace(netloc=f"reader@{parts.hostname}:{parts.port}").geturl()

    try:
        with PostgresRunStore(there) as store:
            assert store.snapshot("r").event_count == 0
            with pytest.raises(StoreError, match="is read-only: a standby, or set so"):
                store.record_event("r", "note")
    finally:
        server.execute("DROP ROLE reader")


def test_a_text_that_no_text_can_hold_is_found_again(url: str) -> None:
    with PostgresRunStore(url) as store:
        store.create_run("a\0b", "p", run_id="null")
        store.create_run("a\x01b", "p", run_id="one")
        store.cancel("null", "because\0")

        assert [run.id for run in store.list_runs(session_id="a\0b")] == ["null"]
        assert store.events("null")[0].payload == {"reason": "because\0"}


def test_a_tool_and_a_session_may_have_names_of_any_length(url: str) -> None:
    from holdfast.stores.searching import Wanted, search

    long = "".join(map(chr, range(0x4E00, 0x4E00 + 5000)))
    with PostgresRunStore(url) as store:
        store.create_run(long, "p", run_id="r")
        store.record_event("r", "tool_started", {"call_id": "c", "tool": long})

        assert [run.id for run in store.list_runs(session_id=long)] == ["r"]
        assert [run.id for run in search(store, Wanted(tool=long)).runs] == ["r"]


# --- addresses ---


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("mysql://x", "must be postgresql://"),
        ("postgresql://h/db?schema=A-b", "schema = "),
        ("postgresql://h/db?schema=pg_x", "schema = "),
        ("postgresql://h/db?pool=some", "pool = "),
        ("postgresql://h/db?session=nonsense", "session: must be postgresql://"),
        ("postgresql://[::1/db", "must be postgresql://"),
    ],
)
def test_an_address_that_is_none_is_a_config_error(url: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        PostgresRunStore(url)


@pytest.mark.parametrize(
    "url",
    [
        *("postgresql://u:secret\0@h/db", "postgresql://u:a@secret@h/db", "postgresql://u:a/secret@h/db"),
        *("postgresql://u:secret%zz@h/db", "postgresql://u:a secret@h/db"),
        *("postgresql://u:secret@[::1/db", "postgresql://u:secret@[::1]x/db", "postgresql://u:secret@[]/db"),
        *("postgresql://u:secret", "postgresql://u:secret%00@h/db", "postgresql://u:\udce9secret@h/db"),
        *("postgresql://h/db?password=a&secret", "postgresql://h/db?session=postgres%3A%2F%2Fu%3Aa%2Fsecret%40h"),
        *("mysql://u:a/secret@h/db", "host=h password=secret", b"postgresql://u:secret@h/db"),
    ],
)
def test_an_address_that_cannot_be_read_is_refused_without_being_shown(url: Any) -> None:
    with pytest.raises(ConfigError, match="must be postgresql://") as caught:
        PostgresRunStore(url)

    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("url", "name"),
    [
        *((f"postgresql://u:{word}@h/db", "postgresql://u@h/db") for word in ("a#b", "a?b", "a[b", "a]b", "a:b")),
        *((f"postgresql://u:{word}@h/db", "postgresql://u@h/db") for word in ("", "a%40b", "a&b=c", "a,b", "é")),
        ("postgresql://", "postgresql://"),
        ("postgresql:///db", "postgresql:///db"),
        ("postgresql:///db?host=/run/postgresql&password=secret", "postgresql:///db"),
        ("postgresql:///?host=/tmp", "postgresql:///"),
        ("postgresql://:secret@%2Frun%2Fpostgresql/db", "postgresql://@%2Frun%2Fpostgresql/db"),
        ("postgresql://u@/db", "postgresql://u@/db"),
        ("postgresql://u@[::1]:5432,h2,[::2]/db#1", "postgresql://u@[::1]:5432,h2,[::2]/db#1"),
        ("postgresql://h?user=u", "postgresql://h"),
        ("postgres://u:secret@h/db", "postgres://u@h/db"),
    ],
)
def test_what_libpq_reads_in_an_address_is_what_it_is_given(url: str, name: str) -> None:
    found = parse(url)

    assert conninfo_to_dict(found.dsn) == conninfo_to_dict(url)
    assert found.name == name


def test_a_password_among_the_parameters_may_hold_an_at() -> None:
    found = parse("postgresql://h?user=u&password=a@secret")

    assert conninfo_to_dict(found.dsn) == {"host": "h", "user": "u", "password": "a@secret"}
    assert found.name == "postgresql://h"


def test_the_end_of_a_line_is_no_part_of_an_address() -> None:
    assert parse("postgresql://u@h/db\n").dsn == "postgresql://u@h/db"


def test_a_server_is_reached_through_its_socket(url: str, server: psycopg.Connection[Any]) -> None:
    ((folders,),) = server.execute("SHOW unix_socket_directories").fetchall()
    parts = urlsplit(url)
    there = f"host={folders.partition(',')[0]}&port={parts.port}&user={parts.username}"

    with PostgresRunStore(f"postgresql://{parts.path}?{there}&{parts.query}") as store:
        assert store.create_run("s", "p", run_id="r").id == "r"


def test_a_parameter_that_nobody_knows_is_a_config_error() -> None:
    with (
        PostgresRunStore("postgresql://127.0.0.1:1/db?colour=red") as store,
        pytest.raises(ConfigError, match="colour"),
    ):
        store.list_runs()


def test_our_settings_are_not_passed_on() -> None:
    found = parse(
        "postgresql://u:p@h1:1,h2:2/db?sslmode=require&schema=x&pool=transaction&session=postgres%3A%2F%2Fd%2Fdb"
    )

    assert found.dsn == "postgresql://u:p@h1:1,h2:2/db?sslmode=require"
    assert (found.schema, found.pooled, found.session) == ("x", True, "postgres://d/db")
    assert found.name == "postgresql://u@h1:1,h2:2/db?schema=x"


def test_a_url_is_opened_without_a_word_to_the_server() -> None:
    store = open_store("postgres://127.0.0.1:1/db")

    assert isinstance(store, PostgresRunStore)
    store.close()


# --- servers that go away ---


def test_writers_go_on_when_a_server_was_killed_and_came_back(own_postgres: PostgresServer) -> None:
    with PostgresRunStore(own_postgres.url) as store:
        store.create_run("s", "p", run_id="r")
        store.record_event("r", "note")

        own_postgres.kill()
        with pytest.raises(StoreError):
            store.record_event("r", "note")
        own_postgres.start_again()
        until(lambda: _works(store))

        assert events(store) == list(range(store.snapshot("r").event_count))


def _works(store: RunStore) -> bool:
    try:
        store.record_event("r", "note")
    except StoreError:
        return False
    return True
