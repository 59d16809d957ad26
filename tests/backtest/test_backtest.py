"""Calls on record, played against policies: the numbers are worked out by hand."""

from __future__ import annotations

import asyncio
import gzip
import json
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import Denied, Holdfast
from holdfast.backtest import ENOUGH, Attempt, Call, Played, as_toml, compare, play, read, suggest
from holdfast.category import ErrorCategory
from holdfast.policy import PolicyBook
from holdfast.testing import ManualClock

DATA = Path(__file__).parents[1] / "data" / "tool_calls.jsonl.gz"
NETWORK, LIMITED = ErrorCategory.NETWORK, ErrorCategory.RATE_LIMIT
OFF: dict[str, object] = {"breaker": False, "loop": False}


class TooMany(Exception):
    status_code = 429


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def hf(tmp_path: Path, clock: ManualClock) -> Iterator[Holdfast]:
    with holdfast.open(tmp_path / "runs.db", clock=clock, policies={"policy": OFF}) as hf:
        yield hf


@pytest.fixture
def ask(hf: Holdfast, clock: ManualClock) -> Callable[..., None]:
    """A tool that takes a time and then fails or not."""

    @hf.tool("search")
    def search(seconds: float, error: str | None, what: object) -> None:
        clock.advance(seconds)
        if error is not None:
            raise {"network": ConnectionError, "limit": TooMany, "value": ValueError}[error](error)

    def ask(seconds: float = 1.0, error: str | None = None, what: object = None) -> None:
        with suppress(ConnectionError, TooMany, ValueError):
            search(seconds, error, what)

    return ask


@pytest.fixture
def memory(clock: ManualClock) -> Iterator[Holdfast]:
    """On a store that writes at once: where nobody waits for a write, a file has it later than this clock thinks."""
    with holdfast.open(":memory:", clock=clock, policies={"policy": OFF}) as hf:
        yield hf


def policies(**values: object) -> Callable[[str], Any]:
    return PolicyBook.load({"policy": {**OFF, **values}}).resolve


def calls(*starts: float, seconds: float = 1.0, category: ErrorCategory | None = None, run: str = "r") -> list[Call]:
    return [Call("t", run, at, (Attempt(seconds, category),), b"same") for at in starts]


def one(calls: list[Call], **values: object) -> Played:
    (played,) = play(sorted(calls, key=lambda call: call.at), policies(**values)).values()
    return played


# --- what is on record ---


def test_a_call_is_read_with_its_time_duration_and_outcome(
    hf: Holdfast, ask: Callable[..., None], clock: ManualClock
) -> None:
    with hf.run("session", "prompt") as run:
        ask(2.0)
        clock.advance(3.0)
        ask(0.5, "network")

    found = read(hf.runs)

    begun = clock.time() - 5.5
    assert [(call.tool, call.run, call.at, call.attempts) for call in found.calls] == [
        ("search", run.id, begun, (Attempt(2.0),)),
        ("search", run.id, begun + 5.0, (Attempt(0.5, NETWORK),)),
    ]
    assert (found.runs, found.whole) == (1, True)


def test_the_attempts_of_a_call_are_read_with_their_pauses(memory: Holdfast, clock: ManualClock) -> None:
    outcomes = [ConnectionError("one"), ConnectionError("two"), None]

    @memory.tool("fetch", read_only=True)
    def fetch() -> None:
        clock.advance(1.0)
        if (error := outcomes.pop(0)) is not None:
            raise error

    with memory.run("session", "prompt"):
        fetch()

    (call,) = read(memory.runs).calls
    assert [attempt.category for attempt in call.attempts] == [NETWORK, NETWORK, None]
    assert [round(attempt.duration, 2) for attempt in call.attempts] == [1.0, 1.0, 1.0]
    assert [attempt.pause is None for attempt in call.attempts] == [False, False, True]
    assert not call.failed


def test_an_attempt_took_as_long_as_it_tells_though_the_next_one_waited_in_line(
    memory: Holdfast, clock: ManualClock
) -> None:
    memory.runs.create_run("session", "prompt", run_id="r")
    call = {"tool": "fetch", "call_id": "a"}
    memory.runs.record_event("r", "tool_started", call)
    clock.advance(0.1)
    memory.runs.record_event("r", "tool_attempt_failed", {**call, "duration_ms": 100, "retry_in_ms": 200})
    clock.advance(0.2 + 0.7 + 0.05)  # the pause, the line, the attempt
    ended = {"status": "success", "duration_ms": 150, "waited_ms": 900, "attempts": 2}
    memory.runs.record_event("r", "tool_ended", {**call, **ended})

    (found,) = read(memory.runs).calls

    assert [attempt.duration for attempt in found.attempts] == [0.1, 0.05]


