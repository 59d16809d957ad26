"""Makes a framework's tool call as a guarded call, and decides who is told how it ended.

The tool's own answers and errors go back unchanged, and the framework treats them as it always does. What the guards
say (a refusal, a time limit) goes to the model as text. Every other error of Holdfast is for the user who runs the
agent: a cancelled or lost run, a failing store, a call in doubt.
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
    """The part of `holdfast.Holdfast` that the adapters need."""

    _kit: Kit

    def bind(self, name: str, fn: Callable[..., Any], given: Mapping[str, object]) -> Bound: ...


class Failed(Exception):
    """The tool failed, and the framework has turned that into an *answer*, which goes to the model unchanged.

    The *text* decides the error's category, unless the adapter knows the *category*.
    """

    def __init__(self, text: str, answer: Any, *, category: ErrorCategory | None = None) -> None:
        super().__init__(text)
        self.answer = answer
        self.category = category or classify(text)


class Aside(BaseException):
    """The tool ended in a way that says nothing about its health: with an *error* that the framework uses for control
    flow, or with an *answer* that is not the tool's own but says that it asks a human first, or goes on elsewhere.

    A run treats such a call as in doubt. With *again* it counts as not made, since the framework will call the tool
    from the start once more, for instance when the human has answered.
    """

    category = ErrorCategory.CANCELLED

    def __init__(self, error: BaseException | None = None, *, answer: Any = None, again: bool = False) -> None:
        super().__init__(error)
        self.error = error
        self.answer = answer
        self.again = again


class Answer(dict[str, Any]):
    """A tool's answer in serialized form, for values that Holdfast cannot serialize by itself."""

    __slots__ = ("_value",)
    _value: Any

    @classmethod
    def of(cls, value: object, written: Mapping[str, Any]) -> Answer:
        """Return an answer that holds *value* itself beside its *written* form."""
        answer = cls(written)
        answer._value = value
        return answer

    def given(self, read: Callable[[dict[str, Any]], T]) -> T:
        """Return the original value if this process has it, otherwise what *read* makes of the written form."""
        value: T = self._value if hasattr(self, "_value") else read(dict(self))
        return value


ENDS = (Aside, Denied, Failed, RecordedError, ToolTimeout)
ONCE: Mapping[str, object] = {"cache": False, "fallback": False, "retry": False}
FAILED = f"{Failed.__module__}.{Failed.__qualname__}"  # its name in a run's log


