"""The last event of one run: said once, by whoever ends it inside its block or by leaving that, and then written."""

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
    """How one run ends; *diverges* if finished calls that it has not asked for are no error."""

    def __init__(self, home: Home, log: Log, steps: Steps, *, diverges: bool) -> None:
        self.said: End | None = None  # once that is written
        self._unsaid: End | None = None  # what somebody wanted said, and the store did not take
        self._text: object = ""  # the result of a run that is left cleanly
        self._home = home
        self._log = log
        self._steps = steps
        self._diverges = diverges

    def complete(self, text: object) -> Last | None:
        """Say that the run has completed with *text* for its result; gives what is on its way, if anything is."""
        end = completed(text)
        if (diverged := self.diverged()) is not None:
            raise diverged
        return self._say(end, None)

    def conclude(self, text: object) -> None:
        """Have *text* for the result, if leaving the run's block means that it has completed."""
        self._text = self._log.given(events.RUN_COMPLETED, completed(text).payload)["text"]

    def fail(self, error: object) -> Last | None:
        """Say that the run has failed."""
        return self._say(failed(error), error if isinstance(error, BaseException) else None)

    def leave(self, error: BaseException | None, *, cancelled: bool, reason: str | None) -> Last | None:
        """Say what leaving the run's block with *error* means."""
        if (claim := self._claim) is None:
            return None
        end = self._unsaid or ending(error, cancelled=cancelled, reason=reason, text=self._text)
        over = end.type in (events.RUN_COMPLETED, events.RUN_FAILED) or is_a(error, RunDiverged)
        blamed = error if end.type == events.RUN_FAILED else None
        unasked = self._steps.recalled.unasked() if over else []
        # Nobody waits for the answer of a run that is only noted.
        is_fixed = cancelled or self._unsaid is not None or self._steps.is_noted
        return self._write(claim, end, blamed, unasked, yields=not is_fixed and gives_way(error))

    def diverged(self) -> RunDiverged | None:
        """The error of a run that has not done what it had done before, and is about to end."""
        unasked = () if self._diverges or self.said is not None else tuple(self._steps.recalled.unasked())
        return RunDiverged(unasked) if unasked else None

    def completes(self, error: BaseException | None) -> bool:
        """Whether the run has completed, or does so if its block is left with *error*."""
        return error is None if self.said is None else self.said.type == events.RUN_COMPLETED

    def settle(self, last: Last | None) -> None:
        """Wait for what was said inside the block."""
        if last is not None:
            self._home.store.writer.settle(last.pending)
            self._check(last)

    async def asettle(self, last: Last | None) -> None:
        """The same as a task."""
        if last is not None:
            await self._home.store.writer.asettle(last.pending)
            self._check(last)

    def trouble(self, last: Last) -> HoldfastError | None:
        """What kept the last event from being written; if nothing did, it is told."""
        try:
            last.pending.result()
        except RunNotFound as error:
            # Nobody has waited to hear whether a run that is only noted had begun: that is what its store did not take.
            return StoreError(f"its beginning could not be written: {error}") if self._steps.is_noted else error
        except HoldfastError as error:
            return error
        self.said = last.end
        last.tell(self._home.bus)
        return None

    # -- inside --------------------------------------------------------------------------------------------------------

    @property
    def _claim(self) -> Claim | None:
        """The right to say anything; none if all is said, or nobody listens."""
        return None if self.said is not None or self._log.lost is not None else self._log.claim

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
            self._unsaid = last.end
