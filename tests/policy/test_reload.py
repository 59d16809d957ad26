"""A policy file that changes under a running Holdfast: taken up by the next calls, while guards keep what they know."""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
import threading
import time
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import holdfast
from holdfast import CircuitOpen, CircuitState, ConcurrencyFull, ConfigError, Holdfast, RateLimited, ToolTimeout
from holdfast.shape import Shape
from holdfast.testing import ManualClock, Recorder, Script, Step, TooManyRequests, fail, ok, slow

Caller = Callable[..., Any]
Write = Callable[[str], None]

ONE_CALL = "[policy]\nrate = { per_second = 0.001, burst = 1 }\nmax_wait = 0.0\n"


def writer(path: Path) -> Write:
    """Writes the file; each time with another date than before, however fast the test is."""
    dates = itertools.count(1_000_000_000)

    def write(text: str) -> None:
        new = path.with_suffix(".new")
        new.write_text(text)
        os.utime(new, (date := next(dates), date))
        new.replace(path)

    return write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "holdfast.toml"


@pytest.fixture
def write(path: Path) -> Write:
    write = writer(path)
    write("")
    return write


@pytest.fixture
def hf(path: Path, write: Write, clock: ManualClock) -> Iterator[Holdfast]:
    with holdfast.open(policies=path, clock=clock) as hf:
        hf.call(lambda: None)  # the first look at the file
        yield hf


@pytest.fixture
def change(hf: Holdfast, write: Write, clock: ManualClock) -> Write:
    """Changes the file, lets a second pass and makes a call of some other tool."""

    def change(text: str) -> None:
        write(text)
        clock.advance(1.0)
        hf.call(lambda: None, policy={"rate": False})

    return change


# --- answers that are kept ---


@pytest.mark.parametrize("cache", ["10", "false"])
def test_answers_that_are_wanted_newer_than_they_are_kept_are_dropped(hf: Holdfast, change: Write, cache: str) -> None:
    change("[tool.count]\nread_only = true\ncache = 3600")
    number = itertools.count()
    count = hf.tool("count")(lambda: next(number))
    assert (count(), count()) == (0, 0)

    change(f"[tool.count]\nread_only = true\ncache = {cache}")
    change("[tool.count]\nread_only = true\ncache = 60")

    assert count() == 1


def test_answers_are_kept_if_others_of_the_settings_change(hf: Holdfast, change: Write) -> None:
    change("[tool.count]\nread_only = true\ncache = 60")
    number = itertools.count()
    count = hf.tool("count")(lambda: next(number))
    assert count() == 0

    change("[tool.count]\nread_only = true\ncache = { ttl = 3600, max_entries = 5 }\ntimeout = 3")

    assert count() == 0


# --- noticing ---


def test_a_policy_merged_while_the_file_changes_is_not_kept(hf: Holdfast, write: Write, change: Write) -> None:
    class Changing(dict[str, object]):
        """Settings of one call during whose reading the file changes."""

        def items(self) -> Any:
            change("[policy]\nmax_wait = 2.0\n")
            return super().items()

    hf.tool("t")(Script(ok()).function)
    change("[policy]\nmax_wait = 1.0\n")
    tool = hf._box.tool("t")

    tool.override(Changing(timeout=9.0))

    assert tool.override({"timeout": 9.0}).max_wait == 2.0


@pytest.mark.parametrize("reading", [1, 2], ids=["while it is checked", "while it is taken up"])
def test_a_decorator_that_comes_while_the_file_changes_is_not_undone(hf: Holdfast, change: Write, reading: int) -> None:
    class Watched(dict[str, object]):
        """Settings of a decorator during one of whose readings another comes."""

        left = 0

        def items(self) -> Any:
            Watched.left -= 1
            if Watched.left == 0:
                hf._box.keep("t", {"timeout": 5.0}, Shape.FUNCTION)
            return super().items()

    tool = hf._box.keep("t", Watched(timeout=1.0), Shape.FUNCTION)
    Watched.left = reading

    change("[policy]\nmax_wait = 2.0\n")
    hf._box.refresh(hf.clock.monotonic())

    assert (tool.policy.timeout, tool.policy.max_wait) == (5.0, 2.0)


