"""The servers do what the tests rely on: they start, die, hang and come back; the bad network is as bad as it says."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.servers import PostgresServer, RedisServer, Toxic
from tests.servers.child import remove
from tests.servers.finding import OLDEST_REDIS, named, oldest_redis, owner, redis_binaries
from tests.servers.fixtures import database, or_skipped, own_postgres, own_redis, pgbouncer, postgres
from tests.servers.groups import until
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import GivenPostgres, fresh_database
from tests.servers.redis import GivenRedis, RedisSaid, ask, packed

__all__ = ["database", "own_postgres", "own_redis", "pgbouncer", "postgres"]

ROOT = Path(__file__).parents[2]
PATIENCE = 30.0  # seconds for what takes milliseconds
PING = b"*1\r\n$4\r\nPING\r\n"


@pytest.fixture
def toxic(own_redis: RedisServer) -> Iterator[Toxic]:
    with Toxic(own_redis.port) as proxy:
        yield proxy


@pytest.fixture
def through(toxic: Toxic) -> Iterator[socket.socket]:
    """A connection through the proxy that has been answered once."""
    with socket.create_connection(("127.0.0.1", toxic.port), timeout=PATIENCE) as connection:
        connection.sendall(PING)
        assert connection.recv(100) == b"+PONG\r\n"
        yield connection


def test_every_redis_there_is_starts_and_answers() -> None:
    with or_skipped():
        servers = [RedisServer.start(None, binary=binary) for binary in redis_binaries()] or [RedisServer.start()]

    answers = [server.command("ECHO", "hello") for server in servers]
    for server in servers:
        server.close()

    assert answers == [b"hello"] * len(servers)


def test_the_oldest_redis_is_the_one_that_the_documentation_promises() -> None:
    promised = re.search(r"Redis \(([\d.]+) or newer", (ROOT / "docs" / "scale.md").read_text())
    with or_skipped():
        server = RedisServer.start(binary=oldest_redis())

    with server:
        told = server.command("INFO", "server")

    assert promised is not None
    assert promised[1] == OLDEST_REDIS
    assert isinstance(told, bytes)
    assert f"redis_version:{promised[1]}.".encode() in told


def test_what_a_wheel_puts_on_the_path_is_not_the_systems(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for folder in ("environment", "system"):
        program = tmp_path / folder / "bin" / "some-server"
        program.parent.mkdir(parents=True)
        program.touch(mode=0o755)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))

    found = []
    for folder in ("environment", "system"):
        monkeypatch.setenv("PATH", str(tmp_path / folder / "bin"))
        found.append(named("some-server"))

    assert found == [[], [tmp_path / "system" / "bin" / "some-server"]]


def test_no_server_runs_as_root(own_redis: RedisServer) -> None:
    own_redis.command("SAVE")

    runs_as = (own_redis.folder / "dump.rdb").stat().st_uid

    assert runs_as == (os.getuid() or runs_as)
    assert runs_as != 0


def test_a_given_folder_that_the_servers_user_cannot_reach_is_left_alone(tmp_path: Path) -> None:
    with or_skipped():
        server = RedisServer.start(tmp_path / "redis")

    with server:
        server.command("SET", "key", "value")
        in_place = server.folder == tmp_path / "redis"

    assert in_place == (owner() is None)


def test_a_given_redis_is_used_one_database_a_worker(own_redis: RedisServer) -> None:
    own_redis.command("CONFIG", "SET", "requirepass", "a/b")
    given = [GivenRedis(own_redis.url.replace("//", "//:a%2Fb@"), worker) for worker in (0, 3)]

    given[1].command("SET", "key", "value")

    assert given[1].url.endswith("/3")
    assert [server.command("GET", "key") for server in given] == [None, b"value"]


def test_a_given_postgres_has_databases_of_ours_for_as_long_as_a_test(
    postgres: PostgresServer | GivenPostgres,
) -> None:
    given = GivenPostgres(postgres.url)

    with fresh_database(given) as url, psycopg.connect(url) as connection:
        connection.execute("SELECT 1")

    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(url)


def test_an_error_of_redis_is_raised(own_redis: RedisServer) -> None:
    with pytest.raises(RedisSaid, match="unknown command"):
        own_redis.command("NONSENSE")


def test_a_killed_redis_comes_back_on_its_port_with_what_was_on_disk() -> None:
    with or_skipped():
        server = RedisServer.start(None, "--appendonly", "yes", "--appendfsync", "always")

    with server:
        server.command("SET", "key", "value")
        server.kill()
        with pytest.raises(ConnectionError):
            server.command("GET", "key")
        server.start_again()

        assert server.command("GET", "key") == b"value"


def test_a_paused_redis_accepts_and_does_not_answer(own_redis: RedisServer) -> None:
    own_redis.pause()
    try:
        with pytest.raises(TimeoutError):
            ask("127.0.0.1", own_redis.port, "PING", seconds=0.05)
    finally:
        own_redis.resume()

    assert own_redis.command("PING") == b"PONG"


def test_a_server_dies_with_the_process_that_started_it() -> None:
    with or_skipped():
        RedisServer.start().close()
    program = (
        "import os, signal\n"
        "from tests.servers import RedisServer\n"
        "server = RedisServer.start()\n"
        "print(server.port, server.folder, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )

    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)

    assert ended.returncode == -signal.SIGKILL, ended.stderr
    port, folder = ended.stdout.split()
    until(lambda: not _listens(int(port)), "the server is gone")
    remove(Path(folder))


def test_a_killed_postgres_comes_back_with_what_was_committed() -> None:
    with or_skipped():
        server = PostgresServer.start()

    with server:
        url = server.database()
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 1 AS one")
        server.kill()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(url)
        server.start_again()
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT one FROM kept").fetchall() == [(1,)]


def test_a_killed_postgres_leaves_nothing_in_the_systems_shared_memory() -> None:
    with or_skipped():
        server = PostgresServer.start()

    with server:
        server.kill()
        _, piece = (server.folder / "data" / "postmaster.pid").read_text().splitlines()[6].split()

    assert ctypes.CDLL(None).shmat(int(piece), None, 0) == -1  # there is no such piece


def test_a_database_is_empty_and_in_locale_c(database: str) -> None:
    with psycopg.connect(database) as connection:
        tables = connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone()
        order = connection.execute("SELECT 'a' < 'B'").fetchone()

    assert (tables, order) == ((0,), (False,))


def test_a_server_that_may_be_killed_is_durable(own_postgres: PostgresServer) -> None:
    with psycopg.connect(own_postgres.url) as connection:
        fsync = connection.execute("SHOW fsync").fetchone()

    assert fsync == ("on",)


def test_pgbouncer_gives_the_connection_to_another_after_each_transaction(pgbouncer: PgBouncer, database: str) -> None:
    url = pgbouncer.through(database)

    with psycopg.connect(url, autocommit=True) as one, psycopg.connect(url, autocommit=True) as other:
        first = one.execute("SELECT pg_backend_pid()").fetchone()
        second = other.execute("SELECT pg_backend_pid()").fetchone()

    assert first == second


def test_a_good_network_passes_everything_on(toxic: Toxic) -> None:
    assert ask("127.0.0.1", toxic.port, "ECHO", b"x" * 1_000_000) == b"x" * 1_000_000


def test_latency_is_added_to_each_round_trip(toxic: Toxic, through: socket.socket) -> None:
    toxic.latency(30.0)
    through.settimeout(0.05)

    through.sendall(PING)

    with pytest.raises(TimeoutError):
        through.recv(100)


def test_what_is_delayed_arrives_when_the_network_is_healed(toxic: Toxic, through: socket.socket) -> None:
    toxic.latency(600.0)
    through.sendall(PING)

    toxic.heal()

    assert through.recv(100) == b"+PONG\r\n"


def test_what_is_delayed_arrives_in_order_and_once(toxic: Toxic) -> None:
    toxic.latency(0.02)

    assert ask("127.0.0.1", toxic.port, "ECHO", b"0123456789" * 50_000) == b"0123456789" * 50_000


def test_a_cut_resets_connections_and_lets_new_ones_through(toxic: Toxic, through: socket.socket) -> None:
    toxic.cut()

    with pytest.raises(ConnectionResetError):
        through.recv(100)
    assert ask("127.0.0.1", toxic.port, "PING") == b"PONG"


def test_a_half_open_connection_swallows_in_silence(toxic: Toxic, through: socket.socket) -> None:
    toxic.half_open()
    through.settimeout(0.05)

    through.sendall(PING)

    with pytest.raises(TimeoutError):
        through.recv(100)


def test_a_half_open_network_takes_new_connections_and_never_answers(toxic: Toxic) -> None:
    toxic.half_open()

    with pytest.raises(TimeoutError):
        ask("127.0.0.1", toxic.port, "PING", seconds=0.05)


def test_a_healed_network_resets_only_what_has_lost_bytes(toxic: Toxic, through: socket.socket) -> None:
    with socket.create_connection(("127.0.0.1", toxic.port), timeout=PATIENCE) as silent:
        silent.sendall(PING)
        assert silent.recv(100) == b"+PONG\r\n"
        toxic.half_open()
        through.sendall(PING)
        until(lambda: any(pair.lossy for pair in list(toxic.pairs)), "the bytes are lost")

        toxic.heal()

        with pytest.raises(ConnectionResetError):
            through.recv(100)
        silent.sendall(PING)
        assert silent.recv(100) == b"+PONG\r\n"


def test_a_refusing_network_resets_and_refuses_until_it_is_healed(toxic: Toxic, through: socket.socket) -> None:
    toxic.refuse()

    with pytest.raises(ConnectionResetError):
        through.recv(100)
    with pytest.raises(ConnectionRefusedError):
        ask("127.0.0.1", toxic.port, "PING")
    toxic.heal()
    assert ask("127.0.0.1", toxic.port, "PING") == b"PONG"


def test_what_a_client_sent_before_it_left_arrives_and_no_connection_stays(
    toxic: Toxic, own_redis: RedisServer
) -> None:
    gate = threading.Event()
    toxic._loop.call_soon_threadsafe(gate.wait)

    for _ in range(20):  # they have come and gone before the proxy has connected to the server
        with socket.create_connection(("127.0.0.1", toxic.port), timeout=PATIENCE) as connection:
            connection.sendall(packed(["INCR", "came"]))
    gate.set()

    until(lambda: own_redis.command("GET", "came") == b"20", "all is said")
    until(lambda: not toxic.connections, "all have left")
    until(lambda: len(bytes(own_redis.command("CLIENT", "LIST")).splitlines()) == 1, "the server sees them leave")


def test_a_server_that_is_gone_is_a_reset_through_the_proxy(toxic: Toxic, own_redis: RedisServer) -> None:
    own_redis.kill()

    with pytest.raises(ConnectionError):
        ask("127.0.0.1", toxic.port, "PING")


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE).close()
    except ConnectionRefusedError:
        return False
    return True
