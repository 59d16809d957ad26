"""The publisher: shows a process's circuits, limits and statistics to others on its store, and does what they order.

A thread runs while calls are made, and ends when there were none for a second; so an idle process costs nothing. Orders
that it missed are carried out before the next call is made. `display` is what it shows, made of `pictures`; `orders`
are what it does. Nothing here may disturb a call: a store that fails is logged, once, and one that is silent is not
waited for.
"""

from __future__ import annotations

import math
import queue
from contextlib import suppress

from holdfast.checks import shown
from holdfast.clock import SystemClock
from holdfast.errors import ConfigError, printable
from holdfast.parts.breaker import CircuitDiagnostics
from holdfast.publishing import display
from holdfast.publishing.complaint import Complaint
from holdfast.publishing.display import Display, Servers
from holdfast.publishing.orders import Orders
from holdfast.solo import Solo
from holdfast.stores import RunStore
from holdfast.stores.entries import LONGEST_NAME, ToolEntry
from holdfast.stores.neighbours import News
from holdfast.tools.kit import Kit
from holdfast.tools.toolbox import Toolbox

__all__ = ["Publisher", "Servers"]

GAP = 0.02  # seconds between two writes, at least, however many circuits change
PATIENCE = 5.0  # seconds that closing waits for the thread


