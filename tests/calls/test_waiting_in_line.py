"""Waiting for a token or a slot: in line, by priority, up to `max_wait`, and nothing is lost when a waiter leaves."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import shapes
from tests.runs import durable
from tests.runs.durable import Killed, Place
from tests.shapes import Call, Gate, Shape, Thread, eventually, settled

import holdfast
from holdfast import CircuitOpen, CircuitState, ConcurrencyFull, Holdfast, InDoubt, Priority, RateLimited, ToolTimeout
from holdfast.events import Event
from holdfast.guards.line import Ticket
from holdfast.guards.rate import RateConfig
from holdfast.policy import Policy
from holdfast.testing import ManualClock, Recorder, Script, fail, ok, slow
from holdfast.tools.limiting import Limiting
from holdfast.tools.verdicts import Asker, Refusal

shape, hf, memory = shapes.shape, shapes.hf, durable.memory

ONE_A_SECOND = {"per_second": 1, "burst": 1}


@pytest.mark.parametrize("more", [{}, {"deadline": 60.0}], ids=["quick", "long"])
def test_a_tool_that_calls_itself_is_told_that_it_waits_for_itself(hf: Holdfast, more: dict[str, float]) -> None:
    async def descend(depth: int) -> int:
        return depth if depth == 0 else await guarded(depth - 1)

    guarded = hf.tool("walk", concurrency=1, max_wait=0.0, **more)(descend)

    with pytest.raises(ConcurrencyFull, match="it would wait for itself"):
        asyncio.run(guarded(1))


def test_a_plain_tool_that_calls_itself_is_told_so_and_another_is_not(hf: Holdfast) -> None:
    @hf.tool("walk", concurrency=1, max_wait=0.0)
    def walk(depth: int) -> int:
        return depth if depth == 0 else walk(depth - 1)

    @hf.tool("other", concurrency=1, max_wait=0.0)
    def other(then: Any) -> object:
        return then()

    with pytest.raises(ConcurrencyFull, match="it would wait for itself"):
        other(lambda: walk(1))
    with pytest.raises(ConcurrencyFull, match="it would wait for itself"):
        hf.call(walk, 1)
    slots = hf._box.tool("walk").limiting.slots
    assert slots is not None
    assert slots.take()  # by somebody else
    with pytest.raises(ConcurrencyFull, match=r"are running(?!,)"):
        other(lambda: walk(0))


def waiting(hf: Holdfast, tool: str) -> int:
    """How many stand in line before *tool*."""
    return len(hf._box.tool(tool).limiting.line)


def taken(hf: Holdfast, tool: str) -> int:
    """How many slots of *tool* are taken."""
    slots = hf._box.tool(tool).limiting.slots
    assert slots is not None
    return slots.in_flight


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.let_out(1000)


def opened(shape: Shape, hf: Holdfast, gate: Gate, **policy: object) -> Call:
    """The tool behind *gate*, called once before: the first call of a tool never takes the quick path."""

    def tool(who: object) -> list[object]:
        return gate(who)

    call = shape(hf, tool, **policy)
    gate.let_out()
    call("the first")
    gate.entered.clear()
    return call


# --- slots, in every shape, each call in a thread of its own ---


def test_no_more_calls_run_at_once_than_allowed(shape: Shape, hf: Holdfast, clock: ManualClock, gate: Gate) -> None:
    call = opened(shape, hf, gate, concurrency=2)

    with clock.busy():
        threads = [Thread(call, who) for who in range(4)]
        eventually(lambda: len(gate.entered) == 2 and waiting(hf, "tool") == 2)
        gate.let_out(4)
        answers = [thread.result() for thread in threads]

    assert answers == [[0], [1], [2], [3]]
    assert taken(hf, "tool") == waiting(hf, "tool") == 0


def test_those_who_wait_for_a_slot_get_it_in_the_order_they_came(
    shape: Shape, hf: Holdfast, clock: ManualClock, gate: Gate
) -> None:
    call = opened(shape, hf, gate, concurrency=1)
    threads = []

    with clock.busy():
        for who in range(5):
            threads.append(Thread(call, who))
            eventually(lambda: len(gate.entered) + waiting(hf, "tool") == len(threads))
        gate.let_out(5)
        for thread in threads:
            thread.result()

    assert gate.entered == [0, 1, 2, 3, 4]


def test_a_wait_for_a_slot_longer_than_allowed_is_refused(
    shape: Shape, hf: Holdfast, clock: ManualClock, gate: Gate
) -> None:
    call = opened(shape, hf, gate, concurrency=1, max_wait=2.0)

    with clock.busy():
        first = Thread(call, 1)
        eventually(lambda: gate.entered == [1])
        second = Thread(call, 2)
        eventually(lambda: clock.pending == 1)
        clock.advance(1.9)
        assert waiting(hf, "tool") == 1
        clock.advance(0.1)
        refusal = second.error
        gate.let_out()
        first.result()

    assert isinstance(refusal, ConcurrencyFull)
    assert refusal.retry_after is None
    assert waiting(hf, "tool") == taken(hf, "tool") == 0
    assert hf.tracker.stats("tool").denied == 1


@pytest.mark.parametrize("blocks_a_loop", [False, True])
def test_where_no_thread_can_be_started_for_a_timer_a_waiter_keeps_the_time_itself(
    blocks_a_loop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(ok())

    async def blocked() -> None:
        tool()

    def full(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with holdfast.open(":memory:", policies={}) as hf:  # on the system's clock: only its timers take a thread
        tool = hf.tool(concurrency=1, max_wait=0.01)(script.function)
        tool()
        slots = hf._box.tool("script").limiting.slots
        assert slots is not None
        slots.take()
        monkeypatch.setattr(threading.Thread, "start", full)

        with pytest.raises(ConcurrencyFull, match="too many calls of it are running"):
            asyncio.run(blocked()) if blocks_a_loop else tool()
        monkeypatch.undo()

    assert script.count == 1


def test_a_wait_of_just_max_wait_is_waited_for_whatever_its_last_digit(hf: Holdfast, clock: ManualClock) -> None:
    tool = hf.tool("t", rate={"per_second": 10, "burst": 1}, max_wait=0.1)(lambda: "ok")

    assert [tool() for _ in range(30)] == ["ok"] * 30
    assert clock.monotonic() == pytest.approx(2.9)


def test_without_patience_a_full_tool_refuses_at_once(shape: Shape, hf: Holdfast, gate: Gate) -> None:
    call = opened(shape, hf, gate, concurrency=1, max_wait=0)
    first = Thread(call, 1)
    eventually(lambda: gate.entered == [1])

    refusal = Thread(call, 2).error

    assert isinstance(refusal, ConcurrencyFull)
    gate.let_out()
    assert first.result() == [1]


def test_a_failed_call_gives_its_slot_back(shape: Shape, hf: Holdfast) -> None:
    call = shape(hf, Script(fail(LookupError), ok(["fine"])), concurrency=1, max_wait=0)

    with pytest.raises(LookupError):
        call()

    assert call() == ["fine"]


@pytest.mark.parametrize("asked", ["status_code", "__str__"])
def test_an_interrupt_while_a_failure_is_judged_gives_the_slot_back(shape: Shape, hf: Holdfast, asked: str) -> None:
    def strike(error: BaseException) -> str:
        raise KeyboardInterrupt

    odd = type("Odd", (Exception,), {asked: property(strike) if asked == "status_code" else strike})
    call = shape(hf, Script(fail(odd), ok(["fine"])), concurrency=1, max_wait=0)

    with pytest.raises(KeyboardInterrupt):
        call()

    assert call() == ["fine"]


def test_an_interrupt_while_a_waiter_leaves_the_line_gives_its_slot_to_the_next(
    shape: Shape, hf: Holdfast, clock: ManualClock, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave_line(limiting: Limiting, ticket: Ticket) -> None:
        leave(limiting, ticket)
        if interrupts:
            raise interrupts.pop()

    call, leave, interrupts = opened(shape, hf, gate, concurrency=1), Limiting.leave_line, [KeyboardInterrupt()]
    monkeypatch.setattr(Limiting, "leave_line", leave_line)
    threads = []

    with clock.busy():
        for who in range(3):
            threads.append(Thread(call, who))
            eventually(lambda: len(gate.entered) + waiting(hf, "tool") == len(threads))
        gate.let_out(2)
        interrupted = threads[1].error
        threads[2].result()

    assert isinstance(interrupted, KeyboardInterrupt)
    assert gate.entered == [0, 2]
    assert taken(hf, "tool") == waiting(hf, "tool") == 0


def test_an_interrupt_while_it_is_told_that_a_circuit_tries_again_gives_the_probe_back(
    shape: Shape, hf: Holdfast, clock: ManualClock
) -> None:
    def sink(event: Event) -> None:
        if event.type == "circuit_half_opened" and interrupts:
            raise interrupts.pop()

    call = shape(hf, Script(fail(ConnectionError), ok(["fine"])), breaker={"failure_threshold": 1, "jitter": 0})
    interrupts = [KeyboardInterrupt()]
    hf.bus.add(sink)
    with pytest.raises(ConnectionError):
        call()
    clock.advance(5.0)

    with pytest.raises(KeyboardInterrupt):
        call()

    assert call() == ["fine"]


def test_a_circuit_that_opens_meanwhile_refuses_those_who_wait(
    shape: Shape, hf: Holdfast, clock: ManualClock, gate: Gate
) -> None:
    def tool(who: int) -> list[int]:
        gate(who)
        raise ConnectionError

    call = shape(hf, tool, concurrency=1, breaker={"failure_threshold": 1, "jitter": 0.0})

    with clock.busy():
        first = Thread(call, 1)
        eventually(lambda: gate.entered == [1])
        waiters = [Thread(call, who) for who in (2, 3)]
        eventually(lambda: waiting(hf, "tool") == 2)
        gate.let_out()
        errors = [type(thread.error) for thread in (first, *waiters)]

    assert errors == [ConnectionError, CircuitOpen, CircuitOpen]
    assert gate.entered == [1]
    assert waiting(hf, "tool") == taken(hf, "tool") == 0


def test_the_deadline_ends_the_wait_for_a_slot(shape: Shape, hf: Holdfast, clock: ManualClock, gate: Gate) -> None:
    call = opened(shape, hf, gate, concurrency=1)
    hasty = shape.run(
        lambda who: getattr(
            hf, {"function": "call", "coroutine": "acall", "generator": "stream"}.get(shape.name, "astream")
        )("tool", who, policy={"deadline": 1.0})
    )

    with clock.busy():
        first = Thread(call, 1)
        eventually(lambda: gate.entered == [1])
        second = Thread(hasty, 2)
        eventually(lambda: clock.pending == 1)
        clock.advance(1.0)
        error = second.error
        gate.let_out()
        first.result()

    assert isinstance(error, ToolTimeout)
    assert gate.entered == [1]
    assert hf.tracker.stats("tool").timed_out == 1


@pytest.mark.parametrize("path", ["quick", "long"])
async def test_two_slots_that_come_back_together_serve_two_who_wait(
    hf: Holdfast, clock: ManualClock, path: str
) -> None:
    begun: list[float] = []

    @hf.tool(concurrency=2)
    async def tool() -> None:
        begun.append(clock.monotonic())
        await clock.asleep(1.0)

    if path == "long":
        hf.bus.add(Recorder())
    await tool()
    await asyncio.gather(*(tool() for _ in range(6)))

    assert begun == [0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0]


# --- event loops that stand still ---


@pytest.fixture
def standing(hf: Holdfast, clock: ManualClock, gate: Gate) -> Iterator[Standing]:
    with clock.busy():
        made = Standing(hf, gate)
        yield made
        made.end()


class Standing:
    """A plain call that has the only slot, and a task that waits for it in an event loop that has been stopped."""

    def __init__(self, hf: Holdfast, gate: Gate) -> None:
        self.call = hf.tool("tool", concurrency=1, max_wait=60.0)(gate)
        self.holder = Thread(self.call, "holder")
        eventually(lambda: gate.entered)
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(lambda *_: None)  # that a task is destroyed in it is meant
        self.task = self.loop.create_task(hf.acall(self.call, "task"))
        self.loop.run_until_complete(settled())
        self.gate = gate

    def end(self) -> None:
        self.gate.let_out(1000)
        self.holder.result()
        if not self.loop.is_closed():
            self.loop.run_until_complete(asyncio.gather(self.task, return_exceptions=True))
            self.loop.close()


@pytest.mark.parametrize("end", ["stopped", "closed"])
def test_a_task_whose_event_loop_stands_still_holds_up_nobody(hf: Holdfast, standing: Standing, end: str) -> None:
    if end == "closed":
        standing.loop.close()
    before = waiting(hf, "tool")

    behind = Thread(standing.call, "behind")
    eventually(lambda: waiting(hf, "tool") == 2)
    standing.gate.let_out(2)

    assert before == 1
    assert behind.result() == ["behind"]
    assert taken(hf, "tool") == 0


def test_a_task_whose_event_loop_runs_again_has_kept_its_place(hf: Holdfast, standing: Standing) -> None:
    standing.gate.let_out(2)
    standing.holder.result()

    answer = standing.loop.run_until_complete(standing.task)

    assert answer == ["task"]
    assert waiting(hf, "tool") == taken(hf, "tool") == 0


# --- many threads ---


@pytest.mark.parametrize("policy", [{}, {"rate": {"per_second": 1e6, "burst": 1}}], ids=["slots", "slots and tokens"])
def test_no_wake_up_is_lost_between_threads(hf: Holdfast, policy: dict[str, Any]) -> None:
    running: list[int] = []
    most = []

    def tool() -> None:
        running.append(1)
        most.append(len(running))
        running.pop()

    call = hf.tool(concurrency=2, max_wait=1000.0, **policy)(tool)
    hurry = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    try:
        threads = [Thread(lambda: [call() for _ in range(200)]) for _ in range(8)]
        for thread in threads:
            thread.result()
    finally:
        sys.setswitchinterval(hurry)

    assert max(most) <= 2
    assert hf.tracker.stats("tool").successful == 1600
    assert waiting(hf, "tool") == taken(hf, "tool") == 0


def test_a_slot_that_comes_back_just_before_the_waiter_joins_the_line_is_not_missed(hf: Holdfast) -> None:
    """The quick path gives a slot back without a lock: between a waiter's failed try and its joining the line, say."""
    holder = hf.tool("tool", concurrency=1)(lambda: None)
    tool = hf._box.tool("tool")
    slots = tool.limiting.slots
    assert slots is not None
    slots.take()
    join = tool.limiting.line.join

    class Late:
        """A line before which, just as somebody joins it, the slot comes back and there is nobody to wake."""

        def __getattr__(self, name: str) -> Any:
            return getattr(line, name)

        def __len__(self) -> int:
            return len(line)

        def join(self, now: float, *wanted: float) -> Any:
            if slots.in_flight:
                tool.limiting.leave(now, 0.0, slots)
            return join(now, *wanted)

    line = tool.limiting.line
    tool.limiting.line = Late()  # type: ignore[assignment]

    assert Thread(holder).result() is None
    assert len(line) == 0


