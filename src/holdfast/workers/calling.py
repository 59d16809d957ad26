"""How a worker calls the function of a run it has taken: plain functions in threads, coroutine functions in the lane.

An error of the function concerns only its run: it is recorded there, and the worker goes on.
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
    """One run that a worker has in hand."""

    __slots__ = ("cancel", "is_left", "is_stopped", "run", "taken")

    def __init__(self, home: Home, taken: Taken, *, repeats: bool) -> None:
        header = taken.header
        self.taken = taken
        self.cancel: Callable[[], object] | None = None  # interrupts the run's task; None if it has none
        self.is_stopped = False  # the worker stops, and interrupts the run's task if it has one
        self.is_left = False  # the run was left to other workers, though its function may still run
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
        """Interrupt the run's task, if it has one."""
        self.is_stopped = True
        if self.cancel is not None:
            self.cancel()

    def leave(self) -> None:
        """Leave the run to other workers: what its function still asks for is refused."""
        self.is_left = True
        self.run.log.lost = LeaseLost(self.run.id)

    @property
    def target(self) -> str:
        """The name of the function to call."""
        return str((self.taken.header.entry or {}).get("target"))

    @property
    def args(self) -> tuple[Any, ...]:
        """The arguments to call it with."""
        return tuple((self.taken.header.entry or {}).get("args", ()))


def begin(home: Home, lane: Lane, slot: Slot, done: Done) -> None:
    """Call the function of *slot* in its run, in another thread; *done* is called in a thread when it has ended."""

    def call() -> None:
        error: BaseException | None = None
        try:
            function = _function(slot.target)
            if shape_of(function) is Shape.COROUTINE:
                slot.cancel = lane.begin(lambda: _acall(home, slot, function, done))
                if slot.is_stopped:  # `stop` may have come when there was no task to interrupt yet
                    slot.cancel()
                return
            call_inside(slot.run, lambda *args: _plainly(slot, function, args), slot.args)
        except BaseException as raised:  # the worker's own thread: nothing above would handle it
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
    except BaseException as raised:  # the worker's own loop, which other runs share
        error = raised
    try:
        Job(home.workers, home.clock, lambda: done(slot, error)).start()
    except RuntimeError:  # no thread can be started
        done(slot, error)


def _plainly(slot: Slot, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    try:
        return function(*args)
    except BaseException as raised:
        if _is_final(raised, slot):
            slot.run.fail(raised)
        raise


def _is_final(error: BaseException, slot: Slot) -> bool:
    """True if an error that would leave the run interrupted must end it: there is no user here to decide a call in
    doubt, the function must not end the worker's process, and a cancellation that the worker did not make is the
    function's own.
    """
    if slot.run.cancelled.is_set():
        return False
    kinds = FINAL if slot.is_stopped else (*FINAL, asyncio.CancelledError)
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(kinds) is not None
    return isinstance(error, kinds)


def _function(target: str) -> Callable[..., Any]:
    """Return the function that *target* names, or one that raises, inside the run, why it cannot be called."""
    try:
        found = load_target(target)
        shape = shape_of(found)
    except BaseException as error:  # the module may raise anything when it is imported
        return _raising(error)
    if shape in (Shape.GENERATOR, Shape.ASYNC_GENERATOR):
        return _raising(ConfigError(f"{target} is {shape.value}: wrap it in a function that uses it up"))
    return found


def _raising(error: BaseException) -> Callable[..., NoReturn]:
    def fail(*_: object) -> NoReturn:
        raise ConfigError(f"the worker cannot call this function: {in_words(error)}") from error

    return fail
