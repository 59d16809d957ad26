"""The thread that keeps a process in touch with its fleet: receives changes of circuits, reports outcomes, renews
leases, opens connections ahead of time, and tries to reach a Redis that is away.

No call waits for this thread, except briefly (the address's `?wait=`) for a connection that it opens.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.clock import SystemClock
from holdfast.errors import in_words
from holdfast.fleet.link import PATIENCE, Away, Link, packed
from holdfast.fleet.script import RESET, TRY, Answer, Form, Outcome, Shared, answer, change, checked, load
from holdfast.guards.breaking import BreakerConfig
from holdfast.solo import Solo

if TYPE_CHECKING:
    from holdfast.fleet.desk import Desk
    from holdfast.fleet.fleet import Fleet
    from holdfast.fleet.pool import Pool

GATHER = 0.002  # seconds in which outcomes are collected before they are sent together
PERIOD = 1.0  # seconds between two PINGs on the subscribed connection
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0  # seconds between two tries to reach a Redis that is away
STABLE = 5.0  # seconds a connection must have lasted before the next tries start from FIRST_PAUSE again

_PING = packed(("PING",))
_log = logging.getLogger("holdfast")


class Service:
    """The thread of one fleet; started when first needed, ended by `close`."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.settled = threading.Event()  # the first try to connect is over
        self._solo = Solo("holdfast-fleet", self._serve, self._is_needed)
        self._closing = threading.Event()
        self._rung = False
        self._is_puzzled = False  # an unreadable message was received, and that was logged
        self._is_crowded = False  # there were too few connections, and that was logged
        self._renewed = 0.0
        self._woken, self._waker = os.pipe()  # stays open while this object lives: a thread may ring late
        os.set_blocking(self._woken, False)
        os.set_blocking(self._waker, False)
        weakref.finalize(self, _close, self._woken, self._waker).atexit = False

    def ring(self) -> None:
        """Wake the thread, or start it, because there is something to do. Never blocks."""
        if self._rung and self._solo.there:  # without a thread, the last ring failed to start one or was interrupted
            return
        self._rung = True
        if not self._solo.there:
            self._start()
        self._wake()

    def _wake(self) -> None:
        try:
            os.write(self._waker, b"\0")
        except BlockingIOError:  # the pipe is full of rings that the thread has not read yet
            return

    def _start(self) -> None:
        self._closing.clear()
        try:
            self._solo.start()
        except RuntimeError as error:  # no more threads can be started, or the interpreter is shutting down
            self._fleet.lose(Away(in_words(error)))
            self.settled.set()

    def close(self) -> None:
        """Send pending news, and end the thread."""
        if self._solo.there:
            self._closing.set()
            self._wake()  # not `ring`, which would start another thread if this one has just ended
            self._solo.join(PATIENCE)

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        pause = FIRST_PAUSE
        try:
            while not self._closing.is_set():
                begun = SystemClock.monotonic()
                try:
                    self._attend()
                except Away as error:
                    self._fleet.lose(error)
                except Exception as error:
                    _log.exception("the shared guards cannot be kept in touch with")
                    self._fleet.lose(Away(in_words(error)))
                self.settled.set()
                if SystemClock.monotonic() - begun > STABLE:
                    pause = FIRST_PAUSE
                self._closing.wait(pause)  # a ring does not end it: every thread that loses Redis rings
                pause = min(pause * 2, LONGEST_PAUSE)
        finally:
            self._closing.clear()
            self._rung = False  # a caller that rings from now on may still find this thread running: see `_is_needed`

    def _is_needed(self) -> bool:
        """True if there was a ring while the thread was about to end, and no `close` since."""
        rung, self._rung = self._rung, False
        return rung and not self._closing.is_set()

    def _attend(self) -> None:
        """Connect, then serve until the connection is lost or the thread is to end."""
        fleet, connections = self._fleet, self._fleet.connections
        fleet.given_up.wait(PATIENCE)  # otherwise `Fleet.lose` might still close the connections made below
        node = connections.topology.find_server()
        ear = connections.open_link(node)
        try:
            _do(ear, load(fleet.script))
            ear.bound = fleet.address.wait  # a Redis that is too slow for calls does not count as back
            ear.ask(_PING)
            ear.bound = PATIENCE
            self._try(ear)
            self._renewed = 0.0
            _do(ear, packed(("SUBSCRIBE", fleet.channel)))
            connections.pool(node)
            self._stock()
            for desk in fleet.desks():
                if desk.has_news:  # from before, when Redis was away
                    fleet.dirty(desk)
            fleet.found()
            self.settled.set()
            self._listen(ear)
        finally:
            ear.close()

    def _try(self, ear: Link) -> None:
        """Raise `Away` unless Redis also writes, runs the script and publishes, as calls need it to."""
        fleet = self._fleet
        key = f"{fleet.address.prefix}:tried{{once}}".encode()
        shared = Shared(BreakerConfig(), None, None)
        form = Form(fleet.script, key, f"{fleet.channel}:tried", fleet.holder, fleet.lease, shared)
        words = form.telling([Outcome(fleet.holder, says=RESET)])
        for reply in _do(ear, words, form.in_full(words)):
            if not isinstance(reply, Exception):
                checked(reply)

    def _listen(self, ear: Link) -> None:
        fleet, clock = self._fleet, SystemClock
        heard = asked = clock.monotonic()
        while not self._closing.is_set():
            if self._wait(ear, PERIOD):
                self._hear(ear)
                heard = clock.monotonic()
            if not fleet.is_available:
                return
            now = clock.monotonic()
            if now - asked >= PERIOD:
                if heard < asked:
                    raise Away(f"{ear.node.shown}: did not answer in time")
                asked = now
                ear.send(_PING)
                for pool in list(fleet.connections.pools.values()):
                    pool.sweep()
                self._look_again()
                self._warn()
            self._stock()
            self._tell()
            self._look_closer(ear)
            if now - self._renewed >= fleet.lease / 3:
                self._renewed = now
                self._renew()
        self._tell()

    def _wait(self, ear: Link, seconds: float) -> bool:
        """Wait for a ring or for data on *ear*; True if *ear* has data."""
        watched = select.poll()
        watched.register(self._woken, select.POLLIN)
        watched.register(ear.socket, select.POLLIN)
        ready = [fd for fd, _ in watched.poll(seconds * 1000)]
        if self._woken in ready:
            os.read(self._woken, 4096)
            if not self._closing.is_set():
                SystemClock.sleep(GATHER)
        self._rung = False  # even without a ring: a thread may be interrupted after setting it, before it has rung
        return len(ready) > (self._woken in ready)

    def _hear(self, ear: Link) -> None:
        """Handle what was published; the read does not wait, as there is data."""
        for message in ear.ready():
            match message:
                case [b"message", _, bytes(said)]:
                    self._follow(said)

    def _follow(self, said: bytes) -> None:
        try:
            key, generation, seen = change(said)
        except Away as error:
            if not self._is_puzzled:
                _log.warning(
                    "%s: another program uses the channel %s: %s", self._fleet.address.shown, self._fleet.channel, error
                )
            self._is_puzzled = True
            return
        if (desk := self._fleet.find(key)) is not None:
            desk.turn(generation, seen)

    def _stock(self) -> None:
        """Open the connections that pools lack."""
        for pool in list(self._fleet.connections.pools.values()):
            for _ in range(pool.lacks):
                self._add_to(pool)

    def _add_to(self, pool: Pool) -> None:
        """Add a connection to *pool*. If that fails and no other connection leads to its node, that is away."""
        fleet = self._fleet
        if SystemClock.monotonic() < pool.full_until:
            return
        try:
            link = fleet.connections.open_link(pool.node)
        except Away as error:
            if not fleet.connections.is_linked(pool):
                if fleet.address.kind != "cluster":
                    raise
                pool.trouble = error
            pool.full_until = SystemClock.monotonic() + PERIOD
            return
        link.bound = fleet.address.wait
        pool.add(link)

    def _warn(self) -> None:
        fleet = self._fleet
        if fleet.connections.crowded and not self._is_crowded:
            _log.warning(
                "%s: no connection was free within %g s for %d calls, which were decided here alone; a longer ?wait= "
                "or fewer threads would help",
                fleet.address.shown, fleet.address.wait, fleet.connections.crowded,
            )  # fmt: skip
            self._is_crowded = True

    # -- tools that are missing ----------------------------------------------------------------------------------------

    def _look_closer(self, ear: Link) -> None:
        """Find out whether Redis as a whole does not serve the doubted desks; raise `Away` then."""
        fleet = self._fleet
        doubted = list(fleet.doubted)
        if doubted:
            link = fleet.connections.open_link(ear.node)  # *ear* is subscribed, so it cannot run the script
            try:
                self._try(link)
            finally:
                link.close()
        for desk in doubted:
            fleet.confirm(desk)

    def _look_again(self) -> None:
        """Ask again for unplaced keys and missing desks; a cluster may have replaced a node that is gone."""
        fleet, connections = self._fleet, self._fleet.connections
        if connections.unplaced:
            connections.unplaced = False
            with suppress(Away):  # other keys may be answered all the same
                connections.topology.find_server()
        if fleet.missing and fleet.address.kind == "cluster":
            connections.topology.find_server()
            connections.forget_troubled()
        for desk in list(fleet.missing):
            form = desk.form(desk.shared)
            if self._say(desk, form, partial(form.telling, renew=TRY)) is not None:
                fleet.regain(desk)
                self._renewed = 0.0

    # -- telling -------------------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        """Send the news that desks have gathered and no question has taken along."""
        fleet = self._fleet
        for desk in fleet.marked():
            form = desk.form(desk.shared)
            if desk.is_available and desk.has_news and self._say(desk, form, partial(desk.news, form)) is None:
                fleet.dirty(desk)  # no connection was free

    def _renew(self) -> None:
        """Renew the leases of the slots that this process holds."""
        fleet = self._fleet
        fleet.connections.forget_closed_loops()
        for desk in fleet.desks():
            for holder, slots in desk.holding().items():
                is_old, form = holder != fleet.holder, desk.form_of(desk.shared, holder)
                told = self._say(desk, form, partial(desk.sign_of_life, form)) if desk.is_available else None
                if told is not None and is_old:
                    desk.settled(holder)
                elif told is not None and told.taken < slots:
                    # Redis has forgotten slots, or calls gave some back meanwhile. Once no call asks under this name,
                    # its number can be set exactly: see `Desk.sign_of_life`.
                    fleet.rename()
                    self._renewed = 0.0

    def _say(self, desk: Desk, form: Form, compose: Callable[[list[Outcome]], bytes]) -> Answer | None:
        """Send what *compose* encodes for *desk*, adding the outcomes that go along; None if there was no answer."""
        fleet, connections = self._fleet, self._fleet.connections
        if (node := connections.topology.peek(form.key)) is not None and not connections.pool(node).size:
            self._stock()  # otherwise this thread would wait for itself to open a connection
        told: list[Outcome] = []
        try:
            reply = connections.ask(form, partial(compose, told))
            said = None if reply is None else answer(checked(reply))
        except Away as error:
            fleet.miss(desk, error, renames=bool(told))
            desk.take_back(told)
            return None
        if said is not None:
            desk.see(said)
        return said


def _do(ear: Link, *commands: bytes) -> list[Any]:
    """Run *commands* and return the replies; an error among them says that a cluster has moved, or moves, the key."""
    replies = ear.ask_all(commands)
    for reply in replies:
        if isinstance(reply, Exception) and not str(reply).startswith(("MOVED", "ASK", "TRYAGAIN")):
            raise Away(f"{ear.node.shown}: {reply}")
    return replies


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)
