"""Hooks: who is asked and told, in which order, for how long; and what becomes of the call when one goes wrong."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import itertools
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.shapes import PATIENCE, Thread, eventually, settled

from holdfast import CircuitOpen, ConfigError, Denied
from holdfast.clock import Clock, SystemClock
from holdfast.hooks import Hook, HookContext, HookKind, Hooks
from holdfast.testing import ManualClock
from holdfast.waiting.threads import Job, Workers
from holdfast.waiting.waits import Wait, apause, pause

BEFORE = HookContext(kind=HookKind.BEFORE_TOOL, tool="pay", arguments={"amount": 5})
AFTER = HookContext(kind=HookKind.AFTER_TOOL, tool="pay", arguments={"amount": 5}, result="paid")

TOLD = [kind for kind in HookKind if kind is not HookKind.BEFORE_TOOL]

Waits = Callable[..., Iterator[Wait]]


class Driver:
    """Asks or tells hooks to the end: as a thread, as a task, or as a thread that blocks an event loop."""

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self._clock = clock

    def __call__(self, verb: Waits, context: HookContext) -> None:
        if self.name == "thread":
            self.thread(verb, context)
        else:
            asyncio.run((self.task if self.name == "task" else self._blocked)(verb, context))

    def thread(self, verb: Waits, context: HookContext) -> None:
        with self._at_work():
            for wait in verb(context, as_task=False):
                pause(self._clock, wait)

    async def task(self, verb: Waits, context: HookContext) -> None:
        with self._at_work():
            for wait in verb(context, as_task=True):
                await apause(self._clock, wait)

    def _at_work(self) -> AbstractContextManager[None]:
        """The clock moves by hand alone: a thread that is slow to start does not let a time limit pass."""
        return self._clock.busy() if isinstance(self._clock, ManualClock) else nullcontext()

    async def _blocked(self, verb: Waits, context: HookContext) -> None:
        self.thread(verb, context)


@pytest.fixture(params=["thread", "task", "thread in a loop"])
def drive(request: pytest.FixtureRequest, clock: ManualClock) -> Driver:
    return Driver(request.param, clock)


Form = Callable[[Callable[[HookContext], Any]], Callable[[HookContext], Any]]


def plain(fn: Callable[[HookContext], Any]) -> Callable[[HookContext], Any]:
    return fn


def coroutine(fn: Callable[[HookContext], Any]) -> Callable[[HookContext], Any]:
    @functools.wraps(fn)
    async def hook(context: HookContext) -> Any:
        return fn(context)

    return hook


@pytest.fixture(params=[plain, coroutine])
def form(request: pytest.FixtureRequest) -> Form:
    """A plain function as a hook, or the same as a coroutine function."""
    chosen: Form = request.param
    return chosen


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers()
    yield made
    made.close()


@pytest.fixture
def made(workers: Workers, clock: ManualClock) -> Callable[..., Hooks]:
    return lambda *hooks: Hooks(hooks, workers, clock)


def answers(value: object) -> Callable[[HookContext], object]:
    def hook(context: HookContext) -> object:
        return value

    return hook


def raises(error: BaseException) -> Callable[[HookContext], object]:
    def hook(context: HookContext) -> object:
        raise error

    return hook


class Stuck:
    """Hooks that let their time limit pass, and then do not come back until they are released or cancelled."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.entered = threading.Event()
        self.released = threading.Event()
        self.cancelled = threading.Event()

    def plain(self, context: HookContext) -> None:
        self.entered.set()
        self._clock.advance(30.0)
        assert self.released.wait(PATIENCE)

    async def coroutine(self, context: HookContext) -> None:
        self._clock.advance(30.0)
        await self.forever(context)

    async def forever(self, context: HookContext) -> None:
        self.entered.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    def of(self, form: Form) -> Callable[[HookContext], object]:
        return self.plain if form is plain else self.coroutine


@pytest.fixture
def stuck(clock: ManualClock) -> Iterator[Stuck]:
    hooks = Stuck(clock)
    yield hooks
    hooks.released.set()


def refused(drive: Driver, hooks: Hooks) -> Denied:
    with pytest.raises(Denied) as caught:
        drive(hooks.ask, BEFORE)
    return caught.value