# --- tokens ---


async def test_those_who_wait_for_a_token_get_it_in_the_order_they_came(hf: Holdfast, clock: ManualClock) -> None:
    order: list[tuple[float, int]] = []

    @hf.tool(rate=ONE_A_SECOND)
    async def tool(who: int) -> None:
        order.append((clock.monotonic(), who))

    await asyncio.gather(*(tool(who) for who in range(5)))

    assert order == [(0.0, 0), (1.0, 1), (2.0, 2), (3.0, 3), (4.0, 4)]


async def test_a_newcomer_does_not_overtake_those_who_wait(hf: Holdfast, clock: ManualClock) -> None:
    order: list[int] = []

    @hf.tool(rate=ONE_A_SECOND)
    async def tool(who: int) -> None:
        order.append(who)

    await tool(0)
    waiter = asyncio.create_task(tool(1))
    await settled()
    clock.advance(1.0)
    await tool(2)
    await waiter

    assert order == [0, 1, 2]


async def test_who_cannot_be_served_in_time_is_refused_and_the_others_are_not(hf: Holdfast, clock: ManualClock) -> None:
    script = Script(ok())
    tool = hf.tool(rate=ONE_A_SECOND, max_wait=2.0)(script.coroutine)

    answers = await asyncio.gather(*(tool() for _ in range(5)), return_exceptions=True)

    assert [type(answer) for answer in answers] == [type(None)] * 3 + [RateLimited] * 2
    assert script.count == 3


