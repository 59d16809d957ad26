"""A framework's call of a tool as a guarded call, and what becomes of its end.

The tool's own answers and errors go back as they are, for the framework to make of them what it always does. What the
guards have to say (a refusal, a time limit) is for the model, in words. All else that Holdfast raises is for whoever
runs the agent: a run that was cancelled or lost, a store that fails, a call in doubt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar, Union, get_type_hints

import msgspec

from holdfast import checks
from holdfast.calls.bound import Bound, guards_of
from holdfast.calls.drivers import adrive, drive
from holdfast.calls.execution import Execution
from holdfast.calls.recording import Record
from holdfast.category import ErrorCategory, classify
from holdfast.errors import ConfigError, Denied, RecordedError, ToolTimeout, printable
from holdfast.policy import Policy
from holdfast.tools.kit import Kit
from holdfast.tools.tool import Tool
from holdfast.wording.refusals import for_model

T = TypeVar("T")


class Holdfast(Protocol):
    """What is needed here of a `holdfast.Holdfast`."""

    _kit: Kit

    def bind(self, name: str, fn: Callable[..., Any], given: Mapping[str, object]) -> Bound: ...


class Failed(Exception):
    """The tool failed, and the framework has made an *answer* of it, which goes to the model as it is.

    What failed is told by the *text*, unless the adapter knows the *category*.
    """

    def __init__(self, text: str, answer: Any, *, category: ErrorCategory | None = None) -> None:
        super().__init__(text)
        self.answer = answer
        self.category = category or classify(text)


class Aside(BaseException):
    """The tool ended by something that says nothing about it: an *error* by which a framework steers itself, else an
    *answer* that is not the tool's own, which says that it asks somebody first, or goes on elsewhere.

    To a run such a call is in doubt; with *again* it was not made, since it is the framework's rule to call the tool
    from the start once more, as when it has asked somebody and goes on with the answer.
    """

    category = ErrorCategory.CANCELLED

    def __init__(self, error: BaseException | None = None, *, answer: Any = None, again: bool = False) -> None:
        super().__init__(error)
        self.error = error
        self.answer = answer
        self.again = again


class Answer(dict[str, Any]):
    """What a tool gave, as it is written, where it cannot be made of its own data."""

    __slots__ = ("_value",)
    _value: Any

    @classmethod
    def of(cls, value: object, written: Mapping[str, Any]) -> Answer:
        """The answer that *value* is."""
        answer = cls(written)
        answer._value = value
        return answer

    def given(self, read: Callable[[dict[str, Any]], T]) -> T:
        """The very value where it is at hand, else what *read* makes of what is written."""
        value: T = self._value if hasattr(self, "_value") else read(dict(self))
        return value


ENDS = (Aside, Denied, Failed, RecordedError, ToolTimeout)
ONCE: Mapping[str, object] = {"cache": False, "fallback": False, "retry": False}
FAILED = f"{Failed.__module__}.{Failed.__qualname__}"  # as a log names it


class Guarded:
    """The tools of a framework under the guards of *hf*; *policy* are settings of all of them, as a decorator's."""

    def __init__(self, hf: Holdfast, policy: Mapping[str, object]) -> None:
        if not isinstance(getattr(hf, "_kit", None), Kit):
            raise ConfigError(f"hf = {checks.shown(hf)}: must be a Holdfast, as holdfast.open() gives it")
        hf._kit.book.resolve("*", policy)  # a mistake is told before the first call
        self._hf = hf
        self._policy = policy
        self._tools: dict[str, Bound] = {}

    def call(self, name: str, fn: Callable[..., T], arguments: Mapping[str, Any], refused: Callable[[str], T]) -> T:
        """Call *fn* with *arguments*, by the guards of the tool *name*; where they refuse, *refused* makes an answer of
        what they say.

        *fn* is a partial of a function of the module, so that it is known to be the same the next time.
        """
        bound = self._bound(name, fn)
        execution = bound.execution((), arguments, None, arguments)

        def made(**arguments: Any) -> T:
            try:
                return fn(**arguments)
            except Aside as aside:
                _put_off(execution, aside)
                raise

        try:
            answer: T = drive(execution, Bound(bound.kit, bound.tool, made), (), arguments)
        except ENDS as error:
            return _instead(error, execution, refused)
        return answer

    async def acall(
        self, name: str, fn: Callable[..., Awaitable[T]], arguments: Mapping[str, Any], refused: Callable[[str], T]
    ) -> T:
        """The same for a coroutine function."""
        bound = self._bound(name, fn)
        return await _adriven(bound.execution((), arguments, None, arguments), bound, arguments, refused)

    async def awatch(
        self, name: str, end: Callable[..., Awaitable[T]], arguments: Mapping[str, Any], refused: Callable[[str], T]
    ) -> T:
        """The same for a call that others make once *end* is called, which waits for what comes of it: it is not
        repeated, and a resumed run does not know it again.
        """
        bound = self._bound(name, end)
        execution = bound.execution((), arguments, ONCE, arguments)
        if (run := execution.run) is not None:
            execution.record = Record(run, None, run.steps.block(bound.tool.name))
        return await _adriven(execution, bound, arguments, refused)

    def each(self, tools: object, make: Callable[[Guarded, Any], Any]) -> list[Any]:
        """All *tools* of an agent, `once` each."""
        if not isinstance(tools, Iterable):
            raise ConfigError(f"tools = {checks.shown(tools)}: must be a list of tools")
        return [self.once(each, make) for each in tools]

    def once(self, given: object, make: Callable[[Guarded, Any], Any]) -> Any:
        """What is *given* as *make* guards it, or leaves it; guarded twice, its calls would be counted twice."""
        kit = self._hf._kit
        if getattr(given, GUARDED, None) is kit:
            name = checks.shown(getattr(given, "name", given))
            raise ConfigError(f"{name}: is guarded already; give it to guard() as it was before")
        made = make(self, given)
        if made is not given:
            setattr(made, GUARDED, kit)
        return made

    def guards(self, fn: Callable[..., Any] | None) -> Bound | None:
        """What guards *fn* if it is decorated with `@hf.tool`: guarded here too, it would be counted and limited twice,
        so what is to be called is the `fn` in there, as the `tool` in there.
        """
        return None if fn is None else guards_of(self._hf._kit, fn)

    def _bound(self, name: str, fn: Callable[..., Any]) -> Bound:
        tool = self._tools.get(name)
        if tool is None:
            tool = self._tools[name] = self._decorated(name) or self._hf.bind(name, _unasked(name), self._policy)
        return Bound(tool.kit, tool.tool, fn)

    def _decorated(self, name: str) -> Bound | None:
        """The function that is decorated by that name: it keeps its place and its settings."""
        bound = self._hf._kit.bound.get(name)
        return bound if isinstance(bound, Bound) and not hasattr(bound.fn, UNASKED) else None


