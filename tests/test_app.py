"""`open` and what it gives: where policies come from, what is told of calls and circuits, what stays after closing."""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import pickle
import pwd
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import (
    BudgetExceeded,
    CircuitOpen,
    CircuitState,
    ConcurrencyFull,
    ConfigError,
    Event,
    Holdfast,
    Hook,
    RateLimited,
    ToolTimeout,
)
from holdfast.testing import ManualClock, Recorder, Script, fail, hang, ok, rate_limit, slow
from holdfast.waiting import threads

PATIENCE = 30.0  # seconds for a thread to end


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has no policy file anywhere."""
    (tmp_path / "work").mkdir()
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("HOLDFAST_POLICY", raising=False)


@pytest.fixture
def hf(clock: ManualClock) -> Iterator[Holdfast]:
    with holdfast.open(policies={}, clock=clock) as hf:
        yield hf


def write(path: Path, value: str) -> Path:
    """A policy file by which a failing tool answers *value*."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'[policy]\nfallback = {{ value = "{value}" }}\n')
    return path


def policy_of(hf: Holdfast) -> str:
    """The value that the policies give, "default" if there are none."""
    try:
        return str(hf.call(Script(fail(ConnectionError)).function))
    except ConnectionError:
        return "default"


# --- where policies come from ---


def test_a_path_names_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.toml", "mine")

    assert policy_of(holdfast.open(policies=path)) == "mine"
    assert policy_of(holdfast.open(policies=str(path))) == "mine"


def test_a_mapping_has_the_shape_of_the_file() -> None:
    hf = holdfast.open(policies={"policy": {"fallback": {"value": "mapped"}}})

    assert policy_of(hf) == "mapped"


def test_the_environment_names_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_POLICY", str(write(tmp_path / "named.toml", "environment")))

    assert policy_of(holdfast.open()) == "environment"


def test_a_file_in_the_working_folder_is_found() -> None:
    write(Path("holdfast.toml"), "here")

    assert policy_of(holdfast.open()) == "here"


def test_a_file_in_the_user_s_configuration_folder_is_found(tmp_path: Path) -> None:
    write(tmp_path / "home" / ".config" / "holdfast" / "holdfast.toml", "home")

    assert policy_of(holdfast.open()) == "home"


def test_the_configuration_folder_may_be_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "home" / ".config" / "holdfast" / "holdfast.toml", "home")
    write(tmp_path / "xdg" / "holdfast" / "holdfast.toml", "elsewhere")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))

    assert policy_of(holdfast.open()) == "elsewhere"


def test_without_any_file_the_defaults_hold() -> None:
    assert policy_of(holdfast.open()) == "default"


def test_argument_before_environment_before_working_folder_before_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = write(tmp_path / "mine.toml", "argument")
    write(tmp_path / "home" / ".config" / "holdfast" / "holdfast.toml", "home")
    found = [policy_of(holdfast.open())]

    write(Path("holdfast.toml"), "here")
    found.append(policy_of(holdfast.open()))
    monkeypatch.setenv("HOLDFAST_POLICY", str(write(tmp_path / "named.toml", "environment")))
    found.append(policy_of(holdfast.open()))
    found.append(policy_of(holdfast.open(policies=mine)))

    assert found == ["home", "here", "environment", "argument"]


def test_an_empty_mapping_means_the_defaults_whatever_lies_around() -> None:
    write(Path("holdfast.toml"), "here")

    assert policy_of(holdfast.open(policies={})) == "default"


def test_only_one_file_is_read_the_others_may_be_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("holdfast.toml").write_text("broken = [")
    monkeypatch.setenv("HOLDFAST_POLICY", str(write(tmp_path / "named.toml", "environment")))

    assert policy_of(holdfast.open()) == "environment"


def test_an_empty_environment_variable_names_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    write(Path("holdfast.toml"), "here")
    monkeypatch.setenv("HOLDFAST_POLICY", "")

    assert policy_of(holdfast.open()) == "here"


def test_a_folder_of_that_name_is_no_policy_file() -> None:
    Path("holdfast.toml").mkdir()

    assert policy_of(holdfast.open()) == "default"


