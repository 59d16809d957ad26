"""The identity of a call in a run: the call or step that makes it, its name, its arguments, and how many such calls
have begun before it in this run; not its place in time, so calls that run side by side keep their identity.

A key has 32 digits: 24 of its own, and the first 8 of the key of the call or step that makes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

TOOL: Final = b"t"
STEP: Final = b"s"
AMOUNT: Final = b"$"  # not a call, but an amount that was spent outside of any call

KEY_SCHEME: Final = 2  # version of the scheme that makes keys: to be raised when what goes into them changes
SEVERAL: Final = -1  # a run was resumed with another scheme than it was begun with

AHEAD = 8  # numbers that are tried for a call: an equal one may have left no trace, and the next stands for it

_OWN, _MAKER = 24, 8
_MOST_BEGUN = 64  # digests kept; calls that other calls make have parents without number
NOBODY: Final = "0" * _MAKER  # the end of the key of a call that no other call or step made


class Identity:
    """Makes the keys of a run's calls; runs with the same *root* and *secret* make the same keys."""

    __slots__ = ("_begun", "_digest", "_secret")

    def __init__(self, root: str = "", secret: bytes = b"") -> None:
        self._secret = secret
        self._digest = blake2b(root.encode() + b"\0", key=secret, digest_size=_OWN // 2)
        self._begun: dict[tuple[str, str, bytes], blake2b] = {}  # digests of all but the arguments

    def base(self, parent: str, name: str, sign: bytes, kind: bytes) -> bytes:
        """The digest that all calls of *name* with the arguments *sign* made by *parent* share."""
        begun = self._begun.get((parent, name, kind))
        digest = self._begin(parent, name, kind) if begun is None else begun.copy()
        digest.update(sign)
        return digest.digest()

    def _begin(self, parent: str, name: str, kind: bytes) -> blake2b:
        digest = self._digest.copy()
        digest.update(b"\0".join((parent.encode(), kind, name.encode("utf-8", "surrogatepass"), b"")))
        if len(self._begun) >= _MOST_BEGUN:
            self._begun.clear()
        self._begun[parent, name, kind] = digest
        return digest.copy()

    def key(self, base: bytes, parent: str, number: int) -> str:
        """The key of one call of this *base*; *number* is how many of them began before it."""
        if number:
            base = blake2b(base + number.to_bytes(8, "big"), key=self._secret, digest_size=_OWN // 2).digest()
        return base.hex() + (parent[:_MAKER] or NOBODY)


def ahead(first: int) -> range:
    """The numbers that the next call may have."""
    return range(first, first + AHEAD)


def sign_of(key: str) -> str:
    """The sign of the call *key*: the keys of the calls that it makes end with it."""
    return key[:_MAKER]


def maker_of(key: str) -> str:
    """The sign of the call or step that made the call *key*."""
    return key[_OWN:]


def is_made_by(key: str, other: str) -> bool:
    """True if the call *key* was made by the call *other*."""
    return maker_of(key) == sign_of(other)


def descendants(keys: Iterable[str], signs: Iterable[str]) -> list[str]:
    """Those of *keys* whose calls were made by the calls with these *signs*, directly or through others."""
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
