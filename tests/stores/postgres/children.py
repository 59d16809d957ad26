"""What the tests of PostgreSQL have other processes do: `python -m tests.stores.postgres.children COMMAND URL …`.

Each line on stdout says that something was done, and thereby that it must be in the database.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import threading

from tests.children import main, processes, say

from holdfast import Holdfast
from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError, RunCancelled, StoreError
from holdfast.policy import PolicyBook
from holdfast.stores import PostgresRunStore
from holdfast.stores.postgres.ears import Ears

PAUSE = 0.02  # seconds between two looks at something that must come
PATIENCE = 30.0  # seconds for an answer that must come


children = processes("tests.stores.postgres.children")


def hold(url: str, owner: str) -> None:
    """Hold the lock of an owner until told to end."""
    ears = Ears(url, patience=PATIENCE)
    say(ears.hold(owner))
    sys.stdin.readline()
    ears.close()


def fork(url: str, owner: str) -> None:
    """Hold the lock of an owner, and have a forked child that lives on; says its number, and what it can do itself."""
    ears = Ears(url, patience=PATIENCE)
    say(ears.hold(owner))
    pid = os.fork()
    if pid == 0:
        ears.after_fork()
        say(os.getpid(), ears.holds(owner), ears.hold(f"{owner}-child"))
    sys.stdin.readline()
    if pid == 0:
        ears.close()
        os._exit(0)


def fork_early(url: str, owner: str) -> None:
    """The same while the connection is only being made: the child does nothing; says its number."""
    ears = Ears(url, patience=PATIENCE)
    ears.watch()
    while ears._session is None or ears._session._link is None:
        SystemClock.sleep(0.001)
    pid = os.fork()
    if pid == 0:
        ears.after_fork()
    else:
        say(pid, ears.hold(owner))
    sys.stdin.readline()
    os._exit(0)


def append(url: str, acknowledged: str, number: str, threads: str, *runs: str) -> None:
    """Append to runs, in several threads, until told to end; what was written for sure stands in a file."""
    store, stop = PostgresRunStore(url), threading.Event()
    troubles: list[StoreError] = []
    file = os.open(acknowledged, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def work(by: str) -> None:
        for at, run in enumerate(itertools.cycle(runs)):
            if stop.is_set():
                return
            try:
                store.record_event(run, "note", {"by": by, "at": at})
                os.write(file, f"{run} {by} {at}\n".encode())
            except StoreError as error:
                troubles.append(error)
                SystemClock.sleep(PAUSE)

    workers = [threading.Thread(target=work, args=(f"{number}.{each}",)) for each in range(int(threads))]
    for worker in workers:
        worker.start()
    say("ready")
    sys.stdin.readline()
    stop.set()
    for worker in workers:
        worker.join()
    store.close()
    say("done", len(troubles), troubles[-1] if troubles else "")


def fork_store(url: str) -> None:
    """Use a store, fork, and use it in both; says how many events each sees at last."""
    store = PostgresRunStore(url)
    owner = store.ownership.row()
    store.writer.commit(lambda ledger: ledger.claim(ledger.run("parent"), owner))
    store.record_event("parent", "note")
    store.snapshot("parent")
    pid = os.fork()
    name = "child" if pid == 0 else "parent"
    for _ in range(10):
        store.record_event(name, "note")
        store.snapshot("parent")
    mine = store.ownership.row()
    if pid == 0:
        store.writer.commit(lambda ledger: ledger.claim(ledger.run("child"), mine))
        say(name, store.snapshot("child").event_count, mine.id != owner.id)
        store.close()
        os._exit(0)
    os.waitpid(pid, 0)
    say(name, store.snapshot("parent").event_count, store.ownership.is_alive(mine))
    store.close()


def finish(url: str, count: str) -> None:
    """Make runs and end them, one after the other."""
    with PostgresRunStore(url) as store:
        for _ in range(int(count)):
            run = store.create_run("s", "p").id
            for at in range(3):
                store.record_event(run, "note", {"at": at})
            store.record_event(run, "run_completed", {"text": "done"})
    say("done")


def own(url: str, run: str, lease: str, off: str = "0") -> None:
    """Own a run and write to it whenever told to; says how that went. This host's clock is *off* by some seconds."""
    true = SystemClock.time
    SystemClock.time = staticmethod(lambda: true() + float(off))  # type: ignore[assignment]
    store = PostgresRunStore(url, lease=float(lease))
    owner = store.ownership.row()
    try:
        claim = store.writer.commit(lambda ledger: ledger.claim(ledger.run(run), owner))
    except HoldfastError as error:
        say(type(error).__name__)
        return
    say("ready")
    for line in sys.stdin:
        try:
            if line.strip() == "renew":
                store.renew()
            else:
                store.writer.commit(lambda ledger: ledger.say(ledger.claimed(claim), "note"))
            say("ok")
        except HoldfastError as error:
            say(type(error).__name__)


def wait(url: str, run: str, lease: str = "15") -> None:
    """Run a coroutine that does nothing until the run is cancelled."""

    async def body(hf: Holdfast) -> None:
        async with hf.run("s", "p", run_id=run):
            say("ready")
            await asyncio.Event().wait()

    store = PostgresRunStore(url, lease=float(lease))
    with Holdfast(PolicyBook.load({}), SystemClock(), store) as hf:
        try:
            asyncio.run(body(hf))
        except RunCancelled as error:
            say("cancelled", error.reason)


def follow(url: str, run: str) -> None:
    """Say each event of a run as it comes."""
    with PostgresRunStore(url) as store:
        for event in store.follow(run):
            say(event.sequence, event.type)
    say("end")


def borrow(url: str) -> None:
    """Have a schema for a torture, with a session in it, until told to end."""
    from holdfast.torture.server import borrowed

    with borrowed(url, say) as place:
        store = place.open()
        say(place.schema, store.list_runs())
        sys.stdin.readline()
        store.close()


if __name__ == "__main__":
    main(hold, fork, fork_early, append, fork_store, finish, own, wait, follow, borrow)
