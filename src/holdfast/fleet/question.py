"""One question to the fleet, and what it granted: all that a call knows of a fleet.

The rest of this package, except `link`, is loaded only by processes that have a fleet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.fleet.link import Away

if TYPE_CHECKING:
    from holdfast.fleet.desk import Desk
    from holdfast.fleet.script import Asked, Form, Outcome


class Held(msgspec.Struct, frozen=True):
    """What the fleet granted for an attempt, and will get back; *wait* is the seconds until its token is due."""

    holder: str
    generation: int
    probe: int
    slots: int
    cost: float
    admitted_at_us: int
    wait: float


class Question:
    """One question to the fleet; *reply* is the answer, None if there was none in time."""

    __slots__ = ("asked", "desk", "form", "held", "reply", "told", "_gone")

    def __init__(self, desk: Desk, form: Form, asked: Asked) -> None:
        self.desk = desk
        self.form = form
        self.asked = asked
        self.reply: list[Any] | None = None
        self.held: Held | None = None
        self.told: Sequence[Outcome] = ()  # the outcomes that went along
        self._gone = False

    def settle(self) -> None:
        """Ask, and block the thread until there is an answer or the time is up."""
        fleet = self.desk.fleet
        try:
            self._took(fleet.connections.ask(self.form, self._words))
        except Away as error:
            fleet.miss(self.desk, error)
            self.desk.take_back(self.told)
        except BaseException:  # raised by a signal handler, for example: what was granted to this name stays unknown
            fleet.rename()
            self.desk.take_back(self.told)
            raise

    async def asettle(self) -> None:
        """Ask, and await the answer or the end of the time."""
        fleet, form = self.desk.fleet, self.form
        connections = fleet.connections
        try:
            link = connections.linked(form.key) or await connections.connected(form.key)
            if link is None:
                return
            words = self._words()
            reply = await self.heard(link.ask(words, self))
            if type(reply) is not list:
                reply = await connections.aask(form, words, reply, self)
            self._took(reply)
        except Away as error:
            fleet.miss(self.desk, error)
            self.desk.take_back(self.told)

    async def heard(self, answer: asyncio.Future[Any]) -> Any:
        """Await *answer*; if the task is cancelled when it is there already, it goes to `forsaken`."""
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled():
                self.forsaken(answer.exception() or answer.result())
            raise

    @property
    def passes(self) -> bool:
        """True if the attempt was admitted, and without a wait."""
        return self.held is not None and not self.held.wait

    def abandon(self) -> None:
        """Give back what was granted, or will be: the caller no longer wants the answer."""
        self._gone = True
        if self.held is not None:
            held, self.held = self.held, None
            self.desk.give_back(held)

    def forsaken(self, reply: Any) -> None:
        """Take the answer after the asking task was cancelled, and give back what it grants."""
        self._gone = True
        try:
            self._took(reply)
        except Away:  # nothing was granted; but slots that were given back along with the question did not arrive
            self.desk.fleet.rename()
            self.desk.take_back(self.told)

    def _words(self) -> bytes:
        return self.desk.words(self)

    def _took(self, reply: Any) -> None:
        if reply is None:  # no connection was free in time
            return
        self.held = self.desk.answered(reply, self.form, self.asked[0])
        self.reply = reply
        if self._gone:
            self.abandon()