def test_a_user_without_a_home_can_open_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", nobody)

    assert policy_of(holdfast.open()) == "default"


def test_a_file_keeps_its_place_when_the_process_changes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    write(Path("holdfast.toml"), "before")
    hf = holdfast.open(clock=clock)
    policy_of(hf)
    write(Path("holdfast.toml"), "a longer value")
    monkeypatch.chdir(tmp_path)
    clock.advance(1.0)

    assert policy_of(hf) == "a longer value"


# --- what cannot be opened ---


def refused(**settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        holdfast.open(**settings)
    return str(caught.value)


@pytest.mark.parametrize("hooks", [Hook("after_tool", print), 5, [print]])
def test_hooks_that_are_no_list_of_hooks_are_a_config_error(hooks: Any) -> None:
    assert "must be a" in refused(policies={}, hooks=hooks)


def test_a_file_that_is_not_there_is_a_config_error_that_names_it() -> None:
    assert refused(policies="nowhere.toml") == "nowhere.toml: does not exist"


def test_a_file_named_by_the_environment_that_is_not_there_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_POLICY", "/nowhere/at/all.toml")

    assert refused() == "/nowhere/at/all.toml: does not exist"


def test_what_is_not_toml_is_a_config_error_that_says_where() -> None:
    Path("holdfast.toml").write_text("[policy]\ntimeout = \n")

    assert refused() == "holdfast.toml: is not TOML: Invalid value (at line 2, column 11)"


def test_every_mistake_is_named_with_file_key_value_and_what_is_allowed() -> None:
    Path("holdfast.toml").write_text('[policy]\ntimeout = -1\n[tool.search]\nrat = "10/s"\n')

    lines = refused().splitlines()

    assert lines[0] == "holdfast.toml: [policy] timeout = -1: must be a number above 0, or false"
    assert lines[1].startswith('holdfast.toml: [tool.search] rat = "10/s": unknown key, did you mean rate? allowed: ')


def test_a_mistake_in_a_mapping_is_named_as_well() -> None:
    assert refused(policies={"policy": {"timeout": "soon"}}).startswith('policies: [policy] timeout = "soon": must be')


@pytest.mark.parametrize("policies", [5, ["a.toml"], b"", object])
def test_policies_that_are_neither_path_nor_mapping_are_a_config_error(policies: Any) -> None:
    assert refused(policies=policies).endswith("must be the path of a file, or a mapping")


def test_a_store_in_a_working_directory_that_is_gone_is_a_config_error() -> None:
    os.mkdir("gone")
    os.chdir("gone")
    os.rmdir("../gone")

    assert "the working directory is gone" in refused(store="agent.db", policies={})


@pytest.mark.parametrize("part", [lambda hf: hf, lambda hf: hf.call, lambda hf: hf.runs, lambda hf: hf.run()])
@pytest.mark.parametrize("double", [pickle.dumps, copy.deepcopy])
def test_what_belongs_to_one_process_says_what_to_do_instead_of_pickling_it(
    part: Callable[[Holdfast], object], double: Callable[[object], object]
) -> None:
    with (
        holdfast.open(":memory:", policies={}) as hf,
        pytest.raises(TypeError, match="cannot be pickled or copied: have each process open"),
    ):
        double(part(hf))


@pytest.mark.parametrize("store", ["", "redis://host", "sqlite://agent.db", "sqlite:///", "a\0b", "x" * 5000, 5, b"a"])
def test_a_store_that_there_is_not_is_a_config_error(store: Any) -> None:
    assert "must be a path, ':memory:', sqlite:///PATH or postgresql://" in refused(store=store)


@pytest.mark.parametrize(
    "store", ["mysql://u:secret@h/db", "postgresql+psycopg://u:secret@h/db", "mysql://u:secret@h/" + "x" * 5000]
)
def test_the_password_of_an_address_that_is_none_is_not_shown(store: str) -> None:
    assert "secret" not in refused(store=store)


@pytest.mark.parametrize("store", ["agent.db", "sqlite:///agent.db", Path("agent.db"), ":memory:"])
def test_opening_a_store_touches_no_disk(store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.rglob("*"))

    hf = holdfast.open(store)
    hf.tool("search")(lambda: None)

    assert set(tmp_path.rglob("*")) == before


def test_the_store_is_the_given_one_else_the_environment_s_else_the_file_s_else_the_user_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    file = tmp_path / "holdfast.toml"
    file.write_text('store = "sqlite:///of-the-file.db"')

    monkeypatch.setenv("HOLDFAST_STORE", str(tmp_path / "of-the-environment.db"))
    assert holdfast.open(tmp_path / "given.db", policies=file).runs.url == str(tmp_path / "given.db")
    assert holdfast.open(policies=file).runs.url == str(tmp_path / "of-the-environment.db")
    monkeypatch.delenv("HOLDFAST_STORE")
    assert holdfast.open(policies=file).runs.url == str(tmp_path / "of-the-file.db")
    assert holdfast.open(policies={}).runs.url == str(tmp_path / "holdfast" / "runs.db")


def test_the_user_s_own_store_is_pruned_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_STORE")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    clock = ManualClock()
    for store, left in ((None, ["new"]), (tmp_path / "other.db", ["new", "old"])):
        with holdfast.open(store, policies={}, clock=clock) as hf:
            hf.runs.create_run("s", "p", run_id="old")
            hf.runs.mark_failed("old", "e")
            clock.advance(31 * 86400)

            with hf.run(run_id="new"):
                pass
            for thread in threading.enumerate():
                if thread.name == "holdfast-worker":
                    thread.join()

            assert [run.id for run in hf.runs.list_runs()] == left


@pytest.mark.parametrize("named", ["", "relative", "./data"])
def test_a_folder_of_the_environment_that_is_not_absolute_is_ignored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: str
) -> None:
    monkeypatch.delenv("HOLDFAST_STORE")
    for name, value in (("HOME", str(tmp_path)), ("XDG_DATA_HOME", named), ("XDG_CONFIG_HOME", named)):
        monkeypatch.setenv(name, value)
    config = tmp_path / ".config" / "holdfast"
    config.mkdir(parents=True)
    write(config / "holdfast.toml", "the user's own")

    with holdfast.open() as hf:
        assert policy_of(hf) == "the user's own"
        assert Path(hf.runs.url).is_relative_to(tmp_path)