def test_a_call_that_waited_in_line_is_asked_for_when_it_was(hf: Holdfast, clock: ManualClock) -> None:
    begun = clock.time()

    @hf.tool("fetch", rate={"per_second": 0.5, "burst": 1})
    def fetch() -> None:
        pass

    with hf.run("session", "prompt"):
        fetch()
        fetch()

    assert [(call.at, call.waited) for call in read(hf.runs).calls] == [(begun, 0.0), (begun, 2.0)]


def test_a_refusal_on_record_has_no_outcome(hf: Holdfast) -> None:
    @hf.tool("fetch", rate={"per_second": 0.1, "burst": 1}, max_wait=0)
    def fetch() -> None:
        pass

    with hf.run("session", "prompt"):
        fetch()
        with pytest.raises(Denied):
            fetch()

    made, refused = read(hf.runs).calls
    assert (made.known, made.refused, refused.known, refused.refused) == (True, False, False, True)


def test_a_call_without_an_end_has_no_outcome(hf: Holdfast) -> None:
    hf.runs.create_run("session", "prompt", run_id="lost")
    hf.runs.record_event("lost", "tool_started", {"tool": "fetch", "call_id": "a", "arguments": {}})

    (call,) = read(hf.runs).calls

    assert (call.tool, call.known, call.refused) == ("fetch", False, False)


def test_arguments_that_were_masked_may_be_any(hf: Holdfast) -> None:
    hf.runs.create_run("session", "prompt", run_id="r")
    for id, arguments in (("a", {"x": 1}), ("b", {"x": 1}), ("c", {"password": "one"})):
        hf.runs.record_event("r", "tool_started", {"tool": "fetch", "call_id": id, "arguments": arguments})

    first, second, masked = (call.sign for call in read(hf.runs).calls)

    assert first == second != None  # noqa: E711
    assert masked is None


def test_a_number_of_attempts_that_makes_no_sense_breaks_nothing(hf: Holdfast) -> None:
    hf.runs.create_run("session", "prompt", run_id="r")
    call = {"tool": "fetch", "call_id": "a"}
    hf.runs.record_event("r", "tool_started", call)
    hf.runs.record_event("r", "tool_ended", {**call, "status": "success", "attempts": -1})

    (found,) = read(hf.runs).calls

    assert [attempt.category for attempt in found.attempts] == [None]


@pytest.mark.parametrize("status", ["weird", 1, [], {}])
def test_an_end_whose_status_makes_no_sense_is_an_unknown_outcome(hf: Holdfast, status: object) -> None:
    hf.runs.create_run("session", "prompt", run_id="r")
    call = {"tool": "fetch", "call_id": "a"}
    hf.runs.record_event("r", "tool_started", call)
    hf.runs.record_event("r", "tool_ended", {**call, "status": status})

    (found,) = read(hf.runs).calls

    assert not found.known


def test_events_that_make_no_sense_are_passed_over(hf: Holdfast) -> None:
    hf.runs.create_run("session", "prompt", run_id="r")
    for type, payload in (
        ("tool_started", {"tool": 7, "call_id": "a"}),
        ("tool_started", {"tool": "fetch", "call_id": 1}),
        ("tool_ended", {"tool": "fetch", "call_id": "never begun", "status": "success"}),
    ):
        hf.runs.record_event("r", type, payload)

    assert read(hf.runs).calls == []


def test_only_the_newest_runs_and_calls_are_kept(hf: Holdfast, ask: Callable[..., None], clock: ManualClock) -> None:
    for number in range(3):
        with hf.run("session", "prompt", run_id=f"run {number}"):
            ask(what=1)
            ask(what=2)
        clock.advance(1)

    by_runs = read(hf.runs, last=2)
    by_calls = read(hf.runs, most=3)

    assert [call.run for call in by_runs.calls] == ["run 1", "run 1", "run 2", "run 2"]
    assert [call.run for call in by_calls.calls] == ["run 1", "run 2", "run 2"]
    assert (by_runs.whole, by_calls.whole) == (True, False)


# --- what the guards would have done ---


