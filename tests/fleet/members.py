"""Members of a fleet within one process: each a Holdfast of its own on the same Redis, which is as far as they know."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from tests.fleet.children import Heard
from tests.fleet.upstream import PATIENCE
from tests.servers.redis import GivenRedis, RedisServer

import holdfast
from holdfast import Denied, Holdfast
from holdfast.clock import Clock, SystemClock
from holdfast.fleet.fleet import Fleet
from holdfast.fleet.link import Link
from holdfast.fleet.pool import MOST, Pool

# Three tokens that do not come back while a test lasts, and nobody who waits for them.
POLICIES: Mapping[str, object] = {
    "policy": {"max_wait": 0.0, "breaker": {"failure_threshold": 3, "min_backoff": 600.0, "max_backoff": 600.0}},
    "tool": {"three*": {"rate": {"per_second": 0.001, "burst": 3}}, "seen*": {"mode": "view"}},
}


class Member(NamedTuple):
    """One of the fleet, and what it has heard."""

    hf: Holdfast
    heard: Heard

    @property
    def fleet(self) -> Fleet:
        fleet = self.hf._kit.fleet
        assert fleet is not None
        return fleet

    def call(self, tool: str, *, fails: bool = False) -> str:
        """Call a tool as a thread; how it went."""
        try:
            with self.hf.guard(tool):
                return _work(fails)
        except Denied as denied:
            return type(denied).__name__
        except ConnectionError:
            return "failed"

    async def acall(self, tool: str, *, fails: bool = False) -> str:
        """Call a tool as a task; how it went."""
        try:
            async with self.hf.guard(tool):
                await asyncio.sleep(0)
                return _work(fails)
        except Denied as denied:
            return type(denied).__name__
        except ConnectionError:
            return "failed"

    def generation(self, tool: str) -> int:
        """Of the fleet's circuit, when it was last seen."""
        return next(desk.generation for desk in self.fleet.desks() if desk.tool == tool)

    def trip(self, tool: str) -> None:
        """Open a circuit, and wait until it is."""
        assert [self.call(tool, fails=True) for _ in range(3)] == ["failed"] * 3
        self.heard.wait_for("circuit_opened", tool)


@contextmanager
def member(
    url: str,
    policies: Mapping[str, object] = POLICIES,
    *,
    on_outage: str = "local",
    clock: Clock | None = None,
    finds: bool = True,
) -> Iterator[Member]:
    """One that is in touch with its fleet, if there is one that it *finds*, and is closed at the end."""
    with holdfast.open(":memory:", redis=url, policies=policies, on_outage=on_outage, clock=clock) as hf:
        one = Member(hf, Heard())
        # On a busy machine the first try may be too late, and what is lost already cannot be heard to be lost.
        wait_until(lambda: one.fleet.service.settled.is_set() and (one.fleet.is_available or not finds), "for Redis")
        hf.bus.add(one.heard)
        yield one


def agree(one: Member, other: Member, tool: str) -> bool:
    """Whether both keep one limit of three together."""
    went = [each.call(tool) for each in (one, one, other, other, one)]
    return went == ["ok", "ok", "ok", "RateLimited", "RateLimited"]


def wait_until_agreed(one: Member, other: Member) -> None:
    """Until they do, each time about a tool that nobody has called; a busy machine may be away once more."""
    names = (f"three {number}" for number in itertools.count())
    wait_until(lambda: agree(one, other, next(names)), "for them to agree")


def wait_until(done: Callable[[], object], what: str = "") -> None:
    """Look until it is *done*."""
    last = SystemClock.monotonic() + PATIENCE
    while not done():
        assert SystemClock.monotonic() < last, f"waited {PATIENCE:g} s in vain {what}"
        SystemClock.sleep(0.01)


def take_all(pool: Pool) -> list[Link]:
    """Every connection that threads may have, one after the other as the service opens them."""
    taken: list[Link] = []
    while len(taken) < MOST:
        taken += [link for link in [pool.take()] if link is not None]
        SystemClock.sleep(0.001)
    return taken


def questions(redis: RedisServer | GivenRedis) -> int:
    """How often the guards were asked, as the server counts it."""
    stats = redis.command("INFO", "commandstats")
    assert isinstance(stats, bytes)
    counts = (stats.partition(b"cmdstat_%b:calls=" % name)[2].partition(b",")[0] for name in (b"evalsha", b"eval"))
    return sum(int(count or 0) for count in counts)


def askers(redis: RedisServer) -> int:
    """How many open connections have asked the guards something, and nothing else since."""
    listed = redis.command("CLIENT", "LIST")
    assert isinstance(listed, bytes)
    return listed.count(b"cmd=eval")


def _work(fails: bool) -> str:
    if fails:
        raise ConnectionError("the tool is dead")
    return "ok"
