"""`holdfast runs submit` and `holdfast worker` as processes: exit codes, signals, and workers that are killed."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.stores.kinds import SHARED, opener

from holdfast import cli
from holdfast.history import RunStatus
from holdfast.stores import RunStore
from holdfast.workers import submit

HOLDFAST = Path(sys.executable).with_name("holdfast")
PATIENCE = 30.0  # seconds; nothing here takes as long


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the commands run, with the functions of `worker_children.py` as `agent`."""
    shutil.copy(Path(__file__).with_name("worker_children.py"), tmp_path / "agent.py")
    monkeypatch.chdir(tmp_path)
    for name in ("HOLDFAST_POLICY", "HOLDFAST_REDIS"):
        monkeypatch.setenv(name, "")  # so that what a command sets is taken back
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.fixture
def kind() -> str:
    """Of the store; tests of several processes take all that several may use."""
    return "sqlite"


on_all = pytest.mark.parametrize("kind", sorted(SHARED))


@pytest.fixture
def store(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunStore]:
    with opener(kind, folder)() as store:
        monkeypatch.setenv("HOLDFAST_STORE", store.url)
        yield store


@pytest.fixture
def holdfast(
    store: RunStore, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Done]]:
    """Runs a command in this process."""
    monkeypatch.syspath_prepend(folder)

    def holdfast(*arguments: str) -> Done:
        capsys.readouterr()
        code = cli.main(arguments)
        return Done(code, *capsys.readouterr())

    yield holdfast
    if (agent := sys.modules.pop("agent", None)) is not None:
        agent.hf.close()


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(store: RunStore) -> Iterator[Start]:
    """Starts worker processes; none is left."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [str(HOLDFAST), "worker", *arguments]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for child in started:
        child.kill()
        child.communicate()


def finish(child: subprocess.Popen[str]) -> Done:
    out, err = child.communicate(timeout=PATIENCE)
    return Done(child.returncode, out, err)


def hear(child: subprocess.Popen[str], word: str) -> None:
    """Wait until the child says something."""
    assert child.stderr is not None
    for line in child.stderr:
        if word in line:
            return
    raise AssertionError(f"it never said {word!r}")


def lines(folder: Path) -> list[str]:
    done = folder / "done"
    return done.read_text().splitlines() if done.exists() else []


def until(store: RunStore, is_so: Callable[[], bool]) -> None:
    """Wait for something that the workers do; each thing they do, they write."""
    with store.listen() as listener:
        for _ in range(10_000):
            if is_so():
                return
            listener.wait(0.05)
    raise AssertionError("it never came to pass")


def statuses(store: RunStore) -> Counter[str]:
    return Counter(str(run.status) for run in store.list_runs(limit=1000))


# --- submitting ---


def test_submit_prints_the_id_of_a_run_that_waits(holdfast: Callable[..., Done], store: RunStore) -> None:
    done = holdfast("runs", "submit", "agent:steps", '"a"', "3", "--session", "s", "--prompt", "p", "--priority", "-2")

    run = store.snapshot(done.out.strip())
    header = store.memory(run.id).header
    assert (done.code, done.err) == (0, "")
    assert (run.status, run.session_id, run.prompt) == ("created", "s", "p")
    assert header.entry == {"target": "agent:steps", "args": ["a", 3]}
    assert header.priority == -2


def test_submit_of_the_same_id_gives_the_same_run_as_json(holdfast: Callable[..., Done], store: RunStore) -> None:
    given = ["runs", "submit", "agent:steps", "--run-id", "r", "--json"]

    first, again, other = holdfast(*given), holdfast(*given), holdfast(*given, "--prompt", "another")

    assert json.loads(first.out) == json.loads(again.out) == json.loads(json.dumps(store.snapshot("r").to_dict()))
    assert (first.code, again.code, other.code) == (0, 0, 1)
    assert "choose another id" in other.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["agent"], "MODULE:FUNCTION"),
        (["agent:steps", "word"], "is not JSON"),
        (["agent:steps", "--priority", "101"], "at most 100"),
        (["agent:steps", "--priority", "x"], "not a valid integer"),
        (["agent:steps", "--run-id", ""], "printable characters"),
        ([], "Missing argument"),
    ],
)
def test_submit_refuses_what_cannot_be_called(
    holdfast: Callable[..., Done], store: RunStore, arguments: list[str], complaint: str
) -> None:
    done = holdfast("runs", "submit", *arguments)

    assert done.code == 2
    assert complaint in done.err
    assert store.list_runs() == []


# --- working ---


@on_all
def test_a_worker_that_drains_calls_everything_and_ends(holdfast: Callable[..., Done], store: RunStore) -> None:
    good, bad = submit(store, "agent:steps", ["a", 3], session="s").id, submit(store, "agent:fails").id

    done = holdfast("worker", "agent:steps", "agent:fails", "--drain", "--json")

    assert done.code == 0
    assert store.snapshot(good).result_text == "3"
    assert [json.loads(line) for line in done.out.splitlines()] == [
        {"id": good, "target": "agent:steps", "session": "s", "status": "completed", "error": None},
        {
            "id": bad,
            "target": "agent:fails",
            "session": "default",
            "status": "failed",
            "error": "ValueError: no \\x1b[2J luck",
        },
    ]


def test_json_is_alone_on_stdout_whatever_the_functions_of_a_worker_print(
    start: Start, store: RunStore, folder: Path
) -> None:
    lines = ["import os", "print('loading')", "def main():", "    print('thinking')", "    os.system('echo child')"]
    (folder / "talker.py").write_text("\n".join(lines))
    run_id = submit(store, "talker:main").id

    done = finish(start("talker:main", "--drain", "--json"))

    assert (done.code, json.loads(done.out)["id"]) == (0, run_id)
    assert {"loading", "thinking", "child"} <= {*done.err.splitlines()}


def test_a_worker_whose_json_nobody_reads_any_more_stops(start: Start, store: RunStore, folder: Path) -> None:
    run_id = submit(store, "agent:patient", ["a"]).id
    child = start("agent:patient", "--json")
    until(store, lambda: "waiting" in lines(folder))
    assert child.stdout is not None

    child.stdout.close()
    (folder / "go").touch()

    assert child.stderr is not None
    said = child.stderr.read()
    assert child.wait(PATIENCE) == 1
    assert "Traceback" not in said
    assert "stopping" in said
    assert store.snapshot(run_id).status is RunStatus.COMPLETED


def test_a_worker_tells_people_how_each_run_ended(holdfast: Callable[..., Done], store: RunStore) -> None:
    run_id = submit(store, "agent:fails").id

    done = holdfast("worker", "agent:fails", "--drain")

    assert (done.code, done.out) == (0, "")
    assert f"run {run_id} failed: ValueError: no \\x1b[2J luck" in done.err
    assert "\x1b[2J" not in done.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nowhere:main"], "there is no module 'nowhere'"),
        (["agent:nothing"], "has no 'nothing'"),
        (["agent:items"], "generator function"),
        (["agent"], "must be MODULE:FUNCTION"),
        (["agent:steps", "--concurrency", "0"], "--concurrency"),
        (["agent:steps", "--grace", "soon"], "--grace"),
        (["agent:steps", "--grace", "2w"], "grace"),
        (["agent:steps", "--policy", "missing.toml"], "missing.toml"),
    ],
)
def test_a_worker_that_could_never_work_does_not_start(
    holdfast: Callable[..., Done], store: RunStore, arguments: list[str], complaint: str
) -> None:
    run_id = submit(store, "agent:steps", ["a", 1]).id

    done = holdfast("worker", *arguments, "--drain")

    assert done.code == 2
    assert complaint in done.err
    assert store.snapshot(run_id).status is RunStatus.CREATED


def test_a_store_that_cannot_be_used_is_told_at_once(
    holdfast: Callable[..., Done], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "file").write_text("no folder")

    done = holdfast("worker", "agent:steps", "--store", str(folder / "file" / "runs.db"))

    assert done.code == 4


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_worker_that_is_told_to_stop_lets_what_runs_end(
    start: Start, store: RunStore, folder: Path, number: signal.Signals, code: int
) -> None:
    running, waiting = submit(store, "agent:patient", ["a"]).id, submit(store, "agent:patient", ["b"]).id
    child = start("agent:patient")
    until(store, lambda: "waiting" in lines(folder))

    child.send_signal(number)
    hear(child, "stopping")
    (folder / "go").touch()

    assert finish(child).code == code
    assert store.snapshot(running).status is RunStatus.COMPLETED
    assert store.snapshot(waiting).status is RunStatus.CREATED


@on_all
@pytest.mark.parametrize("function", ["patient", "apatient"])
def test_what_has_not_ended_after_the_grace_is_gone_on_with_by_another_worker(
    start: Start, store: RunStore, folder: Path, function: str
) -> None:
    run_id = submit(store, f"agent:{function}", ["a"]).id
    child = start(f"agent:{function}", "--grace", "0s")
    until(store, lambda: "waiting" in lines(folder))
    child.terminate()
    assert finish(child).code == 0
    assert store.snapshot(run_id).interrupted

    (folder / "go").touch()
    finish(start(f"agent:{function}", "--drain"))

    assert store.snapshot(run_id).result_text == "3"
    assert [line for line in lines(folder) if line.startswith("work")] == ["work a 1", "work a 2"]


def test_a_second_signal_does_not_wait(start: Start, store: RunStore, folder: Path) -> None:
    run_id = submit(store, "agent:patient", ["a"]).id
    child = start("agent:patient", "--grace", "1h")
    until(store, lambda: "waiting" in lines(folder))

    child.send_signal(signal.SIGINT)
    hear(child, "stopping")
    child.send_signal(signal.SIGINT)

    assert finish(child).code == 130
    assert store.snapshot(run_id).interrupted


def test_a_process_that_a_run_has_forked_can_be_ended(start: Start, store: RunStore) -> None:
    run_id = submit(store, "agent:ends_a_child").id

    child = start("agent:ends_a_child", "--drain")

    assert finish(child).code == 0
    assert store.snapshot(run_id).result_text == "-15"


def test_a_signal_that_comes_when_no_wait_can_end_for_it_is_heeded_soon(start: Start, store: RunStore) -> None:
    run_id = submit(store, "agent:stops").id

    child = start("agent:stops")

    assert finish(child).code == 0
    assert store.snapshot(run_id).status is RunStatus.COMPLETED


@on_all
def test_a_run_is_cancelled_from_another_process_while_a_worker_has_it(
    start: Start, store: RunStore, folder: Path
) -> None:
    run_id = submit(store, "agent:listens", ["a"]).id
    child = start("agent:listens", "--drain")
    until(store, lambda: "waiting" in lines(folder))

    store.cancel(run_id, "enough")

    assert finish(child).code == 0
    assert store.snapshot(run_id).status is RunStatus.CANCELLED
    assert "work a 2" not in lines(folder)


# --- kill -9 ---


@on_all
def test_a_call_that_was_cut_off_is_in_doubt_and_fails_the_run(start: Start, store: RunStore, folder: Path) -> None:
    run_id = submit(store, "agent:shop").id
    child = start("agent:shop")
    until(store, lambda: "waiting" in lines(folder))
    child.kill()
    child.wait()
    until(store, lambda: store.snapshot(run_id).interrupted)  # a server takes a moment to notice, a new one longer

    done = finish(start("agent:shop", "--drain"))

    assert done.code == 0
    assert store.snapshot(run_id).status is RunStatus.FAILED
    assert "InDoubt: pay" in (store.snapshot(run_id).error or "")
    assert lines(folder).count("pay 12") == 1


@on_all
def test_workers_that_are_killed_lose_no_run_repeat_no_finished_call_and_never_share_a_run(
    start: Start, store: RunStore, folder: Path
) -> None:
    names = [f"r{number}" for number in range(30)]
    for name in names:
        submit(store, "agent:steps", [name, 4], run_id=name, session=name[-1])
    workers = [start("agent:steps", "--concurrency", "2", "--per-session", "2") for _ in range(3)]
    killed = set()
    for kills in range(3):
        until(store, lambda kills=kills: len(lines(folder)) > 25 * (kills + 1))  # type: ignore[misc]
        workers[kills].kill()
        workers[kills].wait()
        killed.add(str(workers[kills].pid))
        workers.append(start("agent:steps", "--concurrency", "2", "--per-session", "2"))
    until(store, lambda: statuses(store)["completed"] == len(names))
    for child in workers[3:]:
        hear(child, "waiting for runs")  # it may have come too late to have any
        child.terminate()

    assert [finish(child).code for child in workers[3:]] == [0, 0, 0]
    for name in names:
        assert store.snapshot(name).result_text == "6"
        assert_no_finished_call_is_repeated(store, name)
        assert_one_owner_at_a_time(name, lines(folder), killed)


def assert_no_finished_call_is_repeated(store: RunStore, name: str) -> None:
    ended: set[Any] = set()
    for event in store.events(name):
        if event.type == "tool_started":
            assert event.payload["call_id"] not in ended
        if event.type == "tool_ended":
            assert event.payload["call_id"] not in ended
            ended.add(event.payload["call_id"])
    assert len(ended) == 4


def assert_one_owner_at_a_time(name: str, told: list[str], killed: set[str]) -> None:
    owner: str | None = None
    for verb, run, who in (line.split() for line in told if line.startswith(("begin ", "end "))):
        if run != name:
            continue
        if verb == "begin":
            assert owner is None or owner in killed
            owner = who
        else:
            assert owner == who
            owner = None