def test_a_circuit_would_have_spared_the_failures_after_its_threshold() -> None:
    # Fails at 1, 2, 3: open from 3 for 100 s. What is asked at 3, 4, 5 is refused; so is the success at 50.
    record = calls(0, 1, 2, 3, 4, 5, category=NETWORK) + calls(50, 200)

    played = one(record, breaker={"failure_threshold": 3, "min_backoff": 100, "jitter": 0})

    assert (played.calls, played.circuit, played.spared, played.lost) == (8, 4, 3, 1)
    assert (played.failed, played.succeeded, played.failing) == (3, 1, 3.0)


def test_a_failed_probe_opens_the_circuit_for_longer() -> None:
    # Opens at 2 for 10 s, to 12; the probe at 12 fails at 13: 20 s, to 33. Asked at 20: refused; at 40: passes.
    record = calls(0, 1, 12, 20, category=NETWORK) + calls(40)

    played = one(record, breaker={"failure_threshold": 2, "min_backoff": 10, "jitter": 0})

    assert (played.circuit, played.failed, played.succeeded) == (1, 3, 1)


def test_a_rate_makes_calls_wait_as_long_as_they_may_and_refuses_the_rest() -> None:
    # One token at 0, then one each second: the others wait 1, 2, 3 s; the last would wait 4 s, more than 3.
    played = one(calls(0, 0, 0, 0, 0, seconds=0.1), rate={"per_second": 1, "burst": 1}, max_wait=3)

    assert (played.succeeded, played.rate, played.lost) == (4, 1, 1)
    assert (played.waiting, round(played.longest_wait, 3)) == (4, 3.0)
    assert round(played.waited, 3) == 1 + 2 + 3 + 3  # the refused one waited for its turn as well


def test_without_patience_a_rate_refuses_at_once() -> None:
    played = one(calls(0, 0, 0, 1.5), rate={"per_second": 1, "burst": 1}, max_wait=0)

    assert (played.succeeded, played.rate, played.waited) == (2, 2, 0.0)


def test_at_most_so_many_run_at_once_and_the_rest_wait_in_order() -> None:
    # Two at once for 2 s each: the third and fourth wait 2 s, the fifth 4 s.
    played = one(calls(0, 0, 0, 0, 0, seconds=2.0), concurrency=2)

    assert (played.succeeded, played.concurrency) == (5, 0)
    assert (played.waiting, played.waited, played.longest_wait) == (3, 8.0, 4.0)


def test_who_waits_longer_than_allowed_for_a_slot_is_refused() -> None:
    played = one(calls(0, 0, seconds=10.0), concurrency=1, max_wait=4)

    assert (played.succeeded, played.concurrency, played.longest_wait) == (1, 1, 4.0)


def test_calls_one_after_the_other_never_wait_for_a_slot() -> None:
    record = [Call("t", "r", 1_700_000_000 + number * 457 / 1000, (Attempt(0.457),)) for number in range(200)]

    played = one(record, concurrency=1)

    assert (played.succeeded, played.waiting) == (200, 0)


def test_the_same_failing_call_of_a_run_is_refused_as_a_loop() -> None:
    record = calls(0, 2, 4, 6, 8, category=NETWORK) + calls(9, 10, 11, category=NETWORK, run="another")

    played = one(record, loop={"repeats": 3, "window": 8})

    assert (played.loop, played.failed, played.spared) == (2, 6, 2)


def test_a_timeout_cuts_what_takes_longer() -> None:
    record = calls(0, seconds=1) + calls(10, seconds=9) + calls(20, seconds=30, category=NETWORK)

    played = one(record, timeout=5)

    assert (played.succeeded, played.failed, played.timed_out, played.lost) == (1, 2, 2, 1)
    assert played.failing == 10.0


def test_a_deadline_covers_the_wait_in_line() -> None:
    # The second waits 4 s for the slot, and has 2 s left for its 4.
    played = one(calls(0, 0, seconds=4.0), concurrency=1, deadline=6, max_wait=60)

    assert (played.succeeded, played.timed_out, played.failing) == (1, 1, 2.0)


def test_a_repeat_that_is_refused_leaves_the_failure() -> None:
    record = [Call("t", "r", 0.0, (Attempt(1.0, NETWORK, 1.0), Attempt(1.0)))]

    played = one(record, breaker={"failure_threshold": 1})

    assert (played.failed, played.retries_refused, played.lost, played.refused) == (1, 1, 1, 0)


