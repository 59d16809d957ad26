"""All tools of a Holdfast, by name. Decorated tools stay; of the others, the least recently used are dropped."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping

from holdfast import checks, events
from holdfast.errors import ConfigError
from holdfast.shape import Shape
from holdfast.tools.kit import Kit
from holdfast.tools.tool import Tool

MOST_PASSING = 10_000  # tools without a decorator that are kept

_log = logging.getLogger("holdfast")


class Toolbox:
    """Gives out tools, and keeps their policies up to date."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self._lock = threading.Lock()
        self._kept: dict[str, Tool] = {}
        self._passing: OrderedDict[str, Tool] = OrderedDict()
        kit.refresh = self.refresh
        kit.drop = self.drop
        kit.bus.on_change = self.replan
        if kit.fleet is not None:
            kit.breaker.on_reset = self._know

    def keep(self, name: str, given: Mapping[str, object], shape: Shape) -> Tool:
        """Return the tool of a decorator with the settings *given* there; a later decorator of the same name wins."""
        checks.tool_name(name)
        self.refresh(self.kit.clock.monotonic())  # a tool that could not be made has no calls to notice a mended file
        if shape.is_stream and "cache" in given and self.kit.book.resolve(name, given).cache is not None:
            raise ConfigError(f"policy of {name!r}: cache: a stream cannot be cached, only a tool with one answer")
        with self._lock:
            tool = self.find(name)
            if tool is None:
                tool = Tool(self.kit, name, given)
            else:
                tool.take_up(given)
            self._passing.pop(name, None)
            self._kept[name] = tool
        return tool

    def tool(self, name: str, call: Mapping[str, object] | None = None) -> Tool:
        """Return the tool of that name; make it if necessary, unless the settings of the *call* are wrong."""
        tool = self._kept.get(name) if isinstance(name, str) else None
        if tool is not None:
            return tool
        checks.tool_name(name)
        if self.find(name) is None:
            self.refresh(self.kit.clock.monotonic())
        with self._lock:
            tool = self.find(name)
            if tool is None:
                if call:
                    self.kit.book.resolve(name, None, call)
                tool = Tool(self.kit, name, None)
                while len(self._passing) >= MOST_PASSING:
                    self._passing.popitem(last=False)
            if name not in self._kept:
                self._passing[name] = tool
                self._passing.move_to_end(name)
        return tool

    def drop(self, name: str) -> None:
        """Forget the tool of that name; calls that are under way still have it."""
        with self._lock:
            self._kept.pop(name, None)
            self._passing.pop(name, None)
            self.kit.bound.pop(name, None)

    def find(self, name: str) -> Tool | None:
        """Return the tool of that name, if it exists."""
        return self._kept.get(name) or self._passing.get(name)

    @property
    def size(self) -> int:
        """How many tools there are."""
        return len(self._kept) + len(self._passing)

    def names(self) -> list[str]:
        """The names of all tools, decorated ones first."""
        return [tool.name for tool in self._all()]

    def make_periodic_work_due(self) -> None:
        """Make the next call of each tool do the periodic work (see `Tool.do_periodic_work`)."""
        for tool in self._all():
            tool.make_periodic_work_due()

    def refresh(self, now: float) -> None:
        """Apply a changed policy file; a bad one is reported and leaves everything as it is."""
        book, bus = self.kit.book, self.kit.bus
        if now < book.next_check:
            return
        reload = book.refresh(now, known=self._given())
        if reload is None:
            return
        if reload.error is not None:
            self._reject(reload.path, reload.error)
            return
        for tool in self._all():
            try:
                tool.reload()
            except ConfigError as error:  # the tool was made after the file was checked with all others
                self._reject(reload.path, error)
        bus.emit(events.POLICY_RELOADED, file=reload.path)

    def _reject(self, path: str, error: ConfigError) -> None:
        """Report that a file is not applied: in an event and, if the bus has no sinks, in the log."""
        self.kit.bus.emit(events.POLICY_REJECTED, file=path, error=str(error))
        if not self.kit.bus.sinks:
            _log.warning("policies are not taken up: %s", error)

    def after_fork(self) -> None:
        """Reset in a forked child: threads, locks and calls in flight are the parent's."""
        self._lock = threading.Lock()
        self.kit.after_fork()
        for tool in self._all():
            tool.after_fork()

    def _know(self, name: str) -> None:
        """Make sure that the tool of that name exists, if the name is valid: its circuit may be open in the fleet."""
        if checks.is_name(name):
            self.tool(name)

    def _given(self) -> Iterator[tuple[str, Mapping[str, object] | None]]:
        """Yield each tool with its decorator's settings; lists the tools late, since some may come during a read."""
        for tool in self._all():
            yield tool.name, tool.given

    def _all(self) -> list[Tool]:
        with self._lock:
            return [*self._kept.values(), *self._passing.values()]

    def replan(self) -> None:
        """Make each tool work out the plan of its quick path again."""
        for tool in self._all():
            tool.replan()