def test_without_a_home_runs_are_refused_and_tools_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOLDFAST_STORE", "XDG_DATA_HOME"):
        monkeypatch.delenv(name)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)

    with holdfast.open(policies={}) as hf:
        assert hf.call(len, "abc") == 3
        with pytest.raises(ConfigError, match="no home folder to keep runs in"):
            hf.run()


# --- opening and closing ---


def test_a_holdfast_is_a_context_manager() -> None:
    with holdfast.open() as hf:
        assert hf.call(lambda: 1) == 1


async def test_a_holdfast_is_an_async_context_manager() -> None:
    async with holdfast.open() as hf:
        assert await hf.acall(Script(ok(1)).coroutine) == 1


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "holdfast-worker"]


@pytest.mark.parametrize("closing", ["with", "close", "async with", "aclose"])
async def test_closing_leaves_no_thread(clock: ManualClock, monkeypatch: pytest.MonkeyPatch, closing: str) -> None:
    monkeypatch.setattr(threads, "LINGER", 4 * PATIENCE)  # so that an idle one does not end by itself
    hf = holdfast.open(clock=clock)
    hf.call(lambda: None, policy={"timeout": 5.0})
    busy = workers()

    if closing == "with":
        with hf:
            pass
    elif closing == "close":
        hf.close()
    elif closing == "async with":
        async with hf:
            pass
    else:
        await hf.aclose()
    for thread in busy:
        thread.join(PATIENCE)

    assert len(busy) == 1
    assert workers() == []


def test_closing_twice_is_harmless(hf: Holdfast) -> None:
    hf.call(lambda: None, policy={"timeout": 5.0})

    hf.close()
    hf.close()

    assert hf.call(lambda: 1, policy={"timeout": 5.0}) == 1


def test_the_system_clock_s_threads_end_by_themselves() -> None:
    with holdfast.open() as hf:
        assert hf.call(lambda: 1, policy={"timeout": 5.0}) == 1
    # That none is left, each test's end makes sure of.