def test_a_changed_file_is_noticed_within_a_second(hf: Holdfast, write: Write, clock: ManualClock) -> None:
    tool = hf.tool(fallback={"value": "old"})(Script(fail(ConnectionError)).function)
    write('[policy]\nfallback = { value = "ignored" }\n[tool.script]\nfallback = { value = "new" }\n')

    clock.advance(0.5)
    early = tool()
    clock.advance(0.5)

    assert early == "old"
    assert tool() == "new"


Call = Callable[[int], Awaitable[object]]
Way = Callable[[Holdfast], Call]


def function(step: Step | None = None, **policy: object) -> Way:
    def way(hf: Holdfast) -> Call:
        tool = hf.tool("t", **policy)(Script(step or ok()).function)

        async def call(number: int) -> object:
            return tool(number)

        return call

    return way


def in_a_run(hf: Holdfast) -> Call:
    tool = function()(hf)

    async def call(number: int) -> None:
        async with hf.run():
            await tool(number)

    return call


def coroutine(**policy: object) -> Way:
    return lambda hf: hf.tool("t", **policy)(Script(ok()).coroutine)


def stream(of: Callable[[Holdfast, Script], Caller]) -> Way:
    def way(hf: Holdfast) -> Call:
        items = of(hf, Script(ok(), name="t"))

        async def call(number: int) -> None:
            found = items(number)
            if isinstance(found, AsyncIterator):
                async for _ in found:
                    pass
            else:
                list(found)

        return call

    return way


def called(hf: Holdfast) -> Call:
    script = Script(ok(), name="t")

    async def call(number: int) -> None:
        hf.call(script.function, number)

    return call


def block(hf: Holdfast) -> Call:
    async def call(number: int) -> None:
        with hf.guard("t"):
            pass

    return call


def async_block(hf: Holdfast) -> Call:
    async def call(number: int) -> None:
        async with hf.guard("t"):
            pass

    return call


WAYS: dict[str, Way] = {
    "a function": function(),
    "a function in a thread": function(timeout=60.0),
    "a function that is cached": function(read_only=True, cache=60.0),
    "a function that fails": function(fail(KeyError)),
    "a function in a run": in_a_run,
    "a coroutine": coroutine(),
    "a coroutine in time": coroutine(timeout=60.0),
    "a generator": stream(lambda hf, script: hf.tool("t")(script.generator)),
    "an async generator": stream(lambda hf, script: hf.tool("t")(script.async_generator)),
    "call": called,
    "acall": lambda hf: partial(hf.acall, Script(ok(), name="t").coroutine),
    "stream": stream(lambda hf, script: partial(hf.stream, script.generator)),
    "astream": stream(lambda hf, script: partial(hf.astream, script.async_generator)),
    "guard": block,
    "guard in a task": async_block,
}


@pytest.mark.parametrize("heard", [False, True], ids=["unheard", "heard"])
@pytest.mark.parametrize("way", WAYS)
async def test_any_kind_of_call_notices_and_the_next_is_under_the_new_policies(
    hf: Holdfast, write: Write, clock: ManualClock, way: str, heard: bool
) -> None:
    if heard:
        hf.bus.add(Recorder())
    call = WAYS[way](hf)
    before = [await outcome(call(number)) for number in range(3)]
    write(ONE_CALL)
    clock.advance(1.0)

    after = [await outcome(call(number)) for number in range(3, 6)]

    assert "RateLimited" not in before
    assert after[2] == "RateLimited"


async def outcome(call: Awaitable[object]) -> str:
    try:
        await call
    except Exception as error:
        return type(error).__name__
    return "fine"


def test_a_call_that_an_open_circuit_refuses_notices_too(hf: Holdfast, write: Write, clock: ManualClock) -> None:
    tool = hf.tool("t")(lambda: 42)
    hf.breaker.force_open("t")
    with pytest.raises(CircuitOpen):
        tool()
    write("[policy]\nbreaker = false\n")
    clock.advance(1.0)

    with suppress(CircuitOpen):
        tool()

    assert tool() == 42


async def test_a_call_that_comes_long_after_the_change_is_itself_under_the_new_policies(
    hf: Holdfast, write: Write, clock: ManualClock
) -> None:
    tool = hf.tool("t")(Script(slow(10.0), clock=clock).coroutine)
    await tool()
    await tool()
    write("[policy]\ntimeout = 1.0\n")
    clock.advance(60.0)

    with pytest.raises(ToolTimeout):
        await tool()


def test_a_block_that_is_entered_again_is_under_the_new_policies(hf: Holdfast, change: Write) -> None:
    block = hf.guard("t")
    with block:
        pass

    change(ONE_CALL)
    with block:
        pass

    with pytest.raises(RateLimited), block:
        pass


