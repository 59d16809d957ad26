"""The smallest client of the script: one connection, questions by name, answers as they come."""

from __future__ import annotations

import hashlib
import socket
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import hiredis
import msgspec

from holdfast.fleet.script import Script
from holdfast.guards.breaking import BreakerConfig
from holdfast.guards.rate import RateConfig

TEXT = Script().text
DIGEST = hashlib.sha1(TEXT, usedforsecurity=False).hexdigest()
EPOCH_US = 1_767_225_600_000_000  # the script's
CHANNEL = "changes"
ADMITTED, BY_CIRCUIT, BY_RATE, BY_CONCURRENCY, NOT_ASKED = range(5)


class Outcome(NamedTuple):
    """What the script is told of an attempt."""

    holder: str = "a"
    slots: int = 0
    refund: float = 0.0
    says: str = ""
    count: int = 1
    generation: int = -1
    probe: int = -1
    duration_us: int = 0
    sign: str = ""
    pause_us: int = -1
    admitted_at_us: int = -1


class Shown(NamedTuple):
    """The circuit, as the script shows it."""

    state: int
    remaining_us: int
    failures: int
    backoff_us: int
    times_opened: int
    probes: int
    last_category: str
    opened_at_us: int


class Reply(NamedTuple):
    """What the script says."""

    verdict: int
    wait_us: int
    generation: int
    probe: int
    taken: int
    now_us: int
    rate_permille: int | None
    circuit: Shown | None


class Question(NamedTuple):
    """What the script is asked; only what a test cares about need be given."""

    tool: str = "tool"
    now_us: int | None = None
    holder: str = "a"
    lease_us: int = 15_000_000
    breaker: BreakerConfig | None = None
    rate: RateConfig | None = None
    limit: int | None = None
    outcomes: tuple[Outcome, ...] = ()
    cost: float | None = None
    take: int = 1
    horizon_us: int = 0
    renew: str = ""
    random: float = 0.0

    def command(self) -> bytes:
        return packed(["EVALSHA", DIGEST, 5, *keys(self.tool), *self._arguments()])

    def _arguments(self) -> list[Any]:
        rate = self.rate
        told = msgspec.msgpack.encode(self.outcomes) if self.outcomes else b""
        return [
            "" if self.now_us is None else self.now_us,
            self.holder,
            self.lease_us,
            b"" if self.breaker is None else msgspec.msgpack.encode(settings(self.breaker)),
            *(("", "", "") if rate is None else (rate.per_second, rate.capacity, rate.floor if rate.adaptive else "")),
            "" if self.limit is None else self.limit,
            told,
            "" if self.cost is None else self.cost,
            self.take,
            self.horizon_us,
            CHANNEL,
            self.renew,
            self.random,
        ]


class Client:
    """One connection to the server at *url*; the script is loaded."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 6379), timeout=20)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader(replyError=RuntimeError)
        if parts.password:
            self.command("AUTH", *filter(None, (parts.username, parts.password)))
        if database := parts.path.strip("/"):
            self.command("SELECT", database)
        self.load()

    def load(self) -> None:
        self.command("SCRIPT", "LOAD", TEXT)

    def ask(self, question: Question) -> Reply:
        return self.ask_all([question])[0]

    def ask_all(self, questions: list[Question]) -> list[Reply]:
        """All of them in one go."""
        self._socket.sendall(b"".join(question.command() for question in questions))
        return [reply(self.receive()) for _ in questions]

    def command(self, *parts: Any) -> Any:
        self._socket.sendall(packed(list(parts)))
        return self.receive()

    def receive(self) -> Any:
        """The next answer, or the next thing that was published."""
        while (answer := self._reader.gets()) is False:
            data = self._socket.recv(65_536)
            if not data:
                raise ConnectionResetError("the server closed the connection")
            self._reader.feed(data)
        if isinstance(answer, RuntimeError):
            raise answer
        return answer

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def keys(tool: str) -> list[str]:
    return [f"hf:{{{tool}}}{suffix}" for suffix in ("", ":failures", ":window", ":holders", ":leases")]


def settings(config: BreakerConfig) -> list[Any]:
    return [
        config.failure_threshold, config.min_backoff, config.max_backoff, config.backoff_factor, config.jitter,
        config.half_open_probes, config.probe_lease, config.successes_to_close, config.window, config.window_calls,
        sorted(config.trips), config.failure_rate, config.slow_call, config.slow_call_rate, config.judged_from,
        config.distinct_arguments,
    ]  # fmt: skip


def reply(answer: list[Any]) -> Reply:
    *rest, circuit = answer
    return Reply(*rest, shown(circuit) if circuit is not None else None)


def shown(circuit: list[Any]) -> Shown:
    *before, category, opened_at_us = circuit
    return Shown(*before, category if isinstance(category, str) else category.decode(), opened_at_us)


def packed(parts: list[Any]) -> bytes:
    texts = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return b"*%d\r\n" % len(texts) + b"".join(b"$%d\r\n%b\r\n" % (len(text), text) for text in texts)