class Guarded:
    """Guards a framework's tools with *hf*; *policy* holds settings for all of them, as a decorator's."""

    def __init__(self, hf: Holdfast, policy: Mapping[str, object]) -> None:
        if not isinstance(getattr(hf, "_kit", None), Kit):
            raise ConfigError(f"hf = {checks.shown(hf)}: must be a Holdfast, as holdfast.open() gives it")
        hf._kit.book.resolve("*", policy)  # reports a wrong setting before the first call
        self._hf = hf
        self._policy = policy
        self._tools: dict[str, Bound] = {}

    def call(self, name: str, fn: Callable[..., T], arguments: Mapping[str, Any], refused: Callable[[str], T]) -> T:
        """Call *fn* with *arguments* through the guards of the tool *name*; if they refuse, *refused* turns their text
        into an answer.

        *fn* is best a partial of a module-level function. It must not be a method of an object made per call: the loop
        guard tells calls apart by that object, and would not recognise the same call the next time.
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
        """Like `call`, for a coroutine function."""
        bound = self._bound(name, fn)
        return await _adriven(bound.execution((), arguments, None, arguments), bound, arguments, refused)

    async def awatch(
        self, name: str, end: Callable[..., Awaitable[T]], arguments: Mapping[str, Any], refused: Callable[[str], T]
    ) -> T:
        """Like `acall`, for a call that the framework makes itself: *end* lets it begin, and waits for its outcome. The
        call is not repeated, and a resumed run does not recognise it.
        """
        bound = self._bound(name, end)
        execution = bound.execution((), arguments, ONCE, arguments)
        if (run := execution.run) is not None:
            execution.record = Record(run, None, run.steps.block(bound.tool.name))
        return await _adriven(execution, bound, arguments, refused)

    def each(self, tools: object, make: Callable[[Guarded, Any], Any]) -> list[Any]:
        """Return all *tools* of an agent, each passed through `guard_once`."""
        if not isinstance(tools, Iterable):
            raise ConfigError(f"tools = {checks.shown(tools)}: must be a list of tools")
        return [self.guard_once(each, make) for each in tools]

    def guard_once(self, given: object, make: Callable[[Guarded, Any], Any]) -> Any:
        """Return *given* as *make* guards it or leaves it; raise `ConfigError` if it is guarded already, since its
        calls would be counted twice.
        """
        kit = self._hf._kit
        if getattr(given, GUARDED, None) is kit:
            name = checks.shown(getattr(given, "name", given))
            raise ConfigError(f"{name}: is guarded already; give it to guard() as it was before")
        made = make(self, given)
        if made is not given:
            setattr(made, GUARDED, kit)
        return made

    def guards(self, fn: Callable[..., Any] | None) -> Bound | None:
        """Return the guards of *fn* if it is decorated with `@hf.tool`. Guarded here too, it would be counted and
        limited twice, so call the `fn` in the result instead, as the `tool` in the result.
        """
        return None if fn is None else guards_of(self._hf._kit, fn)

    def _bound(self, name: str, fn: Callable[..., Any]) -> Bound:
        tool = self._tools.get(name)
        if tool is None:
            tool = self._tools[name] = self._decorated(name) or self._hf.bind(name, _unasked(name), self._policy)
        return Bound(tool.kit, tool.tool, fn)

    def _decorated(self, name: str) -> Bound | None:
        """Return the function that is decorated by that name, if any: it keeps its place and its settings."""
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
    """Return what the model is told in place of the tool's answer; raise an *error* that is not for the model."""
    if isinstance(error, Aside) and error.error is not None:
        raise error.error
    if isinstance(error, Failed | Aside):
        answer: T = error.answer
        return answer
    if isinstance(error, RecordedError) and error.type == FAILED:  # a `Failed` read from the run's log
        return refused(error.message)
    if isinstance(error, Denied | ToolTimeout):
        return refused(_told(error, execution.tool, execution.policy, began=execution.attempts > 0))
    raise error


async def decorated(own: Bound, call: Awaitable[T], refused: Callable[[str], T]) -> T:
    """Await the *call* of a tool that is decorated with its *own* guards, and turn their refusal into an answer."""
    try:
        return await call
    except (Denied, ToolTimeout) as error:
        return refused(_told(error, own.tool, own.tool.policy, began=True))


def _told(error: Denied | ToolTimeout, tool: Tool, policy: Policy, *, began: bool) -> str:
    """Return what the guards say to the model; whether *tool* itself *began* matters if another tool's guards spoke."""
    is_late = isinstance(error, ToolTimeout)
    is_other = error.tool != tool.name  # a tool that this one called, or its fallback
    repeatable = (policy.read_only or policy.idempotent) and not (is_other and is_late)
    return for_model(error, called=is_late or (is_other and began), repeatable=repeatable)


def _put_off(execution: Execution, aside: Aside) -> None:
    """Have the run's log say that the tool was not called, if *aside* says so."""
    # Only if this was the first attempt: an earlier one may have had an effect.
    if aside.again and execution.record is not None and execution.attempts == 1:
        execution.record.called = False


@contextmanager
def needing(package: str) -> Iterator[None]:
    """Add the pip command for *package* to an `ImportError`: a framework's modules are not named like its package."""
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
    except Exception:  # not plain data
        return str(value)


def returning(fn: object, *others: object) -> dict[str, Any]:
    """Return annotations for a stand-in of *fn*, so that a log can rebuild its result: that of *fn*, or *others*."""
    try:
        own = get_type_hints(fn, include_extras=True)["return"]
    except Exception:  # there is no function, the annotation is missing, or it names something that cannot be found
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