def test_tools_that_nobody_has_named_yet_are_under_the_new_policies(hf: Holdfast, change: Write) -> None:
    change(ONE_CALL)

    with hf.guard("fresh"):
        pass
    with pytest.raises(RateLimited), hf.guard("fresh"):
        pass


@pytest.mark.parametrize("way", ["block", "decorator"])
def test_a_mended_file_is_noticed_by_a_tool_that_could_not_be_made(
    hf: Holdfast, write: Write, change: Write, clock: ManualClock, way: str
) -> None:
    make: dict[str, Callable[[], object]] = {
        "block": lambda: hf.guard("fresh"),
        "decorator": lambda: hf.tool("fresh")(ok),
    }
    change("[tool.fresh]\nrate = { burst = 5 }")
    with pytest.raises(ConfigError, match="per_second is missing"):
        make[way]()
    write("[tool.fresh]\nrate = { per_second = 1, burst = 5 }")
    clock.advance(1.0)

    make[way]()


def test_a_tool_that_comes_while_the_file_is_read_is_under_the_new_policies(
    hf: Holdfast, change: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Caller] = []

    def loads(text: str) -> dict[str, Any]:
        made.append(hf.tool("t", fallback={"value": "old"})(Script(fail(ConnectionError)).function))
        return parsed(text)

    parsed = tomllib.loads
    monkeypatch.setattr(tomllib, "loads", loads)

    change('[tool.t]\nfallback = { value = "new" }\n')

    assert [tool() for tool in made] == ["new"]


def test_a_tool_that_does_not_go_with_the_file_keeps_no_other_from_its_new_policies(
    hf: Holdfast, change: Write, recorder: Recorder
) -> None:
    class Bringing(dict[str, Any]):
        """A table that brings another tool along when a new file is compared with it."""

        def items(self) -> Any:
            if armed:
                armed.clear()
                hf.tool("picky", retry={"initial": 2.0})(lambda: None)
            return super().items()

    armed: list[bool] = []
    hf.tool("odd", retry=Bringing())(lambda: None)
    with hf.guard("t"):
        armed.append(True)

    change(ONE_CALL + "[tool.picky]\nretry = { max = 1.0 }\n")

    assert "picky" in str(recorder.of("policy_rejected")[0].payload["error"])
    assert recorder.of("policy_reloaded")
    with hf.guard("t"), pytest.raises(RateLimited), hf.guard("t"):
        pass


def test_the_file_still_lies_over_the_decorator(hf: Holdfast, change: Write) -> None:
    tool = hf.tool("t", fallback={"value": "decorator"})(Script(fail(ConnectionError)).function)

    change('[tool.t]\nfallback = { value = "file" }\n')
    under_file = tool()
    change('[policy]\nfallback = { value = "base" }\n')

    assert (under_file, tool()) == ("file", "decorator")


def test_a_reload_is_told_once_with_the_file(
    hf: Holdfast, change: Write, recorder: Recorder, path: Path, clock: ManualClock
) -> None:
    change(ONE_CALL)
    for _ in range(5):
        clock.advance(1.0)
        hf.call(lambda: None, policy={"rate": False})

    [event] = recorder.of("policy_reloaded")
    assert event.payload == {"file": str(path)}
    assert recorder.of("policy_rejected") == []


# --- bad files ---


BAD = '[policy]\nrate = "fast"\ntimout = 5\n'


def test_a_bad_file_keeps_the_old_policies_and_is_told_once(
    hf: Holdfast, change: Write, recorder: Recorder, clock: ManualClock
) -> None:
    tool = hf.tool("t")(lambda: None)
    change(ONE_CALL)
    tool()

    change(BAD)
    for _ in range(5):
        clock.advance(1.0)
        with pytest.raises(RateLimited):
            tool()

    [event] = recorder.of("policy_rejected")
    error = str(event.payload["error"])
    assert 'holdfast.toml: [policy] rate = "fast": must be like' in error
    assert "did you mean timeout?" in error


def test_a_bad_file_that_no_sink_hears_of_is_in_the_log(
    hf: Holdfast, change: Write, caplog: pytest.LogCaptureFixture
) -> None:
    change(BAD)

    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert "policies are not taken up: " in record.message
    assert 'holdfast.toml: [policy] rate = "fast": must be like' in record.message


