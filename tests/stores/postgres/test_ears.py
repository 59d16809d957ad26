"""How processes on one PostgreSQL notice each other: notifications, locks, and what becomes of both in bad times."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from tests.children import eventually, said
from tests.servers import PgBouncer, PostgresServer, Toxic
from tests.servers.postgres import fresh_database

from holdfast.clock import SystemClock
from holdfast.errors import ConfigError
from holdfast.stores.postgres import ears, session
from holdfast.stores.postgres.ears import Ears

PATIENCE = 30.0  # seconds for what must come; a lock not held means nothing while the server is young
HASTE = session.PATIENCE  # seconds that callers wait who are not patient

Make = Callable[..., Ears]


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> Iterator[str]:
    """One for all tests here: they leave nothing in it."""
    with fresh_database(postgres) as url:
        yield url


@pytest.fixture
def make(database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes ears on the database, or on another, and closes them. They are patient, as the machine may be busy."""
    monkeypatch.setattr(session, "PATIENCE", PATIENCE)  # with the end of the thread, too
    made: list[Ears] = []

    def make(url: str = database, **more: Any) -> Ears:
        made.append(Ears(url, **{"patience": PATIENCE, **more}))
        return made[-1]

    yield make
    for each in made:
        each.close()


def ring(url: str, calls: list[str], channel: str = "holdfast") -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for call in calls:
            connection.execute("SELECT pg_notify(%s, %s)", (channel, call))


def locks(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = "
            "(SELECT oid FROM pg_database WHERE datname = current_database())"
        ).fetchone()
    return int(row[0]) if row is not None else -1


def end_sessions(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def through(url: str, port: int) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f"{parts.username}@127.0.0.1:{port}").geturl()


@pytest.fixture
def toxic(database: str) -> Iterator[Toxic]:
    with Toxic(urlsplit(database).port or 5432) as toxic:
        yield toxic


@pytest.fixture
def grace(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets how long all have to come back; here nobody was away."""

    def set_to(seconds: float) -> None:
        monkeypatch.setattr(session, "GRACE", seconds)
        monkeypatch.setattr(ears, "GRACE", seconds)

    set_to(0)
    return set_to


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence and hanging are noticed in a moment, not in seconds."""
    monkeypatch.setattr(session, "_BEAT", 0.05)
    monkeypatch.setattr(session, "LIMITS", session.LIMITS._replace(connecting=0.5, answer=0.5))
    monkeypatch.setattr(session, "_LAST_PAUSE", 0.2)


# -- news --------------------------------------------------------------------------------------------------------------


def test_a_watch_wakes_when_another_rings(database: str, make: Make) -> None:
    here, there = make(), make()
    watch = here.watch()
    watch.wait(PATIENCE)  # the session has begun

    ring(database, there.calls())

    assert watch.wait(PATIENCE)
    assert here.has_session


def test_what_was_told_once_is_not_told_again(database: str, make: Make) -> None:
    here, there = make(), make()
    watch = here.watch()
    watch.wait(PATIENCE)
    ring(database, there.calls())
    watch.wait(PATIENCE)

    assert not watch.wait(0.05)


def test_a_mailbox_wakes_for_its_owner_alone_and_not_for_what_this_process_sends(database: str, make: Make) -> None:
    here, there = make(), make()
    for owner in ("a", "b", "c"):
        here.hold(owner)
    boxes = {owner: here.mailbox(owner) for owner in ("a", "b", "c")}
    for box in boxes.values():
        box._news = False  # that the session has begun

    ring(database, here.calls(["a"]))
    ring(database, there.calls(["b"]))

    assert boxes["b"].wait(PATIENCE)  # they come in order
    assert not boxes["a"].wait(0)
    assert not boxes["c"].wait(0)


def test_a_poke_is_told_once(database: str, make: Make) -> None:
    here, there = make(), make()
    here.hold("a")
    here.poked("a")
    box = here.mailbox("a")

    ring(database, there.calls(["b", "a"]))

    assert box.wait(PATIENCE)
    assert here.poked("a")
    assert not here.poked("a")


def test_a_notification_of_somebody_else_has_everybody_look(database: str, make: Make) -> None:
    here = make()
    watch = here.watch()
    watch.wait(PATIENCE)

    ring(database, [""])

    assert watch.wait(PATIENCE)


def test_a_wake_lets_a_waiting_thread_go_with_false(make: Make) -> None:
    watch = make().watch()
    watch.wait(PATIENCE)
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(watch.wait(None)))
    thread.start()

    watch.wake()

    thread.join(PATIENCE)
    assert answers == [False]
    assert not watch.closed


def test_closing_the_ears_lets_all_who_wait_go_and_leaves_no_thread(make: Make) -> None:
    here = make()
    watch = here.watch()
    watch.wait(PATIENCE)
    thread = threading.Thread(target=lambda: watch.wait(None))
    thread.start()

    here.close()

    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert "holdfast-ears" not in {each.name for each in threading.enumerate()}


