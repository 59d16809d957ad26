"""Two agents at work in the same world, one with bare tools and one with guarded ones, and what came of it.

Both live on one clock that jumps to whatever comes next, so a seed gives the same numbers on every machine.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import msgspec

from holdfast import app
from holdfast.demo.agent import Agent, Progress, plan_of
from holdfast.demo.journal import Journal, Line, Tone
from holdfast.demo.world import Service, World
from holdfast.testing import ManualClock

TRIPS: Final = 24

POLICIES: Final[Mapping[str, Mapping[str, object]]] = {
    "geocode": {"read_only": True, "cache": 300},
    "search": {"read_only": True},
    "fetch_page": {"read_only": True, "timeout": 4},
    "prices": {"read_only": True, "rate": {"per_second": 5, "adaptive": True}, "max_wait": 30},
    "translate": {
        "read_only": True,
        "timeout": 2.5,
        "retry": False,
        "breaker": {"failure_threshold": 4, "max_backoff": 10},
        "fallback": {"tool": "phrasebook"},
    },
    "phrasebook": {"read_only": True},
    "book_flight": {},
    "find_booking": {"read_only": True},
}


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one agent; all of it counted while it worked."""

    trips: int
    done: int
    seconds: float  # until the last trip was done or given up
    turns: int  # of the model
    failed_calls: int  # that the model had to deal with: errors of tools and refusals of guards
    requests: int  # that reached a tool
    lost: float  # seconds in requests that were never answered
    asked_while_down: int  # requests to a tool that was down
    too_many: int  # 429 answers
    geocoded: int  # requests of geocode, which are paid for
    word_by_word: int  # translations left to the fallback
    rebooked: int  # trips that were booked already
    wasted: int  # dollars for these


class Guards(msgspec.Struct, frozen=True, kw_only=True):
    """What the guards did."""

    retried: int
    cut_off: int  # by a time limit
    cached: int
    held_back: int  # by the rate
    circuit_refusals: int
    loop_refusals: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Both agents side by side, and what the guards did for one of them."""

    seed: int
    bare: Tally
    guarded: Tally
    guards: Guards


class Race:
    """Both agents, their worlds and the guards of one of them; `run` lets them work, the rest may be watched."""

    def __init__(self, seed: int, *, on_line: Callable[[Line], object] = lambda line: None) -> None:
        self.seed = seed
        self.clock = ManualClock()
        self.holdfast = app.open(":memory:", policies={}, clock=self.clock)
        self.journal = Journal(self.clock, POLICIES, on_line)
        self.holdfast.bus.add(self.journal)
        self.bare_world = World(seed, self.clock, on_rebooking=self._told_of_bookings("bare"))
        self.guarded_world = World(seed, self.clock, on_rebooking=self._told_of_bookings("guarded"))
        self.bare = Agent(
            self.bare_world.services(), plan_of(TRIPS), self.clock, on_given_up=self._told_of_giving_up("bare")
        )
        self.guarded = Agent(
            guarded(self.holdfast, self.guarded_world),
            plan_of(TRIPS),
            self.clock,
            run=lambda trip: self.holdfast.run("demo", trip.name),
            on_given_up=self._told_of_giving_up("guarded"),
        )

    async def run(self) -> Report:
        """Let both work until they are done."""
        with _seeded(self.seed):
            async with self.holdfast, asyncio.TaskGroup() as group:
                group.create_task(self.bare.work())
                group.create_task(self.guarded.work())
        self.journal.complete()
        return self.report()

    def report(self) -> Report:
        """What there is to tell by now."""
        journal = self.journal
        return Report(
            seed=self.seed,
            bare=self._tally(self.bare, self.bare_world),
            guarded=self._tally(self.guarded, self.guarded_world),
            guards=Guards(
                retried=journal.retried.total(),
                cut_off=journal.cut_off.total(),
                cached=journal.cached.total(),
                held_back=journal.held_back.total(),
                circuit_refusals=sum(n for (_, kind), n in journal.refused.items() if kind == "CircuitOpen"),
                loop_refusals=sum(n for (_, kind), n in journal.refused.items() if kind == "LoopDetected"),
            ),
        )

    def _tally(self, agent: Agent, world: World) -> Tally:
        requests = {service: ledger.requests for service, ledger in world.ledgers.items()}
        return Tally(
            trips=len(agent.progress),
            done=agent.count(Progress.DONE),
            seconds=self.clock.monotonic() if agent.finished_at is None else agent.finished_at,
            turns=agent.turns,
            failed_calls=agent.errors + agent.refusals,
            requests=sum(requests.values()),
            lost=sum(ledger.lost for ledger in world.ledgers.values()),
            asked_while_down=world.asked_while_down,
            too_many=world.refused,
            geocoded=requests.get("geocode", 0),
            word_by_word=requests.get("phrasebook", 0),
            rebooked=world.rebooked,
            wasted=sum(world.fare(trip) * (times - 1) for trip, times in world.bookings.items()),
        )

    def _told_of_bookings(self, who: str) -> Callable[[str], None]:
        return lambda trip: self.journal.write(who, f"{trip} is booked again", Tone.BAD)

    def _told_of_giving_up(self, who: str) -> Callable[[str, str], None]:
        return lambda trip, why: self.journal.write(who, f"{trip} given up: {why}", Tone.BAD)


def guarded(hf: app.Holdfast, world: World) -> Mapping[str, Service]:
    """The services of *world* as tools that *hf* guards."""
    return {name: hf.tool(name, **POLICIES[name])(service) for name, service in world.services().items()}


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Have the jitter of the guards follow from *seed* too; they draw it from the process's own generator."""
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)