def test_an_adaptive_rate_learns_from_refusals_on_record() -> None:
    # The refusal at 1 halves the rate and asks for 10 s: what is asked at 2 cannot wait that long.
    record = [Call("t", "r", 0.0, (Attempt(1.0, LIMITED, 10.0), Attempt(1.0))), *calls(2.0)]

    played = one(record, rate={"per_second": 100, "burst": 100, "adaptive": True})

    assert (played.rate, played.lost) == (1, 1)


def test_what_is_unknown_is_counted_apart_and_tells_the_guards_nothing() -> None:
    unknown = [Call("t", "r", float(at), refused=True) for at in range(5)]

    let_through = one(unknown, breaker={"failure_threshold": 1})
    refused = one(calls(0, seconds=0, category=NETWORK) + unknown, breaker={"failure_threshold": 1, "min_backoff": 60})

    assert (let_through.unknown, let_through.failed, let_through.refused) == (5, 0, 0)
    assert (refused.circuit, refused.refused_unknown, refused.spared, refused.lost) == (5, 5, 0, 0)


def test_under_the_policies_of_then_the_calls_go_as_they_went(memory: Holdfast, clock: ManualClock) -> None:
    guards = {"breaker": {"failure_threshold": 2, "jitter": 0}, "loop": False, "rate": {"per_second": 1, "burst": 2}}
    outcomes = [0, 1, 1, 1, 0, 0, 1, 0, 0, 0] * 4

    @memory.tool("fetch", **guards)
    def fetch(fails: int) -> None:
        clock.advance(0.25)
        if fails:
            raise ConnectionError("no")

    went: list[str] = []
    with memory.run("session", "prompt"):
        for fails in outcomes:
            clock.advance(1.0)
            try:
                fetch(fails)
                went.append("good")
            except ConnectionError:
                went.append("failed")
            except Denied:
                went.append("refused")

    played = play(read(memory.runs).calls, PolicyBook.load({"tool": {"fetch": guards}}).resolve)["fetch"]

    assert went.count("refused") > 3
    assert (played.succeeded, played.failed) == (went.count("good"), went.count("failed"))
    assert played.refused == played.refused_unknown == went.count("refused")


STEADY = {"jitter": 0.0, "failure_threshold": 3, "min_backoff": 2.0}
LIVE: list[dict[str, object]] = [
    {"breaker": STEADY},
    {"breaker": {"jitter": 0.0, "failure_rate": 0.5, "minimum_calls": 5, "window": 20.0}},
    {"rate": {"per_second": 2, "burst": 3}, "max_wait": 2.0},
    {"rate": {"per_second": 3, "burst": 3, "adaptive": True}, "max_wait": 2.0},
    {"concurrency": 2, "max_wait": 1.0},
    {"breaker": STEADY, "rate": {"per_second": 2, "burst": 3}, "concurrency": 2, "timeout": 1.0, "max_wait": 2.0},
    {"loop": {"repeats": 2, "window": 8}},
]


@pytest.mark.parametrize("policy", LIVE, ids="+".join)
def test_what_is_predicted_is_what_happens_when_the_calls_are_really_made(policy: dict[str, object]) -> None:
    plan = service(150)
    _, record = asyncio.run(made(plan, {}))

    ends, _ = asyncio.run(made(plan, policy))

    played = one(record, **policy)
    guards = {"CircuitOpen": "circuit", "RateLimited": "rate", "ConcurrencyFull": "concurrency", "LoopDetected": "loop"}
    predicted = {kind: getattr(played, name) for kind, name in guards.items()}
    assert ends == Counter({**predicted, "good": played.succeeded, "failed": played.failed})
    assert ends.total() == 150


def service(length: int) -> list[tuple[float, int, float, type[Exception] | None]]:
    """When calls come, with which argument, how long they take and how they fail: by turns it is well and down."""
    chance, at, plan = Random(1), 0.0, []
    for number in range(length):
        at += round(chance.expovariate(3.0), 3)
        down = number // 15 % 2
        error = ConnectionError if chance.random() < 0.9 * down else chance.choice([None] * 9 + [TooMany])
        plan.append((at, chance.randint(0, 30), round(chance.choice([0.05, 0.3, 0.9, 2.5]) + at % 0.01, 3), error))
    return plan


