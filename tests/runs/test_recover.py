"""What becomes of runs whose process has died, and a random agent that dies again and again until it is done."""

# ruff: noqa: PT012 (what leaves the block of a run is what is tested, so the block is within `raises`)

from __future__ import annotations

import asyncio
import io
import json
import linecache
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.runs import durable
from tests.runs.durable import Killed, Place, stopped, types

from holdfast import ConfigError, Holdfast, InDoubt, LeaseLost, RunCancelled, RunConflict, RunNotFound
from holdfast.history import RunEventRecord, RunSnapshot
from holdfast.policy import PolicyBook
from holdfast.runs.recovery import TOGETHER, call_inside
from holdfast.stores import MemoryRunStore
from holdfast.stores.searching import PIECE
from holdfast.stores.store import LEASE
from holdfast.testing import ManualClock

place, disk, memory = durable.place, durable.disk, durable.memory

HERE = "tests.runs.test_recover"
called: list[tuple[Any, ...]] = []  # by entries, which are found by name


@pytest.fixture(autouse=True)
def nothing_called() -> Iterator[None]:
    called.clear()
    yield
    called.clear()


def entry(*args: Any) -> dict[str, Any]:
    called.append(args)
    return {"done": list(args)}


def leaves() -> None:
    raise SystemExit(3)


async def aentry(*args: Any) -> str:
    await asyncio.sleep(0)
    called.append(args)
    return "done"


def broken() -> None:
    raise ValueError("no")


def conflicts() -> None:
    raise RunConflict("a run of its own is taken")


def finds_no_run() -> None:
    raise RunNotFound("a run of its own")


def in_doubt() -> None:
    raise InDoubt("tool", "id", "key", "why")


called_back: list[Callable[[], object]] = []


def calls_back() -> None:
    called_back.pop()()


def works(*args: Any) -> None:
    from holdfast.runs import running

    run = running()
    assert run is not None
    run.step("work", lambda: called.append(args))


def dead(place: Place, **plan: Any) -> str:
    """A run whose process died."""
    hf = place.open()
    with pytest.raises(Killed), hf.run(**plan) as run:
        place.die(hf)
    return run.id


def target(name: str, *args: Any) -> dict[str, Any]:
    return {"target": f"{HERE}:{name}", "args": list(args)}


def test_a_run_without_an_entry_point_is_failed(place: Place) -> None:
    run_id = dead(place)
    hf = place.open()

    done = hf.recover()

    assert done.failed == [run_id]
    snapshot = hf.runs.snapshot(run_id)
    assert (snapshot.status, snapshot.error) == ("failed", "its process died before it was done")
    assert snapshot.interrupted is False


@pytest.mark.parametrize("policy", ["resume", "leave"])
def test_a_run_without_an_entry_point_can_be_left(place: Place, policy: str) -> None:
    run_id = dead(place)
    hf = place.open()

    done = hf.recover(policy)

    assert (done.left, done.failed, done.resumed) == ([run_id], [], [])
    assert hf.runs.snapshot(run_id).interrupted


@pytest.mark.parametrize("policy", ["fail", "resume"])
@pytest.mark.parametrize("name", ["entry", "aentry"])
def test_a_run_with_an_entry_point_is_called_again_with_its_arguments(place: Place, policy: str, name: str) -> None:
    run_id = dead(place, entry=target(name, 1, "x"))
    hf = place.open()

    done = hf.recover(policy)

    assert (done.resumed, done.errors) == ([run_id], {})
    assert called == [(1, "x")]
    snapshot = hf.runs.snapshot(run_id)
    assert snapshot.status == "completed"
    assert snapshot.result_text == (
        "done" if name == "aentry" else json.dumps({"done": [1, "x"]}, separators=(",", ":"))
    )


