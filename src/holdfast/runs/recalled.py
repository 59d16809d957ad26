"""What a resumed run knows of the calls that were made before it, until somebody asks for them."""

from __future__ import annotations

from holdfast.history import RunSnapshot
from holdfast.runs.foreign import Foreign, Known, begun, history
from holdfast.runs.identity import Identity, descendants, maker_of, sign_of
from holdfast.runs.log import AGAIN, LOST, SPENT
from holdfast.stores import RunStore
from holdfast.stores.store import Memory
from holdfast.values.memo import is_error
from holdfast.values.said import CACHED


class Recalled:
    """The calls of before. What is taken here is no longer known; one at a time may take."""

    def __init__(self) -> None:
        self.calls: dict[str, Known] = {}  # by key
        self.tentative: frozenset[str] = frozenset()  # failed calls within calls that are made again
        self.inherited: frozenset[str] = frozenset()  # those that a fork knows from before it, and that began not in it
        self._inner: dict[str, list[str]] = {}  # those within calls, by the sign of whoever made them
        self._standing: set[str] = set()  # the signs of calls that stand as they were
        self._foreign = Foreign()

    @classmethod
    def of(cls, memory: Memory, store: RunStore, identity: Identity) -> Recalled:
        """What *memory* says."""
        found = cls()
        calls = {key.hex(): (name, outcome) for key, name, outcome in memory.memos}
        found.calls = calls = calls | _in_doubt(memory.snapshot)
        below = descendants(calls, [sign_of(key) for key, (_, outcome) in calls.items() if outcome == AGAIN])
        found.tentative = frozenset(key for key in below if is_error(calls[key][1].removeprefix(CACHED)))
        run_id = memory.snapshot.id
        if memory.snapshot.forked_from is not None:
            found.inherited = frozenset(calls.keys() - begun(store.events(run_id)))
        if memory.is_foreign:
            found._foreign = Foreign.recognised(calls, memory.memos, history(store, run_id), identity)
        for key in calls:
            if (maker := maker_of(key)) != sign_of(""):
                found._inner.setdefault(maker, []).append(key)
        return found

    def take(self, key: str) -> tuple[str, Known | None]:
        """What is known of *key*, or of the one that stands for it, which is given as well."""
        if key not in self.calls and (other := self._foreign.elsewhere.get(key)) in self.calls:
            key = other or key
        return key, self.calls.pop(key, None)

    def take_any(self, own: str, name: str) -> tuple[str, Known | None]:
        """Take the call *own* for the oldest of its name and maker that is left."""
        self._foreign.claim(self.calls, own, name)
        return self.take(own)

    def stand(self, key: str) -> list[str]:
        """The call *key* is answered from the log: gives the tools of those within it, which nobody will ask for."""
        self._standing.add(sign_of(key))
        tools: list[str] = []
        todo = [key] if self._inner else []
        while todo:
            below = self._inner.pop(sign_of(todo.pop()), [])
            todo += below
            found = [self.calls.get(each) for each in below if each not in self._foreign.steps]
            tools += [known[0] for known in found if known is not None and not known[1].startswith(CACHED)]
        return tools

    def unasked(self) -> list[str]:
        """The names of the finished calls that nobody has asked for."""
        if not self.calls:
            return []
        left = dict(self.calls)
        for key in descendants(left, self._standing):
            del left[key]
        return [name for name, outcome in left.values() if outcome not in (LOST, AGAIN, SPENT)]


def _in_doubt(snapshot: RunSnapshot) -> dict[str, Known]:
    """The calls that had begun and not ended; those of blocks have no key, and are not asked for again."""
    return {call.key: (call.name, LOST) for call in snapshot.active_calls.values() if call.key}
