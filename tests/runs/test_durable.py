"""A run is written down as it happens: what entering and leaving it means, what its events hold, who it is."""

# ruff: noqa: PT012 (what leaves the block of a run is what is tested, so the block is within `raises`)

from __future__ import annotations

import asyncio
import gc
import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.children import fork
from tests.runs import durable
from tests.runs.durable import Entering, Place, of, stopped, types
from tests.shapes import PATIENCE

import holdfast
from holdfast import (
    BudgetExceeded,
    Check,
    ConfigError,
    Holdfast,
    InDoubt,
    LeaseLost,
    Report,
    RunConflict,
    RunDiverged,
    RunNotFound,
    StoreError,
)
from holdfast.stores.ledger import Ledger, Live
from holdfast.testing import ManualClock, Recorder
from holdfast.values.redaction import Payloads

place, disk, memory, entering = durable.place, durable.disk, durable.memory, durable.entering


@pytest.fixture
def hf(place: Place) -> Holdfast:
    return place.open()


def raising(error: BaseException) -> Callable[[Any], None]:
    def body(_: Any) -> None:
        raise error

    return body


def test_a_run_entered_outside_an_event_loop_says_what_is_missing_and_leaves_nothing(disk: Place) -> None:
    hf = disk.open()

    with pytest.raises(ConfigError, match=r"no running event loop: .* needs asyncio"):
        hf.run("shop", "buy tea").__aenter__().send(None)

    assert hf.runs.list_runs() == []


# --- leaving the block ---


def test_a_run_that_is_left_cleanly_has_completed(hf: Holdfast, entering: Entering) -> None:
    run = hf.run("shop", "buy tea")

    entering(run, lambda run: None)

    snapshot = hf.runs.snapshot(run.id)
    assert (snapshot.status, snapshot.session_id, snapshot.prompt) == ("completed", "shop", "buy tea")
    assert (snapshot.owner, snapshot.interrupted, snapshot.result_text) == (None, False, "")
    assert types(hf, run.id) == ["run_started", "run_completed"]


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(), SystemExit(1), asyncio.CancelledError(), InDoubt("tool", "id", "key", "why"),
        RunDiverged(("tool",)), LeaseLost("run"), StoreError("full"), ExceptionGroup("two", [StoreError("full")]),
        ExceptionGroup("two", [InDoubt("tool", "id", "key", "why"), ExceptionGroup("in", [StoreError("full")])]),
        type("GreenletExit", (BaseException,), {"__module__": "greenlet"})("killed"),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_a_run_that_something_cut_off_is_interrupted_and_can_be_resumed(
    hf: Holdfast, entering: Entering, error: BaseException
) -> None:
    run = hf.run()

    with pytest.raises(type(error)):
        entering(run, raising(error))

    snapshot = hf.runs.snapshot(run.id)
    assert (snapshot.status, snapshot.interrupted, snapshot.owner) == ("executing", True, None)
    assert of(hf, run.id, "run_interrupted")[0].payload["reason"].startswith(type(error).__name__)
    with hf.resume(run.id):
        pass
    assert hf.runs.snapshot(run.id).status == "completed"


def test_an_end_that_fails_for_lack_of_memory_is_written_before_the_next_run(
    hf: Holdfast, entering: Entering, monkeypatch: pytest.MonkeyPatch
) -> None:
    def append(ledger: Ledger, live: Live, type: str, payload: Any, encoded: str) -> None:
        if type == "run_completed" and troubles:
            raise troubles.pop()
        written(ledger, live, type, payload, encoded)

    run, troubles, written = hf.run(), [MemoryError()], Ledger.append
    monkeypatch.setattr(Ledger, "append", append)

    with pytest.raises(StoreError, match="nothing was written: MemoryError"):
        entering(run, lambda run: None)
    with hf.run():
        pass

    snapshot = hf.runs.snapshot(run.id)
    assert (snapshot.status, snapshot.interrupted, snapshot.owner) == ("completed", False, None)