def test_another_bad_file_is_told_again(change: Write, recorder: Recorder) -> None:
    change(BAD)
    change("[policy\n")

    assert len(recorder.of("policy_rejected")) == 2


def test_a_repaired_file_is_taken_up(hf: Holdfast, change: Write, recorder: Recorder) -> None:
    tool = hf.tool("t")(lambda: None)
    change(BAD)

    change(ONE_CALL)

    assert recorder.types().count("policy_reloaded") == 1
    tool()
    with pytest.raises(RateLimited):
        tool()


def test_a_file_that_is_gone_keeps_its_policies_and_comes_back_into_force(
    hf: Holdfast, change: Write, write: Write, recorder: Recorder, path: Path, clock: ManualClock
) -> None:
    tool = hf.tool("t", fallback={"value": 0})(Script(fail(ConnectionError)).function)
    change("[tool.t]\nfallback = { value = 1 }\n")
    path.unlink()
    clock.advance(1.0)
    gone = tool()

    change("[tool.t]\nfallback = { value = 2 }\n")

    assert (gone, tool()) == (1, 2)
    assert "is gone" in str(recorder.of("policy_rejected")[0].payload["error"])


def test_a_file_that_does_not_go_with_a_decorator_is_a_bad_one_as_a_whole(
    hf: Holdfast, change: Write, recorder: Recorder
) -> None:
    hf.tool("picky", retry={"attempts": 2, "initial": 2.0})(lambda: None)
    tool = hf.tool("t")(lambda: None)

    change(ONE_CALL + "[tool.picky]\nretry = { max = 1.0 }\n")

    assert "picky" in str(recorder.of("policy_rejected")[0].payload["error"])
    tool()
    tool()


# --- circuits keep their state ---


def test_failures_counted_before_the_change_count_after_it(hf: Holdfast, change: Write) -> None:
    tool = hf.tool("t")(Script(fail(ConnectionError)).function)
    for _ in range(4):
        with pytest.raises(ConnectionError):
            tool()

    change("[policy]\nbreaker = { failure_threshold = 5 }\n")

    with pytest.raises(ConnectionError):
        tool()
    assert hf.breaker.state("t") is CircuitState.OPEN


def test_successes_from_before_there_was_a_rate_do_not_count_for_it(hf: Holdfast, change: Write) -> None:
    script = Script(*[ok()] * 100, then=fail(ConnectionError))
    tool = hf.tool("t")(script.function)
    for _ in range(100):
        tool()

    change("[policy]\nbreaker = { failure_rate = 0.5, failure_threshold = 1000 }\n")
    for _ in range(20):
        with pytest.raises(ConnectionError):
            tool()

    assert hf.breaker.state("t") is CircuitState.OPEN


def test_an_open_circuit_stays_open_and_its_wait_goes_on(hf: Holdfast, change: Write, clock: ManualClock) -> None:
    tool = hf.tool("t")(Script(*[fail(ConnectionError)] * 7, ok("well again")).function)
    for _ in range(7):
        with pytest.raises(ConnectionError):
            tool()
    before = hf.breaker.remaining_backoff("t")
    assert before is not None

    change("[policy]\nbreaker = { failure_threshold = 50, min_backoff = 100.0, jitter = 0.0 }\n")

    assert hf.breaker.remaining_backoff("t") == pytest.approx(before - 1.0)
    with pytest.raises(CircuitOpen):
        tool()
    clock.advance(before - 1.0)
    assert tool() == "well again"


def test_a_breaker_taken_away_lets_everything_pass_and_put_back_is_as_open_as_before(
    hf: Holdfast, change: Write
) -> None:
    tool = hf.tool("t")(Script(*[fail(ConnectionError)] * 7, ok("fine")).function)
    for _ in range(7):
        with pytest.raises(ConnectionError):
            tool()

    change("[policy]\nbreaker = false\n")
    without = tool()
    change("")

    assert without == "fine"
    with pytest.raises(CircuitOpen):
        tool()


def test_a_probe_that_is_out_during_a_change_still_closes_the_circuit(
    hf: Holdfast, change: Write, clock: ManualClock
) -> None:
    for _ in range(7):
        with pytest.raises(ConnectionError), hf.guard("t"):
            raise ConnectionError
    clock.advance(10.0)

    with hf.guard("t"):
        change("[policy]\nbreaker = { failure_threshold = 2 }\n")

    assert hf.breaker.state("t") is CircuitState.CLOSED


