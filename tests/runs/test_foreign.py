"""Runs that were imported: their calls are known again by what their events show, and nobody believes more of these."""

# ruff: noqa: PT012 (what leaves the block of a run is what is tested, so the block is within `raises`)

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from tests.runs import durable
from tests.runs.durable import Killed, Place, of, stopped

from holdfast import Holdfast, InDoubt, Run, RunConflict, StoreError
from holdfast.policy import PolicyBook
from holdfast.stores import MemoryRunStore
from holdfast.stores.ledger import Ledger
from holdfast.testing import ManualClock, Script, Step, fail, ok

memory = durable.memory


@pytest.fixture
def two(clock: ManualClock) -> Iterator[tuple[Holdfast, Holdfast]]:
    first, second = (Holdfast(PolicyBook.load({}), clock, MemoryRunStore(clock=clock)) for _ in range(2))
    with first, second:
        yield first, second


def scripted(hf: Holdfast, *steps: Step, **policy: Any) -> tuple[Script, Callable[..., Any]]:
    script = Script(*steps, name="pay")
    return script, hf.tool(**policy)(script.function)


def run_of(hf: Holdfast) -> Run:
    assert hf.current_run is not None
    return hf.current_run


def move(first: Holdfast, second: Holdfast, *run_ids: str) -> None:
    file = io.StringIO()
    first.runs.export(file, run_ids or None)
    second.runs.import_(io.StringIO(file.getvalue()))


def test_what_the_events_of_an_imported_run_say_is_not_believed(two: tuple[Holdfast, Holdfast]) -> None:
    first, second = two
    _, pay = scripted(first, ok("paid"))
    run_id = stopped(first, lambda: pay("x"))
    move(first, second)
    script, pay = scripted(second, ok("paid again"))

    with pytest.raises(InDoubt), second.resume(run_id):
        pay("x")

    assert script.count == 0


@pytest.mark.parametrize("end", [KeyboardInterrupt, ValueError], ids=["resumed", "forked"])
def test_an_imported_event_that_somebody_made_up_gives_no_result(
    two: tuple[Holdfast, Holdfast], end: type[BaseException]
) -> None:
    first, second = two
    with pytest.raises(end), first.run() as run:
        first.runs.record_event(run.id, "tool_ended", {"key": "ab" * 16, "tool": "pay", "result": "made up"})
        raise end
    move(first, second)
    script, pay = scripted(second, ok("paid"))

    with second.resume(run.id):
        answer = pay("x")

    assert answer == "paid"
    assert script.count == 1


def test_what_an_imported_run_does_here_is_known_when_it_is_resumed_again(two: tuple[Holdfast, Holdfast]) -> None:
    first, second = two
    run_id = stopped(first, lambda: None)
    move(first, second)
    script, pay = scripted(second, ok("paid"))
    with pytest.raises(KeyboardInterrupt), second.resume(run_id):
        pay("x")
        raise KeyboardInterrupt

    with second.resume(run_id):
        answer = pay("x")

    assert answer == "paid"
    assert script.count == 1


def paying(hf: Holdfast, made: list[Any]) -> Callable[[Any], Any]:
    """A tool that is answered, where it is in doubt, with the key that it was called with."""

    @hf.tool
    def pay(what: Any) -> str:
        made.append(what)
        return f"{what} paid with {run_of(hf).idempotency_key}"

    def safely(what: Any) -> Any:
        try:
            return pay(what)
        except InDoubt as doubt:
            return doubt.answer(f"{what} paid with {doubt.key}")

    return safely


def interrupted(hf: Holdfast, run_id: str, body: Callable[[], Any]) -> Any:
    answer = None
    with pytest.raises(KeyboardInterrupt), hf.resume(run_id):
        answer = body()
        raise KeyboardInterrupt
    return answer


def test_the_calls_of_an_imported_run_keep_their_results_however_often_it_is_interrupted(
    two: tuple[Holdfast, Holdfast],
) -> None:
    first, second = two
    made: list[Any] = []
    pay = paying(first, made)
    run_id = stopped(first, lambda: pay(1))
    move(first, second)
    pay = paying(second, made)
    before = interrupted(second, run_id, lambda: [pay(number) for number in range(1, 9)])

    with second.resume(run_id) as run:
        after = [pay(number) for number in range(1, 9)]

    assert after == before
    assert made == [1, 2, 3, 4, 5, 6, 7, 8]
    assert of(second, run.id, "run_diverged") == []