# --- what a hook is ---


def test_a_hook_has_no_priority_and_thirty_seconds_unless_told() -> None:
    hook = Hook("before_tool", answers(None))

    assert (hook.priority, hook.timeout) == (0, 30.0)


def test_a_hook_has_the_name_of_its_function_unless_told() -> None:
    fn = answers(None)

    assert Hook("on_error", fn).name == "hook"
    assert Hook("on_error", functools.partial(fn)).name == "hook"
    assert Hook("on_error", fn, name="audit").name == "audit"


@pytest.mark.parametrize("kind", HookKind)
def test_a_kind_may_be_given_as_text(kind: HookKind) -> None:
    assert Hook(kind.value, answers(None)).kind is kind


def two(first: object, second: object) -> None: ...


def none() -> None: ...


def stream(context: HookContext) -> Iterator[int]:
    yield 1


async def astream(context: HookContext) -> Any:
    yield 1


@pytest.mark.parametrize(
    ("arguments", "options", "complaint"),
    [
        (("before", print), {}, "kind = 'before': must be one of after_tool, before_tool, on_cancel"),
        ((None, print), {}, "kind = None"),
        (("before_tool", "print"), {}, "fn = 'print': must be a function"),
        (("before_tool", two), {}, "must take one argument"),
        (("before_tool", none), {}, "must take one argument"),
        (("before_tool", stream), {}, "a generator function"),
        (("before_tool", astream), {}, "an async generator function"),
        (("before_tool", print), {"timeout": 0}, "hook 'print': timeout = 0: must be a number above 0"),
        (("before_tool", print), {"timeout": None}, "timeout = None"),
        (("before_tool", print), {"timeout": float("inf")}, "timeout = inf"),
        (("before_tool", print), {"priority": "high"}, "hook 'print': priority = 'high'"),
        (("before_tool", print), {"priority": float("nan")}, "priority = nan"),
        (("before_tool", print), {"name": ""}, "name = ''"),
        (("before_tool", print), {"name": "a\nb"}, "name = 'a\\nb'"),
        (("before_tool", print), {"name": 5}, "name = 5"),
    ],
)
def test_a_wrong_setting_is_a_config_error(arguments: tuple[Any, Any], options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Hook(*arguments, **options)

    assert complaint in str(caught.value)


def test_options_are_given_by_name() -> None:
    with pytest.raises(TypeError):
        Hook("before_tool", print, 5)  # type: ignore[call-arg]


@pytest.mark.parametrize("hooks", [[print], 5, [None]])
def test_what_is_no_hook_is_a_config_error(hooks: Any, workers: Workers, clock: ManualClock) -> None:
    with pytest.raises(ConfigError, match="hooks"):
        Hooks(hooks, workers, clock)


@pytest.mark.parametrize("kind", HookKind)
def test_it_is_known_of_which_kinds_there_are_hooks(kind: HookKind, made: Callable[..., Hooks]) -> None:
    hooks = made(Hook(kind, print))

    assert [other for other in HookKind if hooks.has(other)] == [kind]


# --- being asked ---


@pytest.mark.parametrize("answer", [None, True])
def test_a_call_passes_when_every_hook_lets_it(
    drive: Driver, form: Form, made: Callable[..., Hooks], answer: object
) -> None:
    asked = []

    def hook(context: HookContext) -> object:
        asked.append(context)
        return answer

    drive(made(Hook("before_tool", form(hook)), Hook("before_tool", form(hook))).ask, BEFORE)

    assert asked == [BEFORE, BEFORE]


def test_a_text_refuses_the_call_and_is_the_reason(drive: Driver, form: Form, made: Callable[..., Hooks]) -> None:
    denied = refused(drive, made(Hook("before_tool", form(answers("over the daily limit")))))

    assert type(denied) is Denied
    assert (denied.tool, denied.reason) == ("pay", "over the daily limit")


@pytest.mark.parametrize("kind", [Denied, CircuitOpen])
def test_a_refusal_that_is_raised_leaves_as_it_is(
    drive: Driver, form: Form, made: Callable[..., Hooks], kind: type[Denied]
) -> None:
    refusal = kind("pay", "not on Sundays", 60.0)

    denied = refused(drive, made(Hook("before_tool", form(raises(refusal)))))

    assert denied is refusal


def test_a_refusal_of_a_tool_that_the_hook_used_is_not_taken_for_its_own(
    drive: Driver, form: Form, made: Callable[..., Hooks]
) -> None:
    inner = CircuitOpen("rules", "it rests", 7.0)

    denied = refused(drive, made(Hook("before_tool", form(raises(inner)), name="policy")))

    assert type(denied) is Denied
    assert denied.reason == "the hook 'policy' was refused a call of 'rules': it rests"
    assert (denied.tool, denied.retry_after, denied.__cause__) == ("pay", 7.0, inner)


@pytest.mark.parametrize("answer", [False, "", "  ", 0, 1, [], object()])
def test_any_other_answer_refuses_the_call(
    drive: Driver, form: Form, made: Callable[..., Hooks], answer: object
) -> None:
    denied = refused(drive, made(Hook("before_tool", form(answers(answer)), name="policy")))

    assert "the hook 'policy' " in denied.reason


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (ValueError("boom"), "failed (ValueError: boom)"),
        (StopIteration(), "failed (StopIteration)"),
        (asyncio.CancelledError(), "was cancelled"),
        (GeneratorExit(), "failed (GeneratorExit)"),
        (TimeoutError(), "failed (TimeoutError)"),
    ],
)
def test_a_hook_that_fails_refuses_the_call(
    drive: Driver, made: Callable[..., Hooks], error: BaseException, what: str
) -> None:
    denied = refused(drive, made(Hook("before_tool", raises(error), name="policy")))

    assert denied.reason == f"the hook 'policy' {what}"
    assert denied.__cause__ is error


