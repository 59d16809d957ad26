"""Reads the events of a run page by page, follows a run (past events, then new ones), and waits for any commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import TYPE_CHECKING

from holdfast import checks
from holdfast.errors import RunNotFound, StoreError
from holdfast.history import EventPage, RunEventRecord
from holdfast.stores.rows import event, standing
from holdfast.stores.searching import MOST_A_PAGE
from holdfast.stores.trouble import errors_of

if TYPE_CHECKING:
    from holdfast.stores.bell import Listener
    from holdfast.stores.store import RunStore

PAGE = 256


def page_of(store: RunStore, run_id: str, after: int, limit: int) -> tuple[EventPage, bool]:
    """The events of a run that follow *after*, at most *limit*, and whether the run had ended when they were read."""
    checks.text("run_id", run_id)
    checks.whole("after", after, least=-1)
    checks.whole("limit", limit, most=MOST_A_PAGE)
    rows = store.file.fetch("page_of", after, run_id, limit + 1)
    if not rows:
        raise RunNotFound(run_id)
    with errors_of(store.file):
        first, ended = standing(rows[0])
        found = tuple(event(row[2:]) for row in rows[:limit] if row[2] is not None)
    next_after = found[-1].sequence if found else max(after, first - 1)
    return EventPage(found, first, next_after, len(rows) > limit, after + 1 < first), ended


def follow(store: RunStore, run_id: str, after: int) -> Iterator[RunEventRecord]:
    """The events of a run after *after*, then new ones; wrong arguments raise here, not when an event is read."""
    page_of(store, run_id, after, 1)
    return _follow(store, run_id, after)


def _follow(store: RunStore, run_id: str, after: int) -> Iterator[RunEventRecord]:
    with store.listen() as listener:
        while not listener.closed:
            page, ended = page_of(store, run_id, after, PAGE)
            yield from page.events
            after = page.next_after
            if not page.has_more:
                if ended:
                    return
                listener.wait()


def afollow(store: RunStore, run_id: str, after: int) -> AsyncIterator[RunEventRecord]:
    """The same for a task: it suspends instead of blocking."""
    page_of(store, run_id, after, 1)
    return _afollow(store, run_id, after)


async def _afollow(store: RunStore, run_id: str, after: int) -> AsyncIterator[RunEventRecord]:
    with store.listen() as listener:
        while not listener.closed:
            if store.file.has_concurrent_writers:  # a server may take its time: not in the event loop
                page, ended = await asyncio.to_thread(page_of, store, run_id, after, PAGE)
            else:
                page, ended = page_of(store, run_id, after, PAGE)
            for each in page.events:
                yield each
            after = page.next_after
            if page.has_more:
                await asyncio.sleep(0)  # a long history must not block the event loop's other tasks
            elif ended:
                return
            else:
                await listener.await_()


async def changes(store: RunStore, period: float) -> AsyncGenerator[None]:
    """Yield when something was committed, and after *period* seconds without a commit, or if that cannot be told."""
    listener: Listener | None = None
    try:
        while True:
            try:
                listener = listener or store.listen()
            except StoreError:  # there is no folder to watch yet
                listener = None
            if listener is None or listener.closed:
                listener = None
                await store.clock.asleep(period)
            else:
                await listener.await_(period)
            yield
    finally:
        if listener is not None:
            listener.close()
