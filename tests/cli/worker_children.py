"""What the tests of workers have worker processes call. Each call is a line in the file `done` of the working folder.

A function that waits says so there as well, and goes on when there is a file `go`.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
import time
import warnings

import holdfast
from holdfast.clock import SystemClock

hf = holdfast.open()


def note(*words: object) -> None:
    """A line of its own, whoever else writes: it is written at once and at the end."""
    fd = os.open("done", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(fd, f"{' '.join(map(str, words))}\n".encode())
    finally:
        os.close(fd)


@hf.tool(idempotent=True)
def work(name: str, number: int) -> int:
    note("work", name, number)
    return number


@hf.tool
def pay(amount: int) -> str:
    note("pay", amount)
    wait()
    return "paid"


def wait() -> None:
    note("waiting")
    while not os.path.exists("go"):
        SystemClock.sleep(0.005)


def steps(name: str, count: int) -> int:
    note("begin", name, os.getpid())
    total = sum(work(name, number) for number in range(count))
    note("end", name, os.getpid())
    return total


def patient(name: str) -> int:
    first = work(name, 1)
    wait()
    return first + work(name, 2)


def listens(name: str) -> int:
    run = hf.current_run
    assert run is not None
    note("waiting")
    run.cancelled.wait()
    return work(name, 2)


async def apatient(name: str) -> int:
    first = work(name, 1)
    await asyncio.to_thread(wait)
    return first + work(name, 2)


def shop() -> str:
    return pay(12)


def stops() -> None:
    """Tell the worker to stop, by a signal that no wait of its main thread ends for."""
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)


def ends_a_child() -> int | None:
    """What a process that was forked, and told to end, ended with."""
    here, there = os.pipe()
    child = multiprocessing.get_context("fork").Process(target=_last_for_ever, args=(there,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks in the midst of threads
        child.start()
    os.read(here, 1)  # before, a signal may be lost: Python 3.14 forgets those that come while it forks
    child.terminate()
    child.join(10)
    code = child.exitcode
    child.kill()
    return code


def _last_for_ever(ready: int) -> None:
    os.write(ready, b"!")
    while True:
        time.sleep(0.01)


def fails() -> None:
    raise ValueError("no \x1b[2J luck")


def items() -> object:
    yield 1
