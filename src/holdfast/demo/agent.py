"""The agent of the demo: a scripted model that plans trips. It knows nothing of guards, only what its tools answer.

Its habits are those of real models: a failed call is made again, unless the answer says not to; now and then it is
stuck on a call that cannot work.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from enum import Enum
from typing import Final, NamedTuple

from holdfast.clock import Clock
from holdfast.demo.world import Service
from holdfast.errors import Denied

THINKING: Final = 0.4  # seconds the model takes for a turn
TRIES: Final = 3  # turns it spends on a step before it gives up
STUBBORN: Final = 10  # turns where it is stuck
AT_ONCE: Final = 4  # trips in work at the same time

CITIES: Final = ("Lisbon", "Kyoto", "Tallinn", "Oaxaca", "Bergen", "Tbilisi", "Hobart", "Cusco")
STUCK: Final = 5  # of eleven trips, the one on which the model mistypes an address and does not see it


class Trip(NamedTuple):
    """One task of the agent."""

    number: int
    city: str

    @property
    def name(self) -> str:
        """How the trip is known to the booking service and to people."""
        return f"trip {self.number} to {self.city}"


class Progress(Enum):
    """How far the agent is with a trip."""

    WAITING = "waiting"
    IN_WORK = "in work"
    DONE = "done"
    GIVEN_UP = "given up"


class Answer(NamedTuple):
    """What a tool call gave the model to read."""

    text: str
    failed: bool = False
    refused: bool = False  # failed, because a guard said no

    @property
    def may_repeat(self) -> bool:
        """Whether the text leaves it open to make the call again."""
        return "not repeat" not in self.text


class GaveUp(Exception):
    """The agent cannot finish a trip."""


class Agent:
    """Plans *trips*, several at once, with *tools*; *run* is what it enters around each trip."""

    def __init__(
        self,
        tools: Mapping[str, Service],
        trips: list[Trip],
        clock: Clock,
        *,
        run: Callable[[Trip], AbstractAsyncContextManager[object]] | None = None,
        on_given_up: Callable[[str, str], object] = lambda trip, why: None,
    ) -> None:
        self.progress = dict.fromkeys(trips, Progress.WAITING)
        self.turns = 0
        self.errors = 0  # calls whose answer was an error of the tool
        self.refusals = 0  # calls that a guard refused
        self.finished_at: float | None = None
        self._tools = tools
        self._clock = clock
        self._run = run or _nothing
        self._on_given_up = on_given_up

    def count(self, progress: Progress) -> int:
        """How many trips are so far."""
        return sum(each is progress for each in self.progress.values())

    async def work(self) -> None:
        """Plan all trips."""
        left = iter(list(self.progress))
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(self._work_through(left))
        self.finished_at = self._clock.monotonic()

    async def _work_through(self, trips: Iterator[Trip]) -> None:
        for trip in trips:
            self.progress[trip] = Progress.IN_WORK
            async with self._run(trip):
                try:
                    await self._plan(trip)
                except GaveUp as why:
                    self.progress[trip] = Progress.GIVEN_UP
                    self._on_given_up(trip.name, str(why))
                else:
                    self.progress[trip] = Progress.DONE

    async def _plan(self, trip: Trip) -> None:
        await self._need("geocode", "home", trip.city)
        await self._need("search", f"what to see in {trip.city} on {trip.name}")
        await self._read(trip)
        await self._need("prices", *(f"{trip.name} on day {day}" for day in range(1, 6)))
        await self._need("translate", *(f"the {part} of {trip.name}" for part in ("plan", "menus", "tickets")))
        await self._book(trip)

    async def _read(self, trip: Trip) -> None:
        pages = [f"https://travel.example/{trip.city}/{part}/{trip.number}" for part in ("sights", "hotels")]
        if trip.number % 11 == STUCK:
            await self._use("fetch_page", pages[0].replace("https", "htps"), stuck=True)
        await self._need("fetch_page", *pages)

    async def _book(self, trip: Trip) -> None:
        for _ in range(TRIES):
            if await self._use("book_flight", trip.name):
                return
            self.turns += 1
            await self._clock.asleep(THINKING)
            if (await self._call("find_booking", trip.name)).text == "booked":
                return
        raise GaveUp("book_flight did not work")

    async def _need(self, tool: str, *arguments: str) -> None:
        if not await self._use(tool, *arguments):
            raise GaveUp(f"{tool} did not work, and asking again would not help")

    async def _use(self, tool: str, *arguments: str, stuck: bool = False) -> bool:
        """Call *tool* with each of *arguments* at once, the failed ones again next turn; false if told not to.

        A model that is *stuck* reads no error; only a refusal gets through to it.
        """
        tries = STUBBORN if stuck else TRIES
        for _ in range(tries):
            self.turns += 1
            await self._clock.asleep(THINKING)
            answers = await asyncio.gather(*(self._call(tool, argument) for argument in arguments))
            failed = [(argument, answer) for argument, answer in zip(arguments, answers, strict=True) if answer.failed]
            if not failed:
                return True
            if any(answer.refused if stuck else not answer.may_repeat for _, answer in failed):
                return False
            arguments = tuple(argument for argument, _ in failed)
        raise GaveUp(f"{tool} failed {tries} times")

    async def _call(self, tool: str, argument: str) -> Answer:
        try:
            return Answer(await self._tools[tool](argument))
        except Denied as refusal:
            self.refusals += 1
            return Answer(refusal.for_model(), failed=True, refused=True)
        except Exception as error:
            self.errors += 1
            notes = getattr(error, "__notes__", ())
            return Answer("\n".join([f"{type(error).__name__}: {error}", *notes]), failed=True)


def plan_of(number: int, first: int = 1) -> list[Trip]:
    """So many trips, from the *first* on."""
    return [Trip(each, CITIES[each % len(CITIES)]) for each in range(first, first + number)]


@asynccontextmanager
async def _nothing(trip: Trip) -> AsyncIterator[None]:
    yield
