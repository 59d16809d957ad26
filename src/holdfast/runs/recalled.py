"""What a resumed run knows of the calls that were made before, until its code asks for them again."""

from __future__ import annotations

from holdfast.history import RunSnapshot
from holdfast.runs.foreign import Foreign, begun, history
from holdfast.runs.identity import KEY_SCHEME, NOBODY, Identity, descendants, maker_of, sign_of
from holdfast.runs.log import AGAIN, LOST, SPENT, UNKEPT, Outcome
from holdfast.stores import RunStore
from holdfast.stores.store import Memory
from holdfast.values.failures import is_error


class Recalled:
    """The earlier calls of a resumed run. A call that is taken is gone from here; one thread at a time may take."""

    def __init__(self) -> None:
        self.calls: dict[str, Outcome] = {}  # by key
        self.tentative: frozenset[str] = frozenset()  # failed calls within calls that are made again
        self.inherited: frozenset[str] = frozenset()  # calls that a fork knows, and that began before it
        self.spent_elsewhere: list[Outcome] = []  # amounts known only from events of the runs that it is a fork of
        self.is_foreign = False  # imported, or of a version that makes keys in another way
        self.unkept: frozenset[str] = frozenset()  # calls in doubt that have ended well: only their result was not kept
        self._inner: dict[str, list[str]] = {}  # keys of calls within calls, by the sign of the call that made them
        self._answered: list[str] = []  # the keys of calls that were answered from the log
        self._foreign = Foreign()

    @classmethod
    def of(cls, memory: Memory, store: RunStore, identity: Identity) -> Recalled:
        """What *memory* tells of the calls of a run."""
        found = cls()
        calls, marked = found.calls, list[Outcome]()
        for digest, name, memo in memory.memos:
            key = digest.hex()
            calls[key] = known = Outcome(key, name, memo)
            if len(memo) <= 1:  # one of the marks in the place of a memo
                marked.append(known)
        calls.update((each.key, each) for each in _in_doubt(memory.snapshot))
        found.unkept = frozenset(known.key for known in marked if calls[known.key].memo == UNKEPT)
        calls.update({key: Outcome(key, calls[key].name, LOST) for key in found.unkept})
        again = [sign_of(known.key) for known in marked if known.memo == AGAIN]
        below = descendants(calls, again) if again else []
        found.tentative = frozenset(key for key in below if is_error(calls[key].bare))
        run_id = memory.snapshot.id
        found.is_foreign = memory.is_foreign or memory.header.keys != KEY_SCHEME
        if found.is_foreign:
            told = history(store, run_id)
            found._foreign = Foreign.recognised(calls, memory.memos, told, identity, imported=memory.is_foreign)
        if memory.snapshot.forked_from is not None:
            found.inherited = frozenset(calls.keys() - begun(store.events(run_id)))
            remembered = {digest.hex() for digest, _, _ in memory.memos}
            found.spent_elsewhere = [
                each for key, each in calls.items() if each.memo == SPENT and key not in remembered
            ]
        for key in calls:
            if not key.endswith(NOBODY):
                found._inner.setdefault(maker_of(key), []).append(key)
        return found

    def take(self, key: str) -> Outcome | None:
        """Take what is known of the call *key*; it may be known by a key that was made elsewhere."""
        known = self.calls.pop(key, None)
        if known is None and (elsewhere := self._foreign.elsewhere.get(key)) is not None:
            known = self.calls.pop(elsewhere, None)
        return known

    def take_any(self, own: str, name: str) -> Outcome | None:
        """Match the call *own* with the oldest call left from elsewhere of its name and maker, and take that."""
        self._foreign.claim(self.calls, own, name)
        return self.take(own)

    def shows(self, own: str, key: str) -> bool:
        """True if events will always show that the call *own* is *key*, so that it need not be written."""
        return self._foreign.shows(own, key)

    def put_back(self, known: Outcome) -> None:
        """Put back a call that was taken, but is not made after all."""
        self.calls[known.key] = known

    def mark_answered(self, key: str) -> list[str]:
        """Note that the log answers the call *key*; return the tools called within it, which no code will ask for."""
        self._answered.append(key)
        if not self._inner:
            return []
        tools: list[str] = []
        todo = [key]
        while todo:
            below = self._inner.pop(sign_of(todo.pop()), [])
            todo += below
            left = [self.calls[key] for key in below if key in self.calls]
            tools += [known.name for known in left if known.counts]
        return tools

    def unasked(self) -> list[str]:
        """The names of the finished calls that the resumed code has not asked for."""
        if not self.calls:
            return []
        left = dict(self.calls)
        for key in descendants(left, map(sign_of, self._answered)):
            del left[key]
        return [known.name for known in left.values() if known.bare not in (LOST, AGAIN, SPENT)]


def _in_doubt(snapshot: RunSnapshot) -> list[Outcome]:
    """The calls that had begun and not ended; blocks, which have no key, are none: they ended when it was resumed."""
    return [Outcome(call.key, call.name, LOST) for call in snapshot.active_calls.values()]
