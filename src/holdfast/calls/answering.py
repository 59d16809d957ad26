"""A call and the cache of its tool: the cache answers it, or it follows an identical call in flight, or leads one.

No call follows one that cannot end before it does, since the two would wait for each other: both are made.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.calls.attempt import OF_ITS_POLICY, OF_ITS_RUN
from holdfast.category import classify
from holdfast.category.looking import is_a
from holdfast.policy import Policy
from holdfast.tools.cache import Hit, Lead, SharedCall
from holdfast.waiting.waits import Wait

if TYPE_CHECKING:
    from holdfast.calls.execution import Execution

GLANCE = 0.5  # seconds between two checks whether the leader's event loop, if it is another one, still runs

# The calls in flight that are led by the calls around the current code, the outermost first.
_led: Final[ContextVar[tuple[SharedCall, ...]]] = ContextVar("holdfast_led", default=())


def ask(execution: Execution) -> Iterator[Wait]:
    """Answer from the cache if possible, perhaps after waiting for an identical call; yields what to wait for."""
    cache, key, clock = execution.tool.cache, execution.subject.key(), execution.kit.clock
    timeout = execution.policy.timeout
    while cache is not None and key is not None:
        now = clock.monotonic()
        answer = cache.ask(key, now, timeout, wall=clock.time())
        if isinstance(answer, Hit):
            return _answer(execution, answer.value)
        if isinstance(answer, Lead):
            execution.lead = answer
            answer.shared.policy = execution.policy
            answer.shared.loop = _running_loop() if execution.as_task else None
            return None
        until, limit = execution.deadline, execution.policy.deadline
        if timeout is not None and timeout < answer.timeout and now + timeout < until:
            until, limit = now + timeout, timeout
        with _following(answer):
            if _waits_for_us(execution, answer):
                return None
            yield from _await_end(execution, answer, until)
        if answer.stands_still:
            cache.take_over(key, answer)
        if isinstance(answer.error, OF_ITS_POLICY) and not _is_alike(answer.policy, execution.policy):
            continue  # this call may have more time, or wait longer, than the leader
        if answer.error is not None:
            execution.cached = True
            execution.category = classify(answer.error)
            raise answer.error
        if answer.landed:
            return _answer(execution, answer.value)
        if clock.monotonic() >= until:
            raise execution.too_late(limit)
    return None


def end(execution: Execution, lead: Lead, error: BaseException | None) -> None:
    """Give the outcome of the call that *execution* led, by *lead*, to the calls that follow it."""
    cache, policy = execution.tool.cache, execution.policy.cache
    if cache is None:
        return
    if error is None and policy is not None:
        clock = execution.kit.clock
        cache.land(lead, execution.value, clock.monotonic() + policy.ttl, by_wall=clock.time() + policy.ttl)
    else:
        own = not is_a(error, Exception) or is_a(error, OF_ITS_RUN)
        cache.crash(lead, None if own else error)


@contextmanager
def leading(lead: Lead, inside: AbstractContextManager[None]) -> Iterator[None]:
    """The context for the code of a tool whose call has the *lead*; the context *inside* is entered within it."""
    token = _led.set((*_led.get(), lead.shared))
    try:
        with inside:
            yield
    finally:
        with suppress(ValueError):  # the coroutine is closed in another context than it began in
            _led.reset(token)


def _answer(execution: Execution, value: object) -> None:
    execution.value = value
    execution.cached = execution.over = True


def _await_end(execution: Execution, shared: SharedCall, until: float) -> Iterator[Wait]:
    """Wait for *shared* to end, at the latest until the time *until*, or until the leader's event loop has stopped."""
    clock, signal = execution.kit.clock, shared.follow()
    glance = math.inf if shared.loop is None or shared.loop is _running_loop() else GLANCE
    try:
        while not signal.fired and not shared.stands_still and (now := clock.monotonic()) < until:
            yield from execution.patiently(Wait(min(until, now + glance), signal))
    finally:
        shared.unfollow(signal)


@contextmanager
def _following(shared: SharedCall) -> Iterator[None]:
    """Note that the calls around the current code wait for *shared*, for as long as this lasts."""
    led = _led.get()
    for each in led:
        each.awaits.append(shared)
    try:
        yield
    finally:
        for each in led:
            each.awaits.remove(shared)


def _waits_for_us(execution: Execution, shared: SharedCall) -> bool:
    """True if *shared* cannot end before *execution*: it waits, directly or through others, for a call that made this
    one, or its task needs the event loop that this thread would block. Two calls that find this out about each other at
    the same time are both made.
    """
    led, seen, todo = _led.get(), set[SharedCall](), [shared]
    while led and todo:
        each = todo.pop()
        if each in led:
            return True
        if each not in seen:
            seen.add(each)
            todo += each.awaits
    return not execution.as_task and shared.loop is not None and shared.loop is _running_loop()


def _is_alike(one: Policy | None, other: Policy) -> bool:
    """True if two calls began under the same settings, not counting the fallback, whose value may be any object."""
    if one is None or one is other:
        return one is not None
    return msgspec.structs.replace(one, fallback=None) == msgspec.structs.replace(other, fallback=None)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
