"""At most one thread: started when it is needed, gone when it is not.

A mark says that the thread exists; its value says which `start` set it. The mark is set by one operation, and checked
without a call, since an interrupt can come at any call. So no interrupt leaves a mark without a thread, with which no
thread would ever be started again.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

_THREAD = "thread"
_NOBODY: dict[str, object] = {_THREAD: None}


class Solo:
    """A thread called *name* that does *work*, repeatedly while it is *needed*; *there* is empty if there is none."""

    __slots__ = ("there", "_name", "_needed", "_thread", "_work")

    def __init__(self, name: str, work: Callable[[], object], needed: Callable[[], bool]) -> None:
        self.there: dict[str, object] = {}
        self._name = name
        self._needed = needed
        self._thread: threading.Thread | None = None  # the last one that was made
        self._work = work

    def start(self) -> None:
        """Start the thread, unless there is one; a `RuntimeError` if there can be none. Takes no lock of ours."""
        if sys.is_finalizing():  # a thread would not run, and Python 3.11 would wait for it
            raise RuntimeError("the interpreter ends: no thread can be started")
        me = object()
        try:
            if self.there.setdefault(_THREAD, me) is not me:
                return
            thread = threading.Thread(target=self._run, args=(me,), name=self._name, daemon=True)
            self._thread = thread  # before it runs, so that a thread that closes meanwhile can join it
            thread.start()
        except BaseException:
            if (_NOBODY | self.there)[_THREAD] is me:
                self.there.pop(_THREAD, None)
            raise

    def join(self, patience: float) -> None:
        """Wait until the thread has ended, if it runs, at most *patience* seconds; that thread itself does not wait."""
        thread = self._thread
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join(patience)

    def _run(self, me: object) -> None:
        # Otherwise the thread that started this one was interrupted, and another one took its place.
        while self.there.setdefault(_THREAD, me) is me:
            try:
                self._work()
            finally:
                if (_NOBODY | self.there)[_THREAD] is me:
                    self.there.pop(_THREAD, None)
            # Asked after the mark is gone: a thread that needs this one says so first, and then looks for the mark.
            if not self._needed():
                return
