"""The agent of the demo: a scripted model that plans trips. It knows nothing of guards, only what its tools answer.

Its habits are those of real models: a failed call is made again, unless the answer says not to; now and then it is
stuck on a call that cannot work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
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
STUCK: Final = 5  # of every eleven trips, the model mistypes an address on this one and does not notice


class Progress(Enum):
    """How far the agent is with a trip; the value is the character that is drawn."""

    WAITING = "·"
    IN_WORK = "□"
    DONE = "■"
    GIVEN_UP = "×"


class Answer(NamedTuple):
    """What a tool call gave the model to read."""

    text: str
    failed: bool = False
    refused: bool = False  # failed, because a guard said no


class GaveUp(Exception):
    """The agent cannot finish a trip."""


class Agent:
    """Plans *trips* with *tools*, several at once; enters *run* around each, and reports failures to *mishap*."""

    def __init__(
        self,
        tools: Mapping[str, Service],
        trips: Iterable[int],
        clock: Clock,
        *,
        run: Callable[[str], AbstractAsyncContextManager[object]] = nullcontext,
        mishap: Callable[[str], object] = lambda text: None,
    ) -> None:
        self.progress = dict.fromkeys(trips, Progress.WAITING)
        self.turns = 0
        self.failed_calls = 0  # calls answered by an error of the tool or a refusal of a guard
        self.finished_at: float | None = None
        self._tools = tools
        self._clock = clock
        self._run = run
        self._mishap = mishap

    def count(self, progress: Progress) -> int:
        """Return how many trips have this progress."""
        return sum(each is progress for each in self.progress.values())

    async def work(self) -> None:
        """Plan all trips."""
        left = iter(list(self.progress))
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(self._work_through(left))
        self.finished_at = self._clock.monotonic()

    async def _work_through(self, trips: Iterator[int]) -> None:
        for number in trips:
            city = CITIES[number % len(CITIES)]
            trip = f"trip {number} to {city}"
            self.progress[number] = Progress.IN_WORK
            async with self._run(trip):
                try:
                    await self._plan(trip, city, mistypes=number % 11 == STUCK)
                except GaveUp as why:
                    self.progress[number] = Progress.GIVEN_UP
                    self._mishap(f"{trip} given up: {why}")
                else:
                    self.progress[number] = Progress.DONE

    async def _plan(self, trip: str, city: str, mistypes: bool) -> None:
        pages = [f"https://travel.example/{city}/{part}?for={trip}" for part in ("sights", "hotels")]
        await self._need("geocode", "home", city)
        if mistypes:
            await self._use("fetch_page", pages[0].replace("https", "htps"), stuck=True)
        await self._need("fetch_page", *pages)
        await self._need("prices", *(f"{trip} on day {day}" for day in range(1, 6)))
        await self._need("translate", *(f"the {part} of {trip}" for part in ("plan", "menus", "tickets")))
        await self._book(trip)

    async def _book(self, trip: str) -> None:
        for _ in range(TRIES):
            if await self._use("book_flight", trip):
                return
            await self._think()
            if (await self._call("find_booking", trip)).text == "booked":
                return
        raise GaveUp("book_flight did not work")

    async def _need(self, tool: str, *arguments: str) -> None:
        if not await self._use(tool, *arguments):
            raise GaveUp(f"{tool} did not work, and asking again would not help")

    async def _use(self, tool: str, *arguments: str, stuck: bool = False) -> bool:
        """Call *tool* with each of *arguments* at once, and failed ones again in the next turn; False if told not to.

        A model that is *stuck* ignores errors; only a refusal stops it.
        """
        tries = STUBBORN if stuck else TRIES
        for _ in range(tries):
            await self._think()
            answers = await asyncio.gather(*(self._call(tool, argument) for argument in arguments))
            failed = {argument: answer for argument, answer in zip(arguments, answers, strict=True) if answer.failed}
            if not failed:
                return True
            if any(answer.refused if stuck else "not repeat" in answer.text for answer in failed.values()):
                return False
            arguments = tuple(failed)
        raise GaveUp(f"{tool} failed {tries} times")

    async def _think(self) -> None:
        self.turns += 1
        await self._clock.asleep(THINKING)

    async def _call(self, tool: str, argument: str) -> Answer:
        try:
            return Answer(await self._tools[tool](argument))
        except Denied as refusal:
            answer = Answer(refusal.for_model(), failed=True, refused=True)
        except Exception as error:
            notes = getattr(error, "__notes__", ())
            answer = Answer("\n".join([f"{type(error).__name__}: {error}", *notes]), failed=True)
        self.failed_calls += 1
        return answer