async def made(
    plan: list[tuple[float, int, float, type[Exception] | None]], policy: dict[str, object]
) -> tuple[Counter[str], list[Call]]:
    """How the calls of *plan* end under *policy*, and what is on record of them."""
    clock, turn = ManualClock(), ContextVar[int]("turn")
    async with holdfast.open(":memory:", clock=clock, policies={"policy": {**OFF, **policy}}) as hf, hf.run():

        @hf.tool("t")
        async def tool(what: int) -> None:
            _, _, seconds, error = plan[turn.get()]
            await clock.asleep(seconds)
            if error is not None:
                raise error("no")

        async def call(number: int) -> str:
            turn.set(number)
            await clock.asleep(plan[number][0])
            try:
                await tool(plan[number][1])
            except Denied as refusal:
                return type(refusal).__name__
            except (ConnectionError, TimeoutError, TooMany):
                return "failed"
            return "good"

        ends = await asyncio.gather(*map(call, range(len(plan))))
        return Counter(ends), read(hf.runs).calls


def test_the_tool_whose_successes_a_file_would_lose_comes_first() -> None:
    record = [Call(tool, "r", float(at), (Attempt(5.0),)) for at in range(3) for tool in ("slow", "other")]

    lines = compare(record, PolicyBook.load({"tool": {"slow": {"timeout": 1}}}))

    assert [line.tool for line in lines] == ["slow", "other"]
    assert lines[0].file is not None
    assert (lines[0].recorded.succeeded, lines[0].file.lost, lines[0].defaults.lost) == (3, 3, 0)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 60_000), st.integers(0, 5_000), st.sampled_from([None, NETWORK, LIMITED]), st.booleans()
        ),
        max_size=40,
    ),
    st.sampled_from([0, 1, 30]),
)
@settings(max_examples=60, deadline=None)
def test_every_call_has_exactly_one_end(record: list[Any], max_wait: int) -> None:
    made = [
        Call("t", "r", at / 1000, (Attempt(took / 1000, category),) if known else (), b"same")
        for at, took, category, known in record
    ]
    given = {"breaker": {"failure_threshold": 2}, "loop": {"repeats": 2}, "timeout": 2, "deadline": 4, "concurrency": 2}

    played = play(
        sorted(made, key=lambda call: call.at), policies(**given, max_wait=max_wait, rate={"per_second": 1})
    ).get("t", Played())

    assert played.calls == len(made)
    assert played.succeeded + played.failed + played.unknown + played.refused == len(made)
    assert played.succeeded + played.lost == sum(call.known and not call.failed for call in made)
    assert played.refused == 0 or played.spared + played.refused_unknown <= played.refused


def test_the_calls_of_real_agents_meet_the_loop_guard_alone() -> None:
    status = {"ok": (Attempt(1.0),), "error": (Attempt(1.0, ErrorCategory.INVALID_PARAMETERS),)}
    with gzip.open(DATA, "rt") as lines:
        record = [
            Call(
                each["tool"],
                each["source"] + each["run"],
                float(number * 2),
                status.get(each["status"], ()),
                json.dumps(each["arguments"], sort_keys=True).encode(),
            )
            for number, each in enumerate(map(json.loads, lines))
        ]

    played = play(record, PolicyBook.load(None).resolve).values()

    assert sum(each.calls for each in played) == len(record) == 3872
    assert sum(each.circuit + each.rate + each.concurrency + each.timed_out for each in played) == 0
    assert sum(each.succeeded + each.failed + each.unknown + each.loop for each in played) == len(record)


# --- what is suggested ---


def suggested(record: list[Call]) -> dict[str, Any]:
    (found,) = suggest(record)
    return {setting.name: setting.value for setting in found.settings}


def test_a_timeout_is_twice_what_nearly_all_successes_took() -> None:
    record = [Call("t", "r", at * 100.0, (Attempt(0.1 * at),)) for at in range(1, 101)]  # 0.1 s to 10 s

    assert suggested(record)["timeout"] == 20.0  # 9.9 s, twice: 19.8


def test_quick_tools_get_a_timeout_of_a_second() -> None:
    assert suggested(calls(*range(0, 3000, 100), seconds=0.01))["timeout"] == 1.0


def test_a_rate_is_the_highest_that_was_not_refused() -> None:
    # 2 calls a second pass; a fourth within a second is refused.
    spaced = [number / 2 for number in range(60)]
    record = calls(*spaced, seconds=0.1) + calls(100, 100.1, 100.2, seconds=0.1)
    record += calls(100.3, seconds=0.1, category=LIMITED)

    rate = suggested(record)["rate"]

    assert rate == {"per_second": 3.0, "burst": 3, "adaptive": True}