async def test_a_circuit_opened_meanwhile_refuses_the_waiter_and_its_token_stays(
    hf: Holdfast, clock: ManualClock
) -> None:
    script = Script(ok())
    tool = hf.tool(rate={"per_second": 1, "burst": 2})(script.coroutine)
    await tool()
    await tool()
    waiter = asyncio.create_task(tool())
    await settled()

    hf.breaker.force_open("script")
    with pytest.raises(CircuitOpen):
        await waiter
    hf.breaker.auto("script")
    now = clock.monotonic()
    await tool()

    assert clock.monotonic() == now
    assert script.count == 3
    assert waiting(hf, "script") == 0


async def test_a_half_open_circuit_keeps_its_probe_while_the_prober_waits(hf: Holdfast, clock: ManualClock) -> None:
    script = Script(fail(ConnectionError), ok("well again"))
    tool = hf.tool(
        rate={"per_second": 0.2, "burst": 1}, breaker={"failure_threshold": 1, "min_backoff": 3, "jitter": 0}
    )(script.coroutine)
    with pytest.raises(ConnectionError):
        await tool()
    await clock.asleep(3.0)

    probe = asyncio.create_task(tool())
    await settled()
    assert hf.breaker.diagnostics("script").probes_in_flight == 0

    assert await probe == "well again"
    assert clock.monotonic() == 5.0
    assert hf.breaker.state("script") is CircuitState.CLOSED


