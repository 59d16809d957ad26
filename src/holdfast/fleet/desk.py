"""The desk of one tool: where its calls ask the fleet, and where what became of them is gathered to be told.

What is to be told goes along with the next question; if none comes, the service tells it a moment later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.fleet.question import Held
from holdfast.fleet.script import ADMITTED, MICRO, Answer, Asked, Form, Outcome, Shared, answer, checked
from holdfast.guards.circuit import Seen
from holdfast.guards.rate import RateConfig

if TYPE_CHECKING:
    from holdfast.fleet.fleet import Fleet

HORIZON = 0.25  # seconds ahead for which a token is reserved
BLOCK = 0.1  # seconds' worth of tokens that are leased at once …
MOST_LEASED = 1000  # … and how many at most
KEPT = 1.0  # seconds for which leased tokens may be used
MOST_TOLD = 10_000  # outcomes that wait to be told
MOST_FORMS = 64
NO_TROUBLE = ("ok", "reset")  # of what is said of a tool, all that is no failure
PRISTINE = Seen()


class Block:
    """Tokens that were taken ahead of time; used up one by one without asking."""

    __slots__ = ("asked_until", "tokens", "until")

    def __init__(self) -> None:
        self.tokens = 0.0
        self.until = 0.0
        self.asked_until = 0.0  # before that, somebody is about to bring more

    def ask(self, now: float) -> bool:
        """Whether it is for this caller to bring more: one at a time, or what several bring would go unused."""
        if now < self.asked_until:
            return False
        self.asked_until = now + KEPT
        return True

    def take(self, now: float, cost: float = 1.0) -> bool:
        """Use *cost* of them. Undivided, like a bucket's (see `guards.rate`)."""
        left = self.tokens - cost
        if left < 0.0 or now >= self.until:
            return False
        self.tokens = left
        return True

    def put(self, now: float, tokens: float) -> None:
        """Have *tokens* for a while; what was left of the last ones goes."""
        self.tokens = tokens
        self.until = now + KEPT
        self.asked_until = 0.0


