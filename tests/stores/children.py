"""What the tests of stores have other processes do: `python -m tests.stores.children COMMAND PATH …`.

Each line on stdout says that something was done, and thereby that it must be in the store.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading

from tests.children import SlowLoader, main, processes, say

import holdfast
from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError, StoreError
from holdfast.stores import MemoryRunStore, RunStore, SqliteRunStore
from holdfast.stores.forking import renew_in_children
from holdfast.stores.ledger import Ledger

children = processes("tests.stores.children")

NOBODY = 65534


def append(path: str, number: str, count: str, *runs: str) -> None:
    """Append to each of some runs in turn, and say so each time."""
    with SqliteRunStore(path) as store:
        _append(store, number, count, *runs)


def append_and_stay(path: str, number: str, count: str, *runs: str) -> None:
    """The same, and then be there until somebody ends it."""
    with SqliteRunStore(path) as store:
        _append(store, number, count, *runs)
        sys.stdin.read()


def _append(store: SqliteRunStore, number: str, count: str, *runs: str) -> None:
    say("ready")
    sys.stdin.readline()
    for at in range(int(count)):
        for run in runs:
            store.record_event(run, "note", {"by": int(number), "at": at})
            say(run, at)


def die(path: str, point: str, after: str) -> None:
    """Write pairs of events, and be killed when so many have been written, at one point of the next."""
    left = 0

    def crash(at: str) -> None:
        if at == point and left == int(after):
            os.kill(os.getpid(), signal.SIGKILL)

    store = SqliteRunStore(path, crash=crash)

    def pair(ledger: Ledger) -> None:
        for _ in range(2):
            ledger.say(ledger.run("r"), "note", at=left)
        ledger.remember(ledger.run("r"), str(left).encode(), "note", b"outcome")

    for left in range(int(after) + 1):
        store.writer.commit(pair)
        say(left)


def complete_and_die(path: str, run: str) -> None:
    """Complete a run, and be killed when that is written."""

    def crash(at: str) -> None:
        if at == "committed":
            os.kill(os.getpid(), signal.SIGKILL)

    SqliteRunStore(path, crash=crash).record_event(run, "run_completed")


def hammer(path: str, number: str, seconds: str) -> None:
    """Append to one run for a while; says how often, and the longest that one took."""
    with SqliteRunStore(path) as store:
        run = store.create_run("s", "p", run_id=f"run {number}").id
        say("ready")
        sys.stdin.readline()
        count, worst, now = 0, 0.0, SystemClock.monotonic()
        end = now + float(seconds)
        while now < end:
            store.record_event(run, "note")
            before, now = now, SystemClock.monotonic()
            count, worst = count + 1, max(worst, now - before)
        say(json.dumps([count, worst]))


def make(path: str) -> None:
    """Open a store that may not be there yet and make a run in it."""
    store = SqliteRunStore(path)
    say("ready")
    sys.stdin.readline()
    run = store.create_run("s", "p").id
    store.record_event(run, "run_started")
    secret = store.secret().hex()
    store.close()
    say(run, secret)


def own(path: str, run: str, lease: str) -> None:
    """Own a run and write to it whenever told to; says how that went."""
    store = SqliteRunStore(path, lease=float(lease))
    owner = store.ownership.row()
    claim = store.writer.commit(lambda ledger: ledger.claim(ledger.run(run), owner))
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


def interrupt(path: str, times: str) -> None:
    """Be interrupted again and again in the thread that commits, while another thread commits too."""
    store = SqliteRunStore(path, synchronous="NORMAL")
    begun, done = threading.Event(), threading.Event()
    beside: list[int] = []
    troubles: list[BaseException] = []

    def commit() -> None:
        try:
            while not done.is_set():
                store.record_event("beside", "note", {"at": len(beside)})
                beside.append(len(beside))
        except BaseException as error:
            troubles.append(error)

    def disturb() -> None:
        begun.wait()
        while not done.is_set():
            SystemClock.sleep(0.002)
            os.kill(os.getpid(), signal.SIGINT)

    armed = False

    def strike(*_: object) -> None:
        nonlocal armed
        if armed:  # never twice for one write
            armed = False
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, strike)
    threads = [threading.Thread(target=commit), threading.Thread(target=disturb)]
    for thread in threads:
        thread.start()
    acknowledged, interrupts, at = [], 0, 0
    while interrupts < int(times):
        at += 1
        try:
            armed = True
            begun.set()
            store.record_event("main", "note", {"at": at})
            armed = False
            acknowledged.append(at)
        except KeyboardInterrupt:
            interrupts += 1
    done.set()
    for thread in threads:
        thread.join()
    store.close()
    say(json.dumps({"acknowledged": acknowledged, "beside": len(beside), "troubles": list(map(repr, troubles))}))


def fork(path: str, forks: str) -> None:
    """Fork again and again while threads write and follow; each child uses the store, too."""
    store = SqliteRunStore(path, synchronous="NORMAL")
    store.record_event("parent", "run_started")
    stop = threading.Event()
    counts = [0, 0]

    def write(which: int) -> None:
        while not stop.is_set():
            store.record_event("parent", "note")
            store.snapshot("parent")
            counts[which] += 1

    def follow() -> None:
        for _ in store.follow("parent"):
            continue

    threads = [threading.Thread(target=write, args=(which,)) for which in range(2)]
    threads.append(threading.Thread(target=follow))
    for thread in threads:
        thread.start()
    codes = []
    for number in range(int(forks)):
        pid = os.fork()
        if pid == 0:
            _forked(store, number)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    stop.set()
    for thread in threads[:2]:
        thread.join()
    store.record_event("parent", "run_completed")
    threads[2].join()
    store.close()
    say(json.dumps({"codes": codes, "written": sum(counts) + 2}))


def _forked(store: RunStore, number: int) -> None:
    """Use every part of a store that was inherited, and leave."""
    code = 1
    try:
        signal.alarm(20)  # a child that waits for a lock of its parent's ends like this
        store.record_event("child", "note", {"by": number})
        owner = store.ownership.row()
        store.writer.commit(lambda ledger: ledger.claim(ledger.add(store.header("s", "p")), owner))
        store.writer.settle(store.writer.submit(lambda ledger: ledger.say(ledger.run("child"), "note", by=number)))
        seen = store.snapshot("child")
        assert store.events("child")[-1].payload == {"by": number}
        assert seen.event_count == 2 * (number + 1)
        store.close()
        code = 0
    finally:
        os._exit(code)


def fork_loading(path: str) -> None:
    """Fork just when another thread that follows is about to load what it watches files with; so does the child."""
    loader = SlowLoader("ctypes")
    store = SqliteRunStore(path)
    os.register_at_fork(before=loader.fork.set)
    following = threading.Thread(target=lambda: next(store.follow("r")))
    following.start()
    loader.begun.wait()
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)  # one that waits for its parent's thread ends like this
        next(store.follow("r"))
        os._exit(0)
    following.join()
    store.close()
    say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def fork_memory(path: str) -> None:
    """Fork with a store in memory; parent and child go on, each for itself."""
    store = MemoryRunStore()
    store.create_run("s", "p", run_id="r")
    store.record_event("r", "note")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, str(store.record_event("r", "note").event_count).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    say(json.dumps({"child": int(os.read(read, 10)), "parent": store.record_event("r", "note").event_count}))


def fork_trouble(path: str) -> None:
    """Fork with something that cannot be put right in the child, before something that can; the child says so."""

    class Broken:
        def after_fork(self) -> None:
            raise KeyboardInterrupt

    class Whole:
        def after_fork(self) -> None:
            say("put right")

    things = [Broken(), Whole()]
    for thing in things:
        renew_in_children(thing)
    if os.fork() == 0:
        os._exit(0)
    os.wait()


def full(path: str) -> None:
    """Write until the disk is full, then make room and go on; says what was acknowledged."""
    store = SqliteRunStore(path)
    run = store.create_run("s", "p", run_id="r").id
    most = os.path.getsize(f"{path}-wal") + 200_000
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
    at, trouble = 0, ""
    while not trouble:
        try:
            store.record_event(run, "note", {"at": at, "text": "x" * 5000})
            at += 1
        except StoreError as error:
            trouble = str(error)
    pending = [store.writer.submit(lambda ledger: ledger.say(ledger.run(run), "big", text="x" * 9000)) for _ in "abc"]
    failed = 0
    for each in pending:
        store.writer.settle(each)
        failed += isinstance(each.error, StoreError)
    readable = store.snapshot(run).event_count
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    store.record_event(run, "run_completed", {"at": at})
    store.close()
    say(json.dumps({"trouble": trouble, "written": at, "readable": readable, "failed": failed}))


def powerless(path: str) -> None:
    """Read, write and work as a user who may not; says what came of each."""
    store = SqliteRunStore(path)
    with holdfast.open(":memory:", policies={}) as other:  # whatever is read to make a store is root's, too
        other.runs.create_run("s", "p")
        other.worker("os:getpid", drain=True).run()
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    for line in sys.stdin:
        command = line.strip()
        try:
            if command == "read":
                say("ok", len(store.list_runs()))
            elif command == "work":
                with holdfast.open(path, policies={}) as hf:
                    hf.worker("os:getpid", drain=True).run()
                say("ok")
            else:
                say("ok", store.record_event("r", "note").event_count)
        except StoreError as error:
            say("StoreError", error)


if __name__ == "__main__":
    main(
        *(append, append_and_stay, complete_and_die, die, hammer, make, own, interrupt, full, powerless),
        *(fork, fork_loading, fork_memory, fork_trouble),
    )