async def test_a_token_is_not_taken_by_who_finds_no_slot(hf: Holdfast, clock: ManualClock) -> None:
    script = Script(slow(1.0), ok("second"), ok("third"), clock=clock)
    tool = hf.tool(rate={"per_second": 0.001, "burst": 2}, concurrency=1, max_wait=5.0)(script.coroutine)
    first = asyncio.create_task(tool())
    await settled()

    waiter = asyncio.create_task(tool())
    await settled()
    waiter.cancel()
    await asyncio.gather(first, waiter, return_exceptions=True)

    assert await tool() == "second"


@pytest.mark.parametrize("policy", [{"rate": ONE_A_SECOND}, {"concurrency": 1}], ids=["token", "slot"])
async def test_a_cancelled_waiter_gives_its_place_and_token_back(
    hf: Holdfast, clock: ManualClock, policy: dict[str, Any]
) -> None:
    order: list[int] = []

    @hf.tool(breaker=False, **policy)
    async def tool(who: int) -> None:
        order.append(who)
        await clock.asleep(1.0)

    first = asyncio.create_task(tool(0))
    await settled()
    gone, stays = asyncio.create_task(tool(1)), asyncio.create_task(tool(2))
    await settled()

    gone.cancel()
    await asyncio.gather(first, gone, stays, return_exceptions=True)

    assert gone.cancelled()
    assert order == [0, 2]
    assert clock.monotonic() == 2.0
    assert waiting(hf, "tool") == 0
    assert hf.tracker.stats("tool").cancelled == 1