@pytest.mark.parametrize("error", [ValueError("boom"), asyncio.CancelledError()])
def test_a_coroutine_that_fails_refuses_the_call(
    drive: Driver, made: Callable[..., Hooks], error: BaseException
) -> None:
    denied = refused(drive, made(Hook("before_tool", coroutine(raises(error)), name="policy")))

    assert denied.reason.startswith("the hook 'policy' ")
    assert isinstance(denied.__cause__, type(error))


def test_a_plain_function_that_only_makes_a_coroutine_refuses_the_call(
    drive: Driver, made: Callable[..., Hooks]
) -> None:
    def made_only(context: HookContext) -> object:
        return coroutine(answers(None))(context)

    denied = refused(drive, made(Hook("before_tool", made_only)))

    assert "must be a coroutine function" in denied.reason


def test_a_plain_function_that_answers_with_another_awaitable_refuses_the_call(
    made: Callable[..., Hooks], clock: ManualClock
) -> None:
    class Later:
        def __await__(self) -> Iterator[None]:
            yield

    denied = refused(Driver("thread", clock), made(Hook("before_tool", answers(Later()))))

    assert "must be a coroutine function" in denied.reason


def test_an_exit_is_let_through(drive: Driver, form: Form, made: Callable[..., Hooks]) -> None:
    hooks = made(Hook("before_tool", form(raises(SystemExit(3)))))

    with pytest.raises(SystemExit):
        drive(hooks.ask, BEFORE)


def test_the_first_no_is_the_last_question(drive: Driver, form: Form, made: Callable[..., Hooks]) -> None:
    asked: list[HookContext] = []
    hooks = made(Hook("before_tool", form(answers("no"))), Hook("before_tool", form(asked.append), priority=-1))

    refused(drive, hooks)

    assert asked == []


def test_a_coroutine_hook_may_be_a_partial_or_an_object(drive: Driver, made: Callable[..., Hooks]) -> None:
    class Policy:
        async def __call__(self, context: HookContext) -> str:
            return "says the object"

    async def policy(reason: str, context: HookContext) -> str:
        return reason

    partial = refused(drive, made(Hook("before_tool", functools.partial(policy, "says the partial"))))
    thing = refused(drive, made(Hook("before_tool", Policy())))

    assert [partial.reason, thing.reason] == ["says the partial", "says the object"]