@pytest.mark.parametrize("end", [KeyboardInterrupt, ValueError], ids=["resumed", "forked"])
def test_a_call_of_an_imported_run_has_the_key_that_it_was_called_with(
    two: tuple[Holdfast, Holdfast], end: type[BaseException]
) -> None:
    first, second = two
    pay = paying(first, [])
    with pytest.raises(end), first.run() as run:
        before = [pay(["tea", number]) for number in range(8)]
        raise end
    move(first, second)
    pay = paying(second, [])

    with second.resume(run.id):
        after = [pay(["tea", number]) for number in reversed(range(8))]

    assert after == before[::-1]


def test_an_imported_call_whose_arguments_were_not_shown_is_in_doubt_once(two: tuple[Holdfast, Holdfast]) -> None:
    first, second = two
    made: list[Any] = []
    pay = paying(first, made)
    run_id = stopped(first, lambda: pay({"password": "tea"}))
    move(first, second)
    pay = paying(second, made)
    before = interrupted(second, run_id, lambda: [pay({"password": "tea"}), pay({"password": "rum"})])

    with second.resume(run_id):
        after = [pay({"password": "rum"}), pay({"password": "tea"})]

    assert after == before[::-1]
    assert made == [{"password": "tea"}, {"password": "rum"}]


def test_a_call_that_another_of_an_imported_run_was_taken_for_is_in_doubt_too(two: tuple[Holdfast, Holdfast]) -> None:
    first, second = two
    run_id = stopped(first, lambda: scripted(first, ok("paid"))[1](1))
    move(first, second)
    script, pay = scripted(second, ok("paid again"))

    with pytest.raises(InDoubt) as doubt, second.resume(run_id):
        with pytest.raises(InDoubt) as another:
            pay(2)
        pay(1)

    assert doubt.value.key != another.value.key
    assert script.count == 0


@pytest.mark.parametrize("step", [fail(KeyboardInterrupt()), ok("paid before")], ids=["cut off", "finished"])
def test_a_call_that_an_imported_run_makes_here_is_taken_for_no_other(
    two: tuple[Holdfast, Holdfast], step: Step
) -> None:
    first, second = two
    run_id = stopped(first, lambda: None)
    move(first, second)
    _, pay = scripted(second, step, ok("paid"))
    interrupted(second, run_id, lambda: pay(1))

    with second.resume(run_id):
        answer = pay(2)

    assert answer == "paid"


def test_a_call_that_an_imported_run_makes_here_and_is_cut_off_is_in_doubt(two: tuple[Holdfast, Holdfast]) -> None:
    first, second = two
    run_id = stopped(first, lambda: None)
    move(first, second)
    script, pay = scripted(second, fail(KeyboardInterrupt()))
    interrupted(second, run_id, lambda: pay(1))

    with second.resume(run_id), pytest.raises(InDoubt):
        pay(1)

    assert script.count == 1


def test_a_call_of_an_imported_run_that_was_stopped_before_the_tool_is_not_in_doubt(
    two: tuple[Holdfast, Holdfast],
) -> None:
    first, second = two
    run_id = stopped(first, lambda: None)
    move(first, second)
    script, pay = scripted(second, ok("paid"))
    settle = second.runs.writer.settle

    def cut_off(pending: Any, **more: Any) -> None:
        second.runs.writer.settle = settle  # type: ignore[method-assign]
        settle(pending, **more)
        raise KeyboardInterrupt

    def work() -> None:
        second.runs.writer.settle = cut_off  # type: ignore[method-assign]
        pay(1)

    interrupted(second, run_id, work)

    with second.resume(run_id):
        answer = pay(1)

    assert (answer, script.count) == ("paid", 1)


def test_a_call_that_an_imported_run_makes_here_and_is_cut_off_is_no_divergence(two: tuple[Holdfast, Holdfast]) -> None:
    first, second = two
    run_id = stopped(first, lambda: None)
    move(first, second)
    _, pay = scripted(second, fail(KeyboardInterrupt()))
    interrupted(second, run_id, lambda: pay(1))

    with second.resume(run_id, diverged="raise"):
        pass

    assert second.runs.snapshot(run_id).status == "completed"