async def test_a_waiter_that_is_cancelled_at_the_head_of_the_line_lets_the_next_one_ask(
    hf: Holdfast, clock: ManualClock
) -> None:
    @hf.tool(concurrency=1)
    async def tool(who: int) -> int:
        await clock.asleep(1.0)
        return who

    first = asyncio.create_task(tool(0))
    await settled()
    head, following = asyncio.create_task(tool(1)), asyncio.create_task(tool(2))
    await settled()
    with clock.busy():
        head.cancel()
        await settled()

    assert await first == 0
    assert await following == 2
    assert clock.monotonic() == 2.0


async def test_who_is_refused_or_gone_before_its_turn_has_an_id_in_the_log_of_its_run(
    hf: Holdfast, clock: ManualClock
) -> None:
    recorder = Recorder()
    hf.bus.add(recorder)
    tool = hf.tool("tool", concurrency=1, deadline=2.0)(Script(slow(1.5, None), clock=clock).coroutine)

    async with hf.run() as run:
        calls = [asyncio.create_task(tool(0)), asyncio.create_task(hf.acall(tool, 1, policy={"deadline": 0.5}))]
        calls += [asyncio.create_task(tool(2)), asyncio.create_task(hf.acall(tool, 3, policy={"max_wait": 0}))]
        await settled()
        calls[2].cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    log = [(event.type, event.payload["call_id"]) for event in hf.runs.events(run.id) if "tool" in event.payload]
    assert [kind for kind, _ in log] == ["tool_started", "tool_denied", "tool_ended", "tool_ended", "tool_ended"]
    assert {type(id) for _, id in log} == {str}
    assert log == [(event.type, event.payload["call_id"]) for event in recorder.events if event.tool is not None]