class Desk:
    """That of *tool*, whose keys begin with *key*."""

    def __init__(self, fleet: Fleet, key: bytes, tool: str) -> None:
        self.fleet = fleet
        self.key = key
        self.tool = tool
        self.fresh = False  # the fleet's circuit was seen since the connection stands
        self.generation = -1  # of the fleet's circuit, when it was last seen
        self.rate: float | None = None  # while it is lower than it may be
        self.troubled = False  # a failure was told from here, and no success since
        self.block = Block()
        self.shared = Shared(None, None, None)  # what it was last asked about
        self._follow: Callable[[Seen], object] = lambda _: None
        self._lock = threading.Lock()
        self._seen: tuple[object, ...] = ()
        self._latest = PRISTINE  # as it was last seen
        self._pristine = False  # it was as new then
        self._seen_at = 0
        self._told: list[Outcome] = []
        self._returned: dict[str, int] = {}
        self._slots: dict[str, int] = {}
        self._forms: dict[tuple[int, str], tuple[Shared, Form]] = {}

    def serve(self, follow: Callable[[Seen], object]) -> None:
        """Be the desk of a tool that is new; *follow* is told of the fleet's circuit."""
        self._follow = follow
        self.forget()

    @property
    def there(self) -> bool:
        """Whether Redis is there, and for this tool, too."""
        return self.fleet.there and self not in self.fleet.missing

    # -- asking --------------------------------------------------------------------------------------------------------

    def form(self, shared: Shared) -> Form:
        """How to ask about *shared*, under the name that the process has now."""
        self.shared = shared
        return self.form_of(shared, self.fleet.holder)

    def form_of(self, shared: Shared, holder: str) -> Form:
        """How to ask about *shared* as *holder*."""
        known = self._forms.get((id(shared), holder))  # by identity: to hash all settings takes longer than the rest
        if known is not None:
            return known[1]
        fleet = self.fleet
        form = Form(fleet.script, self.key, fleet.channel, holder, fleet.lease, shared)
        if len(self._forms) >= MOST_FORMS:
            self._forms.clear()
        self._forms[id(shared), holder] = (shared, form)
        return form

    def words(self, form: Form, asked: Asked) -> bytes:
        """The question *asked*, with everything that is to be told."""
        if self._told:
            return form.telling(self.pending(), asked)
        if not self._returned:
            return form.question(asked, 0)
        with self._lock:
            slots = self._returned.pop(form.holder, 0)
        return form.question(asked, slots)  # what others than *holder* return, the service tells

    def news(self, form: Form) -> bytes:
        """Everything that is to be told, and no question."""
        return form.telling(self.pending())

    @property
    def has_news(self) -> bool:
        """Whether there is something to be told."""
        return bool(self._told or self._returned)

    def pending(self) -> list[Outcome]:
        """What is to be told; who takes it tells it."""
        with self._lock:
            return self._take_all()

    def sign_of_life(self, form: Form) -> bytes:
        """What is to be told, and how many slots the holder has then: told apart, one would be taken for the other."""
        with self._lock:
            told, slots = self._take_all(), self._slots.get(form.holder, 0)
        # Under a name from before an outage nobody asks for more: what was given without our knowing ends here.
        return form.telling(told, renew=f"{'' if form.holder == self.fleet.holder else '='}{slots}")

    def _take_all(self) -> list[Outcome]:
        told, self._told = self._told, []
        returned, self._returned = self._returned, {}
        return told + [Outcome(holder, slots) for holder, slots in returned.items()]

    def answered(self, reply: Any, form: Form, cost: float) -> Held | None:
        """Take note of an answer; gives what was given."""
        verdict, wait, generation, probe, _, now_us, rate, circuit = checked(reply)
        if circuit is not None or rate is not None or generation != self.generation or not self._pristine:
            self.see(answer(reply))  # else it is as it was, which is the usual case
        if verdict != ADMITTED:
            return None
        slots = form.slots
        if slots:
            holder = form.holder
            with self._lock:
                self._slots[holder] = self._slots.get(holder, 0) + 1
        return Held(form.holder, generation, probe, slots, cost if form.paid else 0.0, now_us, wait / MICRO)

    def see(self, reply: Answer) -> None:
        """Follow the circuit as an answer shows it; an older answer than the last says nothing.

        It is older by the server's clock: a new generation is newer whatever the clock says.
        """
        if not reply.is_before(self._seen_at) or reply.generation > self.generation:
            self._seen_at = reply.now_us
            self.rate = reply.rate
            self.turn(reply.generation, reply.seen or PRISTINE)

    def turn(self, generation: int, seen: Seen) -> None:
        """The circuit of the fleet is as *seen*."""
        if generation < self.generation:
            return
        self._pristine = seen == PRISTINE and self.rate is None
        facts = (generation, seen.state, seen.failures, seen.times_opened, self.rate is None)
        if facts == self._seen and self.fresh:
            return
        self.generation, self._seen = generation, facts
        self.fresh, self._latest = True, seen
        self._follow(seen)
        while (latest := self._latest) is not seen:  # another thread was quicker with what is newer
            seen = latest
            self._follow(seen)

    def forget(self) -> None:
        """The connection is lost: what was seen may no longer be so, and of what was to be told, slots alone matter."""
        with self._lock:
            self.fresh = self._pristine = False
            self.generation, self._seen, self._seen_at = -1, (), 0
            self.rate = None
            self.troubled = False
            self.block.tokens = 0.0
            told, self._told = self._told, []
            for outcome in told:
                self._return(outcome.holder, outcome.slots)

    # -- telling -------------------------------------------------------------------------------------------------------

    def tell(self, outcome: Outcome) -> bool:
        """Have the fleet told, off the caller's path; true if a failure is the news, or no longer is.

        Never blocks for long: the garbage collector may end a call.
        """
        with self._lock:
            self._let_go(outcome.holder, outcome.slots)
            was_troubled = self.troubled
            if outcome.says_more and self.there and len(self._told) < MOST_TOLD:
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
        """Give a slot back after an attempt that says nothing else."""
        with self._lock:
            self._let_go(holder, 1)
            self._return(holder, 1)
        self.fleet.dirty(self)

    def _let_go(self, holder: str, slots: int) -> None:
        left = self._slots.get(holder, 0) - slots
        if left > 0:
            self._slots[holder] = left
        else:
            self._slots.pop(holder, None)

    def _return(self, holder: str, slots: int) -> None:
        """Have slots told to be free, sooner or later: under a name that is in use, nothing else would free them."""
        if slots:
            self._returned[holder] = self._returned.get(holder, 0) + slots

    def give_back(self, held: Held) -> None:
        """Give back what was not used: probe, token and slot."""
        self.tell(Outcome(held.holder, held.slots, held.cost, "", 1, held.generation, held.probe))

    def after_fork(self) -> None:
        """In a forked child: what is held, and what is to be told, is the parent's."""
        self._lock = threading.Lock()
        self._slots, self._forms = {}, {}
        self.forget()
        self._returned = {}

    def holding(self) -> dict[str, int]:
        """The slots that this process has, by the name it took them under."""
        with self._lock:
            return dict(self._slots)


def block_of(rate: RateConfig, cost: float) -> int:
    """How many calls' tokens are leased at once."""
    return max(1, min(int(rate.per_second * BLOCK / cost), int(rate.capacity / cost), MOST_LEASED))
