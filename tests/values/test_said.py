"""Where the log says exactly what a call gave, no memo is kept beside it; and a resumed run knows all the same."""

# ruff: noqa: PT012 (what leaves the block of a run is what is tested, so the block is within `raises`)

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.runs.durable import of, stopped
from tests.stores import kinds as store_kinds

from holdfast import Holdfast, InDoubt
from holdfast.clock import SystemClock
from holdfast.policy import PolicyBook
from holdfast.stores import MemoryRunStore, RunStore
from holdfast.stores.ledger import Ledger
from holdfast.testing import Script, ok
from holdfast.values.redaction import Payloads
from holdfast.values.said import SAID, known, load_said


def holdfast_on(store: RunStore) -> Holdfast:
    return Holdfast(PolicyBook.load({}), SystemClock(), store)


@pytest.fixture(params=store_kinds.KINDS)
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    with holdfast_on(store_kinds.opener(request.param, tmp_path)()) as hf:
        yield hf


def kept(hf: Holdfast, run_id: str) -> list[tuple[str, bytes]]:
    """The name and the first byte of each memo that was kept of a run."""
    hf.runs.writer.flush()
    ((key, *_),) = hf.runs.file.fetch("remembered", run_id)
    return [(name, bytes(memo)[:1]) for _, name, memo in hf.runs.file.fetch("memos", key)]


def script_of(hf: Holdfast, *results: object, name: str = "fetch", **policy: Any) -> tuple[Script, Callable[..., Any]]:
    script = Script(*(ok(result) for result in results), name=name)
    return script, hf.tool(name, **policy)(script.function)


# --- when ---


def test_a_plain_result_is_in_its_event_alone(hf: Holdfast) -> None:
    script, fetch = script_of(hf, {"b": [1, 2.5, None], "a": "ä"})
    run_id = stopped(hf, lambda: fetch("x"))

    (started,), (ended,) = of(hf, run_id, "tool_started"), of(hf, run_id, "tool_ended")
    assert kept(hf, run_id) == []
    assert ended.payload["key"] == started.payload["key"]
    with hf.resume(run_id):
        answer = fetch("x")
    assert json.dumps(answer) == json.dumps({"b": [1, 2.5, None], "a": "ä"})
    assert script.count == 1


def test_a_step_too(hf: Holdfast) -> None:
    calls: list[int] = []

    def double(value: int) -> list[int]:
        calls.append(value)
        return [2 * value]

    with pytest.raises(KeyboardInterrupt), hf.run() as run:
        run.step("double", double, 2)
        raise KeyboardInterrupt

    assert kept(hf, run.id) == []
    with hf.resume(run.id) as again:
        assert again.step("double", double, 2) == [4]
    assert calls == [2]


@pytest.mark.parametrize(
    "result",
    [
        pytest.param((1, 2), id="a tuple"),
        pytest.param({1: "one"}, id="a number for a key"),
        pytest.param(b"bytes", id="bytes"),
        pytest.param({"password": "hunter2"}, id="redacted"),
        pytest.param("x" * 20_000, id="cut"),
        pytest.param(math.inf, id="no number of JSON"),
        pytest.param({"a", "b"}, id="a set"),
        pytest.param("\ud800", id="half a character"),
    ],
)
def test_a_result_that_its_event_does_not_say_exactly_is_kept(result: object) -> None:
    with holdfast_on(MemoryRunStore()) as hf:
        script, fetch = script_of(hf, result)
        run_id = stopped(hf, lambda: fetch("x"))

        assert [name for name, _ in kept(hf, run_id)] == ["fetch"]
        assert "key" not in of(hf, run_id, "tool_ended")[0].payload
        with hf.resume(run_id):
            answer = fetch("x")
        assert (type(answer), answer) == (type(result), result)
        assert script.count == 1


def test_a_redactor_of_the_users_own_decides_what_is_shown_and_not_what_is_given_back() -> None:
    store = MemoryRunStore()
    store.payloads = Payloads(lambda value: value)
    with holdfast_on(store) as hf:
        _, fetch = script_of(hf, "plain")
        run_id = stopped(hf, lambda: fetch("x"))

        assert [name for name, _ in kept(hf, run_id)] == ["fetch"]


def test_nothing_is_kept_of_a_run_that_was_only_noted() -> None:
    with holdfast_on(MemoryRunStore()) as hf:
        _, fetch = script_of(hf, (1, 2))
        with hf.note() as run:
            fetch("x")

            assert kept(hf, run.id) == []


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner)
        | st.dictionaries(st.text(), inner)
        | st.dictionaries(st.integers() | st.booleans(), inner)
    ),
    max_leaves=10,
)


@given(values)
def test_what_is_said_is_the_very_same_value(value: object) -> None:
    shown, is_all = Payloads().said(value)

    if is_all:
        back = load_said(SAID + bytes(shown))
        assert repr(back) == repr(value)
    else:
        assert bytes(shown) == bytes(Payloads().shown(value))


# --- who else must know ---