async def test_a_call_in_doubt_that_is_gone_before_its_turn_is_in_doubt_still(memory: Place) -> None:
    hf = memory.open()
    with pytest.raises(Killed), hf.run() as run:
        hf.tool("pay")(lambda: memory.die(hf))()

    hf = memory.open()

    @hf.tool("pay", concurrency=1, deadline=0.5)
    async def pay() -> None: ...

    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        async with hf.resume(run.id, in_doubt="repeat"), hf.guard("pay", deadline=False):
            with pytest.raises(ToolTimeout):
                await pay()
            raise KeyboardInterrupt

    with pytest.raises(InDoubt):
        async with hf.resume(run.id):
            await pay()


async def test_a_call_cancelled_while_it_waits_to_try_again_is_cancelled(hf: Holdfast, clock: ManualClock) -> None:
    script = Script(fail(ConnectionError), ok())
    tool = hf.tool(retry=3)(script.coroutine)
    task = asyncio.create_task(tool())
    with clock.busy():
        await settled()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    stats = hf.tracker.stats("script")
    assert (stats.cancelled, stats.failed, stats.total) == (1, 0, 1)
    assert script.count == 1


def test_an_interrupt_while_waiting_leaves_no_one_in_line(hf: Holdfast) -> None:
    class Interrupting(ManualClock):
        def sleep(self, seconds: float) -> None:
            raise KeyboardInterrupt

    hf = holdfast.open(":memory:", policies={}, clock=Interrupting())
    tool = hf.tool(rate=ONE_A_SECOND)(Script(ok()).function)
    tool()

    with pytest.raises(KeyboardInterrupt):
        tool()

    assert waiting(hf, "script") == 0
    assert hf.tracker.stats("script").cancelled == 1


# --- priority ---


async def serve(
    hf: Holdfast, clock: ManualClock, arrivals: list[tuple[float, str]], **policy: Any
) -> list[tuple[float, int]]:
    """Who was served when, of calls that came at a time with a priority; one is served each second."""
    served: list[tuple[float, int]] = []

    async def tool(who: int) -> None:
        served.append((clock.monotonic(), who))
        await clock.asleep(1.0)

    hf.tool("tool", concurrency=1, max_wait=1000.0, **policy)(tool)

    async def come(who: int, at: float, priority: str) -> None:
        if at:
            await clock.asleep(at)
        await hf.acall("tool", who, policy={"priority": priority})

    await asyncio.gather(*(come(who, at, priority) for who, (at, priority) in enumerate(arrivals)))
    return served


async def test_a_more_urgent_call_is_served_first(hf: Holdfast, clock: ManualClock) -> None:
    served = await serve(hf, clock, [(0, "normal"), (0, "low"), (0, "normal"), (0, "critical"), (0, "high")])

    assert [who for _, who in served] == [0, 3, 4, 2, 1]