def test_a_call_of_an_imported_run_that_its_process_did_not_survive_is_taken_for_no_other(
    two: tuple[Holdfast, Holdfast], memory: Place
) -> None:
    first, _ = two
    run_id = stopped(first, lambda: None)
    second = memory.open()
    move(first, second)
    pay = second.tool("pay")(lambda number: memory.die(second))
    with pytest.raises(Killed), second.resume(run_id):
        pay(1)
    third = memory.open()
    _, pay = scripted(third, ok("paid"))

    with third.resume(run_id):
        answer = pay(2)

    assert answer == "paid"


def test_imported_calls_whose_arguments_were_not_shown_are_in_doubt_one_after_the_other(
    two: tuple[Holdfast, Holdfast],
) -> None:
    first, second = two
    secrets = [{"password": word} for word in ("tea", "rum", "ale")]
    pay = paying(first, [])
    run_id = stopped(first, lambda: [pay(secret) for secret in secrets])
    keys = [event.payload["key"] for event in of(first, run_id, "tool_started")]
    move(first, second)
    pay = paying(second, [])

    with second.resume(run_id):
        answers = [pay(secret) for secret in secrets]

    assert answers == [f"{secret} paid with {key}" for secret, key in zip(secrets, keys, strict=True)]


def test_calls_within_those_of_an_imported_run_have_the_keys_that_they_were_called_with(
    two: tuple[Holdfast, Holdfast],
) -> None:
    first, second = two

    def agent(hf: Holdfast, numbers: list[int]) -> Any:
        pay = paying(hf, [])
        return hf.tool("outer", idempotent=True)(lambda: [pay(number) for number in numbers])()

    before: list[str] = []
    run_id = stopped(first, lambda: before.extend(agent(first, [1, 2, 3])))
    move(first, second)

    with second.resume(run_id):
        after = agent(second, [3, 2, 1])

    assert after == before[::-1]


def test_steps_of_an_imported_run_are_made_again_with_the_keys_that_they_had(two: tuple[Holdfast, Holdfast]) -> None:
    first, second = two

    def agent(hf: Holdfast, arguments: list[tuple[int, ...]]) -> None:
        for each in arguments:
            run_of(hf).step("think", lambda *_: None, *each)

    run_id = stopped(first, lambda: agent(first, [(1,), (), (2,)]))
    move(first, second)

    with second.resume(run_id):
        agent(second, [(), (2,), (1,)])

    keys = [event.payload["key"] for event in of(second, run_id, "step_started")]
    assert keys[3:] == [keys[1], keys[2], keys[0]]


def test_steps_within_an_imported_call_that_is_answered_count_for_no_call(two: tuple[Holdfast, Holdfast]) -> None:
    first, second = two
    pay = first.tool("pay")(lambda number: [run_of(first).step("think", lambda: 1) for _ in range(2)])
    run_id = stopped(first, lambda: pay(1), budget={"calls": 2})
    move(first, second)
    _, pay = scripted(second, ok(2))

    def answered() -> None:
        with pytest.raises(InDoubt) as doubt:
            pay(number=1)
        doubt.value.answer(1)

    interrupted(second, run_id, answered)
    with second.resume(run_id):
        answers = [pay(number=1), pay(number=2)]

    assert answers == [1, 2]


def test_a_call_that_was_repeated_before_the_import_is_one(two: tuple[Holdfast, Holdfast]) -> None:
    first, second = two
    _, pay = scripted(first, *[fail(KeyboardInterrupt)] * 10, ok(1), idempotent=True)
    run_id = stopped(first, lambda: None)
    for _ in range(10):
        interrupted(first, run_id, pay)
    interrupted(first, run_id, lambda: [pay(), pay()])
    keys = dict.fromkeys(event.payload["key"] for event in of(first, run_id, "tool_started"))
    move(first, second)
    script, pay = scripted(second, ok(2))

    with second.resume(run_id):
        for key in keys:
            with pytest.raises(InDoubt) as doubt:
                pay()
            assert doubt.value.key == key
            doubt.value.answer(1)

    assert len(keys) == 2
    assert script.count == 0


