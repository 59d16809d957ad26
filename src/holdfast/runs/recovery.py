"""Recovers runs whose process has died: those with an entry point are called again, others failed or left alone."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec

from holdfast import events
from holdfast.checks import shown
from holdfast.errors import ConfigError, RunConflict, RunNotFound
from holdfast.history import RunStatus
from holdfast.runs import Run
from holdfast.shape import Shape, is_unawaited, name_of, shape_of
from holdfast.stores import RunStore
from holdfast.stores.ledger import Ledger
from holdfast.stores.rows import unpack_header
from holdfast.stores.searching import INTERRUPTED, Wanted, every
from holdfast.stores.trouble import errors_of

POLICIES: Final = ("fail", "resume", "leave")
TOGETHER: Final = 100  # runs that are ended in one write


class Recovered(NamedTuple):
    """The ids of the interrupted runs, by what became of them; *errors* has what a resumed one raised."""

    resumed: list[str]
    failed: list[str]
    left: list[str]
    errors: dict[str, BaseException]
    cancelled: list[str]  # a cancel had been requested before the owner died


def recover(store: RunStore, policy: str, resume: Callable[[str], Run]) -> Recovered:
    """Look after every interrupted run of *store*."""
    done = Recovered([], [], [], {}, [])
    found = [run.id for run in every(store, Wanted(INTERRUPTED))]
    if policy == "leave":
        done.left.extend(found)
        return done
    entries = {run_id: _entry(store, run_id) for run_id in found}
    for run_id, entry in entries.items():
        if entry is not None:
            with suppress(RunNotFound):  # retention has deleted it meanwhile
                _call_again(resume(run_id), entry, done)
    others = [run_id for run_id, entry in entries.items() if entry is None]
    lists = {RunStatus.FAILED: done.failed, RunStatus.CANCELLED: done.cancelled}
    for start in range(0, len(others), TOGETHER):
        for run_id, became in _end(store, others[start : start + TOGETHER], fails=policy == "fail").items():
            lists.get(became, done.left).append(run_id)
    return done


def _call_again(run: Run, entry: Mapping[str, Any], done: Recovered) -> None:
    try:
        call_entry(run, entry)
    except (Exception, asyncio.CancelledError, SystemExit) as error:  # `SystemExit`: a run must not end this process
        if run.log.claim is None and isinstance(error, RunNotFound):
            raise
        if run.log.claim is None and isinstance(error, RunConflict):  # another process has resumed it, or ended it
            done.left.append(run.id)
            return
        done.errors[run.id] = error
    done.resumed.append(run.id)


def call_entry(run: Run, entry: Mapping[str, Any]) -> Any:
    """Call the function that *entry* names inside *run*, and end the run with its result."""
    return call_inside(run, load_target(entry.get("target")), entry.get("args", ()))


def call_inside(
    run: Run, fn: Callable[..., Any], args: Sequence[Any], *, begun: Callable[[], object] = lambda: None
) -> Any:
    """Call *fn* inside *run*, and end the run with its result; *begun* is called when the run has begun.

    If a cancel was requested, the run is not completed, although *fn* may not have noticed.
    """
    if shape_of(fn) is not Shape.COROUTINE:
        with run:
            begun()
            run.check()  # if a cancel was requested before its process died, it is not called again
            value = fn(*args)
            run.conclude(as_text(value))
        return value
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(acall_inside(run, fn, args, begun=begun))
    raise ConfigError(f"{name_of(fn)!r} is a coroutine function: call it outside of an event loop")


async def acall_inside(
    run: Run, fn: Callable[..., Any], args: Sequence[Any], *, begun: Callable[[], object] = lambda: None
) -> Any:
    """The same for a coroutine function, in the event loop that runs."""
    async with run:
        begun()
        run.check()
        value = await fn(*args)
        run.conclude(as_text(value))
    return value


def load_target(target: object) -> Callable[..., Any]:
    """The function that `module:function` names."""
    module, colon, path = target.partition(":") if isinstance(target, str) else ("", "", "")
    if not module or not colon or not path:
        raise ConfigError(f"target = {shown(target)}: must be MODULE:FUNCTION")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module exists, but a module that it imports does not
        raise ConfigError(f"target = {shown(target)}: there is no module {module!r}") from None
    for name in path.split("."):
        if not hasattr(found, name):
            raise ConfigError(f"target = {shown(target)}: {module!r} has no {path!r}")
        found = getattr(found, name)
    if not callable(found):
        raise ConfigError(f"target = {shown(target)}: is no function")
    return found  # type: ignore[no-any-return]


def as_text(value: object) -> str:
    """The result of a run: a text as it is, anything else as JSON if possible; raise a `ConfigError` if it still has to
    be awaited, since no code would do that.
    """
    if value is None:
        return ""
    if is_unawaited(value):
        raise ConfigError("the function of the run gives something to await: await it there, in an `async def`")
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()  # a file's name, say, may hold bytes that are not UTF-8
    try:
        return msgspec.json.encode(value).decode()
    except Exception:  # a value that JSON cannot hold is still shown
        return shown(value)


def _entry(store: RunStore, run_id: str) -> Mapping[str, Any] | None:
    """The entry point to resume a run with, if any; None if it was imported: that is called only by hand."""
    for _, header, _, origin in store.file.fetch("remembered", run_id):
        with errors_of(store.file):
            return None if origin is not None else unpack_header(header).entry
    return None


def _end(store: RunStore, run_ids: Sequence[str], *, fails: bool) -> dict[str, RunStatus]:
    """End runs whose owner is gone: as cancelled if that was requested, else as failed if *fails*. Return the status
    of each: it may be any if the run has an owner or an end after all. A run that was deleted is left out.
    """

    def end(ledger: Ledger) -> dict[str, RunStatus]:
        there = [live for run_id in run_ids if (live := ledger.find(run_id)) is not None]
        for live in there:
            if live.snapshot.status.is_terminal or ledger.is_owned(live):
                continue
            if live.cancel is not None:
                ledger.cancel(live.header.id, live.cancel or None)
            elif fails:
                live.fence += 1  # an owner that was taken for dead, and comes back, may not go on
                ledger.say(live, events.RUN_FAILED, error="its process died before it was done")
        return {live.header.id: live.snapshot.status for live in there}

    return store.writer.commit(end)
