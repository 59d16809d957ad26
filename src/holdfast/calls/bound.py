"""A function and the tool that guards it: what is kept of a decorated function, and how it is found again."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

from holdfast import checks
from holdfast.calls.attempt import Made
from holdfast.calls.drivers import DRIVERS, ONE_HOP
from holdfast.calls.execution import Execution
from holdfast.calls.quick import GUARDS
from holdfast.calls.recording import Record
from holdfast.calls.subject import Subject
from holdfast.errors import ConfigError
from holdfast.fleet.question import Question
from holdfast.guards.concurrency import Slots
from holdfast.policy import Policy
from holdfast.runs import Step, running
from holdfast.shape import dressed, shape_of
from holdfast.tools.kit import Kit
from holdfast.tools.tool import Tool
from holdfast.tools.verdicts import Basis
from holdfast.values.canonical import takes, without_object
from holdfast.values.memo import Memo


class Bound:
    """A function and the tool that guards it."""

    __slots__ = ("kit", "face", "fn", "shape", "tool", "_memo")

    def __init__(self, kit: Kit, tool: Tool, fn: Callable[..., Any]) -> None:
        self.kit = kit
        self.tool = tool
        self.fn = fn
        self.shape = shape_of(fn)
        self.face: Callable[..., Any] | None = None  # the function that `guarded` returned, if any
        self._memo: Memo | None = None

    def execution(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        call: Mapping[str, object] | None = None,
        arguments: object = None,
    ) -> Execution:
        """A call for a driver; *call* overrides settings, *arguments* are the tool's by name (see `Subject.given`)."""
        return self._execution(self.tool.override(call), args, kwargs, arguments)

    def drop(self) -> None:
        """Forget the function and its tool; calls that are under way still have them."""
        self.kit.drop(self.tool.name)

    @property
    def memo(self) -> Memo:
        """How the function's results are remembered."""
        if self._memo is None:
            self._memo = Memo(self.fn)
        return self._memo

    def repeat(self, before: Execution, step: Step | None) -> Any:
        """Make a call in doubt again, as the same *step* of its run; without one, as another call."""
        subject, run = before.subject, before.run
        assert run is not None
        execution = Execution(self.kit, self.tool, before.policy, run, subject, self)
        execution.record = None if step is None else Record(run, self, step)
        return DRIVERS[before.driver](execution, self, subject.args, subject.kwargs)

    def failed(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        error: BaseException,
        begun: float,
        basis: Basis,
        taken: Slots | Question | bool,
    ) -> Execution:
        """A call whose first attempt was made by the quick path, and failed."""
        execution = self._execution(basis.policy, args, kwargs)
        execution.made = Made(error, self.tool.passed(basis, taken), begun)
        return execution

    def asked(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], basis: Basis, question: Question) -> Execution:
        """A call whose first question to the fleet was asked by the quick path, and not answered by a plain yes."""
        execution = self._execution(basis.policy, args, kwargs)
        execution.asked = question
        return execution

    def fallback_of(self, execution: Execution) -> Bound:
        """The fallback of *execution*, which answers in place of this tool."""
        return _named(self.kit, execution.fallback or "")

    def handed_on(
        self, execution: Execution, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Execution, Bound, tuple[Any, ...], Mapping[str, Any]]:
        """The call of the fallback, as the arguments of a driver."""
        other = self.fallback_of(execution)
        if execution.given is None:
            args, kwargs = self._arguments(other, args, kwargs)
        return other.execution(args, kwargs, ONE_HOP, execution.given), other, args, kwargs

    def fits(self, other: str, execution: Execution) -> bool:
        """True if the tool named *other* can be called with the arguments of *execution*."""
        if execution.given is not None:  # an adapter passes them on, not the function
            return True
        bound, subject = _named(self.kit, other), execution.subject
        return takes(bound.fn, *self._arguments(bound, subject.args, subject.kwargs))

    def _arguments(
        self, other: Bound, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """The same arguments for the tool *other*; the object of a method is passed on only to another method."""
        fn = self.fn
        while isinstance(fn, functools.partial) and self.face is None:  # a decorated partial keeps its arguments
            args, kwargs, fn = (*fn.args, *args), {**fn.keywords, **kwargs}, fn.func
        if is_method := isinstance(fn, MethodType):
            args = (fn.__self__, *args)
        if (is_method or _takes_object(fn)) and not _takes_object(other.fn):
            args = args[1:]
        return args, kwargs

    def guarded(self) -> Callable[..., Any]:
        """Make the function that users call instead of their own."""
        self.face = dressed(self.fn, GUARDS[self.shape](self))
        self.face.__holdfast__ = self  # type: ignore[attr-defined]
        return self.face

    def _execution(
        self, policy: Policy, args: tuple[Any, ...], kwargs: Mapping[str, Any], arguments: object = None
    ) -> Execution:
        return Execution(self.kit, self.tool, policy, running(), Subject(self.fn, args, kwargs, arguments), self)


def guards_of(kit: Kit, tool: object) -> Bound | None:
    """The guards of *tool*, if it is a decorated function, the name of one, or a method or a partial of one.

    A function that only wraps a decorated one is refused: it has the same attributes, and would be guarded twice.
    """
    if isinstance(tool, str):
        return _named(kit, tool)
    if isinstance(tool, functools.partial):
        inner = guards_of(kit, tool.func)
        return inner and Bound(kit, inner.tool, functools.partial(inner.fn, *tool.args, **tool.keywords))
    fn = tool.__func__ if isinstance(tool, MethodType | staticmethod) else tool
    bound = getattr(fn, "__holdfast__", None)
    if not isinstance(bound, Bound) or bound.kit is not kit:
        return None
    if bound.face is not fn:
        raise ConfigError(
            f"{bound.tool.name!r} is guarded already, inside of what wraps it: call that directly, or put the other "
            "decorators below @hf.tool"
        )
    return Bound(kit, bound.tool, MethodType(bound.fn, tool.__self__)) if isinstance(tool, MethodType) else bound


def _takes_object(fn: Callable[..., Any]) -> bool:
    """True if *fn* is the function of a method."""
    call = ((None,), dict[str, Any]())
    return not isinstance(fn, functools.partial) and without_object(fn, call) is not call


def _named(kit: Kit, name: str) -> Bound:
    bound = kit.bound.get(name)
    if bound is None:
        known = ", ".join(sorted(kit.bound)) or "none yet"
        raise ConfigError(f"{checks.shown(name)} is not a decorated tool; known are: {known}")
    assert isinstance(bound, Bound)
    return bound