# --- buckets keep their state ---


RATE = "[policy]\nmax_wait = 0.0\nrate = {{ per_second = {}, burst = {} }}\n"


def admitted(hf: Holdfast, most: int = 100) -> int:
    """How many calls pass at once."""
    for number in range(most):
        try:
            with hf.guard("t"):
                pass
        except RateLimited:
            return number
    return most


def test_tokens_that_were_used_are_used_under_the_new_rate(hf: Holdfast, change: Write) -> None:
    change(RATE.format(1.0, 10))
    with hf.guard("t"), hf.guard("t"), hf.guard("t"), hf.guard("t"):
        pass

    change(RATE.format(2.0, 10))

    assert admitted(hf) == 7  # ten but four, and one came back meanwhile


def test_a_larger_burst_does_not_fill_the_bucket(hf: Holdfast, change: Write) -> None:
    change(RATE.format(1.0, 5))
    admitted(hf)

    change(RATE.format(1.0, 50))

    assert admitted(hf) == 46  # the five that were used are still missing, but for one that came back


def test_a_smaller_burst_cuts_what_was_saved(hf: Holdfast, change: Write) -> None:
    change(RATE.format(1.0, 50))

    change(RATE.format(1.0, 5))

    assert admitted(hf) == 5


def test_a_rate_taken_away_lets_everything_pass_and_put_back_goes_on_where_it_was(hf: Holdfast, change: Write) -> None:
    change(RATE.format(0.001, 3))
    used_up = admitted(hf)

    change("")
    free = admitted(hf)
    change(RATE.format(0.001, 3))

    assert (used_up, free, admitted(hf)) == (3, 100, 0)


def test_a_rate_that_was_added_is_full_at_first(hf: Holdfast, change: Write) -> None:
    admitted(hf)

    change(RATE.format(1.0, 5))

    assert admitted(hf) == 5


def test_a_pause_that_the_server_asked_for_outlasts_a_change(hf: Holdfast, change: Write, clock: ManualClock) -> None:
    adaptive = "[policy]\nmax_wait = 0.0\nrate = {{ per_second = 10.0, burst = {}, adaptive = true }}\n"
    change(adaptive.format(10))
    with pytest.raises(TooManyRequests), hf.guard("t"):
        raise TooManyRequests("60")

    change(adaptive.format(20))

    assert admitted(hf) == 0
    clock.advance(57.0)
    assert admitted(hf) == 0
    clock.advance(10.0)
    assert admitted(hf) > 0


# --- waits go on ---


async def settled() -> None:
    """Lets every task go as far as it can without time passing."""
    for _ in range(20):
        await asyncio.sleep(0)


class Line:
    """Calls of one tool that run until they are told to end."""

    def __init__(self, hf: Holdfast) -> None:
        self.begun: list[int] = []
        self.ends: dict[int, asyncio.Future[None]] = {}
        self.tasks: list[asyncio.Task[None]] = []
        self._call = hf.tool("t")(self._tool)

    async def _tool(self, number: int) -> None:
        self.begun.append(number)
        await self.ends[number]

    async def ask(self, *numbers: int) -> None:
        for number in numbers:
            self.ends[number] = asyncio.get_running_loop().create_future()
            self.tasks.append(asyncio.ensure_future(self._call(number)))
            await settled()

    async def end(self, *numbers: int) -> None:
        for number in numbers:
            self.ends[number].set_result(None)
            await settled()

    async def all_end(self) -> None:
        for _ in self.tasks:
            for number in self.begun:
                if not self.ends[number].done():
                    await self.end(number)
        await asyncio.gather(*self.tasks)


SLOTS = "[policy]\nmax_wait = 1000.0\nconcurrency = {}\n"


async def test_callers_that_wait_for_a_slot_get_one_at_once_when_there_are_more(
    hf: Holdfast, change: Write, clock: ManualClock
) -> None:
    change(SLOTS.format(1))
    line = Line(hf)
    with clock.busy():
        await line.ask(1, 2, 3, 4)
        before = list(line.begun)

        change(SLOTS.format(3))
        await settled()

        assert (before, line.begun) == ([1], [1, 2, 3])
        await line.all_end()
    assert line.begun == [1, 2, 3, 4]


