"""Encodes calls of the script and decodes its answers. `decide/` has the script and lists its keys and arguments.

The part that is the same for all calls under one policy is encoded once; a call adds its outcomes and its question.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.category import ErrorCategory
from holdfast.errors import printable
from holdfast.fleet.link import Away, Refused, bulk, packed
from holdfast.guards.breaking import BreakerConfig
from holdfast.guards.circuit import CircuitState, Seen
from holdfast.guards.rate import RateConfig
from holdfast.shipped import read_shipped

ADMITTED, CIRCUIT, RATE, CONCURRENCY, NOTHING = range(5)
NO_PROBE = -1
RESET = "reset"  # what an outcome says that resets the circuit; the user's wish, which no outage may lose
TRY = "?"  # instead of slots whose lease is renewed: use all keys as calls do, to see if that works
PARTS = ("1_usual.lua", "2_rate.lua", "3_circuit.lua", "4_slots.lua", "5_decide.lua")  # files in `decide/`
MICRO = 1_000_000
BACK_US = 5 * MICRO  # by which the server's clock may go back unnoticed; the same as BACK in the script
KEYS = ("", ":failures", ":window", ":holders", ":leases")
MOST_KNOWN = 256  # encoded questions that a form keeps

_STATES = (CircuitState.CLOSED, CircuitState.OPEN, CircuitState.HALF_OPEN)
_CATEGORIES = {str(category): category for category in ErrorCategory}
_PACK = msgspec.msgpack.Encoder()
_UNPACK = msgspec.msgpack.Decoder()


class Shared(NamedTuple):
    """The guards that a question is about, None for those that are not shared."""

    breaker: BreakerConfig | None
    rate: RateConfig | None
    limit: int | None


class Outcome(NamedTuple):
    """How an attempt ended, or what is given back because it was not made."""

    holder: str
    slots: int = 0  # to give back
    refund: float = 0.0  # tokens that were not used after all
    says: str = ""  # "ok", a category of failure or RESET; empty if it says nothing about the tool
    calls: int = 1
    generation: int = -1
    probe: int = NO_PROBE
    duration_us: int = 0
    sign: str = ""  # tells failures apart; never bytes, which the msgpack of Redis cannot decode
    pause_us: int = -1
    admitted_at_us: int = -1

    @property
    def says_more(self) -> bool:
        """True if it says more than that slots are given back."""
        return bool(self.says or self.refund or self.probe != NO_PROBE)


class Answer(NamedTuple):
    """An answer of the script, without its verdict; *seen* is None while the circuit is as new."""

    generation: int
    taken: int
    now_us: int
    rate: float | None
    seen: Seen | None

    def is_before(self, seen_at_us: int) -> bool:
        """True if it is older than an answer of *seen_at_us*; by more than BACK_US, the clock was set back: False."""
        return 0 < seen_at_us - self.now_us <= BACK_US


class Script:
    """The script: its text and the digest by which Redis knows it."""

    def __init__(self) -> None:
        folder = os.path.join(os.path.dirname(__file__), "decide")
        self.text = b"\n".join(read_shipped(os.path.join(folder, part)) for part in PARTS)
        self.digest = hashlib.sha1(self.text, usedforsecurity=False).hexdigest()


Asked = tuple[float, int, int]  # tokens a call costs, for how many calls at most, microseconds ahead to reserve


class Form:
    """The part of a question that is the same for all calls of one tool under one policy, by one holder."""

    __slots__ = ("holder", "key", "paid", "slots", "_channel", "_count", "_head", "_known", "_script")

    def __init__(self, script: Script, key: bytes, channel: str, holder: str, lease: float, shared: Shared) -> None:
        self.key = key
        self.holder = holder
        self.slots = int(bool(shared.limit))  # slots that a call takes
        self.paid = shared.rate is not None  # True if a call costs tokens
        keys = [key + suffix.encode() for suffix in KEYS]
        facts = [bulk(part) for part in ("", holder, int(lease * MICRO), *_guards(shared))]
        self._count = b"*%d\r\n" % (3 + len(keys) + 15)
        self._script = script
        self._head = self._call("EVALSHA", script.digest) + b"".join([bulk(len(keys)), *map(bulk, keys), *facts])
        self._channel = bulk(channel)
        self._known: dict[tuple[Asked, int], bytes] = {}

    def question(self, asked: Asked, returned: int) -> bytes:
        """Encode a question that also gives back *returned* slots: the usual case, whose bytes are kept."""
        words = self._known.get((asked, returned))
        if words is None:
            told = [Outcome(self.holder, returned)] if returned else []
            words = self._head + self._tail(told, asked, "", 0.0)
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[asked, returned] = words
        return words

    def telling(self, outcomes: Sequence[Outcome], asked: Asked | None = None, *, renew: str = "") -> bytes:
        """Encode *outcomes* and, if anything is *asked*, a question; *renew* the lease on so many slots."""
        return self._head + self._tail(outcomes, asked, renew, random.random())

    def in_full(self, words: bytes) -> bytes:
        """*words* with the whole script instead of its digest, for a Redis that has forgotten it."""
        return self._call("EVAL", self._script.text) + words[len(self._call("EVALSHA", self._script.digest)) :]

    def _call(self, command: str, script: str | bytes) -> bytes:
        return self._count + bulk(command) + bulk(script)

    def _tail(self, told: Sequence[Outcome], asked: Asked | None, renew: str, chance: float) -> bytes:
        outcomes = bulk(_PACK.encode(told) if told else b"")
        cost, take, horizon = asked if asked is not None else ("", 1, 0)
        asks = bulk(f"{cost:g}" if cost else "") + bulk(take) + bulk(horizon)
        return outcomes + asks + self._channel + bulk(renew) + bulk(f"{chance:.6f}")


def checked(reply: Any) -> list[Any]:
    """*reply*, if it is an answer of the script; raise `Refused` for an error, `Away` for anything else."""
    if isinstance(reply, Exception):
        raise Refused(f"Redis: {reply}")
    if type(reply) is list and len(reply) == 8:
        verdict, wait, generation, probe, taken, now, rate, _ = reply
        # A match statement would do the same, but takes four times as long.
        if type(verdict) is type(wait) is type(generation) is type(probe) is type(taken) is type(now) is int and (
            rate is None or type(rate) is int
        ):
            return reply
    raise Away(f"Redis: not the answer of the script: {printable(repr(reply))}")


def answer(reply: list[Any]) -> Answer:
    """Decode a *reply* that was checked."""
    _, _, generation, _, taken, now, rate, circuit = reply
    seen = None if circuit is None else _seen(circuit)
    return Answer(generation, taken, now, None if rate is None else rate / 1000, seen)


def change(message: bytes) -> tuple[bytes, int, Seen]:
    """Decode what was published: the tool's key, the generation and the circuit; raise `Away` for anything else."""
    try:
        said = _UNPACK.decode(message)
    except (ValueError, RecursionError):  # any client may publish anything
        said = message
    match said:
        case [str(key), int(generation), circuit]:
            return key.encode(), generation, _seen(circuit)
    raise Away(f"Redis: not what the script publishes: {printable(repr(said))}")


