"""The world of the demo: services that hang, lose answers, refuse and go down, the same ones for the same seed.

What becomes of a request depends on the seed, on the request and on how often it came before, never on who asks:
two agents with different habits live in the same world. The world counts what reaches it; nobody else does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import Final

import msgspec

from holdfast.clock import Clock
from holdfast.testing import TooManyRequests

Service = Callable[[str], Awaitable[str]]

HANG: Final = 60.0  # seconds until the other side closes a connection on which nothing happens
DOWN: Final = (10.0, 40.0)  # when translate is down
GATEWAY: Final = 5.0  # seconds a gateway waits for a service that is down
ALLOWED: Final = 2.0  # requests a second that prices answers
BURST: Final = 4.0


class Ledger(msgspec.Struct):
    """What one service saw: *lost* are the seconds that requests took which brought no answer."""

    requests: int = 0
    lost: float = 0.0


class HttpError(Exception):
    """An answer with an HTTP status that is not a good one."""

    def __init__(self, status_code: int, text: str) -> None:
        super().__init__(f"{status_code} {text}")
        self.status_code = status_code


class World:
    """The services of a travel agency; each takes one text and answers with one. What is down is so once a *day*."""

    def __init__(
        self,
        seed: int,
        clock: Clock,
        *,
        on_rebooking: Callable[[str], object] = lambda trip: None,
        day: float = math.inf,
    ) -> None:
        self.ledgers: dict[str, Ledger] = {}
        self.hanging: Counter[str] = Counter()  # requests in flight that will not be answered
        self.refused = 0  # 429 answers
        self.asked_while_down = 0
        self.bookings: Counter[str] = Counter()
        self._seed = seed
        self._clock = clock
        self._day = day
        self._begun = self._filled = clock.monotonic()
        self._on_rebooking = on_rebooking
        self._seen: Counter[tuple[str, str]] = Counter()
        self._tokens = BURST

    def services(self) -> Mapping[str, Service]:
        """The services by name."""
        each = (
            self.geocode,
            self.search,
            self.fetch_page,
            self.prices,
            self.translate,
            self.phrasebook,
            self.book_flight,
            self.find_booking,
        )
        return {service.__name__: service for service in each}

    async def geocode(self, place: str) -> str:
        """Where *place* is: dependable, but paid by the request."""
        async with self._request("geocode", place) as fate:
            await self._clock.asleep(latency(fate) / 2)
            return f"{fate.uniform(-60, 60):.4f}, {fate.uniform(-180, 180):.4f}"

    async def search(self, query: str) -> str:
        """Search the web, over a network that drops one connection in five."""
        async with self._request("search", query) as fate:
            if fate.random() < 0.2:
                await self._clock.asleep(0.1)
                raise ConnectionResetError("connection reset by peer")
            await self._clock.asleep(latency(fate))
            return f"https://travel.example/{query.replace(' ', '-')}"

    async def fetch_page(self, url: str) -> str:
        """Fetch a page; one in ten hangs until the server closes the connection."""
        async with self._request("fetch_page", url) as fate:
            if not url.startswith("https://"):
                await self._clock.asleep(0.1)
                raise HttpError(400, "Bad Request: not a URL")
            if fate.random() < 0.08:
                await self._hang("fetch_page", HANG)
                raise ConnectionResetError("the server closed the connection")
            await self._clock.asleep(latency(fate))
            return f"all about {url}"

    async def prices(self, flight: str) -> str:
        """The price of a flight, for so many requests a second; whoever asks for more gets a 429."""
        async with self._request("prices", flight) as fate:
            now = self._clock.monotonic()
            self._tokens = min(BURST, self._tokens + (now - self._filled) * ALLOWED)
            self._filled = now
            if self._tokens < 1:
                self.refused += 1
                wait = math.ceil((1 - self._tokens) / ALLOWED)
                await self._clock.asleep(0.05)
                raise TooManyRequests(str(wait))
            self._tokens -= 1
            await self._clock.asleep(latency(fate))
            return f"{self.fare(flight)} USD"

    async def translate(self, text: str) -> str:
        """Translate, and be down for a while: then a gateway says so, after a long wait."""
        async with self._request("translate", text) as fate:
            if DOWN[0] <= (self._clock.monotonic() - self._begun) % self._day < DOWN[1]:
                self.asked_while_down += 1
                await self._hang("translate", GATEWAY)
                raise HttpError(503, "Service Unavailable")
            await self._clock.asleep(latency(fate))
            return f"{text}, translated"

    async def phrasebook(self, text: str) -> str:
        """Translate word by word, on this machine."""
        async with self._request("phrasebook", text):
            await self._clock.asleep(0.02)
            return f"{text}, word by word"

    async def book_flight(self, trip: str) -> str:
        """Book; of one booking in five the answer is lost on the way back, though it was made."""
        async with self._request("book_flight", trip) as fate:
            await self._clock.asleep(latency(fate))
            self.bookings[trip] += 1
            if self.bookings[trip] > 1:
                self._on_rebooking(trip)
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
        """How many bookings were made of trips that were booked already."""
        return self.bookings.total() - len(self.bookings)

    def fare(self, flight: str) -> int:
        """What a flight costs, in dollars."""
        return Random(f"{self._seed} fare {flight}").randrange(90, 480)

    @asynccontextmanager
    async def _request(self, service: str, argument: str) -> AsyncIterator[Random]:
        """Count one request, and give what chance has in store for it."""
        ledger = self.ledgers.setdefault(service, Ledger())
        ledger.requests += 1
        nth = self._seen[service, argument]
        self._seen[service, argument] += 1
        begun = self._clock.monotonic()
        try:
            yield Random(f"{self._seed} {service} {argument} {nth}")
        except BaseException:
            ledger.lost += self._clock.monotonic() - begun
            raise

    async def _hang(self, service: str, seconds: float) -> None:
        self.hanging[service] += 1
        try:
            await self._clock.asleep(seconds)
        finally:
            self.hanging[service] -= 1


def latency(fate: Random) -> float:
    """Seconds a healthy service takes: half of the answers within 0.32, 95 % within 1.84, 99 % within 6.2."""
    deviation = fate.gauss(0.0, 1.0)
    tail = max(0.0, deviation - 1.645)
    return min(20.0, 0.32 * math.exp(1.063 * (deviation - tail) + 1.783 * tail))
