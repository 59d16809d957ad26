"""Runs that outlive their process, for tests: a store, the Holdfasts on it one after the other, and sudden death.

A test file takes the fixtures up with `place, entering = durable.place, durable.entering`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Hook
from holdfast.history import RunEventRecord
from holdfast.policy import PolicyBook
from holdfast.runs import Run
from holdfast.stores import MemoryRunStore, RunStore, SqliteRunStore
from holdfast.stores.store import LEASE
from holdfast.testing import ManualClock
from holdfast.values.redaction import Payloads

KINDS = ("memory", "sqlite")


class Killed(BaseException):
    """Unwinds the test's own frames after `Place.kill`: a dead process has none."""


class Place:
    """A store, and the Holdfast that uses it at the moment."""

    def __init__(self, kind: str, folder: Path, clock: ManualClock) -> None:
        self.kind = kind
        self.path = folder / "runs.db"
        self.clock = clock
        self._memory: RunStore | None = None
        self._opened: list[Holdfast] = []

    def open(
        self,
        policies: dict[str, object] | None = None,
        *,
        hooks: Sequence[Hook] = (),
        on_store_error: str = "stop",
        clock: ManualClock | None = None,
        payloads: Payloads | None = None,
        **store: Any,
    ) -> Holdfast:
        """A Holdfast on the store."""
        clock = clock or self.clock
        if self.kind == "memory":
            runs = self._memory = self._memory or MemoryRunStore(clock=clock, **store)
        else:
            # Not written through to the disk, which takes most of the time.
            runs = SqliteRunStore(self.path, synchronous="NORMAL", clock=clock, **store)
        if payloads is not None:
            runs.payloads = payloads
        survives_store_errors = on_store_error == "continue"
        hf = Holdfast(
            PolicyBook.load(policies or {}),
            clock,
            runs,
            survives_store_errors=survives_store_errors,
            hooks=tuple(hooks),
        )
        self._opened.append(hf)
        return hf

    def kill(self, hf: Holdfast) -> None:
        """What kill -9 leaves behind: the lock is gone, what was queued is lost, nobody tidies up."""
        hf._publisher.close()  # a thread of a dead process waits for nothing
        keeper, store = hf._home.keeper, hf.runs
        mailbox = keeper._mailbox
        with store.writer.turn:
            store.writer._queue.clear()
        keeper.after_fork()
        store.ownership.after_fork()
        if mailbox is not None:
            mailbox.wake()
        if self.kind == "memory":  # it has no lock: only the lease tells
            self.clock.advance(LEASE + 1)

    def die(self, hf: Holdfast) -> None:
        """Kill it from inside."""
        self.kill(hf)
        raise Killed

    def close(self) -> None:
        for hf in self._opened:
            hf.close()


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Place]:
    place = Place(request.param, tmp_path, clock)
    yield place
    place.close()


@pytest.fixture
def disk(tmp_path: Path, clock: ManualClock) -> Iterator[Place]:
    place = Place("sqlite", tmp_path, clock)
    yield place
    place.close()


@pytest.fixture
def memory(tmp_path: Path, clock: ManualClock) -> Iterator[Place]:
    place = Place("memory", tmp_path, clock)
    yield place
    place.close()


Entering = Callable[[Run, Callable[[Run], Any]], Any]


@pytest.fixture(params=["with", "async with"])
def entering(request: pytest.FixtureRequest) -> Entering:
    """Calls a function inside a run, entered one way or the other."""

    def plainly(run: Run, body: Callable[[Run], Any]) -> Any:
        with run as entered:
            return body(entered)

    async def as_task(run: Run, body: Callable[[Run], Any]) -> Any:
        async with run as entered:
            return body(entered)

    if request.param == "with":
        return plainly
    return lambda run, body: asyncio.run(as_task(run, body))


def stopped(hf: Holdfast, body: Callable[[], Any], **plan: Any) -> str:
    """Do *body* in a run that is interrupted after it; gives the run's id."""
    with pytest.raises(KeyboardInterrupt), hf.run(**plan) as run:  # noqa: PT012
        body()
        raise KeyboardInterrupt
    return run.id


def types(hf: Holdfast, run_id: str) -> list[str]:
    return [event.type for event in hf.runs.events(run_id)]


def of(hf: Holdfast, run_id: str, type: str) -> list[RunEventRecord]:
    return [event for event in hf.runs.events(run_id) if event.type == type]