def test_what_a_fork_knew_before_the_import_is_in_doubt(two: tuple[Holdfast, Holdfast]) -> None:
    first, second = two
    pay = paying(first, [])
    with pytest.raises(ValueError, match="lost"), first.run() as run:
        before = [pay(1), pay(2)]
        raise ValueError("lost")
    before += interrupted(first, run.id, lambda: [pay(3), pay(4)])
    move(first, second)
    made: list[Any] = []
    pay = paying(second, made)

    with second.resume(run.id):
        after = [pay(number) for number in (4, 3, 2, 1)]

    assert after == before[::-1]
    assert made == []


def test_an_imported_fork_counts_each_call_that_it_makes_once(two: tuple[Holdfast, Holdfast]) -> None:
    first, second = two
    _, pay = scripted(first, ok(1), idempotent=True)
    with pytest.raises(ValueError, match="lost"), first.run() as run:
        pay(1)
        raise ValueError("lost")
    interrupted(first, run.id, lambda: pay(2))
    move(first, second)
    _, pay = scripted(second, ok(1), idempotent=True)

    with second.resume(run.id) as fork:
        pay(1), pay(2)

    assert second.runs.snapshot(fork.id).tool_calls == 2


def failed_there(first: Holdfast, second: Holdfast) -> str:
    """The id of a run of the first that has paid and failed, and that the second has imported."""
    with pytest.raises(ValueError, match="lost"), first.run() as run:
        paying(first, [])(1)
        raise ValueError("lost")
    move(first, second)
    return run.id


def test_a_fork_of_an_imported_run_knows_what_that_knew_when_that_is_gone(two: tuple[Holdfast, Holdfast]) -> None:
    first, second = two
    failed = failed_there(first, second)
    made: list[Any] = []
    pay = paying(second, made)
    before = interrupted(second, failed, lambda: [pay(1), pay(2)])
    second.runs.prune(max_runs=0)

    (fork,) = second.runs.list_runs()
    with second.resume(fork.id):
        after = [pay(1), pay(2)]

    assert after == before
    assert made == [2]


def forked(hf: Holdfast, *, end: type[BaseException] = KeyboardInterrupt) -> tuple[str, str]:
    """A run that has made a call and failed, and its fork, which has made another and left with *end*."""
    pay = paying(hf, [])
    with pytest.raises(ValueError, match="lost"), hf.run() as run:
        pay(1)
        raise ValueError("lost")
    with pytest.raises(end), hf.resume(run.id) as fork:
        pay(2)
        raise end
    return run.id, fork.id


@pytest.mark.parametrize("end", [KeyboardInterrupt, ValueError], ids=["resumed", "forked again"])
def test_a_fork_that_was_imported_without_its_original_is_not_resumed(
    two: tuple[Holdfast, Holdfast], end: type[BaseException]
) -> None:
    first, second = two
    original, fork = forked(first, end=end)
    move(first, second, fork)
    before = second.runs.events(fork)

    with pytest.raises(RunConflict, match=f"lacks run '{original}', which it is a fork of"), second.resume(fork):
        pytest.fail("nobody knows what it has paid")

    assert second.runs.events(fork) == before


def test_a_fork_that_was_imported_without_its_original_is_resumed_when_that_has_come(
    two: tuple[Holdfast, Holdfast],
) -> None:
    first, second = two
    _, fork = forked(first)
    move(first, second, fork)
    move(first, second)
    made: list[Any] = []
    pay = paying(second, made)

    with second.resume(fork):
        pay(1), pay(2), pay(3)

    assert made == [3]


def test_an_imported_fork_is_not_resumed_when_its_original_was_pruned_here(two: tuple[Holdfast, Holdfast]) -> None:
    first, second = two
    original, fork = forked(first)
    move(first, second)
    interrupted(second, fork, lambda: None)
    second.runs.prune(max_runs=0)

    with pytest.raises(RunConflict, match=original), second.resume(fork):
        pytest.fail("nobody knows what it has paid")


@pytest.mark.parametrize("pruned", ["before", "after"])
def test_an_imported_fork_is_not_resumed_when_its_original_has_lost_events(
    two: tuple[Holdfast, Holdfast], pruned: str
) -> None:
    first, second = two
    original, fork = forked(first)
    if pruned == "before":
        first.runs.prune(max_events=1)
    move(first, second)
    if pruned == "after":
        second.runs.prune(max_events=1)
    lost = second.runs.event_page(original).first_available

    with pytest.raises(RunConflict, match=f"the first {lost} events of run '{original}'"), second.resume(fork):
        pytest.fail("nobody knows what it has paid")


