"""One thread at most: started when it is needed, gone when it is not.

Whether there is one is a mark that carries who made it, set by one operation and taken where nothing is called: only
there no interrupt can come. So none leaves a mark without a thread: nobody would ever start another.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

_THREAD = "thread"
_NOBODY: dict[str, object] = {_THREAD: None}


class Solo:
    """A thread called *name* that does *work*, and again while it is *needed*; *there* is empty while there is none."""

    __slots__ = ("there", "_name", "_needed", "_thread", "_work")

    def __init__(self, name: str, work: Callable[[], object], needed: Callable[[], bool]) -> None:
        self.there: dict[str, object] = {}
        self._name = name
        self._needed = needed
        self._thread: threading.Thread | None = None  # the last that was made
        self._work = work

    def start(self) -> None:
        """Start it, unless there is one; a `RuntimeError` where there can be no more threads. Takes no lock of ours."""
        if sys.is_finalizing():  # a thread would not run, and Python 3.11 would wait for it
            raise RuntimeError("the interpreter ends: no thread can be started")
        me = object()
        try:
            if self.there.setdefault(_THREAD, me) is not me:
                return
            thread = threading.Thread(target=self._run, args=(me,), name=self._name, daemon=True)
            self._thread = thread  # before it runs: who closes meanwhile waits for it
            thread.start()
        except BaseException:
            if (_NOBODY | self.there)[_THREAD] is me:
                self.there.pop(_THREAD, None)
            raise

    def join(self, patience: float) -> None:
        """Wait until it has ended, if its work has begun; *patience* seconds at most, and not as that thread."""
        thread = self._thread
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join(patience)

    def _run(self, me: object) -> None:
        while self.there.setdefault(_THREAD, me) is me:  # else who started it was interrupted, and another has come
            try:
                self._work()
            finally:
                if (_NOBODY | self.there)[_THREAD] is me:
                    self.there.pop(_THREAD, None)
            if not self._needed():  # looked at after the mark is gone: who needs it looks at the mark after that
                return
