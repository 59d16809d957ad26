"""A store on a server that is away when it is first needed, or is not the one that it was."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from tests.servers import Toxic
from tests.stores.kinds import postgres_url

import holdfast
from holdfast.clock import SystemClock
from holdfast.errors import StoreError
from holdfast.publishing import orders
from holdfast.stores import PostgresRunStore, RunStore
from holdfast.stores.postgres import connections
from holdfast.stores.postgres.address import parse

NOBODY = "postgresql://u@127.0.0.1:1/d"


def payer(hf: holdfast.Holdfast, made: list[int]) -> Any:
    @hf.tool
    def pay(amount: int) -> int:
        made.append(amount)
        return amount

    return pay


def test_a_server_that_was_never_heard_of_has_the_time_of_this_host() -> None:
    store = PostgresRunStore(NOBODY)

    assert abs(store.clock.time() - SystemClock().time()) < 5


async def test_a_run_that_is_noted_begins_without_its_server() -> None:
    with holdfast.open(NOBODY, policies={}, on_store_error="continue") as hf:
        made: list[int] = []
        pay = payer(hf, made)

        async with hf.note():
            pay(1)

    assert made == [1]


@pytest.fixture
def mute() -> Iterator[socket.socket]:
    """A server that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def silent(mute: socket.socket) -> str:
    """Its address; who wants a connection waits half a second for it."""
    return f"postgresql://u@127.0.0.1:{mute.getsockname()[1]}/d?connect_timeout=0.5"


def came(server: socket.socket) -> int:
    """How many have come to a server that lets nobody in."""
    server.setblocking(False)
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            server.accept()[0].close()
            count += 1
    return count


def waited(read: Callable[[], object]) -> float:
    """Seconds until a server that is silent is said to be away."""
    begun = SystemClock.monotonic()
    with pytest.raises(StoreError, match=r"cannot be reached; .* \(no answer from the server for 0.5 s\)"):
        read()
    return SystemClock.monotonic() - begun


def test_a_server_that_says_nothing_is_waited_for_once_by_those_who_read(
    silent: str, mute: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "SILENCE", 3600.0)
    store = PostgresRunStore(silent)

    assert waited(store.counts) >= 0.5
    for _ in range(10):
        waited(store.counts)

    assert came(mute) == 1


def test_whoever_writes_asks_a_server_that_said_nothing_again(silent: str) -> None:
    store = PostgresRunStore(silent)
    waited(store.counts)

    assert waited(lambda: store.create_run("s", "p")) >= 0.5


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Toxic]:
    port = urlsplit(postgres_url(tmp_path)).port
    assert port is not None
    with Toxic(port) as network:
        yield network


@pytest.fixture
def store(tmp_path: Path, network: Toxic) -> Iterator[RunStore]:
    """A store on a server that has said nothing to whoever read from it."""
    parts = urlsplit(postgres_url(tmp_path))
    there = parts._replace(netloc=f"{parts.username}@127.0.0.1:{network.port}").geturl()
    with PostgresRunStore(f"{there}&connect_timeout=0.5") as store:
        network.half_open()
        waited(store.counts)
        store.file.links._address = parse(there)  # where a busy server has the time that it needs
        yield store


def test_a_server_that_said_nothing_is_read_from_when_somebody_has_written_to_it(
    store: RunStore, network: Toxic
) -> None:
    network.heal()
    waited(store.counts)

    store.create_run("s", "p")

    assert store.counts() == {"created": 1}


def test_a_server_that_said_nothing_and_is_gone_by_now_is_not_said_to_be_silent(
    store: RunStore, network: Toxic
) -> None:
    network.refuse()

    for call in (lambda: store.create_run("s", "p"), store.counts):
        with pytest.raises(StoreError, match="Connection refused"):
            call()


def test_finished_calls_are_known_though_somebody_made_the_tables_anew(tmp_path: Path) -> None:
    url, made = postgres_url(tmp_path), []
    with holdfast.open(url, policies={}) as hf, psycopg.connect(url.partition("?")[0], autocommit=True) as server:
        pay = payer(hf, made)
        with hf.run(run_id="before"):
            pay(0)
        server.execute(f"DROP SCHEMA {parse(url).schema} CASCADE".encode())
        with PostgresRunStore(url) as other:
            other.create_run("s", "p")
        with pytest.raises(KeyboardInterrupt), hf.run(run_id="r"):  # noqa: PT012 - what leaves the block ends the run
            pay(1)
            raise KeyboardInterrupt

    with holdfast.open(url, policies={}) as hf:
        pay = payer(hf, made)
        with hf.resume("r"):
            assert pay(1) == 1

    assert made == [0, 1]


@pytest.fixture
def sluggish(mute: socket.socket) -> Iterator[str]:
    """The address of a server that says nothing, where connections are waited for longer than any test should take."""
    yield f"postgresql://u@127.0.0.1:{mute.getsockname()[1]}/d?connect_timeout=20"
    mute.close()  # whoever still waits is told


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "PATIENCE", 0.05)


@pytest.mark.usefixtures("quick")
def test_no_call_outside_of_runs_waits_long_for_a_server_that_says_nothing(sluggish: str, mute: socket.socket) -> None:
    made: list[int] = []
    hf = holdfast.open(sluggish, policies={})
    pay = payer(hf, made)
    begun = SystemClock.monotonic()

    pay(1)
    pay(2)

    assert SystemClock.monotonic() - begun < 10
    assert made == [1, 2]
    mute.close()
    hf.close()


async def test_a_run_on_a_server_that_says_nothing_is_made_without_waiting_for_it(sluggish: str) -> None:
    begun = SystemClock.monotonic()
    with holdfast.open(sluggish, policies={}) as hf:
        hf.run()

        assert SystemClock.monotonic() - begun < 10


async def test_other_tasks_go_on_while_a_run_is_to_be_resumed_from_a_server_that_says_nothing(
    sluggish: str, mute: socket.socket
) -> None:
    with holdfast.open(sluggish, policies={}) as hf:
        resuming = asyncio.create_task(hf.resume("run").__aenter__())

        for _ in range(3):
            await asyncio.sleep(0)
        assert not resuming.done()
        mute.close()

        with pytest.raises(StoreError):
            await resuming


async def test_other_tasks_go_on_while_a_store_whose_server_says_nothing_is_closed(
    sluggish: str, mute: socket.socket
) -> None:
    hf = holdfast.open(sluggish, policies={})
    hf.runs.writer.submit(lambda ledger: None)

    closing = asyncio.create_task(hf.aclose())
    for _ in range(3):
        await asyncio.sleep(0)
    assert not closing.done()
    mute.close()

    await closing