def test_a_holdfast_that_nobody_uses_any_more_is_freed(clock: ManualClock) -> None:
    hf = holdfast.open(clock=clock)
    hf.bus.add(Recorder())
    hf.call(Script(ok()).function)
    with hf.run():
        hf.tool("t")(Script(ok()).function)()
    gone = weakref.ref(hf)

    del hf
    gc.collect()

    assert gone() is None


def test_two_holdfasts_know_nothing_of_each_other(clock: ManualClock) -> None:
    one, two = holdfast.open(clock=clock), holdfast.open(clock=clock)
    heard = Recorder()
    two.bus.add(heard)

    one.breaker.force_open("t")
    one.call(lambda: None)

    assert two.breaker.state("t") is CircuitState.CLOSED
    assert two.tracker.stats().total == 0
    assert heard.events == []


def test_breaker_and_tracker_show_what_calls_did(hf: Holdfast) -> None:
    tool = hf.tool("t")(Script(*[fail(ConnectionError)] * 7).function)
    for _ in range(7):
        with pytest.raises(ConnectionError):
            tool()
    with pytest.raises(CircuitOpen):
        tool()

    assert hf.breaker.snapshot().open_circuits == ("t",)
    assert hf.breaker.metrics().refused == 1
    stats = hf.tracker.stats("t")
    assert (stats.total, stats.failed, stats.denied) == (7, 7, 1)


# --- what is told of a call ---


def told(recorder: Recorder) -> list[tuple[str, dict[str, object]]]:
    return [(event.type, dict(event.payload)) for event in recorder.events]


ENDED = {
    "call_id": 1, "status": "success", "duration_ms": 0, "waited_ms": 0, "attempts": 1, "cached": False,
    "category": None, "error": None,
}  # fmt: skip


def test_a_success_is_started_and_ended(hf: Holdfast, recorder: Recorder, clock: ManualClock) -> None:
    hf.tool("t")(Script(slow(0.25), clock=clock).function)()

    assert told(recorder) == [("tool_started", {"call_id": 1}), ("tool_ended", ENDED | {"duration_ms": 250})]
    assert {event.tool for event in recorder.events} == {"t"}
    assert {event.run for event in recorder.events} == {None}
    assert [event.timestamp_ms - recorder.events[0].timestamp_ms for event in recorder.events] == [0, 250]


def test_a_failure_is_told_with_its_category_and_error(hf: Holdfast, recorder: Recorder) -> None:
    with pytest.raises(PermissionError):
        hf.call(Script(fail(PermissionError("not yours"))).function)

    facts = {"category": "permission_denied", "error": "PermissionError: not yours"}
    assert told(recorder) == [
        ("tool_started", {"call_id": 1}),
        ("tool_attempt_failed", {"call_id": 1, "attempt": 1, "duration_ms": 0, "retry_in_ms": None} | facts),
        ("tool_ended", ENDED | {"status": "failed"} | facts),
    ]


def test_every_failed_attempt_is_told_with_the_wait_before_the_next(
    hf: Holdfast, recorder: Recorder, clock: ManualClock
) -> None:
    script = Script(rate_limit(2.0), rate_limit(3.0), ok(), clock=clock)

    hf.call(script.function, policy={"idempotent": True})

    assert recorder.types() == ["tool_started", "tool_attempt_failed", "tool_attempt_failed", "tool_ended"]
    failed = recorder.of("tool_attempt_failed")
    assert [event.payload["attempt"] for event in failed] == [1, 2]
    assert [event.payload["retry_in_ms"] for event in failed] == [2000, 3000]
    assert [event.payload["category"] for event in failed] == ["rate_limit"] * 2
    assert recorder.events[-1].payload == ENDED | {"attempts": 3, "waited_ms": 5000}


def test_a_failed_attempt_is_told_with_its_own_time_inside_the_tool(
    hf: Holdfast, recorder: Recorder, clock: ManualClock
) -> None:
    durations = [0.25, 0.5]

    def flaky() -> None:
        clock.advance(durations.pop(0))
        raise ConnectionError("refused")

    with pytest.raises(ConnectionError):
        hf.call(flaky, policy={"idempotent": True, "retry": {"attempts": 2, "initial": 1.0}})

    assert [event.payload["duration_ms"] for event in recorder.of("tool_attempt_failed")] == [250, 500]


