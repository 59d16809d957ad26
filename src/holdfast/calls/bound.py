"""A function and the tool that guards it: what is made of a decorated function, and how it is found again."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

from holdfast import checks
from holdfast.calls import quick
from holdfast.calls.attempt import Made
from holdfast.calls.drivers import adrive, adrive_stream, drive, drive_stream
from holdfast.calls.execution import Execution
from holdfast.calls.recording import Record
from holdfast.errors import ConfigError
from holdfast.fleet.desk import Question
from holdfast.guards.concurrency import Slots
from holdfast.runs import Step, running
from holdfast.shape import Shape, dressed, shape_of
from holdfast.tools.kit import Kit
from holdfast.tools.tool import Tool
from holdfast.tools.verdicts import Plan
from holdfast.values.canonical import impersonal
from holdfast.values.memo import Memo


class Bound:
    """A function and the tool that guards it."""

    __slots__ = ("kit", "face", "fn", "shape", "tool", "_memo")

    def __init__(self, kit: Kit, tool: Tool, fn: Callable[..., Any]) -> None:
        self.kit = kit
        self.tool = tool
        self.fn = fn
        self.shape = shape_of(fn)
        self.face: Callable[..., Any] | None = None  # what `guarded` gave
        self._memo: Memo | None = None

    def execution(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        call: Mapping[str, object] | None = None,
        arguments: object = None,
    ) -> Execution:
        """A call to be driven; *call* holds settings for this one, *arguments* what it is about if *args* do not."""
        policy = self.tool.override(call)
        execution = Execution(self.kit, self.tool, policy, running(), self.fn, args, kwargs, arguments=arguments)
        execution.callee = self
        return execution

    @property
    def memo(self) -> Memo:
        """How the function's results are remembered."""
        if self._memo is None:
            self._memo = Memo(self.fn)
        return self._memo

    def repeat(self, before: Execution, step: Step | None) -> Any:
        """Make a call in doubt again, as the same *step* of its run; without one, as another call."""
        args, kwargs, run = before._args, before._kwargs, before.run
        assert run is not None
        execution = Execution(self.kit, self.tool, before.policy, run, self.fn, args, kwargs, arguments=before.given)
        execution.callee = self
        execution.record = None if step is None else Record(run, self, step)
        drivers: dict[Shape | None, Callable[..., Any]] = {
            Shape.FUNCTION: drive,
            Shape.COROUTINE: adrive,
            Shape.GENERATOR: drive_stream,
            Shape.ASYNC_GENERATOR: adrive_stream,
        }
        return drivers[before.driver](execution, self, args, kwargs)

    def failed(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        error: BaseException,
        plan: Plan,
        begun: float,
        taken: Slots | Question | bool,
    ) -> Execution:
        """A call whose first attempt was made by the quick path, and failed."""
        execution = self.execution(args, kwargs)
        execution.made = Made(error, self.tool.passed(plan[0], taken), begun)
        return execution

    def asked(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], question: Question) -> Execution:
        """A call whose first question to the fleet was asked by the quick path, and not answered by a plain yes."""
        execution = self.execution(args, kwargs)
        execution.asked = question
        return execution

    def instead(self, execution: Execution) -> Bound:
        """The tool that answers in place of this one, which could not."""
        return _named(self.kit, execution.fallback or "")

    def handed_on(
        self, execution: Execution, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Bound, tuple[Any, ...], Mapping[str, Any]]:
        """The same, and what it is called with: what this one was; but the object of a method is for methods alone."""
        other, fn = self.instead(execution), self.fn
        if execution.given is not None:
            return other, args, kwargs
        while isinstance(fn, functools.partial) and self.face is None:  # what a decorated one was given is its own
            args, kwargs, fn = (*fn.args, *args), {**fn.keywords, **kwargs}, fn.func
        if is_method := isinstance(fn, MethodType):
            args = (fn.__self__, *args)
        if (is_method or _takes_object(fn)) and not _takes_object(other.fn):
            args = args[1:]
        return other, args, kwargs

    def guarded(self) -> Callable[..., Any]:
        """The function that users call."""
        make = {
            Shape.FUNCTION: quick.guard_function,
            Shape.COROUTINE: quick.guard_coroutine,
            Shape.GENERATOR: quick.guard_generator,
            Shape.ASYNC_GENERATOR: quick.guard_async_generator,
        }
        self.face = dressed(self.fn, make[self.shape](self))
        self.face.__holdfast__ = self  # type: ignore[attr-defined]
        return self.face


def guards_of(kit: Kit, tool: object) -> Bound | None:
    """What guards *tool*, if it is a decorated function, the name of one, or a method or a partial of one.

    What only wraps one is refused. It looks like it, having its attributes, and would be guarded twice.
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
    """Whether *fn* is the function of a method."""
    call = ((None,), dict[str, Any]())
    return not isinstance(fn, functools.partial) and impersonal(fn, call) is not call


def _named(kit: Kit, name: str) -> Bound:
    bound = kit.bound.get(name)
    if bound is None:
        known = ", ".join(sorted(kit.bound)) or "none yet"
        raise ConfigError(f"{checks.shown(name)} is not a decorated tool; known are: {known}")
    assert isinstance(bound, Bound)
    return bound
