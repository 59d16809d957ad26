"""A store on a server that is away when it is first needed, or is not the one that it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.store_kinds import postgres_url

import holdfast
from holdfast.clock import SystemClock
from holdfast.stores import PostgresRunStore
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
