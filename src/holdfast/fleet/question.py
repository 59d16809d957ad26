"""One question to the fleet, and what it gave: all that a call knows of one. The rest is loaded where there is one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.fleet.link import Away

if TYPE_CHECKING:
    from holdfast.fleet.desk import Desk
    from holdfast.fleet.script import Asked, Form


class Held(msgspec.Struct, frozen=True):
    """What the fleet gave for an attempt, and will get back; *wait* is how long until its token is due."""

    holder: str
    generation: int
    probe: int
    slots: int
    cost: float
    admitted_at_us: int
    wait: float


class Question:
    """One question to the fleet, and its answer: None if there was none in time."""

    __slots__ = ("asked", "desk", "form", "held", "reply", "_gone")

    def __init__(self, desk: Desk, form: Form, asked: Asked) -> None:
        self.desk = desk
        self.form = form
        self.asked = asked
        self.reply: list[Any] | None = None
        self.held: Held | None = None
        self._gone = False

    def settle(self) -> None:
        """Ask as a thread."""
        fleet = self.desk.fleet
        try:
            self._took(fleet.exchange.ask(self.form, self._words))
        except Away as error:
            fleet.miss(self.desk, error)
        except BaseException:  # of a signal, say: nobody will ever know what was given under this name
            fleet.rename()
            raise

    async def asettle(self) -> None:
        """Ask as a task."""
        fleet, form = self.desk.fleet, self.form
        exchange = fleet.exchange
        try:
            link = exchange.linked(form.key) or await exchange.connected(form.key)
            if link is None:
                return
            words = self._words()
            reply = await self.heard(link.ask(words, self))
            if type(reply) is not list:
                reply = await exchange.aask(form, words, reply, self)
            self._took(reply)
        except Away as error:
            fleet.miss(self.desk, error)

    async def heard(self, answer: asyncio.Future[Any]) -> Any:
        """What comes with *answer*; what is there already when the task is cancelled counts as forsaken."""
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled():
                self.forsaken(answer.exception() or answer.result())
            raise

    @property
    def passes(self) -> bool:
        """Whether it was answered with a plain yes."""
        return self.held is not None and not self.held.wait

    def abandon(self) -> None:
        """Nobody wants the answer any more."""
        self._gone = True
        if self.held is not None:
            held, self.held = self.held, None
            self.desk.give_back(held)

    def forsaken(self, reply: Any) -> None:
        """Take the answer to a task that was cancelled."""
        self._gone = True
        try:
            self._took(reply)
        except Away:  # nothing was given; but what was given back along with the question was not taken
            self.desk.fleet.rename()

    def _words(self) -> bytes:
        return self.desk.words(self.form, self.asked)

    def _took(self, reply: Any) -> None:
        if reply is None:  # no connection was free in time
            return
        self.held = self.desk.answered(reply, self.form, self.asked[0])
        self.reply = reply
        if self._gone:
            self.abandon()