async def test_equally_urgent_calls_are_served_in_the_order_they_came(hf: Holdfast, clock: ManualClock) -> None:
    served = await serve(hf, clock, [(0, "normal"), *[(0, "high")] * 3, *[(0, "low")] * 3])

    assert [who for _, who in served] == [0, 1, 2, 3, 4, 5, 6]


async def test_a_waiting_call_rises_one_class_a_second(hf: Holdfast, clock: ManualClock) -> None:
    served = await serve(hf, clock, [(0, "normal"), (0, "low"), (0.9, "normal"), (1.1, "normal"), (1.9, "high")])

    assert [who for _, who in served] == [0, 2, 4, 1, 3]


async def test_nobody_starves(hf: Holdfast, clock: ManualClock) -> None:
    urgent = [(0.5 * n, "critical") for n in range(40)]

    served = await serve(hf, clock, [(0, "normal"), (0.1, "low"), *urgent])

    when = {who: at for at, who in served}
    assert when[1] <= 12.0


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 12).map(lambda n: n / 4), st.sampled_from([*Priority])), min_size=1, max_size=12)
)
def test_the_line_is_ordered_by_when_each_would_have_come_without_its_priority(
    arrivals: list[tuple[float, Priority]],
) -> None:
    clock = ManualClock()
    hf = holdfast.open(":memory:", policies={}, clock=clock)

    served = asyncio.run(serve(hf, clock, [(at, priority.value) for at, priority in arrivals]))

    assert sorted(who for _, who in served) == list(range(len(arrivals)))
    for (at, who), (_, following) in itertools.pairwise(served):
        here, there = arrivals[who], arrivals[following]
        if there[0] < at:  # both were in line
            assert here[0] - here[1].rank <= there[0] - there[1].rank


async def test_a_more_urgent_call_costs_fewer_tokens(hf: Holdfast, clock: ManualClock) -> None:
    script = Script(ok())
    tool = hf.tool(rate={"per_second": 1, "burst": 2}, max_wait=0)(script.coroutine)

    for priority, calls in (("low", 1), ("high", 4), ("critical", 20)):
        clock.advance(2.0)
        for _ in range(calls):
            await hf.acall(tool, policy={"priority": priority})
        with pytest.raises(RateLimited):
            await hf.acall(tool, policy={"priority": priority})

    assert script.count == 25


# --- any mixture ---


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    concurrency=st.sampled_from([None, 1, 3]),
    rate=st.sampled_from([None, {"per_second": 4, "burst": 2}]),
)
def test_whatever_happens_no_slot_and_no_place_is_lost(
    seed: int, concurrency: int | None, rate: dict[str, float] | None
) -> None:
    chance = random.Random(seed)
    clock = ManualClock()
    hf = holdfast.open(":memory:", policies={}, clock=clock)
    running: list[int] = []

    async def tool(step: str) -> None:
        running.append(1)
        assert concurrency is None or len(running) <= concurrency
        try:
            await clock.asleep(chance.random())
            if step == "fail":
                raise ConnectionError
            if step == "hang":
                await clock.asleep(60.0)
        finally:
            running.pop()

    hf.tool(
        "tool", concurrency=concurrency or False, rate=rate or False, timeout=1.5, max_wait=2.0, retry=2,
        breaker={"failure_threshold": 3, "min_backoff": 1.0, "jitter": 0.0},
    )(tool)  # fmt: skip

    async def come() -> None:
        await clock.asleep(chance.random() * 8)
        step = chance.choice(["ok", "ok", "fail", "hang"])
        task: asyncio.Task[None] = asyncio.create_task(
            hf.acall("tool", step, policy={"priority": chance.choice(["low", "normal", "critical"])})
        )
        if chance.random() < 0.3:
            await clock.asleep(chance.random() * 2)
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def main() -> None:
        await asyncio.gather(*(come() for _ in range(30)))

    asyncio.run(main())

    guards = hf._box.tool("tool")
    assert len(guards.limiting.line) == 0
    assert guards.limiting.slots is None or guards.limiting.slots.in_flight == 0
    assert hf.breaker.diagnostics("tool").probes_in_flight == 0
    stats = hf.tracker.stats("tool")
    assert stats.total + stats.denied == 30


