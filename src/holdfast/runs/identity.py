"""Who a call of a run is. It is known by the call or step that makes it, its name, its arguments, and how many such
calls have begun before it in this run; not by its place in time, so calls that run side by side keep their identity.

A key has 32 digits: 24 of its own, and the first 8 of whoever made it.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

TOOL: Final = b"t"
STEP: Final = b"s"
AMOUNT: Final = b"$"  # no call, but an amount that was spent outside of any

KEYS: Final = 2  # the way in which keys are made: whoever changes what goes into them raises it
SEVERAL: Final = -1  # ways: a run was gone on with in another than it was begun in

AHEAD = 8  # numbers at which a call is looked for: one may have ended without a trace, and its twin stands for it

_OWN, _MAKER = 24, 8
NOBODY: Final = "0" * _MAKER  # what keys of calls end with that no other call has made


class Identity:
    """Makes the keys of a run's calls; runs that have *root* and *secret* in common have them in common."""

    __slots__ = ("_digest", "_secret")

    def __init__(self, root: str = "", secret: bytes = b"") -> None:
        self._secret = secret
        self._digest = blake2b(root.encode() + b"\0", key=secret, digest_size=_OWN // 2)

    def base(self, parent: str, name: str, sign: bytes, kind: bytes) -> bytes:
        """What all calls of *name* with the arguments *sign* have in common that *parent* makes."""
        digest = self._digest.copy()
        digest.update(b"\0".join((parent.encode(), kind, name.encode("utf-8", "surrogatepass"), sign)))
        return digest.digest()

    def key(self, base: bytes, parent: str, number: int) -> str:
        """The key of one of them, by how many have begun before it."""
        if number:
            base = blake2b(base + number.to_bytes(8, "big"), key=self._secret, digest_size=_OWN // 2).digest()
        return base.hex() + (parent[:_MAKER] or NOBODY)


def ahead(first: int) -> range:
    """The numbers that the next call may have."""
    return range(first, first + AHEAD)


def sign_of(key: str) -> str:
    """What the keys of the calls that *key* makes end with."""
    return key[:_MAKER]


def maker_of(key: str) -> str:
    """The sign of whoever made the call *key*."""
    return key[_OWN:]


def is_made_by(key: str, other: str) -> bool:
    """Whether the call *key* was made by the call *other*."""
    return maker_of(key) == sign_of(other)


def descendants(keys: Iterable[str], signs: Iterable[str]) -> list[str]:
    """Those of *keys* that were called by the calls of *signs*, or by what they called."""
    children: dict[str, list[str]] = {}
    for key in keys:
        children.setdefault(maker_of(key), []).append(key)
    found: list[str] = []
    todo = list(signs)
    while todo:
        below = children.pop(todo.pop(), [])
        found += below
        todo += map(sign_of, below)
    return found