def test_without_hooks_nobody_waits(made: Callable[..., Hooks]) -> None:
    hooks = made()

    assert [*hooks.ask(BEFORE, as_task=False), *hooks.tell(AFTER, as_task=False)] == []


# --- the time limit ---


def test_a_hook_that_takes_too_long_refuses_the_call(
    drive: Driver, form: Form, made: Callable[..., Hooks], stuck: Stuck, clock: ManualClock
) -> None:
    hooks = made(Hook("before_tool", stuck.of(form), name="policy"))

    denied = refused(drive, hooks)

    assert denied.reason == "the hook 'policy' took longer than 30 s"
    assert clock.monotonic() == 30.0


def test_an_answer_at_the_very_end_of_its_time_is_too_late(
    drive: Driver, form: Form, made: Callable[..., Hooks], clock: ManualClock
) -> None:
    hooks = made(Hook("before_tool", form(lambda context: clock.advance(2.0)), timeout=2.0))

    denied = refused(drive, hooks)

    assert denied.reason.endswith("took longer than 2 s")


def test_each_hook_has_its_own_time(drive: Driver, form: Form, made: Callable[..., Hooks], clock: ManualClock) -> None:
    slow = form(lambda context: clock.advance(1.5))
    hooks = made(*[Hook("before_tool", slow, timeout=2.0) for _ in range(3)])

    drive(hooks.ask, BEFORE)

    assert clock.monotonic() == 4.5


def test_a_coroutine_that_takes_too_long_is_cancelled(
    drive: Driver, made: Callable[..., Hooks], stuck: Stuck, workers: Workers
) -> None:
    hooks = made(Hook("before_tool", stuck.coroutine))

    refused(drive, hooks)

    eventually(stuck.cancelled.is_set)
    eventually(lambda: workers.abandoned == 0)


def test_a_function_that_takes_too_long_is_abandoned_in_its_thread(
    drive: Driver, made: Callable[..., Hooks], stuck: Stuck, workers: Workers
) -> None:
    hooks = made(Hook("before_tool", stuck.plain))

    refused(drive, hooks)

    assert workers.abandoned == 1
    stuck.released.set()
    eventually(lambda: workers.abandoned == 0)


async def test_a_coroutine_that_will_not_be_cancelled_holds_nobody_up(
    made: Callable[..., Hooks], clock: ManualClock
) -> None:
    ended = []
    release = asyncio.Event()

    async def stubborn(context: HookContext) -> None:
        try:
            clock.advance(30.0)
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            await release.wait()
            ended.append("at last")

    hooks = made(Hook("before_tool", stubborn))

    with pytest.raises(Denied):
        await Driver("task", clock).task(hooks.ask, BEFORE)

    assert ended == []
    release.set()
    await settled()
    assert ended == ["at last"]
    assert hooks._cancelled == set()


async def test_the_cleanup_of_a_cancelled_hook_is_not_lost_to_the_garbage_collector(
    made: Callable[..., Hooks], clock: ManualClock
) -> None:
    ended = []
    waiting: list[weakref.ref[asyncio.Future[None]]] = []

    async def tidy(context: HookContext) -> None:
        try:
            clock.advance(30.0)
            await asyncio.get_running_loop().create_future()
        finally:
            last = asyncio.get_running_loop().create_future()
            waiting.append(weakref.ref(last))
            await last
            ended.append("tidied up")

    hooks = made(Hook("before_tool", tidy))

    with pytest.raises(Denied):
        await Driver("task", clock).task(hooks.ask, BEFORE)
    await settled()
    gc.collect()

    last = waiting[0]()
    assert last is not None
    last.set_result(None)
    await settled()
    assert ended == ["tidied up"]


def test_on_the_real_clock_a_quick_hook_is_in_time(workers: Workers) -> None:
    clock = SystemClock()

    for name, form in itertools.product(("thread", "task"), (plain, coroutine)):
        denied = refused(Driver(name, clock), Hooks([Hook("before_tool", form(answers("no")))], workers, clock))

        assert denied.reason == "no"


# --- threads ---