# --- refusals while others wait ---


async def test_an_urgent_caller_that_cannot_wait_long_enough_leaves_the_line_as_it_was(
    hf: Holdfast, clock: ManualClock
) -> None:
    @hf.tool(rate={"per_second": 0.1, "burst": 1}, max_wait=30)
    async def search(who: str) -> tuple[str, float]:
        return who, clock.monotonic()

    await search("first")
    waiter = asyncio.create_task(search("waiter"))
    await clock.asleep(0.5)

    with pytest.raises(RateLimited):
        await hf.acall(search, "urgent", policy={"priority": "high", "max_wait": 1})

    assert waiting(hf, "search") == 1
    assert await waiter == ("waiter", 10.0)
    assert waiting(hf, "search") == 0


async def test_who_will_not_wait_is_told_about_how_long_the_line_takes(hf: Holdfast, clock: ManualClock) -> None:
    @hf.tool(rate=ONE_A_SECOND, max_wait=30)
    async def search(who: str) -> str:
        return who

    await search("first")
    waiters = [asyncio.create_task(search(who)) for who in "abc"]
    await clock.asleep(0.5)

    with pytest.raises(RateLimited) as refused:
        await hf.acall(search, "impatient", policy={"max_wait": 0})

    assert refused.value.retry_after == pytest.approx(3.5)
    assert await asyncio.gather(*waiters) == ["a", "b", "c"]


async def test_how_long_the_line_takes_follows_from_the_tokens_that_it_wants(hf: Holdfast, clock: ManualClock) -> None:
    @hf.tool(rate={"per_second": 1, "burst": 2}, max_wait=30)
    async def search() -> float:
        return clock.monotonic()

    await hf.acall(search, policy={"priority": "low"})
    waiters = [asyncio.create_task(hf.acall(search, policy={"priority": "low"})) for _ in range(3)]
    await clock.asleep(0.5)

    with pytest.raises(RateLimited) as refused:
        await hf.acall(search, policy={"priority": "low", "max_wait": 0})

    assert refused.value.retry_after == pytest.approx(7.5)
    assert await asyncio.gather(*waiters) == pytest.approx([2.0, 4.0, 6.0])


@pytest.mark.parametrize("patience", [0, 0.5])
async def test_who_stands_behind_those_that_wait_for_a_slot_is_refused_for_the_slot(
    hf: Holdfast, clock: ManualClock, patience: float
) -> None:
    @hf.tool(rate={"per_second": 100, "burst": 100}, concurrency=1)
    async def search() -> None:
        await clock.asleep(2)

    running = [asyncio.create_task(search()) for _ in range(2)]
    await settled()
    assert waiting(hf, "search") == 1

    with pytest.raises(ConcurrencyFull) as refused:
        await hf.acall(search, policy={"max_wait": patience})

    assert refused.value.retry_after is None
    await asyncio.gather(*running)


def test_who_stands_behind_others_that_wait_for_a_shared_rate_is_not_told_a_time() -> None:
    limiting, policy = Limiting(), Policy(rate=RateConfig(per_second=1, burst=5))
    limiting.configure(policy, 0.0)
    ahead = limiting.stay_in_line(Asker(0.0, policy, None, 5.0), Refusal(RateLimited, 2.0), 1.8)

    refusal = limiting.line_up(Asker(0.0, policy, None, 0.0), shared=True)

    assert ahead.ticket is not None
    assert refusal == Refusal(RateLimited, math.inf)


async def test_who_will_not_wait_for_a_slot_is_not_told_a_time(hf: Holdfast, clock: ManualClock) -> None:
    @hf.tool(concurrency=1)
    async def search() -> None:
        await clock.asleep(2)

    running = asyncio.create_task(search())
    await asyncio.sleep(0)

    with pytest.raises(ConcurrencyFull) as refused:
        await hf.acall(search, policy={"max_wait": 0})

    assert refused.value.retry_after is None
    await running
