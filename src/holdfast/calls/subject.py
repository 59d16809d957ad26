"""The subject of a call: its function and arguments, and the keys by which an identical call is recognised.

There are three keys: for the loop guard (`same`), the log of a run (`step`) and the cache (`key`). Nothing is computed
before it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from types import MethodType
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.values.canonical import bind, encode, itself, owner, without_defaults, without_object
from holdfast.values.telling import likeness


class Subject(msgspec.Struct, eq=False):
    """The function and the arguments of one call; a block of code has neither, and is identical to no other call."""

    fn: Callable[..., Any] | None = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}
    given: object = None  # the tool's arguments by name, from an adapter whose function may take others
    asker: Hashable = None  # the client, if the server may answer other clients differently
    _arguments: object = None
    _told: object = None
    _canonical_bytes: bytes | UnsetType | None = UNSET
    _method: Callable[..., Any] | None = None  # `fn` bound to its object, if that is an argument without bytes
    _same: tuple[Hashable, ...] | None = None

    def arguments(self) -> object:
        """The arguments by name."""
        if self._arguments is None and self.fn is not None:
            self._arguments = self.given if self.given is not None else bind(self.fn, self.args, self.kwargs)
        return self._arguments

    def told(self) -> object:
        """The arguments as they are recorded and shown: the name of its type stands for a method's object."""
        if self._told is None and self.fn is not None:
            self._told = self.given if self.given is not None else without_object(self.fn, self.arguments())
        return self._told

    def canonical_bytes(self) -> bytes | None:
        """The canonical bytes of the arguments, or None; a method's object that has no bytes counts by its type."""
        if self._canonical_bytes is UNSET:
            self._canonical_bytes = None
            if self.fn is not None:
                self._canonical_bytes = encode(arguments := self.arguments())
                if self._canonical_bytes is None and self.told() is not arguments and isinstance(arguments, dict):
                    self._canonical_bytes = encode(self.told())
                    self._method = MethodType(self.fn, next(iter(arguments.values())))
        return self._canonical_bytes

    def same(self, tool: str) -> Hashable | None:
        """The key for the loop guard: tool, arguments, and the object of a method; None if these have no bytes."""
        if self._same is None and (sign := self.canonical_bytes()) is not None:
            self._same = (tool, sign, *owner(self._method or self.fn))
        return self._same

    def step(self) -> bytes:
        """The key for a run, the same in any process: the arguments of `told` that differ from their defaults."""
        return self._told_as(self.told() if self.given is not None else without_defaults(self.fn, self.told()))

    def shown(self) -> bytes:
        """The same key made of all arguments, as an event of the run shows them."""
        return self._told_as(self.told())

    def key(self) -> Hashable | None:
        """The key for the cache: function, object, types and values of the arguments; None if these have no bytes."""
        sign, arguments = self.canonical_bytes(), self.arguments()
        if sign is None:
            return None
        if self.given is not None:  # plain data; which function passes them on does not matter
            return (sign, self.asker)
        kinds = tuple(map(_kinds, arguments.values())) if isinstance(arguments, dict) else ()
        return (itself(self._method or self.fn), kinds, sign)

    def _told_as(self, told: object) -> bytes:
        sign = self.canonical_bytes() if told is self.arguments() else encode(told)
        return sign or likeness(told)


def _kinds(argument: object) -> tuple[type, frozenset[type]]:
    """The types of *argument* and of its items; `canonical_bytes` compares deeper types by name, which is enough."""
    held = argument.values() if isinstance(argument, dict) else argument if isinstance(argument, list | tuple) else ()
    return type(argument), frozenset(map(type, held))