def test_refusals_that_have_nothing_to_do_with_the_rate_suggest_none() -> None:
    # As many calls in any time, and every tenth is refused.
    record = [Call("t", "r", at * 2.0, (Attempt(0.1, LIMITED if at % 10 == 0 else None),)) for at in range(300)]

    assert suggested(record)["rate"] is None


def test_a_suggestion_says_what_it_would_make_of_the_record() -> None:
    # 99 of 100 take a second, one takes nine: that is lost to a timeout of two.
    (found,) = suggest(calls(*range(0, 1980, 20)) + calls(2000, seconds=9.0))

    assert (found.lost, found.spared) == (1, 0)


def test_a_suggestion_says_what_the_backtest_of_its_file_says() -> None:
    # The same call fails again and again, with so many others between that no loop guard sees it twice.
    failing = calls(*range(0, 400, 10), category=ErrorCategory.RESOURCE_NOT_FOUND)
    others = [Call("other", "r", ten * 10 + at, (Attempt(0.1),), b"") for ten in range(40) for at in range(1, 9)]
    record = sorted(failing + others, key=lambda call: call.at)

    found = suggest(record)
    lines = compare(record, PolicyBook.load(tomllib.loads(as_toml(found))))

    played = {line.tool: (line.file.lost, line.file.spared) for line in lines if line.file is not None}
    assert {each.tool: (each.lost, each.spared) for each in found} == played == {"t": (0, 0), "other": (0, 0)}


def test_without_a_refusal_there_is_no_rate() -> None:
    assert suggested(calls(*range(40)))["rate"] is None


def test_a_threshold_is_one_more_than_what_passed_by_itself() -> None:
    blip = calls(100, 100.5, 101, 101.5, seconds=0.1, category=NETWORK) + calls(102, seconds=0.1)
    outage = calls(*range(200, 220), seconds=0.1, category=NETWORK) + calls(230)

    assert suggested(calls(*range(30)) + blip + outage)["breaker.failure_threshold"] == 5


def test_an_outage_suggests_no_threshold() -> None:
    outage = calls(*range(200, 220), seconds=0.1, category=NETWORK) + calls(230)

    assert suggested(calls(*range(30)) + outage)["breaker.failure_threshold"] is None


def test_concurrency_is_twice_what_was_seen_and_nothing_where_calls_never_met() -> None:
    assert suggested(calls(*[float(at // 3 * 10) for at in range(30)]))["concurrency"] == 6
    assert suggested(calls(*range(0, 60, 2)))["concurrency"] is None


def test_a_tool_with_too_few_calls_gets_nothing() -> None:
    (found,) = suggest(calls(*range(ENOUGH - 1)))

    assert (found.calls, found.settings) == (ENOUGH - 1, [])
    assert tomllib.loads(as_toml([found])) == {}
    assert f"t: {ENOUGH - 1}" in as_toml([found])


@given(st.text(min_size=1, max_size=20).filter(lambda name: not set(name) & set("*?[")))
@settings(max_examples=60, deadline=None)
def test_what_is_suggested_is_a_good_policy_file_for_any_name(name: str) -> None:
    record = [Call(name, "r", at / 10, (Attempt(0.5, LIMITED if at % 10 == 9 else None),)) for at in range(60)]

    text = as_toml(suggest(record), ["of a\nstore"])
    policy = PolicyBook.load(tomllib.loads(text)).resolve(name)

    assert (policy.timeout, policy.retry, policy.read_only, policy.idempotent) == (1.0, None, False, False)
    assert policy.rate is not None
    assert policy.concurrency is not None


def test_a_name_that_would_be_a_pattern_is_only_a_comment() -> None:
    record = [Call("all*", "r", float(at), (Attempt(0.5),)) for at in range(ENOUGH)]

    assert tomllib.loads(as_toml(suggest(record))) == {}


def test_a_suggested_file_loses_no_success_that_is_on_record() -> None:
    record = calls(*[at / 2 for at in range(200)], seconds=1.2) + calls(40.1, 60.1, category=NETWORK, seconds=0.2)
    record.sort(key=lambda call: call.at)

    book = PolicyBook.load(tomllib.loads(as_toml(suggest(record))))

    (line,) = compare(record, book)
    assert line.file is not None
    assert (line.file.lost, line.file.refused, line.file.succeeded) == (0, 0, 200)
