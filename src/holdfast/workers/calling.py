"""How a worker calls the function of a run it has taken: plain functions in threads, coroutine functions in the lane.

Whatever the function raises is the run's own affair: it is recorded there, and the worker goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

from holdfast.errors import ConfigError, InDoubt, LeaseLost, in_words
from holdfast.runs import Home, Plan, Run
from holdfast.runs.recovery import acall_inside, call_inside, load_target
from holdfast.shape import Shape, shape_of
from holdfast.stores.queue import Taken
from holdfast.waiting.threads import Job
from holdfast.workers.lane import Lane

FINAL = (InDoubt, SystemExit, KeyboardInterrupt, GeneratorExit)
Done = Callable[["Slot", BaseException | None], object]


class Slot:
    """One run in hand."""

    __slots__ = ("cancel", "is_left", "is_stopped", "run", "taken")

    def __init__(self, home: Home, taken: Taken, *, repeats: bool) -> None:
        header = taken.header
        self.taken = taken
        self.cancel: Callable[[], object] | None = None  # interrupts its task, if it is one
        self.is_stopped = False  # its task is interrupted, if it is one: the time of its worker is over
        self.is_left = False  # it was given to others, though its function may still run
        self.run = Run(
            home,
            Plan(
                header.session_id,
                header.prompt,
                resumed=header.id,
                repeats=repeats,
                claim=taken.claim,
                is_new=taken.is_new,
            ),
        )

    def stop(self) -> None:
        """Interrupt its task, if it is one."""
        self.is_stopped = True
        if self.cancel is not None:
            self.cancel()

    def leave(self) -> None:
        """It is for others now: what its function still asks for is refused."""
        self.is_left = True
        self.run.log.lost = LeaseLost(self.run.id)

    @property
    def target(self) -> str:
        """The function that it calls."""
        return str((self.taken.header.entry or {}).get("target"))

    @property
    def args(self) -> tuple[Any, ...]:
        """What it calls it with."""
        return tuple((self.taken.header.entry or {}).get("args", ()))


def begin(home: Home, lane: Lane, slot: Slot, done: Done) -> None:
    """Call the function of *slot* in its run, elsewhere; *done* is called when it has ended, in a thread."""

    def call() -> None:
        error: BaseException | None = None
        try:
            function = _function(slot.target)
            if shape_of(function) is Shape.COROUTINE:
                slot.cancel = lane.begin(lambda: _acall(home, slot, function, done))
                return
            call_inside(slot.run, lambda *args: _plainly(slot, function, args), slot.args)
        except BaseException as raised:  # this thread is ours: nobody is above to hear of it
            error = raised
        done(slot, error)

    Job(home.workers, home.clock, call).start()


async def _acall(home: Home, slot: Slot, function: Callable[..., Any], done: Done) -> None:
    async def tried(*args: Any) -> Any:
        try:
            return await function(*args)
        except BaseException as raised:
            if _is_final(raised, slot):
                await slot.run.afail(raised)
            raise

    error: BaseException | None = None
    try:
        await acall_inside(slot.run, tried, slot.args)
    except BaseException as raised:  # the loop is ours, too, and others are in it
        error = raised
    try:
        Job(home.workers, home.clock, lambda: done(slot, error)).start()
    except RuntimeError:  # no thread is to be had
        done(slot, error)


def _plainly(slot: Slot, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    try:
        return function(*args)
    except BaseException as raised:
        if _is_final(raised, slot):
            slot.run.fail(raised)
        raise


def _is_final(error: BaseException, slot: Slot) -> bool:
    """Whether an error that would leave the run interrupted is its end: nobody is here to decide what is in doubt, the
    process is not the function's own to end, and a cancellation that is not of our making is its own, too.
    """
    if slot.run.cancelled.is_set():
        return False
    kinds = FINAL if slot.is_stopped else (*FINAL, asyncio.CancelledError)
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(kinds) is not None
    return isinstance(error, kinds)


def _function(target: str) -> Callable[..., Any]:
    """The function that *target* names, else one that says why it cannot be called, inside the run."""
    try:
        found = load_target(target)
        shape = shape_of(found)
    except BaseException as error:  # whatever the module does when it is imported
        return _raising(error)
    if shape in (Shape.GENERATOR, Shape.ASYNC_GENERATOR):
        return _raising(ConfigError(f"{target} is {shape.value}: wrap it in a function that uses it up"))
    return found


def _raising(error: BaseException) -> Callable[..., NoReturn]:
    def fail(*_: object) -> NoReturn:
        raise ConfigError(f"the worker cannot call this function: {in_words(error)}") from error

    return fail
