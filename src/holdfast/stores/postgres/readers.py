"""The connections that a store on PostgreSQL reads with: a few, kept for the next time, made anew when they fail."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from holdfast.stores.postgres.link import Broken, Link, ServerError, Silent
from holdfast.stores.postgres.trouble import is_gone

MOST = 4  # at a time

T = TypeVar("T")


class Readers:
    """Made by *connect* when they are needed."""

    def __init__(self, connect: Callable[[], Link]) -> None:
        self._connect = connect
        self._closings = 0  # what was lent before the last one is not kept
        self._abandoned: list[Link] = []
        self._reset()

    def _reset(self) -> None:
        self.idle: list[Link] = []
        self._lock = threading.Lock()  # guards the list alone
        self._free = threading.BoundedSemaphore(MOST)

    def use(self, fn: Callable[[Link], T]) -> T:
        """What *fn* gives on one of them; on another if that was gone, but not if it is only silent."""
        try:
            return self._use(fn)
        except (ServerError, Broken) as error:
            if error.link is None or isinstance(error, Silent) or not is_gone(error):
                raise
        self.close()  # it may have been gone for long, and with it the others
        return self._use(fn)

    def close(self) -> None:
        """Close them all; one that is in use as soon as it is not."""
        with self._lock:
            self._closings += 1
            links, self.idle = self.idle, []
        for link in links:
            link.close()

    def hold(self, patience: float) -> bool:
        """Let no other thread have the list in hand."""
        return self._lock.acquire(timeout=patience)

    def let_go(self) -> None:
        """Go on."""
        self._lock.release()

    def after_fork(self) -> None:
        """In a forked child: they are the parent's."""
        for link in self.idle:
            link.abandon()
        self._abandoned += self.idle  # kept, so that nothing finalizes them
        self._reset()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _use(self, fn: Callable[[Link], T]) -> T:
        closings, link = self._closings, self._take()
        try:
            return fn(link)
        except BaseException as error:
            if not isinstance(error, ServerError) or is_gone(error):
                link.close()  # gone, or cut short with answers on their way
            raise
        finally:
            self._put_back(link, closings)

    def _take(self) -> Link:
        self._free.acquire()
        try:
            with self._lock:
                if self.idle:
                    return self.idle.pop()
            return self._connect()
        except BaseException:
            self._free.release()
            raise

    def _put_back(self, link: Link, closings: int) -> None:
        with self._lock:
            is_kept = closings == self._closings and not link.is_broken
            if is_kept:
                self.idle.append(link)
        if not is_kept:
            link.close()
        self._free.release()