async def _adriven(execution: Execution, bound: Bound, arguments: Mapping[str, Any], refused: Callable[[str], T]) -> T:
    async def made(**arguments: Any) -> T:
        try:
            answer: T = await bound.fn(**arguments)
        except Aside as aside:
            _put_off(execution, aside)
            raise
        return answer

    try:
        answer: T = await adrive(execution, Bound(bound.kit, bound.tool, made), (), arguments)
    except ENDS as error:
        return _instead(error, execution, refused)
    return answer


def _instead(error: BaseException, execution: Execution, refused: Callable[[str], T]) -> T:
    """What the model is told in place of the tool's answer; an *error* that is not for it is raised."""
    if isinstance(error, Aside) and error.error is not None:
        raise error.error
    if isinstance(error, Failed | Aside):
        answer: T = error.answer
        return answer
    if isinstance(error, RecordedError) and error.type == FAILED:  # in another process
        return refused(error.message)
    if isinstance(error, Denied | ToolTimeout):
        return refused(_told(error, execution.tool, execution.policy, began=execution.attempts > 0))
    raise error


async def decorated(own: Bound, call: Awaitable[T], refused: Callable[[str], T]) -> T:
    """Make a call of a tool that has guards of its *own*, and tell the model what those say."""
    try:
        return await call
    except (Denied, ToolTimeout) as error:
        return refused(_told(error, own.tool, own.tool.policy, began=True))


def _told(error: Denied | ToolTimeout, tool: Tool, policy: Policy, *, began: bool) -> str:
    """What guards say to the model; whether *tool* itself *began* matters where they are those of another."""
    is_late = isinstance(error, ToolTimeout)
    is_other = error.tool != tool.name  # one that the tool has called, or that was to answer for it
    repeatable = (policy.read_only or policy.idempotent) and not (is_other and is_late)
    return for_model(error, called=is_late or (is_other and began), repeatable=repeatable)


def _put_off(execution: Execution, aside: Aside) -> None:
    """Have the run's log say that the tool was not called, if that is so."""
    if aside.again and execution.record is not None and execution.attempts == 1:  # else one before did who knows what
        execution.record.called = False


@contextmanager
def needing(package: str) -> Iterator[None]:
    """Around the imports of a framework, which *package* brings: its modules are not called like it."""
    try:
        yield
    except ImportError as error:
        error.msg = f"{error.msg}; pip install -U {package}"
        raise


def text(value: object) -> str:
    """A value as the text of a tool's answer."""
    if isinstance(value, str):
        return value
    try:
        return msgspec.json.encode(value).decode()
    except Exception:  # no plain data: whatever it says of itself
        return str(value)


def returning(fn: object, *others: object) -> dict[str, Any]:
    """Annotations for what is called in place of *fn*: it gives the same, or *others*, and a log can give it back."""
    try:
        own = get_type_hints(fn, include_extras=True)["return"]
    except Exception:  # there is no function, or the annotation is missing, or names what cannot be found
        own = None
    return {"return": Union[(own, *others)]}


GUARDED = "__holdfast_guarded__"
UNASKED = "__holdfast_unasked__"


def _unasked(name: str) -> Callable[..., Any]:
    def unasked(**arguments: object) -> object:
        raise ConfigError(
            f"{printable(name)} is a tool of an agent: it can be called by that alone, not by its name, and not in "
            "place of another; a fallback must be a tool of yours, decorated with @hf.tool"
        )

    setattr(unasked, UNASKED, True)
    return unasked
