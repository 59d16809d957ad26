"""The lane: one event loop in a thread of its own, for all coroutine functions that a worker calls.

All share one loop, so that what a module opens once, such as the connections of a client, serves all its runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any

_log = logging.getLogger("holdfast")

STOPPED = "its worker was stopped"
LAST = 1.0  # seconds that tasks have to end when the lane is closed
GONE = 5.0  # seconds after which a blocked loop is left behind


class Lane:
    """An event loop that is started with the first coroutine, and ends when it is closed; then it starts no more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopped: set[asyncio.AbstractEventLoop] = set()
        self._tasks: set[asyncio.Task[None]] = set()  # held here: a loop itself may lose a task that only waits

    def begin(self, make: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], object]:
        """Run the coroutine that *make* makes, which must raise nothing; return a function that cancels it."""
        loop = self._started()
        tasks: list[asyncio.Task[None]] = []

        def make_task() -> None:
            task = loop.create_task(make())
            tasks.append(task)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        def cancel_task() -> None:
            tasks[0].cancel(STOPPED)

        def cancel() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and the task has ended with it
                loop.call_soon_threadsafe(cancel_task)  # runs after `make_task`

        loop.call_soon_threadsafe(make_task)
        return cancel

    def close(self) -> None:
        """Cancel the tasks that are left, and end the loop; a task that does not end is left behind."""
        with self._lock:
            self._closed = True
            loop, self._loop = self._loop, None
            thread, self._thread = self._thread, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(self._stop, loop)
            thread.join(GONE)

    def _stop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Stop the loop, from inside it: from now on no thread gives it work."""
        self._stopped.add(loop)
        loop.stop()

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._closed:
                raise RuntimeError("the worker's event loop is closed")
            if self._loop is None:
                loop = self._loop = asyncio.new_event_loop()
                thread = threading.Thread(target=self._serve, args=(loop,), name="holdfast-lane", daemon=True)
                try:
                    thread.start()
                except BaseException:
                    self._loop = None
                    loop.close()
                    raise
                self._thread = thread
            return self._loop

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            while loop not in self._stopped:
                try:
                    loop.run_forever()
                except (KeyboardInterrupt, SystemExit) as error:  # a task of the user's wanted to end the process
                    _log.warning("a task that a run left behind raised %r; the worker goes on", error)
            loop.run_until_complete(_leave())
        finally:
            asyncio.set_event_loop(None)
            self._stopped.discard(loop)
            loop.close()


async def _leave() -> None:
    """Cancel the tasks that are left in the loop, and wait a moment for them to end."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=LAST)
    await asyncio.get_running_loop().shutdown_asyncgens()
