"""What `holdfast doctor` says of a store on PostgreSQL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from tests.servers import PgBouncer
from tests.stores.kinds import postgres_url

from holdfast.cli.doctor import doctor
from holdfast.stores import PostgresRunStore


def checks(url: str) -> dict[str, dict[str, Any]]:
    done = CliRunner().invoke(doctor, ["--store", url, "--json"], standalone_mode=False)
    assert done.exception is None, done.output
    return {each["check"]: each for each in json.loads(done.stdout)["checks"]}


def test_a_server_without_our_tables_is_well(database: str) -> None:
    found = checks(database)

    assert found["schema"]["message"] == "no tables yet; the first run makes them"
    assert found["store"]["message"].startswith(database)
    with PostgresRunStore(database) as store:
        assert not store.file.exists


def test_a_server_that_may_forget_is_a_warning(tmp_path: Path) -> None:
    url = postgres_url(tmp_path)
    with PostgresRunStore(url) as store:
        store.create_run("s", "p")

    found = checks(url)

    assert (found["schema"]["status"], found["runs"]["status"]) == ("PASS", "PASS")
    assert (found["durability"]["status"], found["durability"]["fix"]) == (
        "WARN",
        "set fsync and synchronous_commit to on",
    )


def test_a_server_that_is_read_only_is_a_failure(database: str) -> None:
    found = checks(f"{database}?options=-cdefault_transaction_read_only%3Don")["store"]

    assert found["status"] == "FAIL"
    assert "is read-only: a standby, or set so; use the address of the primary" in found["message"]


def test_a_pool_is_noticed_and_a_direct_address_beside_it(database: str, pgbouncer: PgBouncer) -> None:
    pooled = pgbouncer.through(database)

    assert checks(pooled)["session"]["message"].startswith("behind a pool")
    assert checks(f"{pooled}?session={database}")["session"]["message"].startswith("direct")


def test_a_server_that_cannot_be_reached_is_a_failure_with_a_reason() -> None:
    found = checks("postgresql://me:hunter2@127.0.0.1:1/db")["store"]

    assert found["status"] == "FAIL"
    assert "cannot be reached" in found["message"]
    assert "hunter2" not in str(found)
