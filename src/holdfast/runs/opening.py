"""What a run reads from its store when it is entered: its prompt before it begins, and what it recalls afterwards.

Only a run that is resumed reads anything. A task has it read in a thread: a server may be silent for long, and other
tasks must go on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from holdfast import events
from holdfast.history import RunHeader
from holdfast.loops import beside
from holdfast.runs.beginning import Begun, Resume, Start
from holdfast.runs.home import Plan
from holdfast.runs.log import Log
from holdfast.stores.searching import header_of
from holdfast.stores.store import Memory

T = TypeVar("T")


def opening(log: Log, plan: Plan, header: RunHeader) -> Start | Resume:
    """The write that begins a run, anew with *header* or resumed."""
    store, resumed, claim = log.store, plan.resumed, plan.claim
    known = header if resumed is None or claim is not None else header_of(store, resumed)
    prompt = {} if known is None else log.given(events.RUN_STARTED, {"prompt": known.prompt})
    if resumed is None:
        return Start(header, prompt, store.ownership.row, [])
    return Resume(resumed, store.ownership.row, [], claim, prompt, plan.forks)


def recalled(log: Log, plan: Plan, begun: Begun) -> Memory | None:
    """What the store knows of the calls of a run that is resumed."""
    return None if plan.resumed is None else log.store.memory(begun.header.id)


async def aread(log: Log, plan: Plan, read: Callable[[], T]) -> T:
    """What *read* returns, which is one of the above."""
    return read() if plan.resumed is None or log.store.file.path is None else await beside(read)