def test_a_fork_of_an_imported_run_knows_what_that_knew_when_that_has_lost_events(
    two: tuple[Holdfast, Holdfast],
) -> None:
    first, second = two
    failed = failed_there(first, second)
    made: list[Any] = []
    pay = paying(second, made)
    interrupted(second, failed, lambda: None)
    second.runs.prune(max_events=1)

    with second.resume(failed):
        pay(1), pay(2)

    assert made == [2]


def test_a_fork_of_an_imported_fork_knows_what_both_knew_when_they_are_gone(two: tuple[Holdfast, Holdfast]) -> None:
    first, second = two
    _, fork = forked(first, end=ValueError)
    move(first, second)
    made: list[Any] = []
    pay = paying(second, made)
    before = interrupted(second, fork, lambda: [pay(1), pay(2), pay(3)])
    (last,) = (run.id for run in second.runs.list_runs() if run.forked_from == fork)
    second.runs.prune(max_runs=0)

    with second.resume(last):
        after = [pay(1), pay(2), pay(3)]

    assert after == before
    assert made == [3]


def test_a_fork_of_an_imported_fork_that_asked_for_nothing_knows_what_both_knew_when_they_are_gone(
    two: tuple[Holdfast, Holdfast],
) -> None:
    first, second = two
    _, fork = forked(first, end=ValueError)
    move(first, second)
    made: list[Any] = []
    pay = paying(second, made)
    interrupted(second, fork, lambda: None)
    (last,) = (run.id for run in second.runs.list_runs() if run.forked_from == fork)
    second.runs.prune(max_runs=0)

    with second.resume(last):
        pay(1), pay(2), pay(3)

    assert made == [3]


def test_a_call_that_the_original_of_an_imported_fork_never_ended_is_in_doubt_when_that_is_gone(
    two: tuple[Holdfast, Holdfast],
) -> None:
    first, second = two
    (started,) = of(first, stopped(first, partial(paying(first, []), 1)), "tool_started")
    first.runs.create_run("s", "p", run_id="lost")
    first.runs.record_event("lost", "tool_started", started.payload)
    first.runs.mark_failed("lost", "lost")
    interrupted(first, "lost", lambda: None)
    (there,) = (each.id for each in first.runs.list_runs() if each.forked_from == "lost")
    first.runs.mark_failed(there, "lost again")
    move(first, second, "lost", there)
    interrupted(second, there, lambda: None)
    (last,) = (each.id for each in second.runs.list_runs() if each.forked_from == there)
    second.runs.prune(max_runs=0)
    script, pay = scripted(second, ok("paid"))

    with pytest.raises(InDoubt), second.resume(last):
        pay(1)

    assert script.count == 0


def test_what_was_spent_counts_once_when_the_imported_original_is_gone(two: tuple[Holdfast, Holdfast]) -> None:
    first, second = two

    def spend(run: Run) -> None:
        for amount in (1.0, 2.0, 1.0):
            run.spend("usd", amount)

    with pytest.raises(ValueError, match="lost"), first.run() as run:
        spend(run)
        raise ValueError("lost")
    move(first, second)
    interrupted(second, run.id, lambda: None)
    (fork,) = (each.id for each in second.runs.list_runs() if each.forked_from == run.id)
    second.runs.prune(max_runs=0)

    with second.resume(fork) as resumed:
        spend(resumed)
        resumed.spend("usd", 2.0)

    assert second.runs.snapshot(fork).spend == {"usd": 6.0}


def test_imported_runs_that_are_said_to_be_forks_of_each_other_are_resumed_as_they_are(
    two: tuple[Holdfast, Holdfast],
) -> None:
    first, second = two
    for one, other in ("ab", "ba"):
        header = first.runs.header("", "", one, forked_from=other, root=one)
        first.runs.writer.commit(partial(Ledger.add, header=header))
    move(first, second)

    with second.resume("a"):
        answer = paying(second, [])(1)

    assert answer.startswith("1 paid")


MADE_UP = f"{'no digits':x<24}00000000"  # it is as long as a key, and made by nobody