@pytest.mark.parametrize(
    "error",
    [ValueError("no tea"), RunConflict("other"), RunNotFound("x"), BudgetExceeded("tool"), StopIteration("x"),
     ExceptionGroup("two", [ValueError("no tea"), StoreError("full")])],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_a_run_that_any_other_exception_leaves_has_failed(hf: Holdfast, error: Exception) -> None:
    with pytest.raises(type(error)), hf.run() as run:
        raise error

    snapshot = hf.runs.snapshot(run.id)
    assert snapshot.status == "failed"
    assert snapshot.error is not None
    assert snapshot.error.startswith(type(error).__name__)
    assert (snapshot.interrupted, snapshot.owner) == (False, None)


def test_a_run_that_fails_says_so_async_too(hf: Holdfast, entering: Entering) -> None:
    run = hf.run()

    with pytest.raises(ValueError, match="no tea"):
        entering(run, raising(ValueError("no tea")))

    assert hf.runs.snapshot(run.id).error == "ValueError: no tea"


def test_the_events_of_a_run_are_told_to_the_sinks_too(hf: Holdfast) -> None:
    recorder = Recorder()
    hf.bus.add(recorder)

    with hf.run() as run:
        run.emit("plan_changed", steps=4)

    assert recorder.types() == ["run_started", "plan_changed", "run_completed"]
    assert {event.run for event in recorder.events} == {run.id}


# --- entering ---


def test_a_run_is_entered_once(hf: Holdfast, entering: Entering) -> None:
    run = hf.run()
    entering(run, lambda run: None)

    with pytest.raises(RunConflict, match="was entered before"):
        entering(run, lambda run: None)


def test_a_run_that_is_open_cannot_be_entered_again(hf: Holdfast) -> None:
    with hf.run() as run, pytest.raises(RunConflict, match="was entered before"):
        run.__enter__()


def test_a_run_that_could_not_be_entered_may_be_entered_later(hf: Holdfast) -> None:
    run_id = stopped(hf, lambda: None)
    second = hf.resume(run_id)
    with pytest.raises(KeyboardInterrupt), hf.resume(run_id):
        with pytest.raises(RunConflict):
            second.__enter__()
        raise KeyboardInterrupt

    with second:
        pass

    assert hf.runs.snapshot(run_id).status == "completed"


def test_a_run_id_with_events_is_a_conflict_for_a_new_run(hf: Holdfast, entering: Entering) -> None:
    stopped(hf, lambda: None, run_id="order-1")

    with pytest.raises(RunConflict, match="use resume"):
        entering(hf.run(run_id="order-1"), lambda run: None)


def test_the_run_id_of_a_run_that_has_ended_is_no_new_one_either(hf: Holdfast, entering: Entering) -> None:
    entering(hf.run(run_id="order-1"), lambda run: run.fail("no tea"))

    with pytest.raises(RunConflict, match="has begun before: use resume"):
        entering(hf.run(run_id="order-1"), lambda run: None)


def test_who_resumes_a_run_says_on_which_host_and_as_which_process(hf: Holdfast, entering: Entering) -> None:
    created, interrupted = hf.runs.create_run("shop", "tea").id, stopped(hf, lambda: None)

    for run_id in (created, interrupted):
        entering(hf.resume(run_id), lambda run: None)

    said = [event.payload for event in (*of(hf, created, "run_started"), *of(hf, interrupted, "run_resumed"))]
    us = (os.uname().nodename, os.getpid())
    assert [(payload.get("host"), payload.get("pid")) for payload in said] == [us, us]


def test_a_run_that_was_only_created_is_begun_by_run(hf: Holdfast, entering: Entering) -> None:
    hf.runs.create_run("shop", "tea", run_id="order-1")

    entering(hf.run("shop", "tea", run_id="order-1"), lambda run: None)

    assert types(hf, "order-1") == ["run_started", "run_completed"]


@pytest.mark.parametrize("other", [{"session": "bar", "prompt": "tea"}, {"session": "shop", "prompt": "rum"}])
def test_a_created_run_with_another_session_or_prompt_is_a_conflict(hf: Holdfast, other: dict[str, Any]) -> None:
    hf.runs.create_run("shop", "tea", run_id="order-1")

    with pytest.raises(RunConflict, match="another session or prompt"):
        hf.run(**other, run_id="order-1").__enter__()


def test_an_unknown_run_cannot_be_resumed(hf: Holdfast, entering: Entering) -> None:
    with pytest.raises(RunNotFound, match="nobody"):
        entering(hf.resume("nobody"), lambda run: None)


@pytest.mark.parametrize("run_id", [5, b"run", ["run"]])
def test_what_is_no_run_id_cannot_be_resumed(hf: Holdfast, run_id: Any) -> None:
    with pytest.raises(ConfigError, match="run_id"):
        hf.resume(run_id)


@pytest.mark.parametrize("wrong", [{"in_doubt": "maybe"}, {"diverged": "ignore"}])
def test_resume_says_what_may_be_chosen(hf: Holdfast, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        hf.resume("run", **wrong)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (5, "entry = 5: must be a mapping"),
        ({}, "entry = {}: must be a mapping with a target and its args"),
        ({"target": 5}, "entry = {'target': 5}: must be a mapping with a target"),
        ({"target": "m:f", "args": [{1, 2}]}, r"entry\['args'\]\[0\] = {1, 2}: must be what JSON can hold"),
        ({"target": "m:f", "args": [math.nan]}, "nan: must be what JSON can hold"),
        ({1: 2}, "must be what JSON can hold"),
    ],
)
def test_an_entry_point_that_could_not_be_read_again_is_refused(hf: Holdfast, wrong: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        hf.run(entry=wrong)

    assert hf.runs.list_runs() == []


async def test_a_task_that_is_cancelled_while_it_enters_leaves_the_run_to_others(hf: Holdfast) -> None:
    run = hf.run(run_id="order-1")

    with hf.runs.writer.turn:  # nothing is written meanwhile
        task = asyncio.create_task(run.__aenter__())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    hf.runs.writer.flush()
    assert hf.runs.snapshot("order-1").interrupted
    async with hf.resume("order-1"):
        pass


def test_an_interrupt_while_the_run_is_set_up_gives_it_back(hf: Holdfast) -> None:
    run = hf.run(run_id="order-1")

    def interrupt(event: holdfast.Event) -> None:
        hf.bus.remove(interrupt)
        raise KeyboardInterrupt

    hf.bus.add(interrupt)
    with pytest.raises(KeyboardInterrupt):
        run.__enter__()

    hf.runs.writer.flush()
    assert hf.current_run is None
    assert hf.runs.snapshot("order-1").interrupted


# --- what is said inside ---


def test_what_is_committed_is_on_disk_when_it_returns(place: Place, entering: Entering) -> None:
    hf = place.open()

    def body(run: holdfast.Run) -> None:
        run.commit("noted", what="tea")
        place.die(hf)

    run = hf.run()
    with pytest.raises(durable.Killed):
        entering(run, body)

    assert of(place.open(), run.id, "noted")[0].payload == {"what": "tea"}


async def test_acommit_is_on_disk_when_it_returns(place: Place) -> None:
    hf = place.open()

    with pytest.raises(durable.Killed):
        async with hf.run() as run:
            await run.acommit("noted", what="tea")
            place.die(hf)

    assert of(place.open(), run.id, "noted")[0].payload == {"what": "tea"}


def test_what_is_emitted_comes_before_what_is_committed_after_it(hf: Holdfast) -> None:
    with hf.run() as run:
        run.emit("first")
        run.commit("second")
        run.emit("third")

    assert types(hf, run.id) == ["run_started", "first", "second", "third", "run_completed"]


def test_snapshot_and_events_of_a_run_know_what_was_emitted(hf: Holdfast) -> None:
    with hf.run() as run:
        run.emit("planning_started")

        assert run.status == "planning"
        assert [event.type for event in run.events()] == ["run_started", "planning_started"]
        assert run.snapshot().owner is not None


@pytest.mark.parametrize("payload", [{"what": object()}, {"what": {1j}}])
def test_a_payload_that_cannot_be_encoded_is_a_config_error_and_no_event(hf: Holdfast, payload: dict[str, Any]) -> None:
    with hf.run() as run:
        for say in (run.emit, run.commit):
            with pytest.raises(ConfigError, match="what"):
                say("noted", **payload)

    assert types(hf, run.id) == ["run_started", "run_completed"]


def test_nothing_can_be_committed_or_stepped_outside_of_the_block(hf: Holdfast) -> None:
    run = hf.run()
    for say in (lambda: run.commit("noted"), lambda: run.step("plan", int), run.complete, lambda: run.fail("no")):
        with pytest.raises(RunConflict, match="not open"):
            say()

    with run:
        pass

    with pytest.raises(RunConflict, match="not open"):
        run.step("plan", int)


def test_a_run_can_be_completed_with_a_text(hf: Holdfast, entering: Entering) -> None:
    run = hf.run()

    entering(run, lambda run: run.complete("tea is served"))

    assert hf.runs.snapshot(run.id).result_text == "tea is served"
    assert types(hf, run.id) == ["run_started", "run_completed"]


async def test_acomplete_and_afail_end_a_run(hf: Holdfast) -> None:
    async with hf.run() as done:
        await done.acomplete("tea")
    async with hf.run() as failed:
        await failed.afail("no tea")

    assert hf.runs.snapshot(done.id).result_text == "tea"
    assert hf.runs.snapshot(failed.id).error == "no tea"


@pytest.mark.parametrize(("error", "text"), [("no tea", "no tea"), (ValueError("no tea"), "ValueError: no tea")])
def test_a_run_can_be_failed_and_left_cleanly(hf: Holdfast, error: Any, text: str) -> None:
    with hf.run() as run:
        run.fail(error)

    snapshot = hf.runs.snapshot(run.id)
    assert (snapshot.status, snapshot.error) == ("failed", text)


def test_the_first_end_is_final_and_later_events_are_late(hf: Holdfast) -> None:
    with pytest.raises(ValueError, match="late"), hf.run() as run:
        run.complete("tea")
        run.complete("rum")
        run.fail("no")
        run.emit("noted")
        raise ValueError("late")

    assert run.snapshot().result_text == "tea"
    assert [(event.type, event.late) for event in run.events()] == [
        ("run_started", False), ("run_completed", False), ("noted", True),
    ]  # fmt: skip


def test_what_is_told_after_an_end_is_on_disk_when_the_block_is_left(hf: Holdfast) -> None:
    with hf.run() as run:
        run.complete("tea")
        run.emit("noted")

    assert [event.type for event in hf.runs.events(run.id)] == ["run_started", "run_completed", "noted"]


async def test_a_task_waits_as_well_for_what_is_told_after_an_end(hf: Holdfast) -> None:
    async with hf.run() as run:
        await run.acomplete("tea")
        run.emit("noted")

    assert [event.type for event in hf.runs.events(run.id)] == ["run_started", "run_completed", "noted"]


async def test_a_task_that_waits_for_a_write_is_told_although_the_block_is_left_meanwhile(disk: Place) -> None:
    opened = threading.Event()
    opened.set()
    hf = disk.open(crash=lambda _: opened.wait(PATIENCE))

    async with hf.run() as run:
        await run.acomplete("tea")
        opened.clear()
        late = asyncio.create_task(run.acommit("late"))
        await asyncio.sleep(0)  # it waits now
        asyncio.get_running_loop().call_soon(opened.set)  # when the end of the block waits, too

    await asyncio.wait_for(late, PATIENCE)
    assert types(hf, run.id) == ["run_started", "run_completed", "late"]


@pytest.mark.parametrize("noted", [False, True])
def test_what_is_told_after_the_block_is_late(hf: Holdfast, noted: bool) -> None:
    with hf.note() if noted else hf.run() as run:
        pass

    run.emit("noted")
    run.spend("usd", 1.0)

    assert [(event.type, event.late) for event in run.events()][-2:] == [("noted", True), ("spent", True)]


def test_an_interrupt_while_the_end_is_written_adds_nothing_to_it(place: Place) -> None:
    armed = False

    def interrupt(point: str) -> None:
        nonlocal armed
        is_ours = threading.current_thread() is threading.main_thread()  # not of who renews the lease, say
        if armed and point == "committed" and is_ours:
            armed = False
            raise KeyboardInterrupt

    hf = place.open(crash=interrupt)
    with pytest.raises(KeyboardInterrupt), hf.run() as run:
        armed = True
        run.complete("tea")

    assert [event.type for event in run.events()] == ["run_started", "run_completed"]


@pytest.mark.parametrize("wrong", [None, 5, b"x"])
def test_an_end_that_is_no_text_is_a_config_error(hf: Holdfast, wrong: Any) -> None:
    with hf.run() as run:
        with pytest.raises(ConfigError, match="text"):
            run.complete(wrong)
        with pytest.raises(ConfigError, match="error"):
            run.fail(wrong)


def test_verify_records_reports_and_the_snapshot_sums_them_up(hf: Holdfast) -> None:
    with hf.run() as run:
        run.verify(Report("taste", (Check("sweet", "passed"), Check("hot", "failed"))))
        assert run.status == "executing"

    verification = hf.runs.snapshot(run.id).verification
    assert verification is not None
    assert verification.status == "failed"
    assert types(hf, run.id)[1:3] == ["verification_started", "verification_ended"]


@pytest.mark.parametrize("wrong", [None, "sweet", Check("sweet", "passed")])
def test_what_is_no_report_is_refused_and_no_verification_begins(hf: Holdfast, wrong: Any) -> None:
    with hf.run() as run, pytest.raises(ConfigError, match="must be a Report"):
        run.verify(Report("taste"), wrong)

    assert types(hf, run.id) == ["run_started", "run_completed"]


def test_a_run_that_was_left_is_not_verified(hf: Holdfast) -> None:
    with pytest.raises(KeyboardInterrupt), hf.run() as run:
        raise KeyboardInterrupt

    with pytest.raises(RunConflict, match="not open"):
        run.verify(Report("taste"))

    assert types(hf, run.id) == ["run_started", "run_interrupted"]
    assert hf.runs.snapshot(run.id).status == "executing"


def test_steps_what_was_spent_and_the_wish_to_cancel_are_in_the_log_alone(hf: Holdfast) -> None:
    recorder = Recorder()
    hf.bus.add(recorder)

    with hf.run() as run:
        run.step("stir", lambda: None)
        run.spend("usd", 1)
        run.verify(Report("taste"))
        run.cancel()

    alone = ["step_started", "step_ended", "spent", "verification_started", "run_cancel_requested"]
    assert [type for type in types(hf, run.id) if type not in recorder.types()] == alone
    assert recorder.types() == ["run_started", "verification_ended", "run_cancelled"]


# --- the events of a call ---


def test_a_call_is_a_start_and_an_end_with_its_arguments_and_its_result(hf: Holdfast) -> None:
    @hf.tool
    def add(a: int, b: int = 2) -> int:
        return a + b

    with hf.run() as run:
        add(1)

    started, ended = of(hf, run.id, "tool_started")[0].payload, of(hf, run.id, "tool_ended")[0].payload
    assert started["arguments"] == {"a": 1, "b": 2}
    assert started["tool"] == ended["tool"] == "add"
    assert started["call_id"] == ended["call_id"] == started["key"][:16]
    assert (ended["status"], ended["result"], ended["attempts"], ended["cached"]) == ("success", 3, 1, False)
    assert hf.runs.snapshot(run.id).tool_calls == 1


def test_a_call_within_a_call_names_the_one_that_makes_it(hf: Holdfast) -> None:
    inner = hf.tool("inner")(lambda: 1)
    outer = hf.tool("outer")(lambda: inner() + 1)

    with hf.run() as run:
        outer()

    first, second = (event.payload for event in of(hf, run.id, "tool_started"))
    assert second["parent"] == first["call_id"]
    assert "parent" not in first


def test_a_refused_call_is_denied_and_neither_started_nor_ended(hf: Holdfast) -> None:
    pay = hf.tool("pay", rate={"per_second": 1.0, "burst": 1.0}, max_wait=0.0)(lambda: None)

    with hf.run() as run:
        pay()
        with pytest.raises(holdfast.RateLimited):
            pay()

    assert types(hf, run.id)[1:-1] == ["tool_started", "tool_ended", "tool_denied"]
    assert of(hf, run.id, "tool_denied")[0].payload["retry_after_ms"] == 1000
    assert hf.runs.snapshot(run.id).tool_denials == 1


def test_the_start_is_on_disk_before_the_tool_is_called_and_the_result_before_the_caller_sees_it(hf: Holdfast) -> None:
    seen: list[str] = []

    @hf.tool
    def look() -> None:
        seen.extend(types(hf, run.id))

    with hf.run() as run:
        look()
        after = types(hf, run.id)

    assert seen == ["run_started", "tool_started"]
    assert after == ["run_started", "tool_started", "tool_ended"]


def test_secrets_are_masked_in_the_events_and_not_in_the_tool(hf: Holdfast) -> None:
    got: list[str] = []

    @hf.tool
    def log_in(user: str, password: str) -> dict[str, str]:
        got.append(password)
        return {"token": "zebra", "user": user}

    with hf.run() as run:
        answer = log_in("ann", "hunter2")
        run.emit("noted", api_key="k")
        run.step("ask", lambda question: {"secret": question}, {"password": "p"})

    assert got == ["hunter2"]
    assert answer == {"token": "zebra", "user": "ann"}
    texts = [str(event.payload) for event in hf.runs.events(run.id)]
    assert not [text for text in texts if "hunter2" in text or "zebra" in text or "'k'" in text or "'p'" in text]
    assert of(hf, run.id, "tool_started")[0].payload["arguments"] == {"user": "ann", "password": "[redacted]"}
    assert of(hf, run.id, "tool_ended")[0].payload["result"] == {"token": "[redacted]", "user": "ann"}


def test_a_redactor_of_ones_own_sees_arguments_results_and_payloads(place: Place) -> None:
    hf = place.open(
        payloads=Payloads(lambda value: "hidden" if not isinstance(value, dict) else {"hidden": len(value)})
    )
    pay = hf.tool("pay")(lambda card: card)

    with hf.run() as run:
        pay("4111")
        run.emit("noted", card="4111")

    assert not [event for event in hf.runs.events(run.id) if "4111" in str(event.payload)]


def test_sinks_get_what_a_user_emits_redacted_too(hf: Holdfast) -> None:
    recorder = Recorder()
    hf.bus.add(recorder)

    with hf.run() as run:
        run.emit("noted", password="hunter2")

    assert recorder.of("noted")[0].payload == {"password": "[redacted]"}


def test_long_arguments_and_results_are_cut_with_a_mark(hf: Holdfast) -> None:
    echo = hf.tool("echo")(lambda text: text)

    with hf.run() as run:
        answer = echo("x" * 100_000)

    assert len(answer) == 100_000
    for event, field in ((of(hf, run.id, "tool_started")[0], "arguments"), (of(hf, run.id, "tool_ended")[0], "result")):
        assert event.payload[field]["bytes"] >= 100_000
        assert len(str(event.payload)) < 20_000


def test_a_long_reason_of_a_refusal_is_cut(place: Place) -> None:
    hf = place.open(hooks=[holdfast.Hook("before_tool", lambda call: "no " * 100_000)])
    pay = hf.tool("pay")(lambda: None)

    with hf.run() as run, pytest.raises(holdfast.Denied):
        pay()

    assert len(str(of(hf, run.id, "tool_denied")[0].payload)) < 20_000


def test_what_json_does_not_know_is_shown_as_a_text(hf: Holdfast) -> None:
    keep = hf.tool("keep")(lambda thing: thing)
    thing = object()

    with hf.run() as run:
        assert keep(thing) is thing

    assert "object" in str(of(hf, run.id, "tool_started")[0].payload["arguments"])


# --- the idempotency key ---


def test_the_key_of_a_call_can_be_read_inside_the_tool_and_nowhere_else(hf: Holdfast) -> None:
    keys: list[str | None] = []

    @hf.tool
    def pay() -> None:
        assert hf.current_run is not None
        keys.append(hf.current_run.idempotency_key)

    with hf.run() as run:
        pay()
        outside = run.idempotency_key

    assert outside is None
    assert keys == [of(hf, run.id, "tool_started")[0].payload["key"]]


def test_the_key_can_be_read_in_the_thread_of_a_tool_with_a_time_limit(hf: Holdfast) -> None:
    @hf.tool(timeout=5.0)
    def pay() -> str | None:
        assert threading.current_thread() is not threading.main_thread()
        assert hf.current_run is not None
        return hf.current_run.idempotency_key

    with hf.run() as run:
        assert pay() == of(hf, run.id, "tool_started")[0].payload["key"]


async def test_the_key_can_be_read_in_coroutines_streams_and_to_thread(hf: Holdfast) -> None:
    def key() -> str | None:
        assert hf.current_run is not None
        return hf.current_run.idempotency_key

    @hf.tool
    async def coroutine() -> str | None:
        return await asyncio.to_thread(key)

    @hf.tool
    def stream() -> Iterator[str | None]:
        yield key()
        yield key()

    @hf.tool
    async def astream() -> Any:
        yield key()
        yield key()

    async with hf.run() as run:
        seen = {await coroutine()}
        for item in stream():
            assert run.idempotency_key is None
            seen.add(item)
        async for item in astream():
            assert run.idempotency_key is None
            seen.add(item)
        seen.add(run.step("plan", key))
        assert key() is None

    starts = of(hf, run.id, "tool_started") + of(hf, run.id, "step_started")
    assert seen == {event.payload["key"] for event in starts}


# --- runs within runs, threads, forks, the end of the interpreter ---


def test_a_run_within_a_call_is_known_by_itself_when_it_is_resumed_alone(hf: Holdfast) -> None:
    made: list[int] = []
    work = hf.tool("work")(made.append)

    @hf.tool
    def delegate() -> None:
        stopped(hf, lambda: work(1), run_id="inner")

    with hf.run() as outer:
        delegate()
        assert outer.idempotency_key is None
    with hf.resume("inner"):
        work(1)

    assert made == [1]
    assert types(hf, outer.id).count("tool_started") == 1


def test_a_call_belongs_to_the_innermost_open_run_whichever_holdfast_it_is_of(place: Place) -> None:
    hf, other = place.open(), holdfast.open(":memory:", policies={})
    work = hf.tool("work")(lambda: None)

    with other, hf.run() as outer, other.run() as inner:
        work()

        assert types(other, inner.id) == ["run_started", "tool_started", "tool_ended"]
    assert types(hf, outer.id) == ["run_started", "run_completed"]


async def test_calls_in_tasks_and_threads_of_a_run_are_recorded(hf: Holdfast) -> None:
    work = hf.tool("work")(lambda number: number)
    awork = hf.tool("awork")(asyncio.sleep)

    async with hf.run() as run:
        await asyncio.gather(*(asyncio.to_thread(work, number) for number in range(5)), awork(0, "x"))
        await asyncio.create_task(awork(0, "y"))

    assert hf.runs.snapshot(run.id).tool_calls == 7
    assert hf.runs.snapshot(run.id).active_tools == ()


def test_many_threads_in_many_runs_do_not_mix(hf: Holdfast) -> None:
    work = hf.tool("work")(lambda number: number)

    def agent(name: str) -> None:
        with hf.run(run_id=name):
            for number in range(5):
                work(number)

    threads = [threading.Thread(target=agent, args=(f"run {n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for n in range(8):
        events = hf.runs.events(f"run {n}")
        assert [event.sequence for event in events] == list(range(12))
        assert hf.runs.snapshot(f"run {n}").status == "completed"


def test_in_a_forked_child_the_run_is_the_parents(hf: Holdfast) -> None:
    work = hf.tool("work")(lambda: 1)
    report, told = os.pipe()

    with hf.run() as run:
        work()
        pid = fork()
        if pid == 0:  # an uncaught exit would leave the block, and must not end the parent's run
            try:
                run.__exit__(SystemExit, SystemExit(0), None)
                os.write(told, f"{hf.current_run} {work()}".encode())
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        os.close(told)
        child = os.read(report, 100).decode()
        os.close(report)
        work()
        assert run.snapshot().owner is not None

    assert child == "None 1"
    assert hf.runs.snapshot(run.id).tool_calls == 2
    assert types(hf, run.id)[-1] == "run_completed"
    assert "run_interrupted" not in types(hf, run.id)


def test_a_forked_child_may_have_runs_of_its_own(disk: Place) -> None:
    hf = disk.open()
    with hf.run() as run:
        pid = fork()
        if pid == 0:
            status = 1
            try:
                with hf.run(run_id="child") as own:
                    own.commit("noted")
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0

    assert types(hf, "child") == ["run_started", "noted", "run_completed"]
    assert hf.runs.snapshot(run.id).status == "completed"


def test_what_a_forked_child_writes_outlives_the_parents_store(disk: Place) -> None:
    hf = disk.open()
    with hf.run():
        (ready, tell), (wait, go) = os.pipe(), os.pipe()
        pid = fork()
        if pid == 0:
            os.close(go)  # so that its wait ends with the parent
            status = 1
            try:
                with hf.run(run_id="child") as own:
                    own.commit("noted")
                    os.write(tell, b"x")
                    os.read(wait, 1)
                    own.commit("noted after the parent has closed")
                status = 0
            finally:
                os._exit(status)
    os.close(tell)
    os.read(ready, 1)

    hf.close()
    os.close(go)

    assert os.waitpid(pid, 0)[1] == 0
    os.close(ready)
    os.close(wait)
    other = disk.open()
    assert types(other, "child") == ["run_started", "noted", "noted after the parent has closed", "run_completed"]


def test_a_child_that_was_forked_in_the_middle_of_an_export_is_refused(disk: Place) -> None:
    hf = disk.open()
    with hf.run():
        pass
    told, tell = os.pipe()

    with hf.runs.file.consistent_reader():
        pid = fork()
        if pid == 0:
            try:
                hf.runs.list_runs()
            except StoreError as error:
                os.write(tell, str(error).encode())
            finally:
                os._exit(0)
        os.waitpid(pid, 0)

    assert b"was forked while the file was being written or exported" in os.read(told, 1000)
    assert len(hf.runs.list_runs()) == 1


def script(text: str, *args: object, **more: Any) -> subprocess.Popen[str]:
    source = "import holdfast, signal, sys, os, time\n" + textwrap.dedent(text)
    command = [sys.executable, "-c", source, *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)


def test_a_run_that_is_open_when_the_interpreter_ends_is_interrupted(disk: Place) -> None:
    child = script(
        """
        hf = holdfast.open(sys.argv[1], policies={})
        run = hf.run(run_id="open")
        run.__enter__()
        hf.tool("work")(lambda: 1)()
        """,
        disk.path,
    )

    _, errors = child.communicate(timeout=30)

    assert (child.returncode, errors) == (0, "")
    hf = disk.open(clock=ManualClock(epoch=0.0))  # long before its lease ends: the lock tells
    assert hf.runs.snapshot("open").interrupted
    assert types(hf, "open") == ["run_started", "tool_started", "tool_ended"]


def test_an_interrupt_from_the_keyboard_leaves_the_run_interrupted(disk: Place) -> None:
    child = script(
        """
        signal.signal(signal.SIGINT, signal.default_int_handler)  # which is ignored in the background
        hf = holdfast.open(sys.argv[1], policies={})
        with hf.run(run_id="open"):
            print("in", flush=True)
            while True:  # one long wait would overlook what comes just before it begins
                time.sleep(0.01)
        """,
        disk.path,
    )
    assert child.stdout is not None
    child.stdout.readline()

    child.send_signal(signal.SIGINT)
    child.communicate(timeout=30)

    hf = disk.open()
    assert types(hf, "open") == ["run_started", "run_interrupted"]


def test_a_killed_process_leaves_its_run_interrupted_at_once(disk: Place) -> None:
    child = script(
        """
        hf = holdfast.open(sys.argv[1], policies={})
        with hf.run(run_id="open"):
            print("in", flush=True)
            signal.pause()
        """,
        disk.path,
    )
    assert child.stdout is not None
    child.stdout.readline()
    hf = disk.open(clock=ManualClock(epoch=0.0))
    before = hf.runs.snapshot("open")
    with pytest.raises(RunConflict, match=f"process {child.pid}"):
        hf.resume("open").__enter__()

    child.kill()
    child.communicate(timeout=30)

    assert (before.interrupted, before.owner is None) == (False, False)
    assert hf.runs.snapshot("open").interrupted
    with hf.resume("open"):
        pass


# --- the garbage collector ---


def test_a_stream_that_is_left_to_the_collector_ends_its_call(hf: Holdfast) -> None:
    @hf.tool
    def numbers() -> Iterator[int]:
        yield from range(10)

    with hf.run() as run:
        stream = numbers()
        next(stream)
        cycle: list[Any] = [stream]
        cycle.append(cycle)
        del stream, cycle
        gc.collect()

    [ended] = of(hf, run.id, "tool_ended")
    assert ended.payload["status"] == "success"


async def test_the_collector_may_close_streams_and_coroutines_while_the_run_writes(hf: Holdfast) -> None:
    @hf.tool
    def numbers(number: int) -> Iterator[int]:
        yield from range(10)

    @hf.tool(idempotent=True)
    async def wait(number: int) -> None:
        await asyncio.Event().wait()

    before = gc.get_threshold()
    with hf.run() as run:
        gc.set_threshold(1, 1, 1)  # as often as can be
        try:
            for number in range(50):
                for thing in (numbers(number), wait(number)):
                    thing.__next__() if hasattr(thing, "__next__") else thing.send(None)
                    cycle: list[Any] = [thing]
                    cycle.append(cycle)
                    del thing, cycle
                run.emit("noted", number=number)
                run.step("plan", int)
        finally:
            gc.set_threshold(*before)
        gc.collect()

    durable_events = hf.runs.events(run.id)
    assert [event.sequence for event in durable_events] == list(range(len(durable_events)))


async def test_hooks_are_no_trouble_for_a_coroutine_that_is_closed_in_the_middle(place: Place) -> None:
    told: list[str] = []
    hooks = [holdfast.Hook(kind, lambda call: told.append(call.kind)) for kind in ("on_error", "after_tool")]
    hf = place.open(hooks=hooks)

    @hf.tool(idempotent=True)
    async def wait() -> None:
        await asyncio.Event().wait()

    with hf.run() as run:
        call = wait()
        call.send(None)
        call.close()

    assert told == []
    assert of(hf, run.id, "tool_ended")[0].payload["status"] == "cancelled"


def test_a_run_that_was_only_created_keeps_the_budget_with_which_it_begins(place: Place) -> None:
    hf = place.open()
    hf.runs.create_run("s", "p", run_id="r")
    with pytest.raises(KeyboardInterrupt), hf.run("s", "p", run_id="r", budget={"calls": 1}):
        hf.call(len, "a")
        raise KeyboardInterrupt

    with pytest.raises(BudgetExceeded), place.open().resume("r"):
        hf.call(len, "a")
        hf.call(len, "b")
