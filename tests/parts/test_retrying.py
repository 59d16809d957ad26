"""`retrying`: what is repeated, how long it waits, what stops it, and what the caller sees in the end."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import random
import threading
import typing
from collections.abc import AsyncIterator, Callable, Iterator
from email.utils import formatdate
from typing import Any

import pytest
from tests.shapes import PATIENCE, Call, Shape, Thread, settled

from holdfast import CircuitOpen, ConfigError, ErrorCategory, RateLimited, retrying
from holdfast.testing import ManualClock, Script, Step, fail, ok, rate_limit, slow

DOWN = fail(ConnectionError)


class Retried:
    """Puts a script or a plain function into a shape, decorates it, and has it called to its end."""

    def __init__(self, shape: str, clock: ManualClock, runner: asyncio.Runner) -> None:
        self.shape = Shape(shape)
        self._clock = clock
        self._runner = runner

    def __call__(self, tool: Script | Call, **settings: Any) -> Call:
        fn = getattr(tool, self.shape.name) if isinstance(tool, Script) else self.shape.of(tool)
        repeated = retrying(clock=self._clock, **settings)(fn)
        return self._awaited(repeated) if self.shape.is_async else repeated

    def _awaited(self, repeated: Call) -> Call:
        return lambda *args, **kwargs: self._runner.run(repeated(*args, **kwargs))


@pytest.fixture(params=["function", "coroutine"])
def retried(request: pytest.FixtureRequest, clock: ManualClock) -> Iterator[Retried]:
    with asyncio.Runner() as runner:
        yield Retried(request.param, clock, runner)


def error_of(call: Call, *args: Any) -> BaseException:
    """What *call* raises."""
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - whatever it is
        call(*args)
    return caught.value


def notes(error: BaseException) -> list[str]:
    return getattr(error, "__notes__", [])


def draw(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    """Have every random number be *share*."""
    monkeypatch.setattr(random, "random", lambda: share)


# --- what is repeated ---


def test_a_success_is_not_repeated(retried: Retried, clock: ManualClock) -> None:
    service = Script(ok("tea"))

    assert retried(service)() == "tea"
    assert (service.count, clock.slept) == (1, [])


def test_every_attempt_gets_the_arguments(retried: Retried) -> None:
    service = Script(DOWN, ok("tea"))

    retried(service)("oolong", cups=2)

    assert service.calls == [(("oolong",), {"cups": 2})] * 2


def test_the_first_success_is_the_answer(retried: Retried, clock: ManualClock) -> None:
    service = Script(DOWN, fail(TimeoutError), ok("tea"), ok("coffee"))

    assert retried(service)() == "tea"
    assert (service.count, len(clock.slept)) == (3, 2)


@pytest.mark.parametrize("category", ErrorCategory)
def test_only_what_can_pass_by_itself_is_repeated(retried: Retried, category: ErrorCategory) -> None:
    error = Exception("no")
    error.category = category  # type: ignore[attr-defined]
    service = Script(fail(error))

    assert error_of(retried(service)) is error
    assert service.count == (3 if category.retryable else 1)


@pytest.mark.parametrize("attempts", [1, 2, 5])
def test_there_are_no_more_attempts_than_asked_for(retried: Retried, attempts: int) -> None:
    service = Script(DOWN)

    assert isinstance(error_of(retried(service, attempts=attempts)), ConnectionError)
    assert service.count == attempts


@pytest.mark.parametrize("refusal", [CircuitOpen("inner", None, 1.0), RateLimited("inner", None, 1.0)])
def test_a_refusal_leaves_at_once_and_as_it_is(retried: Retried, clock: ManualClock, refusal: Exception) -> None:
    service = Script(fail(refusal))

    assert error_of(retried(service)) is refusal
    assert (service.count, clock.slept, notes(refusal)) == (1, [], [])


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_what_is_meant_to_end_the_program_leaves_at_once(retried: Retried, kind: type[BaseException]) -> None:
    service = Script(fail(kind))

    error = error_of(retried(service))

    assert type(error) is kind
    assert (service.count, notes(error)) == (1, [])


async def test_a_call_that_is_cancelled_while_it_waits_makes_no_other_attempt(clock: ManualClock) -> None:
    service = Script(rate_limit(retry_after=30))
    call = asyncio.ensure_future(retrying(clock=clock)(service.coroutine)())

    with clock.busy():
        await settled()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    assert (service.count, clock.slept, clock.pending) == (1, [30.0], 0)


# --- how long it waits ---


@pytest.mark.parametrize("share", [0.0, 0.25, 0.75])
def test_a_wait_is_a_random_share_of_a_bound_that_grows(
    retried: Retried, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    draw(monkeypatch, share)

    error_of(retried(Script(DOWN), attempts=7, initial=0.5, factor=4, max=60))

    assert clock.slept == [bound * share for bound in (0.5, 2.0, 8.0, 32.0, 60.0, 60.0)]


def test_the_jitter_is_full(retried: Retried, clock: ManualClock) -> None:
    call = retried(Script(DOWN), attempts=2, initial=1.0, budget=0)

    for _ in range(300):
        error_of(call)

    # That one of three hundred draws is not in either tenth happens once in 10 ** 13 times.
    assert 0 <= min(clock.slept) < 0.1
    assert 0.9 < max(clock.slept) <= 1


@pytest.mark.parametrize("pause", [0.0, 0.05, 7.0, 60.0])
def test_a_retry_after_wins_over_the_computed_wait(retried: Retried, clock: ManualClock, pause: float) -> None:
    call = retried(Script(rate_limit(pause), ok("tea")), initial=1.0, max=3.0)

    assert call() == "tea"
    assert clock.slept == [pause]


def test_a_retry_after_that_is_a_date_is_read_by_the_clock(retried: Retried, clock: ManualClock) -> None:
    date = formatdate(clock.time() + 20, usegmt=True)

    assert retried(Script(rate_limit(date), ok("tea")))() == "tea"
    assert clock.slept == [20.0]


def test_without_a_deadline_more_than_a_minute_is_not_waited_for(retried: Retried, clock: ManualClock) -> None:
    service = Script(rate_limit(61), ok("too late"))

    error = error_of(retried(service))

    assert notes(error) == ["holdfast: script: 1 attempt, not repeated: the tool asks to wait 61 s"]
    assert (service.count, clock.slept) == (1, [])


def test_a_deadline_may_allow_more_than_a_minute(retried: Retried, clock: ManualClock) -> None:
    assert retried(Script(rate_limit(61), ok("tea")), deadline=100)() == "tea"
    assert clock.slept == [61.0]


def test_what_ends_before_the_deadline_is_waited_for(retried: Retried, clock: ManualClock) -> None:
    assert retried(Script(rate_limit(29.5), ok("tea")), deadline=30)() == "tea"
    assert clock.slept == [29.5]


@pytest.mark.parametrize("pause", [30, 31, 100])
def test_what_goes_beyond_the_deadline_is_not_waited_for(retried: Retried, clock: ManualClock, pause: float) -> None:
    service = Script(rate_limit(pause), ok("too late"))

    error = error_of(retried(service, deadline=30))

    assert notes(error) == ["holdfast: script: 1 attempt, not repeated: the deadline is too near"]
    assert (service.count, clock.slept) == (1, [])


def test_the_deadline_counts_attempts_as_well_as_waits(
    retried: Retried, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw(monkeypatch, 0.5)
    service = Script(Step(lead=4.0, error=ConnectionError), clock=clock)

    error = error_of(retried(service, attempts=9, initial=2.0, factor=1.0, deadline=10))

    assert (service.count, clock.monotonic()) == (2, 9.0)  # 4 + 1 + 4; another wait of 1 would end at 10
    assert notes(error) == ["holdfast: script: 2 attempts, not repeated: the deadline is too near"]


def test_each_call_has_the_whole_deadline(retried: Retried, clock: ManualClock) -> None:
    call = retried(Script(rate_limit(20), slow(5, "tea"), rate_limit(20), ok("tea"), clock=clock), deadline=30)

    assert [call(), call()] == ["tea", "tea"]


def test_a_running_attempt_is_not_interrupted_by_the_deadline(retried: Retried, clock: ManualClock) -> None:
    assert retried(Script(slow(100, "tea"), clock=clock), deadline=1)() == "tea"


# --- the retry budget ---


def test_the_budget_stops_a_storm(retried: Retried) -> None:
    service = Script(DOWN)
    call = retried(service)

    for _ in range(1000):
        error = error_of(call)

    assert 1190 <= service.count <= 1210
    assert notes(error) == ["holdfast: script: 1 attempt, not repeated: the retry budget is used up"]


async def test_the_budget_stops_a_storm_of_calls_at_once(clock: ManualClock) -> None:
    made = 0

    @retrying(clock=clock)
    async def fetch() -> None:
        nonlocal made
        made += 1
        await asyncio.sleep(0)  # all calls have begun before the first one fails
        raise ConnectionError

    results = await asyncio.gather(*(fetch() for _ in range(1000)), return_exceptions=True)

    assert {type(result) for result in results} == {ConnectionError}
    assert 1190 <= made <= 1210


@pytest.mark.parametrize("budget", [0.1, 0.2, 1.0])
def test_threads_share_one_budget(clock: ManualClock, budget: float) -> None:
    threads, each, made = 8, 100, Script(DOWN)
    everyone = threading.Barrier(threads, timeout=PATIENCE)
    first = threading.local()

    @retrying(attempts=9, budget=budget, clock=clock)
    def fetch() -> None:
        if first.attempt:
            first.attempt = False
            everyone.wait()  # so that calls fail in another order than they began
        made.function()

    def work() -> None:
        for _ in range(each):
            first.attempt = True
            with pytest.raises(ConnectionError):
                fetch()

    for thread in [Thread(work) for _ in range(threads)]:
        thread.result()

    calls = threads * each
    assert calls * (1 + budget) - 10 <= made.count <= calls * (1 + budget) + 10


def test_a_budget_of_nothing_is_no_bound(retried: Retried) -> None:
    service = Script(DOWN)
    call = retried(service, budget=0)

    for _ in range(100):
        error_of(call)

    assert service.count == 300


def test_calls_that_succeed_earn_retries(retried: Retried) -> None:
    service = Script(*[ok()] * 50, then=DOWN)
    call = retried(service, attempts=100)

    for _ in range(50):
        call()
    error_of(call)

    assert service.count == 50 + 1 + 20  # ten in reserve, ten from fifty calls; the failing one earns a fifth


def test_every_function_has_a_budget_of_its_own(retried: Retried) -> None:
    first, second = Script(DOWN), Script(DOWN)
    calls = [retried(service, attempts=100) for service in (first, second)]

    for call in calls:
        error_of(call)

    assert (first.count, second.count) == (11, 11)


def test_a_decorator_that_is_used_twice_makes_two_budgets(clock: ManualClock) -> None:
    decorate = retrying(attempts=100, clock=clock)
    first, second = Script(DOWN), Script(DOWN)

    for call in (decorate(first.function), decorate(second.function)):
        error_of(call)

    assert (first.count, second.count) == (11, 11)


# --- what the caller sees ---


def test_the_tools_own_error_leaves_with_a_note_of_what_was_tried(retried: Retried) -> None:
    error = error_of(retried(Script(fail(ConnectionError("refused")), name="fetch")))

    assert (type(error), str(error)) == (ConnectionError, "refused")
    assert notes(error) == ["holdfast: fetch: 3 attempts"]


def test_the_note_says_why_an_error_was_not_repeated(retried: Retried) -> None:
    error = error_of(retried(Script(fail(PermissionError), name="fetch")))

    assert notes(error) == ["holdfast: fetch: 1 attempt, not repeated: Not permitted"]


def test_an_error_that_comes_again_keeps_the_last_note_alone(retried: Retried) -> None:
    call = retried(Script(fail(ConnectionError("refused"))), attempts=2)
    error_of(call)

    assert notes(error_of(call)) == ["holdfast: script: 2 attempts"]


def test_a_decorated_function_keeps_its_name_and_signature() -> None:
    def fetch(url: str, *, limit: int = 3) -> bytes:
        """Get it."""
        return url.encode() * limit

    repeated = retrying()(fetch)

    assert (repeated.__name__, repeated.__doc__) == ("fetch", "Get it.")
    assert inspect.signature(repeated) == inspect.signature(fetch)
    assert inspect.unwrap(repeated) is fetch
    assert repeated("x", limit=2) == b"xx"


async def test_the_decorator_can_be_bare(monkeypatch: pytest.MonkeyPatch) -> None:
    draw(monkeypatch, 0.0)
    answers = iter([ConnectionError("reset"), TimeoutError("slow"), "tea", "milk"])

    @retrying
    def order() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @retrying
    async def aorder() -> str:
        return order()

    assert (order(), await aorder()) == ("tea", "milk")


def test_a_decorated_coroutine_function_is_one_still() -> None:
    async def fetch(url: str) -> str:
        return url

    repeated = retrying()(fetch)

    assert inspect.iscoroutinefunction(repeated)
    assert (repeated.__name__, inspect.signature(repeated)) == ("fetch", inspect.signature(fetch))
    assert asyncio.run(repeated("x")) == "x"


def test_a_method_can_be_decorated(clock: ManualClock) -> None:
    class Shop:
        def __init__(self) -> None:
            self.asked = 0

        @retrying(clock=clock)
        def order(self, item: str) -> str:
            self.asked += 1
            if self.asked == 1:
                raise ConnectionError
            return item

    shop = Shop()

    assert (shop.order("tea"), shop.asked) == ("tea", 2)


# --- what is refused when it is decorated ---


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"attempts": 0}, "attempts = 0: must be a whole number of at least 1"),
        ({"attempts": 2.5}, r"attempts = 2\.5"),
        ({"attempts": True}, "attempts = True"),
        ({"initial": -1}, "initial = -1: must be a number of at least 0"),
        ({"initial": 5.0, "max": 3.0}, r"max = 3\.0: must be a number of at least 5"),
        ({"max": math.inf}, "max = inf"),
        ({"factor": 0.5}, r"factor = 0\.5: must be a number of at least 1"),
        ({"factor": math.nan}, "factor = nan"),
        ({"budget": -0.1}, r"budget = -0\.1: must be a number of at least 0"),
        ({"deadline": 0}, "deadline = 0: must be a number above 0"),
        ({"deadline": math.nan}, "deadline = nan"),
        ({"deadline": "30"}, "deadline = '30'"),
    ],
)
def test_a_bad_setting_is_a_config_error(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        retrying(**settings)


async def send() -> str:
    return "sent"


def test_what_is_no_function_keeps_its_name_and_signature() -> None:
    repeated = retrying()(functools.partial(sorted, reverse=True))

    assert (repeated.__name__, repeated([1, 2])) == ("sorted", [2, 1])
    assert inspect.signature(repeated) == inspect.signature(functools.partial(sorted, reverse=True))
    assert typing.get_type_hints(repeated) == {}


async def test_a_static_method_stays_static_and_is_awaited() -> None:
    class Mail:
        send = retrying()(staticmethod(send))

    assert inspect.iscoroutinefunction(Mail.send)
    assert (await Mail.send(), await Mail().send()) == ("sent", "sent")


def test_a_plain_function_that_gives_something_to_await_is_a_config_error() -> None:
    repeated = retrying()(functools.partial(lambda fn: fn(), send))

    for _ in range(2):
        with pytest.raises(ConfigError, match="gives something to await, but is not a coroutine function"):
            repeated()


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (generator, "generator is a generator function; only what has one answer can be repeated"),
        (async_generator, "async_generator is an async generator function"),
        (5, "a tool must be callable, not 5"),
    ],
)
def test_what_has_no_one_answer_is_a_config_error(fn: Callable[[], object], said: str) -> None:
    for decorated in (retrying(), retrying):
        with pytest.raises(ConfigError, match=said):
            decorated(fn)
