"""The world of the demo: services that hang, lose answers, refuse and go down, the same ones for the same seed.

What becomes of a request depends on the seed, on the request and on how often it came before, never on which agent
asks: two agents with different habits live in the same world. Only the world counts what reaches it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import Final

from holdfast.clock import Clock
from holdfast.parts.limiters import RateLimiter
from holdfast.testing import TooManyRequests

Service = Callable[[str], Awaitable[str]]

HANG: Final = 60.0  # seconds until the other side closes a connection on which nothing happens
DAY: Final = 90.0  # seconds
DOWN: Final = (10.0, 40.0)  # seconds of each day between which translate is down
GATEWAY: Final = 5.0  # seconds a gateway waits for a service that is down


class HttpError(Exception):
    """An answer with an HTTP status that means an error."""

    def __init__(self, status_code: int, text: str) -> None:
        super().__init__(f"{status_code} {text}")
        self.status_code = status_code


class World:
    """The services of a travel agency; each takes one text and returns one. *mishap* is told of double bookings."""

    def __init__(self, seed: int, clock: Clock, mishap: Callable[[str], object] = lambda text: None) -> None:
        self.requests: Counter[str] = Counter()  # by service
        self.lost = 0.0  # seconds spent on requests that brought no answer
        self.hanging = 0  # requests in flight that will not be answered
        self.too_many = 0  # 429 answers
        self.in_vain = 0  # requests to a service that was down
        self.bookings: Counter[str] = Counter()
        self._seed = seed
        self._clock = clock
        self._begun = clock.monotonic()
        self._mishap = mishap
        self._seen: Counter[tuple[str, str]] = Counter()
        self._limit = RateLimiter(per_second=2.5, burst=5, clock=clock)

    def services(self) -> Mapping[str, Service]:
        """The services by name."""
        reading = (self.geocode, self.fetch_page, self.prices, self.translate, self.phrasebook, self.find_booking)
        return {service.__name__: service for service in (*reading, self.book_flight)}

    async def geocode(self, place: str) -> str:
        """Return where *place* is; dependable, but paid per request."""
        async with self._request("geocode", place) as fate:
            await self._clock.asleep(latency(fate) / 2)
            return f"{fate.uniform(-60, 60):.4f}, {fate.uniform(-180, 180):.4f}"

    async def fetch_page(self, url: str) -> str:
        """Fetch a page; the network drops some connections, and some servers hang until they close theirs."""
        async with self._request("fetch_page", url) as fate:
            if not url.startswith("https://"):
                await self._clock.asleep(0.1)
                raise HttpError(400, "Bad Request: not a URL")
            chance = fate.random()
            if chance < 0.08:
                await self._clock.asleep(0.1)
                raise ConnectionResetError("connection reset by peer")
            if chance < 0.16:
                await self._hang(HANG)
                raise ConnectionResetError("the server closed the connection")
            await self._clock.asleep(latency(fate))
            return f"all about {url}"

    async def prices(self, flight: str) -> str:
        """Return the price of a flight; more than so many requests a second get a 429."""
        async with self._request("prices", flight) as fate:
            if wait := self._limit.try_acquire("prices"):
                self.too_many += 1
                await self._clock.asleep(0.05)
                raise TooManyRequests(str(math.ceil(wait)))
            await self._clock.asleep(latency(fate))
            return f"{fate.randrange(90, 480)} USD"

    async def translate(self, text: str) -> str:
        """Translate a text; while the service is down, a gateway says so after a long wait."""
        async with self._request("translate", text) as fate:
            if DOWN[0] <= (self._clock.monotonic() - self._begun) % DAY < DOWN[1]:
                self.in_vain += 1
                await self._hang(GATEWAY)
                raise HttpError(503, "Service Unavailable")
            await self._clock.asleep(latency(fate))
            return f"{text}, translated"

    async def phrasebook(self, text: str) -> str:
        """Translate word by word, on this machine."""
        async with self._request("phrasebook", text):
            await self._clock.asleep(0.02)
            return f"{text}, word by word"

    async def book_flight(self, trip: str) -> str:
        """Book a trip; for one booking in five the answer is lost on the way back, though it was made."""
        async with self._request("book_flight", trip) as fate:
            await self._clock.asleep(latency(fate))
            self.bookings[trip] += 1
            if self.bookings[trip] > 1:
                self._mishap(f"{trip} is booked again")
            if fate.random() < 0.2:
                raise ConnectionResetError("the answer got lost")
            return f"{trip} is booked"

    async def find_booking(self, trip: str) -> str:
        """Whether a trip is booked."""
        async with self._request("find_booking", trip) as fate:
            await self._clock.asleep(latency(fate) / 2)
            return "booked" if self.bookings[trip] else "not booked"

    @property
    def rebooked(self) -> int:
        """How many bookings were made for trips that were booked already."""
        return self.bookings.total() - len(self.bookings)

    @asynccontextmanager
    async def _request(self, service: str, argument: str) -> AsyncIterator[Random]:
        """Count one request, and yield the random numbers that decide what becomes of it."""
        self.requests[service] += 1
        nth = self._seen[service, argument]
        self._seen[service, argument] += 1
        begun = self._clock.monotonic()
        try:
            yield Random(f"{self._seed} {service} {argument} {nth}")
        except BaseException:
            self.lost += self._clock.monotonic() - begun
            raise

    async def _hang(self, seconds: float) -> None:
        self.hanging += 1
        try:
            await self._clock.asleep(seconds)
        finally:
            self.hanging -= 1


def latency(fate: Random) -> float:
    """Seconds a healthy service takes: half of the answers within 0.32, 95 % within 1.84."""
    return min(20.0, 0.32 * math.exp(1.063 * fate.gauss(0.0, 1.0)))