async def test_with_fewer_slots_running_calls_go_on_and_the_next_waits_for_enough_to_end(
    hf: Holdfast, change: Write, clock: ManualClock
) -> None:
    change(SLOTS.format(3))
    line = Line(hf)
    with clock.busy():
        await line.ask(1, 2, 3, 4)

        change(SLOTS.format(1))
        await line.end(1)
        await line.end(2)
        still = list(line.begun)
        await line.end(3)

        assert (still, line.begun) == ([1, 2, 3], [1, 2, 3, 4])
        await line.all_end()


async def test_nobody_who_waits_is_forgotten_when_the_limit_is_taken_away(
    hf: Holdfast, change: Write, clock: ManualClock
) -> None:
    change(SLOTS.format(1))
    line = Line(hf)
    with clock.busy():
        await line.ask(1, 2, 3)

        change("")
        await line.ask(4)

        assert 4 in line.begun
        await line.all_end()
    assert sorted(line.begun) == [1, 2, 3, 4]


async def test_calls_that_began_before_there_was_a_limit_give_back_no_slot(
    hf: Holdfast, change: Write, clock: ManualClock
) -> None:
    line = Line(hf)
    with clock.busy():
        await line.ask(1, 2, 3)

        change(SLOTS.format(1))
        await line.end(1, 2, 3)
        await line.ask(4, 5)

        assert line.begun == [1, 2, 3, 4]
        await line.all_end()


async def test_callers_that_wait_for_a_token_keep_their_order_and_their_turn(
    hf: Holdfast, change: Write, clock: ManualClock
) -> None:
    waiting = "[policy]\nmax_wait = 1000.0\nrate = {{ per_second = {}, burst = 1 }}\n"
    change(waiting.format(0.1))
    begun: list[tuple[int, float]] = []
    tool = hf.tool("t")(Script(ok()).coroutine)

    async def call(number: int) -> None:
        await tool(number)
        begun.append((number, clock.monotonic()))

    tasks = []
    with clock.busy():
        for number in range(4):
            tasks.append(asyncio.create_task(call(number)))
            await settled()
        start = clock.monotonic()
        change(waiting.format(10.0))
    await asyncio.gather(*tasks)

    assert [number for number, _ in begun] == [0, 1, 2, 3]
    assert begun[-1][1] <= start + 10.2  # the head had been promised ten seconds; the others follow at the new rate


async def test_a_caller_that_waits_for_more_tokens_than_the_new_burst_is_let_in_when_that_is_full(
    hf: Holdfast, change: Write, clock: ManualClock
) -> None:
    change('[policy]\nrate = { per_second = 1, burst = 2 }\npriority = "low"\n')
    tool = hf.tool("t")(Script(ok()).coroutine)
    await tool()

    with clock.busy():
        waiting = asyncio.create_task(tool())
        await asyncio.sleep(0)
        change("[policy]\nrate = { per_second = 1, burst = 1 }\n")

    assert await waiting is None


async def test_callers_that_wait_for_a_token_are_let_in_when_the_rate_is_taken_away(
    hf: Holdfast, change: Write, clock: ManualClock
) -> None:
    change("[policy]\nmax_wait = 1000.0\nrate = { per_second = 0.1, burst = 1 }\n")
    tool = hf.tool("t")(Script(ok("in")).coroutine)
    with clock.busy():
        tasks = [asyncio.create_task(tool(number)) for number in range(4)]
        await settled()
        change("")

    assert await asyncio.gather(*tasks) == ["in"] * 4


async def test_a_waiter_that_is_cancelled_during_a_change_leaves_nothing_behind(
    hf: Holdfast, change: Write, clock: ManualClock
) -> None:
    change(SLOTS.format(1))
    line = Line(hf)
    with clock.busy():
        await line.ask(1, 2, 3)

        change(SLOTS.format(2))
        line.tasks[1].cancel()
        await settled()
        await line.end(1)

        assert 3 in line.begun
        await line.end(3)
        await line.ask(4, 5, 6)
        assert line.begun[-2:] == [4, 5]
        await line.end(4)
        assert line.begun[-1] == 6
        await line.end(5, 6)


# --- slots are never lost and never doubled ---


RATED = "rate = { per_second = 1000.0, burst = 1000 }\n"
BROKEN = -1
POLICIES: dict[str, tuple[int | None, str]] = {
    "nothing": (None, "breaker = false\n"),
    "a breaker": (None, "breaker = { failure_threshold = 1000 }\n"),
    "a rate": (None, RATED),
    "one": (1, "concurrency = 1\nbreaker = false\n"),
    "two": (2, "concurrency = 2\nbreaker = { failure_threshold = 1000 }\n"),
    "three": (3, "concurrency = 3\nbreaker = { failure_threshold = 2000 }\n"),
    "three and a rate": (3, "concurrency = 3\n" + RATED),
    "a mistake": (BROKEN, "concurrency = 0\n"),
}


