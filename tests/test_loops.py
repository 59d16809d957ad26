"""What tasks wait for."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from contextvars import Context, ContextVar

import pytest

from holdfast.errors import ConfigError
from holdfast.loops import Wakeup

place = ContextVar("place", default="nowhere")


async def test_a_task_goes_on_in_the_callback_that_wakes_it() -> None:
    wakeup = Wakeup()
    told: list[str] = []

    async def wait() -> None:
        place.set("in the task")
        await wakeup
        told.append(place.get())

    def wake() -> None:
        wakeup.set_result(None)
        told.append("after it")

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(wake)
    await task

    assert told == ["in the task", "after it"]


async def test_a_task_goes_on_in_its_own_context_even_if_nothing_is_set_there_yet() -> None:
    wakeup = Wakeup()
    own = Context()

    async def wait() -> None:
        await wakeup
        place.set("in the task")

    task = asyncio.create_task(wait(), context=own)
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(wakeup.set_result, None)
    await task

    assert own[place] == "in the task"


async def test_what_has_come_already_is_not_waited_for() -> None:
    wakeup = Wakeup()
    wakeup.set_result(None)

    await asyncio.wait_for(wakeup, None)
    await wakeup

    assert wakeup.done()


@pytest.mark.parametrize("begins", [True, False], ids=["while it waits", "before it waits"])
async def test_a_task_can_be_cancelled(begins: bool) -> None:
    wakeup = Wakeup()

    async def wait() -> None:
        await wakeup

    task = asyncio.create_task(wait())
    if begins:
        await asyncio.sleep(0)
    task.cancel("enough")

    with pytest.raises(asyncio.CancelledError, match="enough"):
        await task
    assert wakeup.cancelled() == begins


async def test_a_task_may_itself_cancel_another_that_waits() -> None:
    wakeup = Wakeup()
    told: list[str] = []

    async def wait() -> None:
        try:
            await wakeup
        finally:
            told.append("cancelled")

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    told.append("still here")
    await asyncio.wait([task])

    assert told == ["still here", "cancelled"]


@pytest.mark.parametrize(
    "ends",
    [lambda task, wakeup: wakeup.set_result(None), lambda task, wakeup: task.cancel()],
    ids=["it is woken", "it is cancelled"],
)
async def test_a_task_is_gone_with_its_end(ends: Callable[[asyncio.Task[None], Wakeup], object]) -> None:
    async def wait(wakeup: Wakeup) -> None:
        await wakeup

    gc.collect()
    gc.disable()  # what is left then has no cycle
    try:
        task = asyncio.create_task(wait(wakeup := Wakeup()))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(ends, task, wakeup)
        await asyncio.wait([task])
        gone = weakref.ref(task)
        del task, wakeup
        await asyncio.sleep(0)
    finally:
        gc.enable()

    assert gone() is None


async def test_a_time_limit_ends_the_wait() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await Wakeup()


def test_without_an_event_loop_nothing_can_be_awaited() -> None:
    with pytest.raises(ConfigError, match="asyncio"):
        Wakeup()