def is_unknown(reply: Any) -> bool:
    """True if *reply* says that Redis has forgotten the script."""
    return isinstance(reply, Exception) and str(reply).startswith("NOSCRIPT")


def load(script: Script) -> bytes:
    """The command that loads the script into Redis."""
    return packed(("SCRIPT", "LOAD", script.text))


def _seen(circuit: Any) -> Seen:
    match circuit:
        case [
            int(state), int(remaining), int(failures), int(backoff), int(opened), _, str() | bytes() as last, _,
        ] if 0 <= state < len(_STATES):  # fmt: skip
            category = _CATEGORIES.get(last if isinstance(last, str) else last.decode("utf-8", "replace"))
            return Seen(_STATES[state], max(0, remaining) / MICRO, failures, backoff / MICRO, opened, category)
    raise Away(f"Redis: not a circuit of the script: {printable(repr(circuit))}")


def _guards(shared: Shared) -> list[bytes | str | int]:
    """Breaker, rate and limit as the script takes them; empty where there is none."""
    breaker, rate, limit = shared
    packed_breaker = b"" if breaker is None else _PACK.encode(_breaker(breaker))
    rates = ["", "", ""]
    if rate is not None:
        rates = [repr(float(rate.per_second)), repr(float(rate.capacity)), repr(rate.floor) if rate.adaptive else ""]
    return [packed_breaker, *rates, "" if limit is None else limit]


def _breaker(config: BreakerConfig) -> list[Any]:
    factor = min(config.backoff_factor, 1e300)
    return [
        config.failure_threshold, config.min_backoff, config.max_backoff, factor, config.jitter,
        config.half_open_probes, config.probe_lease, config.successes_to_close, config.window, config.window_calls,
        sorted(map(str, config.trips)), config.failure_rate, config.slow_call, config.slow_call_rate,
        config.judged_from, config.distinct_arguments,
    ]  # fmt: skip
