"""Standard output kept for JSON, while code that is not ours is loaded and called: it prints what and when it likes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import IO

OUT, ERR = 1, 2  # descriptors, which processes that are started inherit


@contextmanager
def json_alone(wanted: bool) -> Iterator[IO[str] | None]:
    """Where our JSON goes and nothing else does, if it is *wanted*: whatever else is printed is on stderr then."""
    if not wanted:
        yield None
        return
    before = sys.stdout
    before.flush()
    kept = os.dup(OUT)
    os.dup2(ERR, OUT)
    if _is_own(before):
        # Never put back: threads and exit handlers of the user's may print when we have said all.
        sys.stdout = sys.stderr
        with open(kept, "w", encoding=before.encoding, errors=before.errors) as out:
            yield out
        return
    try:
        with redirect_stdout(sys.stderr):
            yield before
    finally:
        os.dup2(kept, OUT)
        os.close(kept)


def _is_own(stream: IO[str]) -> bool:
    """Whether it is the process's own and not a stand-in, such as a test has."""
    try:
        return stream.fileno() == OUT
    except OSError:
        return False