def test_who_waits_on_after_the_ears_were_closed_hears_from_the_next_session(database: str, make: Make) -> None:
    here, there = make(), make()
    watch = here.watch()
    watch.wait(PATIENCE)
    here.close()
    watch.wait(0)
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(watch.wait(None)))
    thread.start()

    here.hold("a")
    ring(database, there.calls())

    thread.join(PATIENCE)
    assert answers == [True]


def test_ears_that_were_closed_begin_again(database: str, make: Make) -> None:
    here, there = make(), make()
    here.hold("a")
    here.close()

    assert here.hold("b")
    watch = here.watch()
    ring(database, there.calls())
    assert watch.wait(PATIENCE)
    assert not here.holds("a")


def test_ears_rest_when_nobody_holds_a_lock_or_watches_any_more(make: Make) -> None:
    here = make()
    here.hold("a")
    watch = here.watch()

    here.rest()
    assert here.holds("a")

    here.let_go("a")
    here.rest()
    assert here.has_session

    watch.close()
    here.rest()
    assert here.has_session is None
    assert "holdfast-ears" not in {each.name for each in threading.enumerate()}


def test_many_owners_are_called_in_calls_that_postgresql_takes(database: str, make: Make) -> None:
    here, there = make(), make()
    owners = [f"{at:032x}" for at in range(1000)]
    here.hold(owners[-1])
    box = here.mailbox(owners[-1])
    box._news = False

    calls = there.calls(owners)
    ring(database, calls)

    assert len(calls) > 1
    assert box.wait(PATIENCE)


@pytest.mark.parametrize("channel", ["", 'a"; DROP TABLE x; --', "Großes", "a" * 64, 7])
def test_a_channel_that_is_no_name_is_refused(channel: Any) -> None:
    with pytest.raises(ConfigError, match="small letters"):
        Ears("postgresql://nowhere", channel=channel)


def test_channels_do_not_hear_each_other(database: str, make: Make) -> None:
    here, there = make(channel="one"), make(channel="two")
    watch = here.watch()
    watch.wait(PATIENCE)

    ring(database, there.calls(), "two")
    ring(database, here.calls(), "one")  # own: heard, and no news

    assert not watch.wait(0.2)


# -- who lives ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("grace")
def test_a_lock_tells_that_its_owner_lives_until_it_lets_go(make: Make) -> None:
    here, there = make(), make()
    here.hold("a")
    here.hold("b")

    here.let_go("a")

    assert eventually(lambda: there.is_living("a") is False)
    assert there.is_living("b") is True
    assert here.is_living("b") is True


@pytest.mark.usefixtures("grace")
def test_an_owner_that_is_killed_is_noticed_by_its_lock(database: str, make: Make, child: Any) -> None:
    here, other = make(), child("hold", database, "a")
    assert said(other) == "True"
    assert eventually(lambda: here.is_living("a") is True)

    other.kill()

    assert eventually(lambda: here.is_living("a") is False)


@pytest.mark.usefixtures("grace")
def test_an_owner_that_is_frozen_still_lives_by_its_lock(database: str, make: Make, child: Any) -> None:
    here, other = make(), child("hold", database, "a")
    assert said(other) == "True"
    assert here.is_living("a") is True

    other.send_signal(signal.SIGSTOP)

    assert here.is_living("a") is True


@pytest.mark.usefixtures("grace")
def test_a_forked_child_neither_keeps_the_parents_lock_nor_loses_it_for_it(
    database: str, make: Make, child: Any
) -> None:
    here, parent = make(), child("fork", database, "a")
    assert said(parent) == "True"
    pid, holds, held = said(parent).split()
    assert (holds, held) == ("False", "True")
    assert eventually(lambda: here.is_living("a") is True)

    os.kill(parent.pid, signal.SIGKILL)

    assert eventually(lambda: here.is_living("a") is False)
    assert here.is_living("a-child") is True
    os.kill(int(pid), signal.SIGKILL)
    assert eventually(lambda: here.is_living("a-child") is False)


@pytest.mark.usefixtures("grace")
def test_a_child_forked_while_the_session_is_being_made_does_not_keep_the_parents_lock(
    database: str, make: Make, child: Any, toxic: Toxic
) -> None:
    toxic.latency(0.2)
    here, parent = make(), child("fork_early", through(database, toxic.port), "a")
    pid, held = said(parent).split()
    assert held == "True"
    assert here.is_living("a") is True

    os.kill(parent.pid, signal.SIGKILL)

    try:
        assert eventually(lambda: here.is_living("a") is False)
    finally:
        os.kill(int(pid), signal.SIGKILL)


# -- bad times ---------------------------------------------------------------------------------------------------------


def test_a_session_that_is_ended_by_the_server_comes_back_with_its_locks_and_all_look(
    database: str, make: Make
) -> None:
    here, there = make(), make()
    here.hold("a")
    watch = here.watch()
    watch._news = False

    end_sessions(database)

    assert watch.wait(PATIENCE)
    assert eventually(lambda: here.holds("a"))
    assert there.is_living("a") is not False