def test_a_run_that_was_made_before_it_was_begun_is_called_again_too(place: Place) -> None:
    place.open().runs.create_run("default", "", run_id="r")
    dead(place, run_id="r", entry=target("entry"))
    hf = place.open()

    hf.recover("resume")

    assert hf.runs.snapshot("r").status == "completed"


def test_nothing_that_an_import_says_is_called(place: Place, clock: ManualClock) -> None:
    dead(place, entry=target("entry"))
    hf, text = place.open(), io.StringIO()
    hf.runs.export(text)
    store = MemoryRunStore(clock=clock)
    store.import_(io.StringIO(text.getvalue()))

    with Holdfast(PolicyBook.load({}), clock, store) as other:
        done = other.recover()

    assert (done.resumed, called) == ([], [])


def test_a_run_that_ends_the_process_does_not_keep_others_from_being_recovered(place: Place) -> None:
    first = dead(place, entry=target("leaves"))
    second = dead(place, entry=target("entry"))
    hf = place.open()

    done = hf.recover()

    assert sorted(done.resumed) == sorted([first, second])
    assert isinstance(done.errors[first], SystemExit)


def test_what_was_to_be_cancelled_when_its_process_died_is_not_called_again(place: Place) -> None:
    hf = place.open()
    with pytest.raises(Killed), hf.run(entry=target("entry")) as run:
        hf.runs.cancel(run.id, "enough")
        place.die(hf)
    again = place.open()

    done = again.recover()

    assert isinstance(done.errors[run.id], RunCancelled)
    assert called == []
    assert again.runs.snapshot(run.id).status == "cancelled"


@pytest.mark.parametrize("policy", ["fail", "resume"])
@pytest.mark.parametrize("reason", ["enough", None])
def test_what_was_to_be_cancelled_is_cancelled_where_nobody_knows_how_to_call_it(
    place: Place, policy: str, reason: str | None
) -> None:
    hf = place.open()
    with pytest.raises(Killed), hf.run() as run:
        hf.runs.cancel(run.id, reason)
        place.die(hf)
    again = place.open()

    done = again.recover(policy)

    assert done == ([], [], [], {}, [run.id])
    assert again.runs.snapshot(run.id).status == "cancelled"
    assert again.runs.events(run.id)[-1].payload == {"reason": reason}


def test_leave_touches_nothing_at_all(place: Place) -> None:
    run_id = dead(place, entry=target("entry"))
    hf = place.open()

    assert hf.recover("leave").left == [run_id]
    assert called == []


def test_what_is_not_interrupted_is_not_touched(place: Place) -> None:
    hf = place.open()
    with hf.run():
        pass
    with pytest.raises(ValueError, match="no"), hf.run():
        raise ValueError("no")
    hf.runs.create_run("shop", "tea")

    with hf.run() as open_one:
        done = hf.recover()
        assert open_one.status == "executing"

    assert done == ([], [], [], {}, [])


def test_runs_that_were_interrupted_and_not_killed_are_recovered_too(place: Place) -> None:
    hf = place.open()
    run_id = stopped(hf, lambda: None, entry=target("entry"))

    assert hf.recover().resumed == [run_id]
    assert called == [()]


@pytest.mark.parametrize(
    ("name", "status"),
    [("broken", "failed"), ("in_doubt", "executing"), ("conflicts", "failed"), ("finds_no_run", "failed")],
)
def test_what_a_resumed_run_raises_is_reported_and_the_others_go_on(place: Place, name: str, status: str) -> None:
    first = dead(place, entry=target(name))
    second = dead(place, entry=target("entry"))
    hf = place.open()

    done = hf.recover()

    assert sorted(done.resumed) == sorted([first, second])
    assert list(done.errors) == [first]
    assert hf.runs.snapshot(first).status == status
    assert hf.runs.snapshot(second).status == "completed"