async def test_a_timeout_ends_as_timed_out(hf: Holdfast, recorder: Recorder, clock: ManualClock) -> None:
    with pytest.raises(ToolTimeout):
        await hf.acall(Script(hang(), clock=clock).coroutine, policy={"timeout": 1.5})

    ended = recorder.of("tool_ended")[0].payload
    assert (ended["status"], ended["category"], ended["duration_ms"]) == ("timed_out", "timeout", 1500)
    assert ended["error"] == "ToolTimeout: script: no answer within 1.5 s"


def test_a_cancelled_call_ends_as_cancelled(hf: Holdfast, recorder: Recorder) -> None:
    with pytest.raises(asyncio.CancelledError):
        hf.call(Script(fail(asyncio.CancelledError)).function)

    assert recorder.types() == ["tool_started", "tool_ended"]
    assert recorder.of("tool_ended")[0].payload["status"] == "cancelled"


def test_an_answer_from_the_cache_was_never_started(hf: Holdfast, recorder: Recorder) -> None:
    tool = hf.tool("t", read_only=True, cache=60.0)(Script(ok(1)).function)
    tool()
    recorder.clear()

    tool()

    assert told(recorder) == [("tool_ended", ENDED | {"call_id": 2, "attempts": 0, "cached": True})]


def test_the_events_of_a_call_share_its_id_and_no_other_call_has_it(hf: Holdfast, recorder: Recorder) -> None:
    tool = hf.tool("t")(Script(ok()).function)

    for _ in range(3):
        tool()

    assert [event.payload["call_id"] for event in recorder.events] == [1, 1, 2, 2, 3, 3]


def test_a_stream_is_started_and_ended_once(hf: Holdfast, recorder: Recorder, clock: ManualClock) -> None:
    items = hf.stream(Script(slow(0.5, [1, 2, 3]), clock=clock).generator)
    before = recorder.types()

    list(items)

    assert before == []
    assert told(recorder) == [("tool_started", {"call_id": 1}), ("tool_ended", ENDED | {"duration_ms": 1500})]


def test_a_guarded_block_is_told_like_a_call(hf: Holdfast, recorder: Recorder) -> None:
    with hf.guard("block"):
        pass

    assert told(recorder) == [("tool_started", {"call_id": 1}), ("tool_ended", ENDED)]


def test_an_inner_call_is_told_within_the_outer_one(hf: Holdfast, recorder: Recorder) -> None:
    inner = hf.tool("inner")(lambda: None)
    outer = hf.tool("outer")(inner)

    outer()

    assert [(event.type, event.tool) for event in recorder.events] == [
        ("tool_started", "outer"), ("tool_started", "inner"), ("tool_ended", "inner"), ("tool_ended", "outer"),
    ]  # fmt: skip


# --- what is told of a refusal ---


def denied(recorder: Recorder) -> Event:
    [event] = recorder.of("tool_denied")
    return event


def test_a_refusal_by_the_circuit_is_told_with_its_reason_and_wait(hf: Holdfast, recorder: Recorder) -> None:
    tool = hf.tool("t", breaker={"failure_threshold": 1, "jitter": 0.0})(Script(fail(ConnectionError)).function)
    with pytest.raises(ConnectionError):
        tool()

    with pytest.raises(CircuitOpen):
        tool()

    assert denied(recorder).tool == "t"
    assert denied(recorder).payload == {
        "call_id": 2,
        "kind": "CircuitOpen",
        "reason": "it has failed repeatedly and is temporarily disabled",
        "retry_after_ms": 5000,
    }
    assert recorder.types()[-1] == "tool_denied"


def test_a_refusal_by_the_rate_is_told(hf: Holdfast, recorder: Recorder) -> None:
    tool = hf.tool("t", rate={"per_second": 3.0, "burst": 1.0}, max_wait=0.0)(Script(ok()).function)
    tool()

    with pytest.raises(RateLimited):
        tool()

    assert denied(recorder).payload["kind"] == "RateLimited"
    assert denied(recorder).payload["retry_after_ms"] == 334  # rounded up: who comes back then is admitted


