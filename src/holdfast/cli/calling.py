"""Calls a function of the user's inside a run: for `holdfast run`, which begins one, and `holdfast runs resume`.

What the function prints is left alone; our messages go to stderr, and the function's result to stdout. If the result
is to be JSON, the command passes the stream of `json_alone` for it.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import click

from holdfast.cli import CANCELLED, DONE, FAILED, INTERRUPTED, NO_STORE
from holdfast.cli.showing import put_json, say
from holdfast.errors import ConfigError, InDoubt, LeaseLost, RunDiverged, StoreError, in_words, printable
from holdfast.runs.recovery import as_text, call_inside, load_target
from holdfast.shape import signature_of
from holdfast.wording import in_full, one_line, resume_command

if TYPE_CHECKING:
    from holdfast.runs import Run


class Entry(NamedTuple):
    """The function to call: *target* is MODULE:FUNCTION, *args* are plain data."""

    target: str
    function: Callable[..., Any]
    args: tuple[Any, ...]

    @property
    def record(self) -> dict[str, Any]:
        """The entry as the run records it."""
        return {"target": self.target, "args": list(self.args)}


def load(target: str, args: Sequence[Any], *, store: str | None) -> Entry:
    """Find the function that *target* names, in the working directory first; UsageError if *args* do not fit it.

    *store* is the one that the user named: the loaded code opens the same one.
    """
    function = find(target, store=store)
    _check(target, function, args)
    return Entry(target, function, tuple(args))


def find(target: str, *, store: str | None) -> Callable[..., Any]:
    """The function that *target* names; UsageError if it cannot be called in a run."""
    module, _, path = target.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *path.split("."))):
        raise click.UsageError(f"{printable(target)!r} must be MODULE:FUNCTION, such as agent:main")
    if (folder := os.getcwd()) not in sys.path:
        sys.path.insert(0, folder)
    if store is not None:
        os.environ["HOLDFAST_STORE"] = store
    try:
        function = load_target(target)
    except ConfigError as error:
        is_lost = isinstance(error.__context__, ModuleNotFoundError)
        unseen = "" if os.access(folder, os.R_OK | os.X_OK) else ", which this user may not read"
        where = f"; MODULE is looked for in {folder}{unseen}, then where Python looks" if is_lost else ""
        raise click.UsageError(f"{error}{where}") from error
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise click.UsageError(f"{target} is a generator function: wrap it in a function that uses it up")
    return function


def _check(target: str, function: Callable[..., Any], args: Sequence[Any]) -> None:
    """Raise UsageError if the function does not take these arguments."""
    try:
        signature = signature_of(function)
    except ValueError:  # some builtins do not say what they take
        return
    try:
        signature.bind(*args)
    except TypeError as error:
        raise click.UsageError(f"{target}{signature}: {error}") from error


# -- inside a run ------------------------------------------------------------------------------------------------------


class Calling:
    """One call of *entry* inside *run*; *store* is the one that the user named, and is repeated in hints.

    With *out*, the outcome is also written there as JSON.
    """

    def __init__(self, run: Run, entry: Entry, *, store: str | None, out: TextIO | None) -> None:
        self._run = run
        self._entry = entry
        self._store = store
        self._out = out

    def perform(self) -> int:
        """Make the call, tell how it went, and give the exit code."""
        try:
            value = call_inside(self._run, self._entry.function, self._entry.args, begun=self._announce)
        except InDoubt as error:
            self._explain(error)
            return FAILED
        except (KeyboardInterrupt, SystemExit, StoreError) as error:
            return self._interrupted(error)
        except (Exception, asyncio.CancelledError) as error:
            if not self._begun:
                raise
            return self._ended(error)
        return self._ended(None, value)

    def _announce(self) -> None:
        old = self._run.forked_from
        say(f"run {printable(self._run.id, 200)}{f', a fork of {printable(old, 200)}' if old else ''}")

    @property
    def _begun(self) -> bool:
        return self._run.log.claim is not None

    @property
    def _again(self) -> str:
        return resume_command(self._run.id, self._store)

    # -- how it went ---------------------------------------------------------------------------------------------------

    def _ended(self, error: BaseException | None, value: Any = None) -> int:
        """Report the end; the run's own status counts, since the function may not have noticed a cancellation."""
        run = self._run.snapshot()
        status = "interrupted" if run.interrupted else run.status.value
        if status == "completed" and error is None:
            self._put(value)
            return DONE
        if status == "cancelled":
            self._tell(f"cancelled{f': {one_line(run.error)}' if run.error else ''}", status, run.error)
            return CANCELLED
        if error is not None and not isinstance(error, RunDiverged | LeaseLost | asyncio.CancelledError):
            click.echo(in_full(_traceback(error)), nl=False, err=True)
        why = run.error or ("" if error is None else in_words(error))
        hint = f"; to go on with what it has done so far: {self._again}" if status in ("failed", "interrupted") else ""
        self._tell(f"{status}: {one_line(why)}{hint}", status, why)
        return CANCELLED if isinstance(error, asyncio.CancelledError | TimeoutError) else FAILED

    def _interrupted(self, error: KeyboardInterrupt | SystemExit | StoreError) -> int:
        """Report an interruption, which is not a failure of the run's own work."""
        if not self._begun:
            raise error
        why = "" if isinstance(error, KeyboardInterrupt) else f" by {in_words(error)}"
        self._tell(f"interrupted{why}; to go on: {self._again}", "interrupted", in_words(error))
        if isinstance(error, SystemExit):
            raise error
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else NO_STORE

    def _put(self, value: Any) -> None:
        text = as_text(value)
        if self._out is not None:
            result = value if _is_json(value) else text
            put_json({"id": self._run.id, "status": "completed", "result": result}, self._out)
        elif value is not None:
            click.echo(in_full(text) if sys.stdout.isatty() else text, color=True)  # else click strips escape sequences

    def _explain(self, error: InDoubt) -> None:
        name, again = printable(self._run.id, 200), resume_command(self._run.id, self._store, "--in-doubt", "repeat")
        self._tell(f"run {name} is interrupted: a call is in doubt", "interrupted", str(error))
        lines = [
            f"  call  {printable(error.tool)}({one_line(self._arguments(error.call_id), 300)})",
            f"  id    {error.call_id}, idempotency key {error.key}",
            f"  why   {error.why}",
            "Look whether its effect is there. Then",
            f"  if it is not, make it again (and every other call in doubt):  {again}",
            "  if it is, tell the run: catch holdfast.InDoubt around the call, use error.answer(value), and resume",
        ]
        click.echo("\n".join(lines), err=True)

    def _arguments(self, call_id: str) -> str:
        """The arguments of a call, as far as they may be shown."""
        for event in self._run.events():
            if event.payload.get("call_id") == call_id and "arguments" in event.payload:
                given = event.payload["arguments"]
                named = given.items() if isinstance(given, dict) else ()
                return ", ".join(f"{name}={json.dumps(value)}" for name, value in named) or json.dumps(given)
        return "…"

    def _tell(self, message: str, status: str, error: str | None = None) -> None:
        say(message)
        if self._out is not None:
            put_json({"id": self._run.id, "status": status, "error": error}, self._out)


def _is_json(value: object) -> bool:
    """Whether a value can be written as JSON."""
    import msgspec

    try:
        msgspec.json.encode(value)
    except Exception:  # a user's object, a number too big, nesting too deep, or text that is not Unicode
        return False
    return True


def _traceback(error: BaseException) -> str:
    """The traceback of *error* from the user's own code on."""
    found = error.__traceback__
    while found is not None and _package(found) in ("holdfast", "asyncio"):
        found = found.tb_next
    return "".join(traceback.format_exception(error.with_traceback(found or error.__traceback__)))


def _package(frame: TracebackType) -> str:
    return str(frame.tb_frame.f_globals.get("__name__")).partition(".")[0]