def test_while_too_many_abandoned_functions_run_no_other_is_begun(drive: Driver, clock: ManualClock) -> None:
    asked: list[HookContext] = []
    hooks = Hooks([Hook("before_tool", asked.append)], Workers(most_abandoned=0), clock)

    denied = refused(drive, hooks)

    assert "too many timed-out calls still run in threads" in denied.reason
    assert asked == []


def test_a_coroutine_in_the_callers_loop_needs_no_thread(clock: ManualClock) -> None:
    asked: list[HookContext] = []
    hooks = Hooks([Hook("before_tool", coroutine(asked.append))], Workers(most_abandoned=0), clock)

    Driver("task", clock)(hooks.ask, BEFORE)

    assert asked == [BEFORE]


@pytest.mark.parametrize("name", ["thread", "task"])
@pytest.mark.parametrize("clock", [ManualClock(), SystemClock()], ids=["manual", "system"])
def test_when_no_thread_can_be_started_the_call_is_refused_and_the_telling_passed_over(
    name: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = Hooks([Hook("before_tool", answers(None)), Hook("after_tool", answers(None))], Workers(), clock)
    drive = Driver(name, clock)

    def full(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", full)
    denied = refused(drive, hooks)
    drive(hooks.tell, AFTER)

    assert denied.reason == "the hook 'hook' could not be started (RuntimeError: can't start new thread)"


async def test_a_plain_hook_does_not_block_the_event_loop(made: Callable[..., Hooks], clock: ManualClock) -> None:
    turned = threading.Event()
    hooks = made(Hook("before_tool", lambda context: None if turned.wait(PATIENCE) else "blocked"))

    asking = asyncio.create_task(Driver("task", clock).task(hooks.ask, BEFORE))
    await settled()
    turned.set()
    await asking


async def test_a_coroutine_hook_runs_in_the_loop_of_a_caller_that_waits_as_a_task(
    made: Callable[..., Hooks], clock: ManualClock
) -> None:
    loops = []

    async def hook(context: HookContext) -> None:
        loops.append(asyncio.get_running_loop())

    await Driver("task", clock).task(made(Hook("before_tool", hook)).ask, BEFORE)

    assert loops == [asyncio.get_running_loop()]


def test_a_hook_sees_the_callers_context_and_cannot_change_it(
    drive: Driver, form: Form, made: Callable[..., Hooks]
) -> None:
    seen = []
    user = contextvars.ContextVar("user", default="nobody")

    def hook(context: HookContext) -> None:
        seen.append(user.get())
        user.set("the hook")

    user.set("Ann")
    drive(made(Hook("before_tool", form(hook)), Hook("before_tool", form(hook))).ask, BEFORE)

    assert seen == ["Ann", "Ann"]
    assert user.get() == "Ann"


# --- being told ---


@pytest.mark.parametrize("kind", TOLD)
def test_what_happened_is_told_to_the_hooks_of_its_kind_alone(
    drive: Driver, form: Form, made: Callable[..., Hooks], kind: HookKind
) -> None:
    told: list[tuple[str, HookContext]] = []

    def noting(name: str) -> Callable[[HookContext], object]:
        return form(lambda context: told.append((name, context)))

    context = HookContext(kind=kind, reason="so it is")

    drive(made(*[Hook(name, noting(name)) for name in HookKind]).tell, context)

    assert told == [(kind, context)]


@pytest.mark.parametrize("answer", [False, "no", 5])
def test_what_a_told_hook_returns_is_ignored(
    drive: Driver, form: Form, made: Callable[..., Hooks], caplog: pytest.LogCaptureFixture, answer: object
) -> None:
    drive(made(Hook("after_tool", form(answers(answer)))).tell, AFTER)

    assert caplog.records == []


@pytest.mark.parametrize(
    "error", [ValueError("boom"), Denied("pay", "no"), asyncio.CancelledError(), StopIteration(), GeneratorExit()]
)
def test_a_told_hook_that_fails_is_logged_and_passed_over(
    drive: Driver, made: Callable[..., Hooks], caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    told: list[HookContext] = []
    hooks = made(Hook("after_tool", raises(error), name="audit"), Hook("after_tool", told.append))

    drive(hooks.tell, AFTER)

    assert told == [AFTER]
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("holdfast", logging.ERROR)
    assert record.getMessage().startswith("the after_tool hook 'audit' ")
    assert record.exc_info is not None
    assert record.exc_info[1] is error


def test_a_told_coroutine_that_fails_is_logged_and_passed_over(
    drive: Driver, made: Callable[..., Hooks], caplog: pytest.LogCaptureFixture
) -> None:
    told: list[HookContext] = []
    failing = coroutine(raises(ValueError("boom")))
    hooks = made(Hook("after_tool", failing, name="audit"), Hook("after_tool", coroutine(told.append)))

    drive(hooks.tell, AFTER)

    assert told == [AFTER]
    assert caplog.messages == ["the after_tool hook 'audit' failed (ValueError: boom)"]


def test_a_told_hook_that_takes_too_long_is_logged_and_passed_over(
    drive: Driver, form: Form, made: Callable[..., Hooks], stuck: Stuck, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[HookContext] = []
    hooks = made(Hook("on_cancel", stuck.of(form), name="audit"), Hook("on_cancel", form(told.append)))

    drive(hooks.tell, HookContext(kind=HookKind.ON_CANCEL, run_id="r1"))

    assert [context.run_id for context in told] == ["r1"]
    assert caplog.messages == ["the on_cancel hook 'audit' took longer than 30 s"]


def test_a_told_function_that_only_makes_a_coroutine_is_logged(
    drive: Driver, made: Callable[..., Hooks], caplog: pytest.LogCaptureFixture
) -> None:
    def made_only(context: HookContext) -> object:
        return coroutine(answers(None))(context)

    drive(made(Hook("after_tool", made_only)).tell, AFTER)

    assert "must be a coroutine function" in caplog.text


# --- order ---


@given(priorities=st.lists(st.integers(-2, 2), max_size=12))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_hooks_are_called_by_priority_then_as_given(
    priorities: list[int], workers: Workers, clock: ManualClock
) -> None:
    called: list[int] = []

    def noting(place: int) -> Callable[[HookContext], object]:
        return lambda context: called.append(place)

    given = [Hook("before_tool", noting(place), priority=rank) for place, rank in enumerate(priorities)]

    Driver("thread", clock)(Hooks(given, workers, clock).ask, BEFORE)

    assert called == sorted(range(len(priorities)), key=lambda place: (-priorities[place], place))


@pytest.mark.parametrize("verb", ["ask", "tell"])
def test_plain_and_coroutine_hooks_share_one_order(drive: Driver, made: Callable[..., Hooks], verb: str) -> None:
    called: list[int] = []
    kind = "before_tool" if verb == "ask" else "after_tool"

    def noting(place: int) -> Callable[[HookContext], object]:
        return (plain, coroutine)[place % 2](lambda context: called.append(place))

    hooks = made(*[Hook(kind, noting(place), priority=place) for place in range(40)])

    drive(getattr(hooks, verb), BEFORE if verb == "ask" else AFTER)

    assert called == [*range(39, -1, -1)]


async def test_many_callers_at_once_each_ask_all_hooks(made: Callable[..., Hooks], clock: ManualClock) -> None:
    called: list[object] = []
    fns = [plain(lambda context: called.append(context.call_id)), coroutine(lambda c: called.append(c.call_id))]
    hooks = made(*[Hook("before_tool", fn) for fn in fns * 5])
    contexts = [HookContext(kind=HookKind.BEFORE_TOOL, tool="pay", call_id=number) for number in range(50)]

    await asyncio.gather(*[Driver("task", clock).task(hooks.ask, context) for context in contexts])

    assert sorted(called) == sorted([*range(50)] * 10)  # type: ignore[type-var]


# --- the caller leaves ---


@pytest.mark.parametrize("verb", ["ask", "tell"])
async def test_a_cancelled_caller_cancels_its_coroutine_hook(
    made: Callable[..., Hooks], clock: ManualClock, stuck: Stuck, verb: str
) -> None:
    kind = "before_tool" if verb == "ask" else "after_tool"
    hooks = made(Hook(kind, stuck.forever), Hook(kind, raises(AssertionError("asked after the caller had left"))))

    caller = asyncio.create_task(Driver("task", clock).task(getattr(hooks, verb), BEFORE if verb == "ask" else AFTER))
    await settled()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await settled()

    assert stuck.cancelled.is_set()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert clock.pending == 0


async def test_a_cancelled_caller_abandons_its_plain_hook(
    made: Callable[..., Hooks], clock: ManualClock, workers: Workers
) -> None:
    entered, released = threading.Event(), threading.Event()

    def hook(context: HookContext) -> None:
        entered.set()
        assert released.wait(PATIENCE)

    caller = asyncio.create_task(Driver("task", clock).task(made(Hook("before_tool", hook)).ask, BEFORE))
    await settled()
    eventually(entered.is_set)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller

    assert (workers.abandoned, clock.pending) == (1, 0)
    released.set()
    eventually(lambda: workers.abandoned == 0)


def test_a_plain_caller_that_is_interrupted_cancels_its_coroutine_hook(
    made: Callable[..., Hooks], clock: ManualClock, stuck: Stuck, workers: Workers
) -> None:
    waits = made(Hook("before_tool", stuck.forever)).ask(BEFORE, as_task=False)

    wait = next(waits)
    assert wait.begin is not None
    wait.begin()
    eventually(stuck.entered.is_set)
    waits.close()  # type: ignore[attr-defined]
    eventually(stuck.cancelled.is_set)
    eventually(lambda: workers.abandoned == 0)


def test_a_hook_that_was_left_before_its_loop_had_begun_is_not_called(
    made: Callable[..., Hooks], clock: ManualClock, monkeypatch: pytest.MonkeyPatch, workers: Workers
) -> None:
    called: list[HookContext] = []
    may_begin, begun = threading.Event(), threading.Event()
    run = asyncio.run

    def late(main: Any) -> object:
        begun.set()
        assert may_begin.wait(PATIENCE)
        return run(main)

    monkeypatch.setattr(asyncio, "run", late)
    waits = made(Hook("before_tool", coroutine(called.append))).ask(BEFORE, as_task=False)

    wait = next(waits)
    assert wait.begin is not None
    wait.begin()
    eventually(begun.is_set)
    waits.close()  # type: ignore[attr-defined]
    may_begin.set()
    eventually(lambda: workers.abandoned == 0)

    assert called == []


def test_the_collector_may_close_a_caller_while_its_thread_holds_the_lock_of_the_workers(
    clock: ManualClock,
) -> None:
    entered, released = threading.Event(), threading.Event()

    def hook(context: HookContext) -> None:
        entered.set()
        assert released.wait(PATIENCE)

    workers = Workers()
    waits = Hooks([Hook("before_tool", hook)], workers, clock).ask(BEFORE, as_task=False)
    wait = next(waits)
    assert wait.begin is not None
    wait.begin()
    eventually(entered.is_set)

    class Collector:
        """Stands where a list of idle threads is looked at, under the lock; there the collector strikes."""

        def __bool__(self) -> bool:
            workers._idle = []
            waits.close()  # type: ignore[attr-defined]
            return False

    workers._idle = Collector()  # type: ignore[assignment]
    other = threading.Thread(target=workers.start, args=(Job(workers, clock, lambda: None),), daemon=True)
    other.start()
    other.join(PATIENCE)

    assert not other.is_alive()
    eventually(lambda: workers.abandoned == 1)
    released.set()
    eventually(lambda: workers.abandoned == 0)
    workers.close()


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_loop_that_was_closed_under_a_hook_leaves_nothing_behind(
    workers: Workers, caplog: pytest.LogCaptureFixture, stubborn: bool
) -> None:
    gc.collect()  # what others left behind has its say now
    caplog.clear()
    clock = SystemClock()  # a manual clock keeps alive who sleeps on it
    alive: list[weakref.ref[asyncio.Task[Any] | None]] = []

    async def hook(context: HookContext) -> None:
        alive.append(weakref.ref(asyncio.current_task()))
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            await asyncio.get_running_loop().create_future()

    hooks = Hooks([Hook("before_tool", hook)], workers, clock)

    def left() -> None:
        loop = asyncio.new_event_loop()
        caller = loop.create_task(Driver("task", clock).task(hooks.ask, BEFORE))
        loop.run_until_complete(settled())
        if stubborn:
            caller.cancel()
            loop.run_until_complete(settled())
        loop.close()

    left()
    left()  # what a closed loop leaves behind goes at the latest when the next one is left
    gc.collect()

    assert [there() for there in alive[: 1 if stubborn else 2]] == [None] * (1 if stubborn else 2)
    assert caplog.messages[0].startswith("Task was destroyed but it is pending")  # asyncio's word for it, as ever
    hooks._cancelled.clear()
    gc.collect()


class Boom(Exception):
    pass


@pytest.mark.parametrize("error", [Boom, Denied])
async def test_a_refusal_leaves_no_cycle_for_the_garbage_collector(
    form: Form, made: Callable[..., Hooks], clock: ManualClock, error: type[Exception]
) -> None:
    errors: list[weakref.ref[Exception]] = []

    def hook(context: HookContext) -> None:
        raised = error("pay")
        errors.append(weakref.ref(raised))
        try:
            raise raised
        finally:
            del raised

    hooks = made(Hook("before_tool", form(hook)), Hook("after_tool", form(hook)))
    logging.getLogger("holdfast").disabled = True  # the record of a failure holds the error
    gc.disable()
    try:
        with pytest.raises(Denied):
            await Driver("task", clock).task(hooks.ask, BEFORE)
        await Driver("task", clock).task(hooks.tell, AFTER)

        eventually(lambda: [there() for there in errors] == [None, None])
    finally:
        gc.enable()
        logging.getLogger("holdfast").disabled = False


# --- calls made by a hook ---


def test_calls_made_by_a_hook_are_not_asked_about_and_not_told_of(
    drive: Driver, form: Form, made: Callable[..., Hooks], clock: ManualClock
) -> None:
    called: list[str] = []

    def hook(context: HookContext) -> None:
        called.append(context.kind)
        assert len(called) < 10, "it never ends"
        Driver("thread", clock).thread(hooks.ask, BEFORE)
        Driver("thread", clock).thread(hooks.tell, AFTER)

    hooks = made(Hook("before_tool", form(hook)), Hook("after_tool", form(hook)))

    drive(hooks.ask, BEFORE)
    drive(hooks.tell, AFTER)

    assert called == ["before_tool", "after_tool"]


def test_the_hooks_of_another_holdfast_are_still_asked(
    drive: Driver, made: Callable[..., Hooks], clock: ManualClock
) -> None:
    called: list[str] = []

    def calling(name: str, others: list[Hooks]) -> Callable[[HookContext], object]:
        def hook(context: HookContext) -> None:
            called.append(name)
            assert len(called) < 10, "it never ends"
            for hooks in others:
                Driver("thread", clock).thread(hooks.ask, BEFORE)

        return hook

    both: list[Hooks] = []
    both += [made(Hook("before_tool", calling("first", both))), made(Hook("before_tool", calling("second", both)))]

    drive(both[0].ask, BEFORE)

    assert called == ["first", "second"]


async def test_what_a_hook_leaves_running_still_makes_calls_without_hooks(
    made: Callable[..., Hooks], clock: ManualClock
) -> None:
    number = itertools.count()
    tasks: list[asyncio.Task[None]] = []

    async def audit(context: HookContext) -> None:
        assert next(number) < 10, "it never ends"
        tasks.append(asyncio.create_task(Driver("task", clock).task(hooks.tell, AFTER)))

    hooks = made(Hook("after_tool", audit))

    await Driver("task", clock).task(hooks.tell, AFTER)
    await asyncio.gather(*tasks)
    await settled()

    assert next(number) == 1


def test_threads_ask_the_same_hooks_at_once(made: Callable[..., Hooks], clock: ManualClock, form: Form) -> None:
    called: list[object] = []
    hooks = made(*[Hook("before_tool", form(lambda context: called.append(context.call_id)))] * 3)
    contexts = [HookContext(kind=HookKind.BEFORE_TOOL, tool="pay", call_id=number) for number in range(16)]

    callers = [Thread(Driver("thread", clock).thread, hooks.ask, context) for context in contexts]
    for caller in callers:
        caller.result()

    assert sorted(called) == sorted([*range(16)] * 3)  # type: ignore[type-var]