class SlotsUnderChange(RuleBasedStateMachine):
    """Calls begin and end in any order while the file changes; a call is let in exactly if a slot is free."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name) / "holdfast.toml"
        self.write = writer(path)
        self.write("")
        self.clock = ManualClock()
        self.hf = holdfast.open(policies=path, clock=self.clock)
        self.loop = asyncio.new_event_loop()
        self.limit: int | None = None
        self.running: list[tuple[asyncio.Task[None], asyncio.Future[None], bool]] = []
        self.tool = self.hf.tool("t")(self._tool)

    async def _tool(self, end: asyncio.Future[None]) -> None:
        await end

    async def _block(self, end: asyncio.Future[None]) -> None:
        async with self.hf.guard("t"):
            await end

    def teardown(self) -> None:
        while self.running:
            self.end(0, "success")
        self.change("three")
        begun = [self._begins(block=False) for _ in range(5)]
        while self.running:
            self.end(0, "success")
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()
        self.hf.close()
        self.folder.cleanup()
        assert begun == [True] * 3 + [False] * 2

    @rule(name=st.sampled_from(sorted(POLICIES)))
    def change(self, name: str) -> None:
        limit, text = POLICIES[name]
        self.write(f"[policy]\nmax_wait = 0.0\n{text}")
        self.clock.advance(1.0)
        self.hf.call(lambda: None)
        if limit != BROKEN:
            self.limit = limit

    @rule(heard=st.booleans(), block=st.booleans())
    def begin(self, heard: bool, block: bool) -> None:
        holding = sum(holds for *_, holds in self.running)
        recorder = Recorder()
        if heard:
            self.hf.bus.add(recorder)

        begun = self._begins(block)

        self.hf.bus.remove(recorder)
        assert begun == (self.limit is None or holding < self.limit)

    def _begins(self, block: bool) -> bool:
        end = self.loop.create_future()
        task = self.loop.create_task(self._block(end) if block else self.tool(end))
        self.loop.run_until_complete(settled())
        if task.done():
            assert isinstance(task.exception(), ConcurrencyFull)
        else:
            self.running.append((task, end, self.limit is not None))
        return not task.done()

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 100), how=st.sampled_from(["success", "failure", "cancelled"]))
    def end(self, which: int, how: str) -> None:
        task, end, _ = self.running.pop(which % len(self.running))
        if how == "success":
            end.set_result(None)
        elif how == "failure":
            end.set_exception(PermissionError())  # says nothing about the tool
        else:
            task.cancel()
        self.loop.run_until_complete(settled())
        assert task.done()
        assert task.cancelled() == (how == "cancelled")
        if not task.cancelled():
            task.exception()

    @invariant()
    def nothing_is_pending(self) -> None:
        assert self.clock.pending == 0


TestSlotsUnderChange = SlotsUnderChange.TestCase
TestSlotsUnderChange.settings = settings(max_examples=60, stateful_step_count=40)


def test_threads_that_call_while_the_file_changes_never_exceed_the_largest_limit_and_leave_every_slot_free(
    hf: Holdfast, change: Write
) -> None:
    concurrency = "[policy]\nmax_wait = 0.0\nconcurrency = {}\n"
    change(concurrency.format(1))
    running: list[None] = []
    most: list[int] = []
    turns, stop = threading.Semaphore(0), threading.Event()

    @hf.tool("t")
    def tool() -> None:
        running.append(None)
        most.append(len(running))
        for _ in range(5):
            time.sleep(0)  # lets other threads run
        running.pop()

    def work() -> None:
        while not stop.is_set():
            with suppress(ConcurrencyFull):
                tool()
            turns.release()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for limit in [1, 3, 2, 4] * 25:
        change(concurrency.format(limit))
        for _ in range(20):
            turns.acquire()
    stop.set()
    for thread in threads:
        thread.join()

    assert running == []
    assert 1 < max(most) <= 4
    change(concurrency.format(2))
    with hf.guard("t"), hf.guard("t"), pytest.raises(ConcurrencyFull), hf.guard("t"):
        pass
