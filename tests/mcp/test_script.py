"""Scripts: played by whoever brings news, and by a task from the first other wait on."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest

from holdfast.clock import SystemClock
from holdfast.mcp.script import Script, Step, Steps
from holdfast.waiting.waits import Wait

place: ContextVar[str] = ContextVar("place", default="nowhere")
NOW = Wait(0.0)  # is over before it has begun


class Play:
    """A script of *waits*, and what became of it."""

    def __init__(self, *waits: Step) -> None:
        self.seen: list[object] = []
        self.script = Script(SystemClock(), self._steps(waits))

    def _steps(self, waits: tuple[Step, ...]) -> Steps[None]:
        try:
            for number, wait in enumerate(waits):
                self.seen.append(number)
                yield wait
            self.seen.append("done")
        except asyncio.CancelledError:
            self.seen.append("cancelled")
            raise


async def test_a_script_that_waits_for_news_goes_on_at_once_and_needs_no_task() -> None:
    play = Play(None, None)
    play.script.play()
    assert play.seen == [0]

    play.script.wake()
    play.script.wake()

    assert play.seen == [0, 1, "done"]
    assert play.script.task is None


async def test_any_other_wait_is_for_a_task_which_also_waits_for_the_news_after_it() -> None:
    waited = asyncio.Event()
    play = Play(None, waited.wait, None)
    play.script.play()
    play.script.wake()
    task = play.script.task
    assert task is not None
    waited.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert play.seen == [0, 1, 2]

    play.script.wake()
    await task

    assert play.seen == [0, 1, 2, "done"]


async def test_the_task_has_the_context_in_which_the_script_was_made() -> None:
    places: list[str] = []

    def steps() -> Steps[None]:
        yield None
        yield NOW
        places.append(place.get())

    before = place.set("here")
    script = Script(SystemClock(), steps())
    place.reset(before)
    script.play()

    script.wake()
    assert script.task is not None
    await script.task

    assert places == ["here"]


async def test_news_that_come_while_the_script_plays_wake_nobody() -> None:
    seen: list[str] = []

    def steps() -> Steps[None]:
        script.wake()
        seen.append("woken")
        yield None
        seen.append("done")

    script = Script(SystemClock(), steps())
    script.play()

    assert seen == ["woken"]


async def test_a_cancel_reaches_a_script_that_waits_for_news_at_once() -> None:
    play = Play(None)
    play.script.play()

    play.script.cancel()

    assert play.seen == [0, "cancelled"]
    assert play.script.task is None


@pytest.mark.parametrize("turns", [0, 1, 3])
async def test_a_cancel_reaches_the_script_however_far_its_task_is(turns: int) -> None:
    play = Play(asyncio.Event().wait)
    play.script.play()
    for _ in range(turns):
        await asyncio.sleep(0)

    play.script.cancel()
    assert play.script.task is not None
    await asyncio.gather(play.script.task, return_exceptions=True)

    assert play.seen == [0, "cancelled"]


async def test_a_cancel_while_the_script_plays_reaches_it_where_it_waits_next() -> None:
    seen: list[str] = []

    def steps() -> Steps[None]:
        script.cancel()
        try:
            yield None
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    script = Script(SystemClock(), steps())
    script.play()

    assert seen == ["cancelled"]


@pytest.mark.parametrize("first", [None, asyncio.Event().wait], ids=["without a task", "with a task"])
async def test_a_script_that_goes_on_after_such_a_cancel_is_not_cancelled_again(first: Step) -> None:
    seen: list[str] = []

    def steps() -> Steps[None]:
        if first is None:
            script.cancel()
        try:
            yield first
        except asyncio.CancelledError:
            seen.append("cancelled")
        yield None
        seen.append("done")

    script = Script(SystemClock(), steps())
    script.play()
    if first is not None:
        script.cancel()  # its task has not begun
        await asyncio.sleep(0)

    script.wake()
    if script.task is not None:
        await script.task

    assert seen == ["cancelled", "done"]


@pytest.mark.parametrize("first", [None, NOW], ids=["without a task", "with a task"])
async def test_a_script_may_take_a_cancel_for_something_else_and_go_on(first: Step) -> None:
    others: list[bool] = []

    def steps() -> Steps[None]:
        yield first
        try:
            yield None
        except asyncio.CancelledError:
            others.append(script.uncancel())
        yield None

    script = Script(SystemClock(), steps())
    script.play()
    if first is None:
        script.wake()
    await asyncio.sleep(0)

    script.cancel()
    await asyncio.sleep(0)
    script.wake()
    if script.task is not None:
        await script.task

    assert others == [False]
