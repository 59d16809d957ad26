"""The judge: reads a run's journal and log after each death, and says which promises were kept.

It reads what any other process could read, and trusts no process: what it has seen once must be there the next time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from holdfast import events
from holdfast.errors import RunNotFound
from holdfast.history import RunSnapshot, RunStatus, fold
from holdfast.stores import RunStore
from holdfast.torture import journal
from holdfast.torture.case import Case, Journalled, Late, Logged, call_of, digest, is_once
from holdfast.torture.desk import NOTE, PROGRESS
from holdfast.torture.journal import Line, read
from holdfast.torture.places import Place
from holdfast.torture.promises import Promise, Tally


class Judge:
    """Tests the promises; *tally* collects the outcomes."""

    def __init__(self, place: Place, tally: Tally) -> None:
        self._place = place
        self._tally = tally

    def look(self, case: Case, *, is_left: bool = True) -> RunSnapshot | None:
        """Judge all that happened to a run so far; *is_left* says that none of its processes is alive."""
        told = Journalled(read(case.journal))
        with self._place.open() as store:
            try:
                snapshot = store.snapshot(case.run_id)
            except RunNotFound:
                claims = told.of(journal.ENTERED, journal.ACK)
                self._tally.test(Promise.KEPT, not claims, f"{case.run_id}: is gone, though {claims[:1]}")
                return None
            logs = [self._log(run_id, store) for run_id in case.run_ids]
        case.status = snapshot.status
        self._seen(case, told, logs)
        self._calls(case, told, logs)
        self._acknowledged(case, told, logs)
        for late in told.late.values():
            self._late(case, late, logs[0])
        if is_left:
            self._left(case, snapshot, told)
        return snapshot

    def undisturbed(self, case: Case) -> tuple[str, Journalled]:
        """Return the result and the journal of an undisturbed run."""
        snapshot = self.look(case)
        completed = snapshot is not None and snapshot.status is RunStatus.COMPLETED
        self._tally.test(Promise.CALM, completed, f"{case.run_id}: did not complete, though nobody disturbed it")
        text = snapshot.result_text if snapshot is not None else None
        return text or "", Journalled(read(case.journal))

    def resumed(self, case: Case) -> None:
        """Test that no process was refused a run that no other process wanted."""
        refused = [line for line in read(case.journal) if line.word == journal.CONFLICT]
        self._tally.test(Promise.AT_ONCE, not refused, f"{case.run_id}: {refused[:1]}")

    def stopped(self, case: Case) -> None:
        """Test that a run without a process is cancelled at once."""
        with self._place.open() as store:
            status = store.snapshot(case.run_id).status
        self._tally.test(Promise.CANCEL, status is RunStatus.CANCELLED, f"{case.run_id}: is {status}, not cancelled")

    def raced(self, case: Case, lives: list[int]) -> None:
        """Test that of several *lives* that wanted a run at once, one got it and the others were refused."""
        said = [(line.life, line.word) for line in read(case.journal) if line.life in lives]
        won = [life for life, word in said if word == journal.ENTERED]
        told = [life for life, word in said if word == journal.CONFLICT]
        fair = len(won) == 1 and len(told) == len(lives) - 1
        self._tally.test(Promise.RACE, fair, f"{case.run_id}: of {lives}, {won} got it and {told} were refused")

    def cancelled(self, case: Case, life: int, so_far: int) -> None:
        """Test that a cancelled run has stopped; its journal had *so_far* lines when it was first seen as cancelled."""
        lines = read(case.journal)
        told = any(line.life == life and line.word == journal.CANCELLED for line in lines)
        self._tally.test(Promise.CANCEL, told, f"{case.run_id}: life {life} was not told that it is cancelled")
        after = [line for line in lines[so_far:] if line.word == journal.BEGIN]
        self._tally.test(Promise.CANCEL, not after, f"{case.run_id}: after it was cancelled came {after[:1]}")
        with self._place.open() as store:
            log = store.events(case.run_id)
        ends = [event.type for event in log if event.type in (events.RUN_CANCELLED, events.RUN_COMPLETED)]
        self._tally.test(Promise.CANCEL, ends[:1] == [events.RUN_CANCELLED], f"{case.run_id}: ended with {ends}")
        started = [event for event in log if event.late and event.type in (events.TOOL_STARTED, events.STEP_STARTED)]
        self._tally.test(Promise.CANCEL, not started, f"{case.run_id}: after its end came {started[:1]}")

    def close(self) -> None:
        """Check the store itself, at the end."""
        damage = self._place.damage()
        self._tally.test(Promise.SOUND, damage is None, str(damage))

    # -- the log by itself ---------------------------------------------------------------------------------------------

    def _log(self, run_id: str, store: RunStore) -> Logged:
        log = store.events(run_id)
        sequences = [event.sequence for event in log]
        self._tally.test(Promise.SEQUENCE, sequences == [*range(len(log))], f"{run_id}: has {sequences}")
        times = [event.timestamp_ms for event in log]
        self._tally.test(Promise.TIME, times == sorted(times), f"{run_id}: has {times}")
        header, kept = store.memory(run_id).header, store.snapshot(run_id)
        kept = msgspec.structs.replace(kept, owner=None, interrupted=False)
        folded = fold(header, log)
        self._tally.test(Promise.FOLD, kept == folded, f"{run_id}: {kept} is not {folded}")
        return Logged(log)

    def _seen(self, case: Case, told: Journalled, logs: list[Logged]) -> None:
        """Test that what was read before is still there, and note what is there now."""
        for run_id, log in zip(case.run_ids, logs, strict=True):
            known: set[str] = set()
            for line in told.of(journal.SEEN):
                if line.label == run_id:
                    known.update(line.keys)
                    same = digest(log.log[: line.count]) == line.mark
                    breach = f"{run_id}: its first {line.count} events are not what they were"
                    self._tally.test(Promise.KEPT, same, breach)
            new = tuple(sorted(log.ended.keys() - known))
            journal.note(case.journal, journal.SEEN, label=run_id, mark=digest(log.log), count=len(log.log), keys=new)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _calls(self, case: Case, told: Journalled, logs: list[Logged]) -> None:
        test = self._tally.test
        breaches = list(_made_again(told.on_time))
        test(Promise.FINISHED, not breaches, f"{case.run_id}: {breaches[:1]}")
        breaches = list(_repeated(told.on_time))
        test(Promise.DOUBT, not breaches, f"{case.run_id}: {breaches[:1]}")
        started = {call for log in logs for call in log.started}
        calls = [line for line in told.on_time if line.word == journal.BEGIN and is_once(line)]
        unwritten = [line for line in calls if call_of(line.key) not in started]
        test(Promise.BEFORE, not unwritten, f"{case.run_id}: {unwritten[:1]} is not in the log")
        if case.expected is not None:
            keys, right = told.keys(), case.expected.keys
            wrong = keys - right if case.status is not RunStatus.COMPLETED else (keys - right) + (right - keys)
            test(Promise.KEY, not wrong, f"{case.run_id}: too many or too few keys: {wrong}")

    def _acknowledged(self, case: Case, told: Journalled, logs: list[Logged]) -> None:
        lost = [line for line in told.on_time if line.word == journal.ACK and not any(_has(log, line) for log in logs)]
        self._tally.test(Promise.KEPT, not lost, f"{case.run_id}: {lost[:1]} is not in the log")
        entered = len({line.life for line in told.of(journal.ENTERED)})
        owned = sum(len(log.owned) for log in logs)
        self._tally.test(Promise.KEPT, entered <= owned, f"{case.run_id}: was entered {entered} times, not {owned}")
        done = [line for line in told.on_time if line.word == journal.DONE]
        kept = not done or case.status is RunStatus.COMPLETED
        self._tally.test(Promise.KEPT, kept, f"{case.run_id}: is {case.status}, though it had completed")

    # -- lives ---------------------------------------------------------------------------------------------------------

    def _left(self, case: Case, snapshot: RunSnapshot, told: Journalled) -> None:
        for line in told.of(journal.ERROR):
            self._tally.test(Promise.CALM, False, f"{case.run_id}: life {line.life}: {line.text}")
        if not snapshot.status.is_terminal:
            free = snapshot.interrupted and snapshot.owner is None
            self._tally.test(Promise.AT_ONCE, free, f"{case.run_id}: still seems to be run by {snapshot.owner}")
        elif case.expected is not None:
            right = snapshot.status is RunStatus.COMPLETED and snapshot.result_text == case.expected.text
            came_to = f"{snapshot.status}, {snapshot.result_text!r}, {snapshot.error!r}"
            self._tally.test(Promise.RESULT, right, f"{case.run_id}: came to {came_to}")

    def _late(self, case: Case, late: Late, log: Logged) -> None:
        """Test a process that lost its run: it may finish its work and see what it had written, but write no more."""

        def test(kept: bool, breach: str) -> None:
            self._tally.test(Promise.ZOMBIE, kept, f"{case.run_id}: life {late.life}: {breach}")

        words = [line.word for line in late.lines]
        test(journal.LOST in words, "was not told that it had lost its run")
        for line in late.lines:
            if line.word == journal.ACK:
                test(_has(log, line, before=late.takeover), f"{line} was not on disk when it lost its run")
            elif line.word == journal.BEGIN:
                known = log.started.get(call_of(line.key), [])
                may = not is_once(line) or any(sequence < late.takeover for sequence in known)
                test(may, f"{line} was begun although its start could not be written")
                over = case.status is RunStatus.COMPLETED
                test(bool(known) or not over, f"{line} has a key that nobody else knows")
        mine = f"{late.life}."
        for event in log.log[late.takeover :]:
            if event.type in (PROGRESS, NOTE):
                test(not event.payload["mark"].startswith(mine), f"{event} came too late")
        for each in (end for ends in log.ended.values() for end in ends if end.sequence > late.takeover):
            test(each.answered or not any(mark.startswith(mine) for mark in each.marks), f"{each} came too late")


def _made_again(lines: list[Line]) -> Iterator[str]:
    """Yield calls that were made or in doubt although they were finished, and calls that gave two results."""
    finished: set[str] = set()
    marks: dict[str, str] = {}
    for line in lines:
        call = call_of(line.key)
        if line.word == journal.SEEN:
            finished.update(line.keys)
        elif line.word == journal.ACK and line.key:
            finished.add(call)
            if marks.setdefault(call, line.mark) != line.mark:
                yield f"{line} is not the result {marks[call]} that it had before"
        elif line.word in (journal.BEGIN, journal.REPEAT, journal.ANSWER) and call in finished:
            yield f"{line} came although the call was finished"


def _repeated(lines: list[Line]) -> Iterator[str]:
    """Yield calls that were repeated without a decision although they must not be, and effects that came twice."""
    begun: set[str] = set()
    allowed: set[tuple[int, str]] = set()
    effects: set[str] = set()
    for line in lines:
        if line.word == journal.REPEAT:
            allowed.add((line.life, line.key))
        elif line.word == journal.BEGIN and is_once(line):
            if line.key in begun and (line.life, line.key) not in allowed:
                yield f"{line} was repeated unasked"
            begun.add(line.key)
        elif line.word == journal.EFFECT and is_once(line):
            if line.key in effects:
                yield f"{line} had its effect before"
            effects.add(line.key)


def _has(log: Logged, line: Line, before: float = math.inf) -> bool:
    """True if the log has what *line* acknowledges, at a sequence below *before*."""
    if line.tool == PROGRESS:
        return log.reported.get(line.mark, math.inf) < before
    ends = log.ended.get(call_of(line.key), [])
    return any(end.sequence < before and (not end.marks or line.mark in end.marks) for end in ends)