@pytest.mark.parametrize(
    ("type", "payload"),
    [
        ("tool_started", {"call_id": "a", "key": MADE_UP, "tool": "pay", "arguments": {"what": 1}}),
        ("tool_started", {"call_id": "a", "key": 7, "tool": "pay", "arguments": {"what": 1}}),
        ("tool_started", {"call_id": "a", "key": "ab" * 16, "tool": 7, "arguments": {"what": 1}}),
        ("step_started", {"call_id": "a", "key": "ab" * 16, "name": "pay", "parent": "b"}),
        ("spent", {"unit": 7, "amount": 1.0}),
    ],
    ids=["no key", "a number for a key", "no name", "made by nobody", "no unit"],
)
def test_an_imported_event_that_tells_of_no_call_does_not_hinder_the_run(
    two: tuple[Holdfast, Holdfast], type: str, payload: dict[str, object]
) -> None:
    first, second = two
    run_id = stopped(first, lambda: None)
    first.runs.record_event(run_id, type, payload)
    move(first, second)
    made: list[Any] = []
    pay = paying(second, made)
    before = interrupted(second, run_id, lambda: pay(1))

    with second.resume(run_id):
        after = pay(1)

    assert after == before
    assert made == [1]


def test_a_call_of_an_imported_run_that_the_store_did_not_take_leaves_the_keys_of_others_alone(
    two: tuple[Holdfast, Holdfast], clock: ManualClock
) -> None:
    first, _ = two
    run_id = stopped(first, lambda: None)
    is_full = False

    def disk(point: str) -> None:
        if is_full and point == "begin":
            raise StoreError("the disk is full")

    with Holdfast(
        PolicyBook.load({}), clock, MemoryRunStore(clock=clock, crash=disk), survives_store_errors=True
    ) as second:
        move(first, second)
        keys: list[str | None] = []
        pay = second.tool("pay")(lambda: keys.append(run_of(second).idempotency_key))
        with pytest.raises(KeyboardInterrupt), second.resume(run_id):
            is_full = True
            pay()
            is_full = False
            pay()
            raise KeyboardInterrupt

        with second.resume(run_id):
            pay(), pay()  # the first of them is the second of before

    assert len(keys) == len(set(keys)) == 3


def test_what_was_spent_before_the_import_counts_once(two: tuple[Holdfast, Holdfast]) -> None:
    first, second = two
    with pytest.raises(KeyboardInterrupt), first.run() as run:
        run.spend("usd", 1.0)
        run.spend("usd", 1.0)
        raise KeyboardInterrupt
    move(first, second)

    with second.resume(run.id) as again:
        for _ in range(3):
            again.spend("usd", 1.0)

    assert second.runs.snapshot(run.id).spend == {"usd": 3.0}


def test_what_a_call_spent_before_the_import_is_not_taken_for_what_the_run_spends(
    two: tuple[Holdfast, Holdfast],
) -> None:
    first, second = two
    run_id = stopped(first, first.tool("work")(lambda: run_of(first).spend("usd", 1.0)))
    move(first, second)

    with second.resume(run_id) as run:
        run.spend("usd", 1.0)

    assert second.runs.snapshot(run_id).spend == {"usd": 2.0}


def test_what_a_fork_had_spent_already_counts_once_after_an_import(two: tuple[Holdfast, Holdfast]) -> None:
    first, second = two
    with pytest.raises(ValueError, match="lost"), first.run() as run:
        run.spend("usd", 1.0)
        raise ValueError("lost")
    interrupted(first, run.id, lambda: None)
    move(first, second)

    with second.resume(run.id) as fork:
        fork.spend("usd", 1.0)  # as before
        fork.spend("usd", 1.0)

    assert second.runs.snapshot(fork.id).spend == {"usd": 2.0}


def test_what_was_spent_after_the_run_had_ended_counts_when_its_fork_spends_it_after_an_import(
    two: tuple[Holdfast, Holdfast],
) -> None:
    first, second = two
    with first.run() as run:
        run.fail("lost")
        run.spend("usd", 1.0)
    move(first, second)

    with second.resume(run.id) as fork:
        fork.spend("usd", 1.0)

    assert second.runs.snapshot(fork.id).spend == {"usd": 1.0}