def test_a_fork_knows_what_only_the_events_of_the_first_say(hf: Holdfast) -> None:
    script, fetch = script_of(hf, [1], (2,))
    with pytest.raises(ValueError, match="broken"), hf.run() as run:
        fetch("said")
        fetch("kept")
        raise ValueError("broken")

    with hf.resume(run.id) as fork:
        answers = [fetch("said"), fetch("kept")]

    assert fork.forked_from == run.id
    assert answers == [[1], (2,)]
    assert script.count == 2


def test_a_failed_run_whose_events_were_pruned_can_still_be_forked(hf: Holdfast) -> None:
    script, fetch = script_of(hf, *range(20))
    with pytest.raises(ValueError, match="broken"), hf.run() as run:
        for each in range(20):
            fetch(each)
        raise ValueError("broken")
    assert hf.runs.prune(max_events=5)[1] > 30

    with hf.resume(run.id):
        answers = [fetch(each) for each in range(20)]

    assert answers == list(range(20))
    assert script.count == 20


def test_a_completed_run_whose_events_are_pruned_leaves_no_memo(hf: Holdfast) -> None:
    _, fetch = script_of(hf, *range(20))
    with hf.run() as run:
        for each in range(20):
            fetch(each)

    hf.runs.prune(max_events=5)

    assert kept(hf, run.id) == []


def test_a_memo_counts_for_more_than_an_event(hf: Holdfast) -> None:
    """A call that was in doubt has a memo; what somebody answers for it must take the memo's place."""
    script, pay = script_of(hf, "paid", name="pay")
    run_id = stopped(hf, lambda: pay("x"))
    (ended,) = of(hf, run_id, "tool_ended")
    hf.runs.writer.commit(
        lambda ledger: ledger.remember(ledger.run(run_id), bytes.fromhex(ended.payload["key"]), "pay", b"")
    )

    with pytest.raises(KeyboardInterrupt), hf.resume(run_id):
        with pytest.raises(InDoubt) as doubt:
            pay("x")
        doubt.value.answer("paid by hand")
        raise KeyboardInterrupt
    with hf.resume(run_id):
        answer = pay("x")

    assert answer == "paid by hand"
    assert script.count == 1


def test_a_call_that_got_the_number_of_one_with_a_memo_takes_its_place(hf: Holdfast) -> None:
    with hf.run() as run:
        steps = run.steps
        step = steps.step("work", b"x")
        step.take()
        key = bytes.fromhex(step.key)
        step.give_back()
        late = steps.step("work", b"x")
        memory = hf.runs.memory(run.id)
        steps.recall(memory._replace(memos=[(key, "work", b"")]))

        late.end({"status": "success", "result": msgspec.Raw(b"1")}, SAID)

        assert kept(hf, run.id) == [("work", SAID)]


def test_an_answer_from_the_cache_counts_for_no_call_when_the_run_is_resumed(hf: Holdfast) -> None:
    _, fetch = script_of(hf, [1], read_only=True, cache={"ttl": 60})
    _, other = script_of(hf, [2], name="other")
    fetch("x")
    run_id = stopped(hf, lambda: fetch("x"), budget={"calls": 1})
    assert kept(hf, run_id) == []

    with hf.resume(run_id):
        answers = [fetch("x"), other("y")]

    assert answers == [[1], [2]]
    assert hf.runs.snapshot(run_id).cached_hits == 1


def test_a_fork_knows_what_is_being_written(hf: Holdfast) -> None:
    hf.runs.create_run("s", "p", run_id="a")

    def fork(ledger: Ledger) -> None:
        live = ledger.run("a")
        ledger.say(live, "step_ended", key="ab" * 16, name="work", result=1)
        ledger.copy_memos(live, ledger.add(hf.runs.header("s", "p", "b")))

    hf.runs.writer.commit(fork)

    assert hf.runs.memory("b").memos == [(b"\xab" * 16, "work", b"cj1")]


def test_a_fork_knows_nothing_of_other_runs_that_are_being_written(hf: Holdfast) -> None:
    for run_id in ("a", "other"):
        hf.runs.create_run("s", "p", run_id=run_id)

    def fork(ledger: Ledger) -> None:
        ledger.say(ledger.run("other"), "step_ended", key="ab" * 16, name="work", result=1)
        ledger.copy_memos(ledger.run("a"), ledger.add(hf.runs.header("s", "p", "b")))

    hf.runs.writer.commit(fork)

    assert hf.runs.memory("b").memos == []


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"key": 5, "result": 1},
        {"key": "no digits", "result": 1},
        {"key": "ab"},
        {"key": "ab", "result": 1, "tool": 7},
    ],
    ids=["nothing", "a number", "no digits", "no result", "no name"],
)
def test_an_event_of_the_users_own_that_only_looks_like_one_says_nothing(payload: dict[str, object]) -> None:
    assert known([json.dumps(payload)], []) == []


def test_of_several_events_for_one_call_the_last_counts_and_a_memo_before_all() -> None:
    said = [
        json.dumps({"key": key, "name": "a", "result": result}) for key, result in [("aa", 1), ("aa", 2), ("bb", 3)]
    ]

    assert known(said, [(b"\xbb", "a", b"memo")]) == [(b"\xaa", "a", b"cj2"), (b"\xbb", "a", b"memo")]