@pytest.mark.parametrize("wrong", ["nowhere:fn", f"{HERE}:nothing", f"{HERE}:HERE", "no colon", ":fn"])
def test_an_entry_point_that_is_not_there_is_reported_and_the_run_stays(place: Place, wrong: Any) -> None:
    run_id = dead(place, entry={"target": wrong})
    hf = place.open()

    done = hf.recover()

    assert isinstance(done.errors[run_id], ConfigError)
    assert hf.runs.snapshot(run_id).interrupted


def test_an_entry_point_whose_module_lacks_another_is_there(
    memory: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lacks_another.py").write_text("import nowhere")
    monkeypatch.syspath_prepend(tmp_path)
    run_id = dead(memory, entry={"target": "lacks_another:fn"})

    done = memory.open().recover()

    assert str(done.errors[run_id]) == "No module named 'nowhere'"


def test_a_run_that_somebody_wanted_cancelled_is_cancelled_and_the_others_go_on(place: Place) -> None:
    hf = place.open()
    with pytest.raises(Killed), hf.run(entry=target("works", 1)) as run:
        hf.runs.handle(run.id).cancel("enough")
        place.die(hf)
    other = dead(place, entry=target("works", 2))
    hf = place.open()

    done = hf.recover()

    assert isinstance(done.errors[run.id], RunCancelled)
    assert hf.runs.snapshot(run.id).status == "cancelled"
    assert hf.runs.snapshot(other).status == "completed"
    assert called == [(2,)]


def test_what_ends_or_goes_while_others_are_called_again_is_not_called(place: Place) -> None:
    gone = dead(place, entry=target("entry"))
    unknown = dead(place)
    cancelled = [dead(place, entry=target("entry")), dead(place)]
    first = dead(place, entry=target("calls_back"))
    hf = place.open()

    def meanwhile() -> None:
        for run_id in (gone, unknown):
            hf.runs.handle(run_id).cancel()
        hf.runs.prune(max_runs=0)
        for run_id in cancelled:
            hf.runs.handle(run_id).cancel("enough")

    called_back.append(meanwhile)

    done = hf.recover()

    assert done == ([first], [], cancelled[:1], {}, cancelled[1:])
    assert called == []
    assert [run.forked_from for run in hf.runs.list_runs()] == [None, None, None]
    assert [types(hf, run_id)[-1] for run_id in cancelled] == ["run_cancelled", "run_cancelled"]


def test_what_somebody_goes_on_with_while_others_are_called_again_is_left(place: Place) -> None:
    taken = dead(place)
    dead(place, entry=target("calls_back"))
    hf, other = place.open(), place.open()

    with ExitStack() as block:
        called_back.append(lambda: block.enter_context(other.resume(taken)))
        done = hf.recover()

        assert (done.left, done.failed) == ([taken], [])
    assert hf.runs.snapshot(taken).status == "completed"


def test_a_zombie_whose_run_was_failed_may_not_go_on(disk: Place) -> None:
    first = disk.open(clock=ManualClock())
    later = ManualClock()
    later.advance(LEASE + 1)
    second = disk.open(clock=later)
    pay = first.tool("pay")(lambda: pytest.fail("was called"))

    with pytest.raises(LeaseLost), first.run() as run:
        assert second.recover().failed == [run.id]
        pay()

    assert types(second, run.id) == ["run_started", "run_failed"]


def test_more_runs_than_are_read_at_once_are_recovered(memory: Place) -> None:
    hf = memory.open()
    ids = [stopped(hf, lambda: None) for _ in range(PIECE + 1)]

    assert sorted(hf.recover().failed) == sorted(ids)


def test_thousands_are_recovered_in_a_few_writes_and_without_reading_their_events(memory: Place) -> None:
    hf = memory.open()
    for _ in range(TOGETHER + 1):
        stopped(hf, lambda: None)
    made: list[str] = []
    hf.runs.file.writing().set_trace_callback(made.append)

    hf.recover()

    assert sum(statement == "COMMIT" for statement in made) == 2
    assert not any("FROM events" in statement for statement in made)


@pytest.mark.parametrize("policy", ["restart", "", None])
def test_a_policy_that_is_none_is_a_config_error(memory: Place, policy: Any) -> None:
    with pytest.raises(ConfigError, match="policy"):
        memory.open().recover(policy)


async def test_a_coroutine_cannot_be_called_again_from_inside_an_event_loop(memory: Place) -> None:
    run_id = dead(memory, entry=target("aentry"))
    hf = memory.open()

    done = hf.recover()

    assert isinstance(done.errors[run_id], ConfigError)
    assert hf.runs.snapshot(run_id).interrupted


def test_a_killed_process_is_recovered_by_another(disk: Place) -> None:
    source = f"""
        import signal, sys, holdfast
        hf = holdfast.open(sys.argv[1], policies={{}})
        with hf.run(run_id="order", entry={{"target": "{HERE}:entry", "args": [1]}}):
            print("in", flush=True)
            signal.pause()
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source), str(disk.path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    child.stdout.readline()
    hf = disk.open(clock=ManualClock(epoch=0.0))
    before = hf.recover()

    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=30)
    done = hf.recover()

    assert before == ([], [], [], {}, [])
    assert done.resumed == ["order"]
    assert called == [(1,)]


class Interrupt:
    """Raises KeyboardInterrupt at one of the lines of Holdfast that are passed, each line counted."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.place = ""
        self._before = sys.gettrace()

    def __enter__(self) -> None:
        sys.settrace(self._enter)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _enter(self, frame: FrameType, event: str, arg: object) -> Any:
        path = frame.f_code.co_filename
        return self._line if "/holdfast/" in path and "/stores/" not in path and "/testing/" not in path else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line" and not self._is_safe(frame):
            self.at -= 1
            if self.at == 0:
                self.place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._line

    @staticmethod
    def _is_safe(frame: FrameType) -> bool:
        """Whether no signal is handled there: into and out of a `with`, into a `try`, where nothing is called."""
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        return line.startswith(("with ", "try:")) or line == "return self"


def careful(hf: Holdfast, effects: Counter[Any]) -> Any:
    """An agent that pays twice, and looks whether it has paid where that is in doubt."""

    @hf.tool
    def pay(number: int) -> int:
        assert hf.current_run is not None
        effects[hf.current_run.idempotency_key] += 1
        return number

    def decided(number: int) -> Any:
        try:
            return pay(number)
        except InDoubt as doubt:
            return doubt.answer(number) if effects[doubt.key] else doubt.repeat()

    nested = hf.tool("nested", idempotent=True)(decided)

    def agent(run: Any) -> list[Any]:
        with run:
            return [decided(1), run.step("plan", int, "5"), nested(2), run.spend("usd", 1)]

    return agent


@pytest.mark.timeout(180)
@pytest.mark.skipif(sys.version_info >= (3, 13), reason="3.13 also traces lines at which it handles no signal")
def test_an_interrupt_at_any_line_leaves_a_run_that_can_be_resumed(tmp_path: Path) -> None:
    at = 1
    while True:
        place, effects = Place("memory", tmp_path, ManualClock()), Counter[Any]()
        hf = place.open()
        agent, interrupt = careful(hf, effects), Interrupt(at)
        try:
            with interrupt:
                agent(hf.run(run_id="run"))
        except KeyboardInterrupt:
            assert hf.current_run is None, interrupt.place
        if not interrupt.place:
            break
        hf.runs.writer.flush()
        if not hf.runs.list_runs():
            agent(hf.run(run_id="run"))
        elif not hf.runs.list_runs("completed"):
            assert agent(hf.resume("run", diverged="raise")) == [1, 5, 2, None], interrupt.place
        assert list(effects.values()) == [1, 1], interrupt.place
        assert hf.runs.snapshot("run").status == "completed"
        assert hf.runs.snapshot("run").spend == {"usd": 1.0}, interrupt.place
        place.close()
        at += 4
    place.close()
    assert at > 1000


async def test_a_task_that_is_cancelled_at_any_moment_leaves_a_run_that_can_be_resumed(tmp_path: Path) -> None:
    turns = 0
    while True:
        place, effects = Place("memory", tmp_path, ManualClock()), Counter[Any]()
        hf = place.open()
        agent = acareful(hf, effects)
        task = asyncio.create_task(agent(hf.run(run_id="run")))
        for _ in range(turns):
            await asyncio.sleep(0)
        if done := task.done():
            await task
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        hf.runs.writer.flush()
        if not hf.runs.list_runs():
            await agent(hf.run(run_id="run"))
        elif not hf.runs.list_runs("completed"):
            await agent(hf.resume("run", diverged="raise"))
        assert list(effects.values()) == [1, 1, 1], turns
        assert hf.runs.snapshot("run").status == "completed"
        place.close()
        if done:
            break
        turns += 1 + turns // 50
    assert turns > 5


def acareful(hf: Holdfast, effects: Counter[Any]) -> Any:
    """The same as a coroutine, that pays side by side."""

    @hf.tool
    async def pay(number: int) -> int:
        assert hf.current_run is not None
        effects[hf.current_run.idempotency_key] += 1
        await asyncio.sleep(0)
        return number

    async def decided(number: int) -> Any:
        try:
            return await pay(number)
        except InDoubt as error:
            doubt: Any = error
            return await (doubt.aanswer(number) if effects[doubt.key] else doubt.repeat())

    async def agent(run: Any) -> None:
        async with run:
            await decided(0)
            await run.astep("plan", asyncio.sleep, 0)
            await asyncio.gather(decided(1), decided(2))

    return agent


# --- a random agent ---

PARTS = st.one_of(
    st.tuples(st.just("pay"), st.integers(0, 2)),  # not to be repeated
    st.tuples(st.just("fetch"), st.integers(0, 2)),  # safe to repeat
    st.tuples(st.just("broken"), st.integers(0, 1)),  # always fails
    st.tuples(st.just("refused"), st.integers(0, 1)),
    st.tuples(st.just("step"), st.integers(0, 2)),
    st.tuples(st.just("nested"), st.integers(0, 2)),  # safe to repeat, and pays
    st.tuples(st.just("spend"), st.integers(1, 3)),
    st.tuples(st.just("together"), st.lists(st.integers(0, 1), min_size=1, max_size=4)),  # pays side by side
    st.tuples(st.just("stream"), st.integers(0, 2)),
    st.tuples(st.just("retried"), st.integers(0, 1)),  # fails once, and is tried again
    st.tuples(st.just("cached"), st.integers(0, 1)),
)
PROGRAMS = st.lists(PARTS, min_size=1, max_size=8)
DOOMED = st.tuples(st.just("doomed"), st.integers(0, 1))  # its first failure ends the run


class World:
    """What the agent does to the world, and when it dies: at the points that it passes, counted."""

    def __init__(self) -> None:
        self.effects: Counter[tuple[str, Any]] = Counter()
        self.failed: set[tuple[str, Any]] = set()  # what fails only once
        self.points = 0
        self.deaths: set[int] = set()
        self.interrupts: set[int] = set()
        self.cancels: set[int] = set()

    def point(self, place: Place, hf: Holdfast) -> None:
        self.points += 1
        if self.points in self.deaths:
            place.die(hf)
        if self.points in self.interrupts:
            raise KeyboardInterrupt
        if self.points in self.cancels:
            assert hf.current_run is not None
            hf.current_run.cancel("enough")

    def fail_once(self, what: tuple[str, Any], error: Exception) -> None:
        if what not in self.failed:
            self.failed.add(what)
            raise error


class Agent:
    def __init__(self, place: Place, hf: Holdfast, world: World) -> None:
        self.place, self.hf, self.world = place, hf, world
        hf.breaker.force_open("refused")
        self.pay = hf.tool("pay")(self._pay)
        self.apay = hf.tool("apay")(self._apay)
        self.fetch = hf.tool("fetch", idempotent=True)(self._fetch)
        self.broken = hf.tool("broken", breaker=False, loop=False, idempotent=True, retry=False)(self._broken)
        self.refused = hf.tool("refused")(lambda number: pytest.fail("was called"))
        self.nested = hf.tool("nested", idempotent=True)(lambda number: self.decided(self.pay, number))
        items = hf.tool("items", idempotent=True)(self._items)
        self.stream = lambda number: list(items(number))
        self.retried = hf.tool("retried", idempotent=True)(self._retried)
        self.cached = hf.tool("cached", read_only=True, cache=1000)(self._fetch)
        self.doomed = hf.tool("doomed")(self._doomed)

    def _pay(self, number: int) -> str:
        self.point()
        self.effect("pay", number)
        self.point()
        return f"receipt {number}"

    async def _apay(self, number: int) -> str:
        await asyncio.sleep(0)
        self.point()
        self.effect("apay", number)
        await asyncio.sleep(0)
        return f"receipt {number}"

    def _fetch(self, number: int) -> int:
        self.point()
        return number * 2

    def _broken(self, number: int) -> None:
        self.point()
        raise ValueError(f"broken {number}")

    def _items(self, number: int) -> Iterator[int]:
        for item in range(number):
            self.point()
            yield item

    def _retried(self, number: int) -> int:
        self.point()
        self.world.fail_once(("retried", self.key()), ConnectionError("reset"))
        return number

    def _doomed(self, number: int) -> str:
        receipt = self.decided(self.pay, number)
        self.world.fail_once(("doomed", number), RuntimeError("doomed"))
        self.effect("doomed", number)
        return f"{receipt} at last"

    def effect(self, tool: str, number: int) -> None:
        self.world.effects[tool, self.key()] += 1

    def key(self) -> str:
        run = self.hf.current_run
        assert run is not None
        return run.idempotency_key

    def point(self) -> None:
        self.world.point(self.place, self.hf)

    def decided(self, tool: Any, number: int, more: str = "") -> Any:
        """A careful caller: looks whether the effect is there."""
        try:
            return tool(number)
        except InDoubt as doubt:
            if self.world.effects[doubt.tool, doubt.key]:
                return doubt.answer(f"receipt {number}{more}")
            return doubt.repeat()

    async def adecided(self, number: int) -> Any:
        try:
            return await self.apay(number)
        except InDoubt as doubt:
            uncertain: Any = doubt
            if self.world.effects[doubt.tool, doubt.key]:
                return await uncertain.aanswer(f"receipt {number}")
            return await uncertain.repeat()

    def part(self, run: Any, kind: str, what: Any) -> Any:
        match kind:
            case "pay":
                return self.decided(self.pay, what)
            case "fetch" | "nested" | "stream" | "retried" | "cached":
                return getattr(self, kind)(what)
            case "doomed":
                return self.decided(self.doomed, what, " at last")
            case "broken" | "refused":
                try:
                    return getattr(self, kind)(what)
                except Exception as error:
                    return str(error)
            case "step":
                return run.step("step", lambda number: self.point() or number + 1, what)
            case "spend":
                return run.spend("usd", what)
            case _:

                async def together() -> list[Any]:
                    return await asyncio.gather(*map(self.adecided, what))

                return asyncio.run(together())

    def work(self, run: Any, program: list[tuple[str, Any]]) -> list[Any]:
        answers = []
        for kind, what in program:
            answers.append(self.part(run, kind, what))
            self.point()
        run.complete(json.dumps(answers))
        return answers


def until_done(
    place: Place, world: World, program: list[tuple[str, Any]], *, moves: Sequence[Place] = ()
) -> tuple[list[Any], RunSnapshot, list[RunEventRecord]]:
    """Go on with a run, or with the fork of it, until it is done; at each interrupt it moves to the next of *moves*."""
    hf, run, left = place.open(), None, list(moves)
    for _ in range(20):
        run = hf.run(run_id="run") if run is None else hf.resume(run.id, diverged="raise")
        try:
            with run:
                answers = Agent(place, hf, world).work(run, program)
            return answers, hf.runs.snapshot(run.id), hf.runs.events(run.id)
        except (RuntimeError, RunCancelled):
            continue
        except KeyboardInterrupt:
            if left:
                exported = io.StringIO()
                hf.runs.export(exported)
                exported.seek(0)
                place = left.pop(0)
                hf = place.open()
                hf.runs.import_(exported)
        except Killed:
            hf = place.open()
    raise AssertionError("is never done")


@pytest.mark.timeout(180)
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(program=PROGRAMS, data=st.data(), kind=st.sampled_from(durable.KINDS))
def test_however_often_an_agent_dies_it_ends_as_if_it_had_not(
    program: list[tuple[str, Any]], data: st.DataObject, kind: str
) -> None:
    with tempfile.TemporaryDirectory() as name, ExitStack() as places:
        wanted, world = World(), World()
        answers, snapshot, _ = until_done(somewhere(places, "memory", Path(name)), wanted, program)
        moments = st.sets(st.integers(1, 3 * wanted.points), max_size=4)
        world.deaths, world.interrupts = data.draw(moments), data.draw(moments)
        got, end, events = until_done(somewhere(places, kind, Path(name)), world, program)

    assert_same(world, wanted, got, answers, end, events)
    assert end.spend == snapshot.spend
    assert end.tool_calls + end.cached_hits == snapshot.tool_calls + snapshot.cached_hits


@pytest.mark.timeout(180)
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(program=st.lists(PARTS | DOOMED, min_size=1, max_size=8), data=st.data(), kind=st.sampled_from(durable.KINDS))
def test_an_agent_that_also_fails_is_cancelled_and_moves_to_other_stores_ends_as_if_it_had_not(
    program: list[tuple[str, Any]], data: st.DataObject, kind: str
) -> None:
    with tempfile.TemporaryDirectory() as name, ExitStack() as places:
        wanted, world = World(), World()
        answers, _, _ = until_done(somewhere(places, "memory", Path(name)), wanted, program)
        moments = st.sets(st.integers(1, 3 * wanted.points), max_size=3)
        world.deaths, world.interrupts, world.cancels = data.draw(moments), data.draw(moments), data.draw(moments)
        moves = [somewhere(places, kind, Path(name, str(move))) for move in range(data.draw(st.integers(0, 2)))]
        got, end, events = until_done(somewhere(places, kind, Path(name)), world, program, moves=moves)

    assert_same(world, wanted, got, answers, end, events)


def somewhere(places: ExitStack, kind: str, folder: Path) -> Place:
    folder.mkdir(exist_ok=True)
    place = Place(kind, folder, ManualClock())
    places.callback(place.close)
    return place


def assert_same(
    world: World, wanted: World, got: list[Any], answers: list[Any], end: RunSnapshot, events: list[RunEventRecord]
) -> None:
    assert got == answers
    assert (end.status, end.result_text) == ("completed", json.dumps(answers))
    assert set(world.effects.values()) <= {1}
    assert sum(world.effects.values()) == sum(wanted.effects.values())
    assert [event.sequence for event in events] == list(range(len(events)))
    assert end.active_tools == ()


def test_a_function_that_does_not_notice_a_cancel_does_not_complete_its_run(place: Place) -> None:
    hf = place.open()
    run = hf.run()

    call_inside(run, lambda: run.cancel("enough"), ())

    assert hf.runs.snapshot(run.id).status == "cancelled"
    assert hf.runs.snapshot(run.id).error == "enough"
