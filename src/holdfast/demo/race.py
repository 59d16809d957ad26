"""Two agents at work in the same world, one with bare tools and one with guarded ones, and their results.

Both use one clock, which jumps to the next thing that is due, so a seed gives the same numbers on every machine.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from holdfast import app
from holdfast.demo.agent import Agent, Progress
from holdfast.demo.journal import BAD, Journal
from holdfast.demo.stage import Saving
from holdfast.demo.world import Service, World
from holdfast.testing import ManualClock

TRIPS: Final = 24
FARE: Final = 290  # dollars for a flight

POLICIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "geocode": {"read_only": True, "cache": 300},
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


class Row(NamedTuple):
    """One number to compare, where less is better, and what reduced it; the difference may be a *saving*."""

    label: str
    counted: Callable[[Agent, World], float]
    thanks: str  # with names of the guards' counts in braces
    saving: Saving | None = None

    def shown(self, amount: float) -> str:
        """Return an amount as text for people."""
        return f"{amount:,.0f}" if self.saving is None else self.saving.shown(amount)


ROWS: Final = (
    Row("trips given up", lambda agent, _: agent.count(Progress.GIVEN_UP), "all of these", Saving.TRIPS),
    Row("seconds it took", lambda agent, _: agent.finished_at or 0.0, "timeouts, circuit"),
    Row("waited for answers that never came", lambda _, world: world.lost, "timeouts: {cut_off} cuts", Saving.WAITING),
    Row("failed calls the model had to read", lambda agent, _: agent.failed_calls, "retries: {retried}", Saving.ERRORS),
    Row("turns the model needed", lambda agent, _: agent.turns, "loop guard: {refused} loops cut"),
    Row("requests to a tool that was down", lambda _, world: world.in_vain, "circuit: {spared} spared", Saving.CALLS),
    Row("429s provoked", lambda _, world: world.too_many, "adaptive rate: {paced} paced"),
    Row("geocode requests to pay for", lambda _, world: world.requests["geocode"], "cache: {cached} answered"),
    Row("texts translated word by word", lambda _, world: world.requests["phrasebook"], "the price of a fallback"),
    Row("flights booked again by mistake", lambda _, world: world.rebooked, "no blind repeats", Saving.TWICE),
    Row("paid for these", lambda _, world: world.rebooked * FARE, "", Saving.DOLLARS),
)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Both agents side by side, row by row, and how often the guards did what for the guarded one."""

    seed: int
    bare: dict[str, float]
    guarded: dict[str, float]
    guards: dict[str, int]


class Race:
    """Both agents, their worlds and the guards of one; `run` lets them work, the rest can be watched meanwhile."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.clock = ManualClock()
        self.holdfast = app.open(":memory:", policies={}, clock=self.clock)
        self.journal = Journal(self.clock, POLICIES)
        self.holdfast.bus.add(self.journal)
        bare, guards = (partial(self.journal.write, who, style=BAD) for who in ("bare", "guarded"))
        self.bare_world = World(seed, self.clock, bare)
        self.guarded_world = World(seed, self.clock, guards)
        self.bare = Agent(self.bare_world.services(), range(1, TRIPS + 1), self.clock, mishap=bare)
        self.guarded = Agent(
            guarded(self.holdfast, self.guarded_world),
            range(1, TRIPS + 1),
            self.clock,
            run=lambda trip: self.holdfast.run("demo", trip),
            mishap=guards,
        )

    async def run(self) -> Report:
        """Let both agents work until they are done."""
        random.seed(self.seed)  # the guards draw their jitter from it
        async with self.holdfast, asyncio.TaskGroup() as group:
            group.create_task(self.bare.work())
            group.create_task(self.guarded.work())
        return Report(
            seed=self.seed,
            bare={row.label: row.counted(self.bare, self.bare_world) for row in ROWS},
            guarded={row.label: row.counted(self.guarded, self.guarded_world) for row in ROWS},
            guards=dict(self.journal.did),
        )


def guarded(hf: app.Holdfast, world: World) -> Mapping[str, Service]:
    """Return the services of *world* as tools that *hf* guards."""
    return {name: hf.tool(name, **POLICIES[name])(service) for name, service in world.services().items()}
