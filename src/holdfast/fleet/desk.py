"""The desk of one tool: here its calls ask the fleet, and here their outcomes are gathered to be reported.

Outcomes go along with the next question; if none comes, the service sends them a moment later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.fleet.question import Held, Question
from holdfast.fleet.script import ADMITTED, MICRO, NO_PROBE, RESET, Answer, Form, Outcome, Shared, answer, checked
from holdfast.guards.circuit import Seen
from holdfast.guards.rate import RateConfig

if TYPE_CHECKING:
    from holdfast.fleet.fleet import Fleet

HORIZON = 0.25  # seconds ahead, at most, for which a token is reserved
BLOCK = 0.1  # seconds' worth of tokens that are leased at once …
MOST_LEASED = 1000  # … and for how many calls at most
KEPT = 1.0  # seconds for which leased tokens may be used
MOST_TOLD = 10_000  # outcomes that may wait to be sent
MOST_FORMS = 64
NO_TROUBLE = ("ok", RESET)  # the values of `Outcome.says` that report no failure
PRISTINE = Seen()


class Block:
    """Tokens that were taken ahead of time; calls use them up without asking Redis."""

    __slots__ = ("asked_until", "tokens", "until")

    def __init__(self) -> None:
        self.tokens = 0.0
        self.until = 0.0
        self.asked_until = 0.0  # until then, another caller is fetching more

    def ask(self, now: float) -> bool:
        """True if this caller is to fetch more: one at a time, because a new block replaces the last one."""
        if now < self.asked_until:
            return False
        self.asked_until = now + KEPT
        return True

    def take(self, now: float, cost: float = 1.0) -> bool:
        """Use *cost* of the tokens; False if too few are left. Undivided: see `guards.rate.UNDIVIDED`."""
        left = self.tokens - cost
        if left < 0.0 or now >= self.until:
            return False
        self.tokens = left
        return True

    def put(self, now: float, tokens: float) -> None:
        """Replace what is left by *tokens*, which may be used for KEPT seconds."""
        self.tokens = tokens
        self.until = now + KEPT
        self.asked_until = 0.0


class Desk:
    """The desk of *tool*, whose keys on Redis begin with *key*."""

    def __init__(self, fleet: Fleet, key: bytes, tool: str) -> None:
        self.fleet = fleet
        self.key = key
        self.tool = tool
        self.fresh = False  # True if the fleet's circuit was seen since the connection was made
        self.generation = -1  # of the fleet's circuit, when it was last seen
        self.rate: float | None = None  # tokens a second, while an adaptive rate is cut
        self.troubled = False  # True if this desk reported a failure, and no success since
        self.block = Block()
        self.shared = Shared(None, None, None)  # the guards that were last asked about
        self._follow: Callable[[Seen], object] = lambda _: None
        self._lock = threading.Lock()
        self._seen: tuple[object, ...] = ()
        self._latest = PRISTINE  # the fleet's circuit, when it was last seen
        self._pristine = False  # True if circuit and rate were as new then
        self._seen_at = 0
        self._told: list[Outcome] = []
        self._returned: dict[str, int] = {}
        self._slots: dict[str, int] = {}  # also of names with none left, until Redis has counted them: see `settled`
        self._forms: dict[tuple[int, str], tuple[Shared, Form]] = {}

    def serve(self, follow: Callable[[Seen], object]) -> None:
        """Start to serve a new tool; *follow* is called when the fleet's circuit changes."""
        self._follow = follow
        self.forget()

    @property
    def is_available(self) -> bool:
        """True if Redis answers, and answers for this tool, too."""
        return self.fleet.is_available and self not in self.fleet.missing

    # -- asking --------------------------------------------------------------------------------------------------------

    def form(self, shared: Shared) -> Form:
        """The form of questions about *shared*, under the present holder name of this process."""
        self.shared = shared
        return self.form_of(shared, self.fleet.holder)

    def form_of(self, shared: Shared, holder: str) -> Form:
        """The form of questions about *shared*, under the name *holder*."""
        known = self._forms.get((id(shared), holder))  # by identity: hashing all settings takes longer than the rest
        if known is not None:
            return known[1]
        fleet = self.fleet
        form = Form(fleet.script, self.key, fleet.channel, holder, fleet.lease, shared)
        if len(self._forms) >= MOST_FORMS:
            self._forms.clear()
        self._forms[id(shared), holder] = (shared, form)
        return form

    def words(self, question: Question) -> bytes:
        """*question*, encoded together with the pending outcomes, which it notes."""
        form, asked = question.form, question.asked
        if self._told:
            question.told = self.pending()
            return form.telling(question.told, asked)
        if not self._returned:
            return form.question(asked, 0)
        with self._lock:
            slots = self._returned.pop(form.holder, 0)
        return form.question(asked, slots)  # the service reports slots that were taken under other holder names

    def news(self, form: Form, told: list[Outcome]) -> bytes:
        """The pending outcomes, which are added to *told*, encoded without a question."""
        told += self.pending()
        return form.telling(told)

    @property
    def has_news(self) -> bool:
        """True if there are pending outcomes or slots to give back."""
        return bool(self._told or self._returned)

    def pending(self) -> list[Outcome]:
        """Take all pending outcomes; the caller must send them, and `take_back` those that got no answer."""
        with self._lock:
            return self._take_all()

    def take_back(self, told: Sequence[Outcome]) -> None:
        """Queue again what must not be lost of outcomes that were *told* in vain, or perhaps in vain.

        Slots need not be: the next sign of life says how many are left.
        """
        kept = [outcome._replace(slots=0, refund=0.0) for outcome in told if _must_arrive(outcome)]
        if kept:
            with self._lock:
                self._told[:0] = kept
            self.fleet.dirty(self)

    def sign_of_life(self, form: Form, told: list[Outcome]) -> bytes:
        """The pending outcomes, which are added to *told*, and the slots the holder has after them.

        Both go in one message, so that they agree.
        """
        with self._lock:
            told += self._take_all()
            slots = self._slots.get(form.holder, 0)
        # No call asks under an old holder name any more, so its number is set exactly: slots of lost answers end here.
        return form.telling(told, renew=f"{'' if form.holder == self.fleet.holder else '='}{slots}")

    def _take_all(self) -> list[Outcome]:
        told, self._told = self._told, []
        returned, self._returned = self._returned, {}
        return told + [Outcome(holder, slots) for holder, slots in returned.items()]

    def answered(self, reply: Any, form: Form, cost: float) -> Held | None:
        """Note what an answer says of the circuit; return what it grants, None if it refuses."""
        verdict, wait, generation, probe, _, now_us, rate, circuit = checked(reply)
        if circuit is not None or rate is not None or generation != self.generation or not self._pristine:
            self.see(answer(reply))  # otherwise nothing has changed, which is the usual case
        if verdict != ADMITTED:
            return None
        slots = form.slots
        if slots:
            holder = form.holder
            with self._lock:
                self._slots[holder] = self._slots.get(holder, 0) + 1
        return Held(form.holder, generation, probe, slots, cost if form.paid else 0.0, now_us, wait / MICRO)

    def see(self, reply: Answer) -> None:
        """Follow the circuit as *reply* shows it, unless a newer answer was seen before.

        Age is by the server's clock, but a higher generation is newer whatever the clock says.
        """
        if not reply.is_before(self._seen_at) or reply.generation > self.generation:
            self._seen_at = reply.now_us
            self.rate = reply.rate
            self.turn(reply.generation, reply.seen or PRISTINE)

    def turn(self, generation: int, seen: Seen) -> None:
        """Follow the fleet's circuit as *seen*, unless *generation* is older than the present one."""
        if generation < self.generation:
            return
        self._pristine = seen == PRISTINE and self.rate is None
        facts = (generation, seen.state, seen.failures, seen.times_opened, self.rate is None)
        if facts == self._seen and self.fresh:
            return
        self.generation, self._seen = generation, facts
        self.fresh, self._latest = True, seen
        self._follow(seen)
        while (latest := self._latest) is not seen:  # another thread has set a newer one meanwhile
            seen = latest
            self._follow(seen)

    def forget(self) -> None:
        """Drop what was seen, because the connection is lost.

        Of pending outcomes, only resets, the answers of probes, and slots are kept.
        """
        with self._lock:
            self.fresh = self._pristine = False
            self.generation, self._seen, self._seen_at = -1, (), 0
            self.rate = None
            self.troubled = False
            self.block.tokens = 0.0
            told, self._told = self._told, []
            for outcome in told:
                if _must_arrive(outcome):
                    self._told.append(outcome)
                else:
                    self._return(outcome.holder, outcome.slots)

    # -- telling -------------------------------------------------------------------------------------------------------

    def tell(self, outcome: Outcome) -> bool:
        """Queue *outcome* to be sent to the fleet; True if *troubled* has changed.

        Never blocks for long, because the garbage collector may call this when it ends a call.
        """
        with self._lock:
            self._let_go(outcome.holder, outcome.slots)
            was_troubled = self.troubled
            counts = self.is_available or _must_arrive(outcome)  # otherwise the local circuit is told instead
            if outcome.says_more and counts and len(self._told) < MOST_TOLD:
                self._told.append(outcome)
                if outcome.says:
                    self.troubled = outcome.says not in NO_TROUBLE
            else:
                self._return(outcome.holder, outcome.slots)
            changed = self.troubled is not was_troubled
            has_news = self.has_news
        if has_news:
            self.fleet.dirty(self)
        return changed

    def return_slot(self, holder: str) -> None:
        """Give a slot back after an attempt that has nothing else to report."""
        with self._lock:
            self._let_go(holder, 1)
            self._return(holder, 1)
        self.fleet.dirty(self)

    def _let_go(self, holder: str, slots: int) -> None:
        if slots:
            left = self._slots.get(holder, 0) - slots
            self._slots[holder] = left if left > 0 else 0

    def _return(self, holder: str, slots: int) -> None:
        """Queue slots to be given back; this must be sent, as the lease of a holder name in use does not end."""
        if slots:
            self._returned[holder] = self._returned.get(holder, 0) + slots

    def give_back(self, held: Held) -> None:
        """Give back what was not used: probe, token and slot."""
        self.tell(Outcome(held.holder, held.slots, held.cost, "", 1, held.generation, held.probe))

    def after_fork(self) -> None:
        """In a forked child: drop held slots and pending outcomes, which are the parent's."""
        self._lock = threading.Lock()
        self._slots, self._forms = {}, {}
        self.forget()
        self._told, self._returned = [], {}

    def holding(self) -> dict[str, int]:
        """The slots that this process has, by the holder name it took them under.

        An old name with none left is there, too, as long as Redis may count slots for it that were given back in vain.
        """
        with self._lock:
            return {holder: slots for holder, slots in self._slots.items() if slots or holder != self.fleet.holder}

    def settled(self, holder: str) -> None:
        """Forget *holder*, an old name, if it has no slots: Redis knows that, too."""
        with self._lock:
            if not self._slots.get(holder):
                self._slots.pop(holder, None)


def _must_arrive(outcome: Outcome) -> bool:
    """True for what no outage may lose: a reset; a probe's answer, without which the fleet waits for the probe's lease.

    Either may arrive late or twice: Redis ignores the answer of a probe that it no longer waits for.
    """
    return outcome.says == RESET or outcome.probe != NO_PROBE


def block_of(rate: RateConfig, cost: float) -> int:
    """For how many calls tokens are leased at once."""
    return max(1, min(int(rate.per_second * BLOCK / cost), int(rate.capacity / cost), MOST_LEASED))
