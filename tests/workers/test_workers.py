"""Workers within this process: what becomes of the runs they take, how many at once, and how they stop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.stores.kinds import KINDS, SHARED, Open, opener

import holdfast
from holdfast import ConfigError, Holdfast, InDoubt, LeaseLost
from holdfast.history import RunSnapshot, RunStatus
from holdfast.policy import PolicyBook
from holdfast.runs import running
from holdfast.stores import RunStore, SqliteRunStore, queue
from holdfast.stores.ledger import OwnerRow
from holdfast.stores.store import LEASE
from holdfast.testing import ManualClock
from holdfast.workers import Ended, Worker, WorkerConfig, submit
from holdfast.workers.calling import Slot, begin
from holdfast.workers.lane import Lane

HERE = "tests.workers.test_workers"
PATIENCE = 30.0  # seconds; nothing here takes as long


# --- what is called ---


class Stage:
    """What the functions do, and how far they are."""

    def __init__(self) -> None:
        self.called: list[Any] = []
        self.loops: set[int] = set()
        self.go = threading.Event()
        self.over = threading.Event()
        self.entered = threading.Semaphore(0)
        self.raised: list[BaseException] = []
        self.at_once = threading.Barrier(3)


stage = Stage()


@pytest.fixture(autouse=True)
def new_stage() -> Iterator[None]:
    stage.__init__()  # type: ignore[misc]
    yield
    stage.go.set()


def plain(*args: Any) -> dict[str, Any]:
    stage.called.append(args)
    return {"done": list(args)}


async def coroutine(*args: Any) -> str:
    await asyncio.sleep(0)
    stage.called.append(args)
    stage.loops.add(id(asyncio.get_running_loop()))
    return "done"


def raises() -> None:
    raise ValueError("no luck")


def leaves() -> None:
    raise SystemExit(3)


async def aleaves() -> None:
    raise SystemExit(3)


def is_cancelled() -> None:
    raise asyncio.CancelledError


async def cancels_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


def is_closed() -> None:
    raise GeneratorExit


def gives_a_coroutine() -> object:
    return coroutine()


async def agives_a_coroutine() -> object:
    return coroutine()


async def leaves_behind() -> str:
    async def child() -> None:
        raise SystemExit(4)

    task = asyncio.create_task(child())
    await asyncio.wait([task])
    return "still here"


def is_in_doubt() -> None:
    raise InDoubt("pay", "id", "key", "it may have been made")


async def is_in_doubt_in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.to_thread(is_in_doubt))


def items() -> Iterator[int]:
    yield 1


def together() -> None:
    stage.at_once.wait(PATIENCE)


async def atogether() -> None:
    await asyncio.to_thread(together)


def two_steps() -> str:
    run = running()
    assert run is not None
    run.step("first", lambda: stage.called.append("first"))
    wait()
    run.step("second", lambda: stage.called.append("second"))
    return "both"


def wait() -> None:
    stage.entered.release()
    try:
        assert stage.go.wait(PATIENCE)
    except BaseException as error:
        stage.raised.append(error)
        raise


def waits_then_calls() -> None:
    wait()
    run = running()
    try:
        assert run is not None
        run.step("late", lambda: stage.called.append("late"))
    except BaseException as error:
        stage.raised.append(error)
        stage.over.set()
        raise


def listens() -> None:
    run = running()
    assert run is not None
    stage.entered.release()
    assert run.cancelled.wait(PATIENCE)
    run.check()


def is_cancelled_at_the_end() -> str:
    """Returns when its cancel is on its way to the disk, before anybody here can have heard of it."""
    run = running()
    assert run is not None
    run.log.store.writer.submit(lambda ledger: ledger.cancel(run.id, "enough"))
    return "done"


async def ais_cancelled_at_the_end() -> str:
    return is_cancelled_at_the_end()


async def alistens() -> None:
    stage.entered.release()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError as error:
        stage.raised.append(error)
        raise


# --- workers ---


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


on_shared = pytest.mark.parametrize("kind", sorted(SHARED))  # where there can be another process


@pytest.fixture
def open_one(kind: str, tmp_path: Path) -> Open:
    return opener(kind, tmp_path)


Opens = Callable[[], Holdfast]


@pytest.fixture
def opens(open_one: Open, clock: ManualClock) -> Iterator[Opens]:
    opened: list[Holdfast] = []

    def open() -> Holdfast:
        opened.append(Holdfast(PolicyBook.load({}), clock, open_one(clock=clock)))
        return opened[-1]

    yield open
    stage.go.set()
    for hf in opened:
        hf.close()


@pytest.fixture
def hf(opens: Opens) -> Holdfast:
    return opens()


@pytest.fixture
def store(hf: Holdfast) -> RunStore:
    return hf.runs


def target(function: Callable[..., Any] | str) -> str:
    return f"{HERE}:{function if isinstance(function, str) else function.__name__}"


def worker(hf: Holdfast, *functions: Callable[..., Any] | str, ended: list[Ended] | None = None, **more: Any) -> Worker:
    config = WorkerConfig(targets=tuple(map(target, functions)), **more)
    return Worker(hf._home, config, on_end=None if ended is None else ended.append)


def drain(hf: Holdfast, *functions: Callable[..., Any] | str, **more: Any) -> None:
    worker(hf, *functions, drain=True, **more).run()


def put(store: RunStore, function: Callable[..., Any] | str, *args: Any, **more: Any) -> str:
    return submit(store, target(function), args, **more).id


@contextmanager
def at_work(worker: Worker) -> Iterator[threading.Thread]:
    """The worker in a thread; stopped at the end."""
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield thread
    finally:
        stage.go.set()
        worker.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def ended(store: RunStore, run_id: str) -> RunSnapshot:
    """The run once it has ended."""
    for _ in store.follow(run_id):
        continue
    return store.snapshot(run_id)


def failed(store: RunStore, run_id: str, error: str) -> None:
    store.record_event(run_id, "run_failed", {"error": error})


def entered() -> None:
    assert stage.entered.acquire(timeout=PATIENCE)


# --- calling ---


def test_a_plain_function_is_called_inside_its_run(hf: Holdfast, store: RunStore) -> None:
    run_id = put(store, plain, 1, "x", prompt="do it", session="s")

    drain(hf, plain)

    run = store.snapshot(run_id)
    assert stage.called == [(1, "x")]
    assert (run.status, run.result_text, run.interrupted) == ("completed", '{"done":[1,"x"]}', False)
    (first, *_) = store.events(run_id)
    assert (first.type, first.payload["prompt"]) == ("run_started", "do it")


def test_a_holdfast_submits_runs_and_works_them_off(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "runs.db", policies={}) as hf:
        run = hf.submit(target(plain), 1, "x", session="s", prompt="do it", priority=3)

        hf.worker(target(plain), drain=True).run()

        after = hf.runs.snapshot(run.id)
        assert (run.status, after.status, after.session_id, after.prompt) == ("created", "completed", "s", "do it")
        assert stage.called == [(1, "x")]


def test_a_worker_takes_functions_themselves_as_submit_does(hf: Holdfast, store: RunStore) -> None:
    run_id = submit(store, plain).id

    hf.worker(plain, drain=True).run()

    assert store.snapshot(run_id).status is RunStatus.COMPLETED


def test_coroutine_functions_share_one_event_loop(hf: Holdfast, store: RunStore) -> None:
    run_ids = [put(store, coroutine, number) for number in range(3)]

    drain(hf, coroutine)

    assert [store.snapshot(run_id).result_text for run_id in run_ids] == ["done"] * 3
    assert sorted(stage.called) == [(0,), (1,), (2,)]
    assert len(stage.loops) == 1


@pytest.mark.parametrize(
    "function",
    [
        raises, leaves, aleaves, is_in_doubt, is_in_doubt_in_a_group, is_cancelled, cancels_itself, is_closed,
        gives_a_coroutine, agives_a_coroutine,
    ],
)  # fmt: skip
def test_a_function_that_raises_fails_its_run_and_the_worker_goes_on(
    hf: Holdfast, store: RunStore, function: Callable[..., Any]
) -> None:
    bad, good = put(store, function, priority=1), put(store, plain)

    drain(hf, function, plain)

    assert store.snapshot(bad).status is RunStatus.FAILED
    assert store.snapshot(bad).error
    assert store.snapshot(good).status is RunStatus.COMPLETED


def test_a_task_that_would_end_the_process_does_not(hf: Holdfast, store: RunStore) -> None:
    first, second = put(store, leaves_behind), put(store, coroutine)

    drain(hf, leaves_behind, coroutine)

    assert store.snapshot(first).result_text == "still here"
    assert store.snapshot(second).result_text == "done"


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("nowhere", "has no 'nowhere'"), ("stage", "is no function"), ("items", "is a generator function")],
)
def test_a_run_whose_function_cannot_be_called_fails_with_a_reason(
    hf: Holdfast, store: RunStore, name: str, complaint: str
) -> None:
    bad, good = put(store, name), put(store, plain)

    drain(hf, name, plain)

    assert store.snapshot(bad).status is RunStatus.FAILED
    assert complaint in (store.snapshot(bad).error or "")
    assert store.snapshot(good).status is RunStatus.COMPLETED


def test_a_module_that_is_not_there_fails_the_run(hf: Holdfast, store: RunStore) -> None:
    run_id = submit(store, "no_such_module:main").id

    Worker(hf._home, WorkerConfig(targets=("no_such_module:main",), drain=True)).run()

    assert "there is no module 'no_such_module'" in (store.snapshot(run_id).error or "")


def test_arguments_that_do_not_fit_fail_the_run(hf: Holdfast, store: RunStore) -> None:
    run_id = put(store, raises, 1)

    drain(hf, raises)

    assert "TypeError" in (store.snapshot(run_id).error or "")


def test_whoever_asked_is_told_how_each_run_ended(hf: Holdfast, store: RunStore) -> None:
    told: list[Ended] = []
    good, bad = put(store, plain, session="s", priority=1), put(store, raises)

    drain(hf, plain, raises, ended=told)

    assert told == [
        Ended(good, target(plain), "s", "completed", None),
        Ended(bad, target(raises), "default", "failed", "ValueError: no luck"),
    ]


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_one_who_fails_to_hear_how_a_run_ended_stops_nothing(
    hf: Holdfast, store: RunStore, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    run_ids = [put(store, plain), put(store, plain)]
    config = WorkerConfig(targets=(target(plain),), drain=True)

    def deaf(ended: Ended) -> None:
        raise error("what?")

    Worker(hf._home, config, on_end=deaf).run()

    assert [store.snapshot(run_id).status for run_id in run_ids] == ["completed"] * 2
    assert caplog.text.count("on_end failed") == 2


# --- order and number ---


def test_the_highest_priority_is_called_first(hf: Holdfast, store: RunStore) -> None:
    for number in (1, 3, 2):
        put(store, plain, number, priority=number)

    drain(hf, plain)

    assert stage.called == [(3,), (2,), (1,)]


@pytest.mark.parametrize("function", [together, atogether])
def test_as_many_run_at_once_as_may(hf: Holdfast, store: RunStore, function: Callable[..., Any]) -> None:
    run_ids = [put(store, function) for _ in range(3)]

    drain(hf, function, concurrency=3)

    assert [store.snapshot(run_id).status for run_id in run_ids] == ["completed"] * 3


def test_no_more_run_at_once_than_may(hf: Holdfast, store: RunStore) -> None:
    for _ in range(3):
        put(store, two_steps)

    with at_work(worker(hf, two_steps, concurrency=2)) as thread:
        entered()
        entered()

        assert store.counts() == {"created": 1, "executing": 2}
        stage.go.set()
        entered()
        assert thread.is_alive()


@on_shared
def test_the_runs_of_one_session_take_turns_in_all_workers(opens: Opens) -> None:
    one, two = opens(), opens()
    for _ in range(4):
        put(one.runs, two_steps, session="s")
    other = put(one.runs, two_steps, session="t")

    with (
        at_work(worker(one, two_steps, concurrency=2, per_session=1)),
        at_work(worker(two, two_steps, concurrency=2, per_session=1)),
    ):
        entered()
        entered()

        assert one.runs.counts() == {"created": 3, "executing": 2}
        assert one.runs.snapshot(other).status is RunStatus.EXECUTING
        stage.go.set()
        for run in one.runs.list_runs():
            assert ended(one.runs, run.id).status is RunStatus.COMPLETED


def test_a_worker_that_drains_waits_for_sessions_that_are_full(hf: Holdfast, store: RunStore) -> None:
    stage.go.set()
    run_ids = [put(store, two_steps, session="s") for _ in range(3)]

    drain(hf, two_steps, concurrency=3, per_session=1)

    assert [store.snapshot(run_id).status for run_id in run_ids] == ["completed"] * 3


# --- waking ---


@on_shared
def test_an_idle_worker_wakes_when_a_run_is_submitted_elsewhere(opens: Opens) -> None:
    here, there = opens(), opens()

    with at_work(worker(here, plain)):
        run_id = put(there.runs, plain)

        assert ended(there.runs, run_id).status is RunStatus.COMPLETED  # the clock stands still


def test_what_a_dead_worker_left_is_gone_on_with_when_its_lease_is_over(
    hf: Holdfast, store: RunStore, clock: ManualClock
) -> None:
    run_id = put(store, plain)
    gone = OwnerRow("theirs", "elsewhere", 1, int((clock.time() + LEASE) * 1000))
    store.writer.commit(lambda ledger: ledger.claim(ledger.run(run_id), gone))

    with at_work(worker(hf, plain)) as thread:
        while not store.snapshot(run_id).status.is_terminal:
            clock.advance(1)
            thread.join(0.001)

    assert store.snapshot(run_id).status is RunStatus.COMPLETED
    assert clock.monotonic() >= LEASE


@pytest.mark.parametrize("kind", ["memory"])  # when to look is the worker's own affair
def test_what_a_dead_worker_left_is_found_while_there_is_always_something_new(
    hf: Holdfast, store: RunStore, clock: ManualClock
) -> None:
    run_id = put(store, plain)
    gone = OwnerRow("theirs", "elsewhere", 1, int((clock.time() + LEASE) * 1000))
    store.writer.commit(lambda ledger: ledger.claim(ledger.run(run_id), gone))

    with at_work(worker(hf, plain, concurrency=2)):  # it finds nothing more after each that it takes
        for _ in range(round(LEASE)):
            clock.advance(2)
            ended(store, put(store, plain))

        assert store.snapshot(run_id).status is RunStatus.COMPLETED


def test_calls_that_have_finished_are_not_made_again(hf: Holdfast, store: RunStore) -> None:
    run_id = put(store, two_steps)
    first = worker(hf, two_steps)
    with at_work(first) as thread:
        entered()
        first.stop(0)
        thread.join(PATIENCE)
    assert store.snapshot(run_id).interrupted

    drain(hf, two_steps)

    assert stage.called == ["first", "second"]
    assert store.snapshot(run_id).result_text == "both"
    assert "run_resumed" in [event.type for event in store.events(run_id)]


@pytest.mark.parametrize(("in_doubt", "status"), [("raise", "failed"), ("repeat", "completed")])
def test_a_call_in_doubt_fails_the_run_unless_it_is_to_be_repeated(
    hf: Holdfast, store: RunStore, in_doubt: str, status: str
) -> None:
    run_id = put(store, pays)
    paid.hf = hf
    first = worker(hf, pays)
    with at_work(first) as thread:
        entered()
        first.stop(0)
        thread.join(PATIENCE)

    drain(hf, pays, in_doubt=in_doubt)

    assert store.snapshot(run_id).status == status
    assert stage.called == ["pay"] * (2 if in_doubt == "repeat" else 1)


class Paid:
    """The Holdfast with which `pays` pays."""

    hf: Holdfast


paid = Paid()


def pays() -> str:
    return paid.hf.call(pay)


def pay() -> str:
    stage.called.append("pay")
    wait()
    return "paid"


# --- cancelling ---


def test_a_run_that_was_cancelled_while_it_waited_is_not_called(hf: Holdfast, store: RunStore) -> None:
    run_id = put(store, plain)
    store.cancel(run_id)

    drain(hf, plain)

    assert stage.called == []
    assert store.snapshot(run_id).status is RunStatus.CANCELLED


@pytest.mark.parametrize("end", [RunStore.mark_failed, RunStore.mark_cancelled, failed])
def test_a_run_that_has_ended_before_it_is_begun_is_neither_called_nor_begun_anew(
    hf: Holdfast, store: RunStore, end: Callable[[RunStore, str, str], object]
) -> None:
    run_id = put(store, plain)
    taken = queue.take(store, queue.Search((target(plain),), None, queue.ATTEMPTS))
    assert taken is not None
    slot, done = Slot(hf._home, taken, repeats=False), threading.Event()
    end(store, run_id, "by hand")

    begin(hf._home, Lane(), slot, lambda *_: done.set())
    assert done.wait(PATIENCE)

    assert stage.called == []
    assert [run.id for run in store.list_runs()] == [run_id]


@pytest.mark.parametrize("function", [listens, alistens])
def test_a_run_that_is_cancelled_while_it_runs_is_cancelled_and_the_worker_goes_on(
    hf: Holdfast, store: RunStore, function: Callable[..., Any]
) -> None:
    run_id = put(store, function)

    with at_work(worker(hf, function, plain)):
        entered()
        store.cancel(run_id, "enough")

        assert ended(store, run_id).status is RunStatus.CANCELLED
        assert ended(store, put(store, plain)).status is RunStatus.COMPLETED


@pytest.mark.parametrize("function", [is_cancelled_at_the_end, ais_cancelled_at_the_end])
def test_a_run_that_is_cancelled_at_the_last_moment_is_cancelled(
    hf: Holdfast, store: RunStore, function: Callable[..., Any]
) -> None:
    run_id = put(store, function)

    drain(hf, function)

    assert store.snapshot(run_id).status is RunStatus.CANCELLED


# --- stopping ---


def test_a_worker_that_is_stopped_takes_nothing_new_and_lets_what_runs_end(hf: Holdfast, store: RunStore) -> None:
    running_, waiting = put(store, two_steps), put(store, plain)
    stopped = worker(hf, two_steps, plain)

    with at_work(stopped) as thread:
        entered()
        stopped.stop()
        assert thread.is_alive()
        stage.go.set()
        thread.join(PATIENCE)

    assert store.snapshot(running_).status is RunStatus.COMPLETED
    assert store.snapshot(waiting).status is RunStatus.CREATED


def test_what_has_not_ended_after_the_grace_is_left_to_others(
    hf: Holdfast, store: RunStore, clock: ManualClock
) -> None:
    run_id = put(store, waits_then_calls)
    told: list[Ended] = []
    stopped = worker(hf, waits_then_calls, grace=30.0, ended=told)

    with at_work(stopped) as thread:
        entered()
        stopped.stop()
        assert stopped.running == [run_id]
        while not clock.pending:
            thread.join(0.001)
        clock.advance(31)
        thread.join(PATIENCE)

    assert store.snapshot(run_id).interrupted
    assert [(each.run_id, each.status) for each in told] == [(run_id, "interrupted")]


def test_a_function_that_outlives_its_worker_can_do_nothing_more_in_its_run(hf: Holdfast, store: RunStore) -> None:
    run_id = put(store, waits_then_calls)
    stopped = worker(hf, waits_then_calls)
    with at_work(stopped) as thread:
        entered()
        stopped.stop(0)
        thread.join(PATIENCE)
        count = store.snapshot(run_id).event_count

        stage.go.set()
    hf._kit.workers.close()
    assert stage.over.wait(PATIENCE)

    assert isinstance(stage.raised[0], LeaseLost)
    assert stage.called == []
    assert store.snapshot(run_id).event_count == count


def test_a_coroutine_is_interrupted_after_the_grace_and_its_run_is_not_cancelled(hf: Holdfast, store: RunStore) -> None:
    run_id = put(store, alistens)
    stopped = worker(hf, alistens)

    with at_work(stopped) as thread:
        entered()
        stopped.stop(0)
        thread.join(PATIENCE)

    run = store.snapshot(run_id)
    assert isinstance(stage.raised[0], asyncio.CancelledError)
    assert (run.status, run.interrupted) == ("executing", True)
    assert "its worker was stopped" in store.events(run_id)[-1].payload["reason"]


def test_a_second_stop_can_shorten_the_grace(hf: Holdfast, store: RunStore) -> None:
    run_id = put(store, waits_then_calls)
    stopped = worker(hf, waits_then_calls, grace=1000.0)

    with at_work(stopped) as thread:
        entered()
        stopped.stop()
        stopped.stop(0)
        thread.join(PATIENCE)

    assert store.snapshot(run_id).interrupted


def test_a_worker_that_has_emptied_the_queue_can_run_again(hf: Holdfast, store: RunStore) -> None:
    again = worker(hf, coroutine, drain=True)

    for _ in range(2):
        run_id = put(store, coroutine)
        again.run()
        assert store.snapshot(run_id).status is RunStatus.COMPLETED


def test_a_worker_that_was_stopped_before_it_began_does_nothing(hf: Holdfast, store: RunStore) -> None:
    run_id = put(store, plain)
    stopped = worker(hf, plain)
    stopped.stop()

    stopped.run()

    assert store.snapshot(run_id).status is RunStatus.CREATED


# --- trouble ---


def test_a_store_that_fails_is_waited_for(tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    path, aside = tmp_path / "runs.db", tmp_path / "aside.db"
    store = SqliteRunStore(path, clock=clock)
    with Holdfast(PolicyBook.load({}), clock, store) as hf, at_work(worker(hf, plain)) as thread:
        assert ended(store, put(store, plain)).status is RunStatus.COMPLETED
        path.rename(aside)
        while "cannot use the store" not in caplog.text:
            clock.advance(1)
            thread.join(0.001)
        aside.rename(path)

        assert ended(store, put(store, plain)).status is RunStatus.COMPLETED


def test_a_worker_says_again_what_is_wrong_with_a_store_that_was_well_in_between(
    tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    path, aside = tmp_path / "runs.db", tmp_path / "aside.db"
    store = SqliteRunStore(path, clock=clock)
    with Holdfast(PolicyBook.load({}), clock, store) as hf, at_work(worker(hf, plain)) as thread:
        while caplog.text.count("cannot use the store") < 2:
            assert ended(store, put(store, plain)).status is RunStatus.COMPLETED
            path.rename(aside)
            for _ in range(10):
                clock.advance(1)
                thread.join(0.001)
            aside.rename(path)


def test_a_worker_says_what_is_wrong_with_its_store_whenever_that_is_something_else(
    tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "runs.db"
    store = SqliteRunStore(path, clock=clock)

    def until_it_says(what: str) -> None:
        while what not in caplog.text:
            clock.advance(5)
            thread.join(0.001)

    with Holdfast(PolicyBook.load({}), clock, store) as hf, at_work(worker(hf, plain)) as thread:
        assert ended(store, put(store, plain)).status is RunStatus.COMPLETED
        path.unlink()
        until_it_says("was deleted or moved while in use")
        path.touch()
        until_it_says("was replaced by another file while in use")
        path.unlink()
        for _ in range(3):
            clock.advance(5)
            thread.join(0.01)

    assert caplog.text.count("cannot use the store") == 2


def test_what_may_be_ours_after_the_store_failed_is_given_back(hf: Holdfast, store: RunStore) -> None:
    run_id = put(store, plain)
    found = queue.take(store, queue.Search((target(plain),)))
    assert found is not None
    late = worker(hf, plain, drain=True)
    late._unsure.append(found.claim)

    late.run()

    assert store.snapshot(run_id).status is RunStatus.COMPLETED


def test_a_run_that_cannot_be_begun_is_given_back(
    hf: Holdfast,
    store: RunStore,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run_id = put(store, plain)
    starts = hf._kit.workers.start

    def refuse(job: Any) -> None:
        monkeypatch.setattr(hf._kit.workers, "start", starts)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(hf._kit.workers, "start", refuse)
    with at_work(worker(hf, plain)) as thread:
        while not store.snapshot(run_id).status.is_terminal:
            clock.advance(1)
            thread.join(0.001)

    assert "could not be begun" in caplog.text
    assert store.snapshot(run_id).status is RunStatus.COMPLETED


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"targets": ()}, "targets"),
        ({"targets": "a:b"}, "targets"),
        ({"targets": ("a",)}, "MODULE:FUNCTION"),
        ({"targets": (plain,)}, "must be a text"),
        ({"concurrency": 0}, "concurrency"),
        ({"per_session": 0}, "per_session"),
        ({"in_doubt": "guess"}, "one of raise, repeat"),
        ({"grace": -1}, "grace"),
        ({"grace": float("inf")}, "grace"),
        ({"attempts": 0}, "attempts"),
    ],
)
def test_bad_settings_are_refused(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        WorkerConfig(**{"targets": ("a:b",), **change})


def test_an_on_end_that_cannot_be_called_is_refused(hf: Holdfast) -> None:
    with pytest.raises(ConfigError, match="on_end = 5: must be callable with an Ended"):
        hf.worker("agent:main", on_end=5)  # type: ignore[arg-type]
