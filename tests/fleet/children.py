"""What the tests of the fleet have other processes do: `python -m tests.fleet.children COMMAND URL …`.

Each line on stdin is one order, in JSON; each is answered with one line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.children import Child, main, processes, said, say, tell
from tests.fleet.upstream import PATIENCE, reach

from holdfast import Denied
from holdfast.app import Holdfast
from holdfast.clock import SystemClock
from holdfast.events import Event
from holdfast.fleet.fleet import LEASE, Fleet
from holdfast.policy import PolicyBook
from holdfast.stores import MemoryRunStore

children = processes("tests.fleet.children")

BREATH = 0.001  # seconds between two calls of a storm, so that thirty threads find the time to come


def order(child: Child, what: str, **facts: object) -> Any:
    """Have a child do something; its answer."""
    begin(child, what, **facts)
    return answer(child)


def begin(child: Child, what: str, **facts: object) -> None:
    """Have a child do something; its `answer` is to be fetched."""
    tell(child, json.dumps({"what": what, **facts}))


def answer(child: Child) -> Any:
    """What a child answers."""
    line = said(child)
    assert line, "the child has ended"
    return json.loads(line)


class Skewed(SystemClock):
    """A clock that is wrong by *seconds*, the one on the wall and the other."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.off = seconds
        self.monotonic = lambda: SystemClock.monotonic() + seconds
        self.time = lambda: SystemClock.time() + seconds

    def call_at(self, when: float, fn: Callable[[], object]) -> Any:
        return super().call_at(when - self.off, fn)


class Heard:
    """A sink that can be waited for."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: list[Event] = []

    def __call__(self, event: Event) -> None:
        with self._changed:
            self._events.append(event)
            self._changed.notify_all()

    def of(self, type: str, tool: str | None = None) -> list[Event]:
        """What was heard of a type, and of a tool if one is named."""
        with self._changed:
            return self._of(type, tool)

    def wait_for(self, type: str, tool: str | None = None, times: int = 1) -> Event:
        """The last of so many, once that was heard."""
        with self._changed:
            came = self._changed.wait_for(lambda: len(self._of(type, tool)) >= times, PATIENCE)
            assert came, f"waited {PATIENCE:g} s in vain for {type} {tool or ''}; the last: {self._events[-3:]}"
            return self._of(type, tool)[times - 1]

    def _of(self, type: str, tool: str | None) -> list[Event]:
        return [event for event in self._events if event.type == type and (tool is None or event.tool == tool)]


class Worker:
    """One process of a fleet."""

    def __init__(self, hf: Holdfast) -> None:
        self.hf = hf
        self.heard = Heard()
        self.counts: Counter[str] = Counter()
        self.starts: list[float] = []
        hf.bus.add(self.heard)
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []

    def call(self, tool: str, port: int, times: int = 1) -> list[str]:
        """Call a tool some times; how each went."""
        return [self._once(tool, port) for _ in range(times)]

    def storm(self, tool: str, port: int, threads: int, times: int | None = None) -> str:
        """Call a tool from some threads, each so many times, or until it is stopped."""
        self._stopped.clear()
        self.counts.clear()
        self.starts.clear()

        def calls() -> None:
            left = times
            while not self._stopped.is_set() and left != 0:
                self.counts[self._once(tool, port)] += 1
                left = left and left - 1
                SystemClock.sleep(BREATH)

        self._threads = [threading.Thread(target=calls, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()
        return "begun"

    def count(self) -> dict[str, int]:
        """How the calls of the storm went so far."""
        return dict(self.counts)

    def stop(self) -> dict[str, Any]:
        """End the storm; how its calls went, and when each began that was let in."""
        self._stopped.set()
        return self.join()

    def join(self) -> dict[str, Any]:
        """Wait for the end of the storm, likewise."""
        for thread in self._threads:
            thread.join()
        return {"starts": self.starts, **self.counts}

    def wait_for(self, type: str, tool: str, times: int = 1) -> str:
        """Wait for an event."""
        return self.heard.wait_for(type, tool, times).type

    def look(self, tool: str) -> dict[str, Any]:
        """What is known of a circuit."""
        seen = self.hf.breaker.diagnostics(tool)
        return {"state": seen.state, "failures": seen.failure_count, "remaining": seen.remaining_backoff}

    def _once(self, tool: str, port: int) -> str:
        try:
            with self.hf.guard(tool):
                self.starts.append(SystemClock.monotonic())
                return reach(port, os.getpid()) if port else "ok"
        except Denied as denied:
            return type(denied).__name__
        except ConnectionError:
            return "failed"


def worker(url: str, policies: str, lease: str = str(LEASE), off: str = "0") -> None:
    """Be one process of a fleet that does as told; its clock is *off* by some seconds."""
    clock = Skewed(float(off)) if float(off) else SystemClock()
    book = PolicyBook.load(json.loads(policies))
    with Holdfast(book, clock, MemoryRunStore(clock=clock), fleet=Fleet(url, lease=float(lease))) as hf:
        one = Worker(hf)
        say(json.dumps("ready"))
        for line in sys.stdin:
            facts = json.loads(line)
            say(json.dumps(getattr(one, facts.pop("what"))(**facts)))


def fork(url: str, policies: str) -> None:
    """Be one of a fleet with a busy thread and a call under way, and fork; both sides say what came of their calls."""
    with Holdfast(PolicyBook.load(json.loads(policies)), SystemClock(), MemoryRunStore(), fleet=Fleet(url)) as hf:
        one = Worker(hf)
        one.storm("busy", 0, threads=2)
        first = one.call("three", 0)
        with hf.guard("slot"):
            pid = os.fork()
            if pid == 0:
                _forked(one)
            os.waitpid(pid, 0)
            mine = [*first, *one.call("three", 0, 2)]
            one.stop()
        say(json.dumps({"calls": mine, "fallbacks": _fleet(hf).fallbacks, "holder": _fleet(hf).holder}))
        sys.stdin.readline()


def _forked(one: Worker) -> None:
    """Use the fleet in a forked child, and leave."""
    signal.alarm(20)  # a child that waits for a lock of its parent's ends like this
    try:
        calls = [*one.call("three", 0), *one.call("slot", 0)]
        fleet = _fleet(one.hf)
        say(json.dumps({"calls": calls, "fallbacks": fleet.fallbacks, "holder": fleet.holder}))
        one.hf.close()
    finally:
        os._exit(0)


def _fleet(hf: Holdfast) -> Fleet:
    assert hf._kit.fleet is not None
    return hf._kit.fleet


if __name__ == "__main__":
    main(worker, fork)
