"""What a call is about, and by what it is known again: its arguments by name, as others are told them, as bytes.

Three parties know a call again, each in its own way: the loop guard (`same`), the log of a run (`step`), the cache
(`key`). Nothing is worked out before somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from types import MethodType
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.values.canonical import bind, encode, impersonal, itself, owner, without_defaults
from holdfast.values.telling import likeness


class Subject(msgspec.Struct, eq=False):
    """The function and the arguments of one call; a block of code has neither, and is the same as no other."""

    fn: Callable[..., Any] | None = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}
    given: object = None  # the arguments by name, from who knows better than the function
    asker: Hashable = None  # for whom it is made, where others may get another answer
    _arguments: object = None
    _told: object = None
    _sign: bytes | UnsetType | None = UNSET
    _method: Callable[..., Any] | None = None  # in place of `fn`, where an argument is the object of a method
    _same: tuple[Hashable, ...] | None = None

    def arguments(self) -> object:
        """The arguments by name."""
        if self._arguments is None and self.fn is not None:
            self._arguments = self.given if self.given is not None else bind(self.fn, self.args, self.kwargs)
        return self._arguments

    def told(self) -> object:
        """The arguments as others are told them: a method's object is none of them."""
        if self._told is None and self.fn is not None:
            self._told = self.given if self.given is not None else impersonal(self.fn, self.arguments())
        return self._told

    def sign(self) -> bytes | None:
        """The canonical arguments, None if they cannot be told; a method's object that has no value is none of them."""
        if self._sign is UNSET:
            self._sign = None
            if self.fn is not None:
                self._sign = encode(arguments := self.arguments())
                if self._sign is None and self.told() is not arguments and isinstance(arguments, dict):
                    self._sign = encode(self.told())
                    self._method = MethodType(self.fn, next(iter(arguments.values())))
        return self._sign

    def same(self, tool: str) -> Hashable | None:
        """What the loop guard knows it by: tool, arguments, and the object of a method."""
        if self._same is None and (sign := self.sign()) is not None:
            self._same = (tool, sign, *owner(self._method or self.fn))
        return self._same

    def step(self) -> bytes:
        """What a run knows the call by, in any process: the arguments of `told` that differ from their defaults."""
        return self._told_as(self.told() if self.given is not None else without_defaults(self.fn, self.told()))

    def shown(self) -> bytes:
        """The same with all arguments, as an event of the run shows them."""
        return self._told_as(self.told())

    def key(self) -> Hashable | None:
        """What the cache knows it by: the function and its object, and arguments of the same types and values."""
        sign, arguments = self.sign(), self.arguments()
        if sign is None:
            return None
        if self.given is not None:  # plain data, whatever function passes them on
            return (sign, self.asker)
        kinds = tuple(map(_kinds, arguments.values())) if isinstance(arguments, dict) else ()
        return (itself(self._method or self.fn), kinds, sign)

    def _told_as(self, told: object) -> bytes:
        sign = self.sign() if told is self.arguments() else encode(told)
        return sign or likeness(told)


def _kinds(argument: object) -> tuple[type, frozenset[type]]:
    """Its type, and those of what it holds; what is deeper inside has classes of the same name, which will do."""
    held = argument.values() if isinstance(argument, dict) else argument if isinstance(argument, list | tuple) else ()
    return type(argument), frozenset(map(type, held))