class Publisher:
    """Shows the tools in *box* on the board of *store*; does nothing before it is told to `begin`."""

    def __init__(self, store: RunStore, kit: Kit, box: Toolbox) -> None:
        self._store = store
        self._kit = kit
        self._box = box
        self._ownership = store.ownership
        self._begun = self._stays = False
        self._default_callbacks = (kit.before_call, kit.after_call)
        self._complain = Complaint("the state of tools")
        self._display = Display(store, kit, box, self._complain)
        self._orders = Orders(store, kit.breaker, self.show_now, self._complain)
        self._reset()

    # -- for Holdfast --------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Show the tools from their next call on; a store in memory, which only this process has, is left alone."""
        if not self._begun and self._store.file.path is not None:
            self._attach()

    def stay(self, kind: str, name: str | None, servers: Servers | None) -> None:
        """Show everything at once, as *kind* and *name*, and be there for orders until the process ends."""
        if not isinstance(kind, str) or not isinstance(name, str | None):
            raise ConfigError(f"kind = {shown(kind)}, name = {shown(name)}: must be texts")
        if servers is not None and not callable(servers):
            raise ConfigError(f"servers = {shown(servers)}: must be callable, and give a mapping for each server")
        self._display.kind = printable(kind, LONGEST_NAME)
        if name is not None:
            self._display.name = printable(name, LONGEST_NAME)
        self._display.servers = servers
        self._stays = True
        self._attach()
        self.show_now()

    def show_now(self, *tools: str) -> None:
        """Show now that something has changed, in these *tools* or in the process. Never blocks, in any thread."""
        if not self._begun:
            return
        self._marked.update(dict.fromkeys(tools))
        self._urgent = True
        self._start()
        self._ring()

    def fleet_changed(self) -> None:
        """Show now that what guards the tools has changed: the fleet, or this process alone."""
        self.show_now(*self._box.names())

    def entries(self) -> list[ToolEntry]:
        """Return what there is to show, whether it is shown or not."""
        circuits = (circuit.tool for circuit in self._kit.breaker.snapshot().diagnostics)
        names = dict.fromkeys([*self._box.names(), *self._kit.tracker.tools(), *circuits])
        found = (self._display.pictures.entry(name, is_known=False) for name in names)
        return [entry for entry in found if entry is not None]

    def changed(self, tool: str, before: str, after: str, seen: CircuitDiagnostics) -> None:
        """Remember that the circuit of *tool* has changed, and show it now. Never blocks."""
        self._display.pictures.remember(tool, before, after, seen)
        self.show_now(tool)

    def close(self) -> None:
        """Show nothing more until the next run begins."""
        if not self._begun:
            return
        self._kit.before_call, self._kit.after_call = self._default_callbacks
        self._ownership.on_order = None
        # Last: a `begin` in another thread meanwhile would be undone by the lines above, and still count as begun.
        self._begun = self._stays = False
        self._ring()
        self._solo.join(PATIENCE)
        self._looked = False
        self._display.forget()

    def after_fork(self) -> None:
        """Reset in a forked child: the thread, and what is shown, are the parent's."""
        self._reset()
        self._complain.over()
        self._orders.after_fork()
        self._display.after_fork()
        if self._begun:
            # The first call here must be reported, though the parent has reported some.
            self._box.make_periodic_work_due()

    # -- called by tools -----------------------------------------------------------------------------------------------

    def before_call(self, tool: str, now: float) -> float:
        """A call of *tool* is about to be made: carry out orders that came while no thread was here; return until when
        further calls of the tool need no report.
        """
        if not self._looked or (not self._solo.there and self._orders.are_announced()):
            self._looked = True
            self._orders.look_soon()
        self.after_call(tool)
        return now + display.PERIOD

    def after_call(self, tool: str) -> None:
        """Note that a call of *tool* has ended. Never blocks, since the garbage collector may end a call."""
        self._marked[tool] = None
        self._start()
        if self._dozing:  # set before the thread looks for marks: none is overlooked
            self._ring()

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _reset(self) -> None:
        self._solo = Solo("holdfast-publisher", self._serve, self._is_needed)
        self._mailbox: News | None = None  # what the thread waits for
        self._marked: dict[str, None] = {}  # tools that may have news; a single operation marks one
        self._urgent = False  # the marked tools must not wait until the next look
        self._dozing = False  # the thread waits without a time limit
        self._looked = False  # orders were looked for since publishing began

    def _attach(self) -> None:
        self._begun = True
        self._kit.before_call, self._kit.after_call = self.before_call, self.after_call
        self._ownership.on_order = self._orders.look
        self._box.make_periodic_work_due()

    def _start(self) -> None:
        """Start the thread unless it runs. Never blocks, since the garbage collector may end a stream."""
        if not self._begun or self._solo.there:
            return
        try:
            self._solo.start()
        except RuntimeError as error:  # no more threads, or the interpreter ends
            self._complain(error)

    def _ring(self) -> None:
        if (mailbox := self._mailbox) is not None:  # otherwise the thread looks before it waits
            mailbox.wake()

    def _is_needed(self) -> bool:
        return self._begun and bool(self._marked or self._urgent)

    def _serve(self) -> None:
        try:
            if self._begun:  # otherwise it was closed before this thread ran, and no thread waits for it
                self._attend()
        except Exception as error:
            self._complain(error)
            self._marked.clear()  # the next call tries again
            self._urgent = False

    def _attend(self) -> None:
        """Show what changes until nothing does; carry out orders as they come."""
        self._display.arrive()
        self._mailbox = mailbox = self._ownership.mailbox() or Ring()
        try:
            self._looked = True
            self._orders.look()
            while self._begun:
                pause = self._publish()
                if not self._display.recent and not self._is_needed() and not self._stays:
                    return
                SystemClock.sleep(GAP)  # real time, whatever clock the calls use
                self._wait(mailbox, pause)
            self._display.publish(self._marked, self._orders.seen, is_last=True)
        finally:
            self._mailbox = None
            mailbox.close()

    def _publish(self) -> float | None:
        """Show what is new; return the seconds until the next look if nothing happens, None if it needs none."""
        self._urgent = False
        begun, stood = SystemClock.monotonic(), self._display.stands
        is_all = self._display.publish(self._marked, self._orders.seen)
        if self._display.stands and not stood:
            self._orders.look()  # an order given before this process stood on the board was not announced to it
        if not is_all:
            return min(SystemClock.monotonic() - begun, display.PERIOD)  # so that calls can be made meanwhile
        if self._display.recent:
            return display.PERIOD
        return None if self._ownership.is_locked else self._store.lease / 3  # to give a sign of life

    def _wait(self, mailbox: News, seconds: float | None) -> None:
        """Wait for a ring, an order or the time; return at once if there is something to do already."""
        self._dozing = seconds is None  # set before it looks for marks, as `after_call` relies on
        try:
            if self._urgent or not self._begun or (self._dozing and self._marked):
                return
            end = math.inf if seconds is None else SystemClock.monotonic() + seconds
            while mailbox.wait(None if seconds is None else max(0.0, end - SystemClock.monotonic())):
                if self._orders.are_announced():
                    self._orders.look()
                    return
                if SystemClock.monotonic() >= end:
                    return
        finally:
            self._dozing = False


class Ring:
    """Stands in for a mailbox if no other process can reach this one: only this process wakes it."""

    closed = False

    def __init__(self) -> None:
        self._rings: queue.SimpleQueue[None] = queue.SimpleQueue()

    def wait(self, timeout: float | None) -> bool:
        with suppress(queue.Empty):
            self._rings.get(timeout=timeout)
        return False

    def wake(self) -> None:
        if self._rings.empty():
            self._rings.put(None)

    def close(self) -> None:
        pass
