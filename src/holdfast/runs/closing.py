"""The last event of one run: decided once, by the user's code inside the block or by leaving the block, and written."""

from __future__ import annotations

from holdfast import events
from holdfast.category.looking import is_a
from holdfast.errors import HoldfastError, RunDiverged, RunNotFound, StoreError
from holdfast.runs.blame import fatal_calls
from holdfast.runs.ending import End, Finish, Last, completed, ending, failed, gives_way
from holdfast.runs.home import Home
from holdfast.runs.log import Log
from holdfast.runs.steps import Steps
from holdfast.stores.ledger import Claim


class Closing:
    """How one run ends; *diverges* if finished calls that the resumed code has not asked for are no error."""

    def __init__(self, home: Home, log: Log, steps: Steps, *, diverges: bool) -> None:
        self.written: End | None = None  # the last event, once it is written
        self._unwritten: End | None = None  # an end that the user's code asked for, and that could not be written
        self._text: object = ""  # the result of a run that is left cleanly
        self._home = home
        self._log = log
        self._steps = steps
        self._diverges = diverges

    def complete(self, text: object) -> Last | None:
        """End the run as completed with *text* for its result; return the write to wait for, if there is one."""
        end = completed(text)
        if (diverged := self.diverged()) is not None:
            raise diverged
        return self._say(end, None)

    def conclude(self, text: object) -> None:
        """Set *text* as the result, for the case that the run completes when its block is left."""
        self._text = self._log.given(events.RUN_COMPLETED, completed(text).payload)["text"]

    def fail(self, error: object) -> Last | None:
        """End the run as failed; return the write to wait for, if there is one."""
        return self._say(failed(error), error if isinstance(error, BaseException) else None)

    def leave(self, error: BaseException | None, *, cancelled: bool, reason: str | None) -> Last | None:
        """End the run as its block is left with *error*; return the write to wait for, if there is one."""
        if (claim := self._claim) is None:
            return None
        end = self._unwritten or ending(error, cancelled=cancelled, reason=reason, text=self._text)
        over = end.type in (events.RUN_COMPLETED, events.RUN_FAILED) or is_a(error, RunDiverged)
        blamed = error if end.type == events.RUN_FAILED else None
        unasked = self._steps.recalled.unasked() if over else []
        # A run that is only noted does not wait to hear whether it has to yield.
        is_fixed = cancelled or self._unwritten is not None or self._steps.is_noted
        return self._write(claim, end, blamed, unasked, yields=not is_fixed and gives_way(error))

    def diverged(self) -> RunDiverged | None:
        """The error of a run that is about to end and has not asked for all its finished calls, if that is an error."""
        unasked = () if self._diverges or self.written is not None else tuple(self._steps.recalled.unasked())
        return RunDiverged(unasked) if unasked else None

    def completes(self, error: BaseException | None) -> bool:
        """True if the run has completed, or does so when its block is left with *error*."""
        return error is None if self.written is None else self.written.type == events.RUN_COMPLETED

    def settle(self, last: Last | None) -> None:
        """Wait for an end that was given inside the block; raise an error if it could not be written."""
        if last is not None:
            self._home.store.writer.settle(last.pending)
            self._check(last)

    async def asettle(self, last: Last | None) -> None:
        """The same for a task: it suspends instead of blocking."""
        if last is not None:
            await self._home.store.writer.asettle(last.pending)
            self._check(last)

    def trouble(self, last: Last) -> HoldfastError | None:
        """The error that kept the last event from being written; if there is none, tell the sinks the event."""
        try:
            last.pending.result()
        except RunNotFound as error:
            # A run that is only noted did not wait for the write of its beginning: it was that write that failed.
            return StoreError(f"its beginning could not be written: {error}") if self._steps.is_noted else error
        except HoldfastError as error:
            return error
        except Exception as error:  # memory ran out, say: it is owed like an end that the store could not write
            told = StoreError(f"nothing was written: {error!r}")
            told.__cause__ = error
            return told
        self.written = last.end
        last.tell(self._home.bus)
        return None

    # -- inside --------------------------------------------------------------------------------------------------------

    @property
    def _claim(self) -> Claim | None:
        """The claim to write with; None if the end is written already, or the claim is lost."""
        return None if self.written is not None or self._log.lost is not None else self._log.claim

    def _say(self, end: End, error: BaseException | None) -> Last | None:
        if (claim := self._claim) is None:
            return None
        shown = End(end.type, self._log.given(end.type, end.payload))
        return self._write(claim, shown, error, self._steps.recalled.unasked(), yields=False)

    def _write(self, claim: Claim, end: End, error: BaseException | None, unasked: list[str], *, yields: bool) -> Last:
        return Last.of(self._home.store, Finish(claim, end, unasked, fatal_calls(error, claim.run_id), yields))

    def _check(self, last: Last) -> None:
        if (trouble := self.trouble(last)) is not None:
            if not self._log.passes(trouble):
                raise trouble
            self._log.complain(trouble)
            self._unwritten = last.end