def test_a_refusal_by_concurrency_has_no_known_wait(hf: Holdfast, recorder: Recorder) -> None:
    settings = {"concurrency": 1, "max_wait": 0.0}

    with hf.guard("t", **settings), pytest.raises(ConcurrencyFull), hf.guard("t", **settings):
        pass

    assert denied(recorder).payload["kind"] == "ConcurrencyFull"
    assert denied(recorder).payload["retry_after_ms"] is None


def test_a_refusal_by_a_budget_is_told_with_the_run(hf: Holdfast, recorder: Recorder) -> None:
    with hf.run(run_id="r", budget={"calls": 1}):
        hf.call(lambda: None)
        with pytest.raises(BudgetExceeded):
            hf.call(lambda: None)

    assert denied(recorder).run == "r"
    assert denied(recorder).payload["kind"] == "BudgetExceeded"
    assert denied(recorder).payload["reason"] == "the run's budget of 1 calls is used up (1 used)"


# --- what is told of a circuit ---


def test_the_life_of_a_circuit_is_told(hf: Holdfast, recorder: Recorder, clock: ManualClock) -> None:
    script = Script(*[fail(TimeoutError)] * 4, ok())
    tool = hf.tool("t", breaker={"failure_threshold": 3, "jitter": 0.0})(script.function)
    for wait in (0.0, 0.0, 0.0, 5.0):
        clock.advance(wait)
        with pytest.raises(TimeoutError):
            tool()
    clock.advance(10.0)
    tool()

    circuit = [event for event in recorder.events if event.type.startswith("circuit_")]
    assert {(event.tool, event.run) for event in circuit} == {("t", None)}
    assert [(event.type, event.payload) for event in circuit] == [
        ("circuit_opened", {"before": "closed", "failures": 3, "backoff": 5.0, "category": "timeout"}),
        ("circuit_half_opened", {"before": "open", "failures": 3, "backoff": 5.0, "category": "timeout"}),
        ("circuit_opened", {"before": "half_open", "failures": 3, "backoff": 10.0, "category": "timeout"}),
        ("circuit_half_opened", {"before": "open", "failures": 3, "backoff": 10.0, "category": "timeout"}),
        ("circuit_closed", {"before": "half_open", "failures": 0, "backoff": 0.0, "category": None}),
    ]


def test_a_circuit_that_is_forced_by_hand_is_told(hf: Holdfast, recorder: Recorder) -> None:
    hf.breaker.force_open("t")
    hf.breaker.force_open("t")
    hf.breaker.auto("t")

    assert recorder.types() == ["circuit_opened", "circuit_closed"]


def test_a_sink_may_steer_the_circuit_it_hears_of(hf: Holdfast) -> None:
    def close(event: Event) -> None:
        if event.type == "circuit_opened":
            hf.breaker.force_closed(str(event.tool))

    hf.bus.add(close)
    tool = hf.tool("t")(Script(fail(ConnectionError)).function)

    for _ in range(20):
        with pytest.raises(ConnectionError):
            tool()


def test_it_is_closed_where_asyncio_does_not_run_too() -> None:
    hf = holdfast.open(":memory:", policies={})

    with pytest.raises(StopIteration):
        hf.aclose().send(None)


async def test_runs_are_resumed_and_closed_even_if_all_threads_of_the_event_loop_hang(tmp_path: Path) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    stuck, over = threading.Event(), threading.Event()

    def block() -> None:
        stuck.set()
        over.wait(4 * PATIENCE)

    hanging = asyncio.create_task(asyncio.to_thread(block))
    try:
        async with asyncio.timeout(PATIENCE), holdfast.open(tmp_path / "runs.db", policies={}) as hf:
            assert await hf.acall(stuck.wait, PATIENCE)
            with pytest.raises(KeyboardInterrupt):
                async with hf.run(run_id="interrupted"):
                    raise KeyboardInterrupt
            async with hf.resume("interrupted"):
                pass
            assert not hanging.done()
        assert not hanging.done()
    finally:
        over.set()
        await hanging