def test_who_may_not_call_others_keeps_its_session_and_its_lock(
    database: str, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    here = make()
    assert here.hold("a")
    held = locks(database)
    assert here._session is not None
    here._session._channel = "c" * 64  # PostgreSQL takes 63

    for _ in range(3):
        assert here._session.ring_later("call")
        assert here._session.do(lambda link: link.ask("SELECT 1")) == [(1,)]
        assert eventually(lambda: here._session is not None and here._session._rings_at == math.inf)
    assert here._session.do(lambda link: link.ask("SELECT 1 / 0")) is None

    assert here._session.do(lambda link: link.ask("SELECT 1")) == [(1,)]
    assert locks(database) == held
    assert "lost" not in caplog.text
    assert caplog.text.count("goes on without what it asked for: channel name too long") == 1


def test_while_all_may_be_coming_back_a_lock_that_is_not_held_says_nothing(
    own_postgres: PostgresServer, make: Make, child: Any, grace: Callable[[float], None]
) -> None:
    url = own_postgres.database()
    here, other = make(url), child("hold", url, "a")
    assert said(other) == "True"
    here.hold("b")
    watch = here.watch()

    own_postgres.kill()
    assert eventually(lambda: here.has_session is False)
    assert here.is_living("a") is None
    assert not here.hold("c")
    other.kill()
    watch._news = False
    grace(3600)
    own_postgres.start_again()

    assert watch.wait(PATIENCE)
    assert eventually(lambda: here.holds("b") and here.holds("c"))
    assert here.is_living("a") is None
    assert make(url).is_living("a") is None  # one who was not there when the server went cannot tell, either
    grace(0)
    assert here.is_living("a") is False


def test_a_server_that_recovered_from_a_crash_of_a_part_is_young_again(own_postgres: PostgresServer) -> None:
    begun = SystemClock.monotonic()
    with psycopg.connect(own_postgres.url) as connection:
        os.kill(connection.info.backend_pid, signal.SIGKILL)  # has PostgreSQL end all sessions and start over

    assert eventually(lambda: _age(own_postgres.url) <= SystemClock.monotonic() - begun)


def _age(url: str) -> float:
    """The seconds that the server has been up; endless if it is not."""
    try:
        with psycopg.connect(url, connect_timeout=5) as connection:
            return float(connection.execute(ears._LOCKS.encode()).fetchall()[0][0])
    except psycopg.OperationalError:
        return math.inf


@pytest.mark.usefixtures("hurried")
def test_a_connection_that_is_silently_dead_is_noticed_and_made_anew(database: str, make: Make, toxic: Toxic) -> None:
    here = make(through(database, toxic.port))
    here.hold("a")
    watch = here.watch()

    toxic.half_open()
    assert eventually(lambda: here.has_session is False)
    watch._news = False
    toxic.heal()

    assert watch.wait(PATIENCE)
    assert eventually(lambda: here.holds("a"))


def test_nobody_waits_for_a_server_that_does_not_answer(database: str, make: Make, toxic: Toxic) -> None:
    toxic.half_open()
    here = make(through(database, toxic.port), patience=HASTE)

    held, living = here.hold("a"), here.is_living("b")
    here.close()

    assert (held, living) == (False, None)
    assert "holdfast-ears" not in {each.name for each in threading.enumerate()}


def test_what_is_wanted_while_the_session_waits_for_an_answer_is_done_after_it(
    database: str, make: Make, toxic: Toxic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_BEAT", 0.05)
    here = make(through(database, toxic.port), patience=10.0)
    here.hold("a")
    assert here._session is not None
    link = here._session._link
    assert link is not None
    toxic.latency(0.3)
    assert eventually(lambda: bool(link._due))  # it asks whether there is somebody
    monkeypatch.setattr(session, "_BEAT", 3600.0)  # nothing else has it look what there is to do

    assert here.hold("b")


def test_a_mailbox_is_looked_into_often_where_there_is_no_session(
    database: str, make: Make, toxic: Toxic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_LOOK_LOST", 3600.0)
    monkeypatch.setattr(ears, "_LOOK_ALONE", 0.05)
    toxic.refuse()
    here = make(through(database, toxic.port), patience=HASTE)
    box = here.mailbox("a")

    looks = [box.wait(PATIENCE) for _ in range(3)]

    assert looks == [True] * 3
    assert not here.has_session


def test_behind_a_pool_there_is_no_session_and_watches_poll(database: str, make: Make, pgbouncer: PgBouncer) -> None:
    here = make(pgbouncer.through(database), patience=HASTE)
    watch = here.watch()

    assert not here.hold("a")
    assert eventually(lambda: here.has_session is False)
    assert here.is_living("a") is None
    assert here.poked("a")
    assert watch.wait(PATIENCE)
    assert watch.wait(PATIENCE)
    assert eventually(lambda: locks(database) == 0)  # it would be the pool's, and outlive us
