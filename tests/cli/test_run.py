"""`holdfast run` and `runs resume` as processes: results, exit codes, and going on after an interrupt or a kill."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast import cli
from holdfast.history import RunStatus
from holdfast.stores import RunStore, SqliteRunStore

HOLDFAST = Path(sys.executable).with_name("holdfast")
PATIENCE = 30.0  # seconds; nothing here takes as long

# What each tool does is written to the file `done`, one line a call, so that a call too many is seen.
# A function that waits says so in the file `waiting`, and goes on when there is a file `go` or the run is cancelled.
AGENT = """
import asyncio, dataclasses, os, sys, time
import holdfast

hf = holdfast.open()

def note(what, file="done"):
    with open(file, "a") as fp:
        fp.write(f"{what}\\n")

def wait():
    note("here", "waiting")
    while not os.path.exists("go") and not hf.current_run.cancelled.is_set():
        time.sleep(0.005)

@hf.tool(idempotent=True)
def fetch(number: int) -> int:
    note(f"fetch {number}")
    return number * 10

@hf.tool
def pay(amount: int) -> str:
    note(f"pay {amount}")
    wait()
    return "paid"

@hf.tool
async def look(number: int) -> int:
    note(f"look {number}")
    return number + 1

def add(a, b=0): return a + b
def nothing(): pass
def text(): return "two\\nlines \\x1b[31m"
def strange(): return object()
def name(): return "caf\\udce9.txt"
def record(): return {"n": 1, "list": [True, None]}
async def later(number): return await look(number)
def items(): yield 1
NUMBER = 5

class Agent:
    @staticmethod
    def main(name): return f"hello {name}"

def steps(count):
    total = 0
    for number in range(count):
        total += fetch(number)
        if number == 2:
            wait()
    return total

async def asteps(count):
    total = 0
    for number in range(count):
        total += await look(number)
        if number == 2:
            note("here", "waiting")
            while not os.path.exists("go"):
                await asyncio.sleep(0.005)
    return total

def shop():
    fetch(1)
    return pay(12)

def fails():
    fetch(1)
    if not os.path.exists("go"):
        raise RuntimeError("no \\x1b[2J luck")
    return "lucky"

def dawdles(): raise TimeoutError("no answer")

def forgets():
    if not os.path.exists("go"):
        fetch(1)
        fails_always()
    return "done"

def fails_always(): raise ValueError("first time")

def stubborn():
    wait()
    return "did not listen"

def collapses():
    wait()
    raise RuntimeError("collapsed")

def too_late():
    hf.current_run.complete("fine")
    raise RuntimeError("or not")

def gives_up():
    hf.current_run.fail("not today")
    return "unheard"

def leaves(): sys.exit(7)
def prints():
    print("on the side")
    return 3
"""

# Speaks while it is loaded, while it is called and when all is over, by itself and by another process.
TALKER = """
import atexit, os, sys

print("loading")
atexit.register(print, "leaving")

def main():
    print("thinking")
    print("directly", file=sys.__stdout__)
    os.system("echo child")
    if os.path.exists("bad"):
        raise ValueError("bad")
    return 5
"""
SAID = ["loading", "thinking", "directly", "child", "leaving"]


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


class Started:
    """A command as a process of its own."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [HOLDFAST, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
        )

    def wait_until(self, file: Path) -> None:
        """Wait until the function says that it is there."""
        while not file.exists():
            assert self.process.poll() is None, self.process.communicate()[1]

    def end(self) -> Done:
        out, err = self.process.communicate(timeout=PATIENCE)
        return Done(self.process.returncode, out, err)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the agent and its store are; nothing else of this machine is looked at."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_POLICY", raising=False)
    monkeypatch.setenv("HOLDFAST_STORE", str(tmp_path / "runs.db"))
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    (tmp_path / "agent.py").write_text(AGENT)
    return tmp_path


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., Started]]:
    started: list[Started] = []

    def start(*arguments: str) -> Started:
        started.append(Started(*arguments))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.communicate()


@pytest.fixture
def holdfast(start: Callable[..., Started]) -> Callable[..., Done]:
    return lambda *arguments: start(*arguments).end()


@pytest.fixture
def store(folder: Path) -> Iterator[RunStore]:
    with SqliteRunStore(folder / "runs.db") as store:
        yield store


Command = Callable[..., Done]
Start = Callable[..., Started]


def calls(folder: Path) -> list[str]:
    return (folder / "done").read_text().splitlines() if (folder / "done").exists() else []


def run_id(done: Done) -> str:
    return done.err.splitlines()[0].removeprefix("holdfast: run ").partition(",")[0]


# --- calling ---


@pytest.mark.parametrize(
    ("target", "arguments", "out"),
    [
        ("add", ["3"], "3\n"),
        ("add", ["[1]", "[null]"], "[1,null]\n"),
        ("add", ['"a"', '"b"'], "ab\n"),
        ("nothing", [], ""),
        ("text", [], "two\nlines \x1b[31m\n"),
        ("record", [], '{"n":1,"list":[true,null]}\n'),
        ("name", [], "caf\\udce9.txt\n"),
        ("later", ["4"], "5\n"),
        ("Agent.main", ['"you"'], "hello you\n"),
    ],
)
def test_what_the_function_returns_is_printed_and_is_the_result(
    target: str, arguments: list[str], out: str, holdfast: Command, store: RunStore
) -> None:
    done = holdfast("run", f"agent:{target}", *arguments)

    (run,) = store.list_runs()
    assert done == (0, out, f"holdfast: run {run.id}\n")
    assert (run.status, run.result_text) == (RunStatus.COMPLETED, out.removesuffix("\n"))


def test_a_result_that_cannot_be_written_is_shown_all_the_same(holdfast: Command) -> None:
    done = holdfast("run", "agent:strange")

    assert done.code == 0
    assert done.out.startswith("<object object at ")


def test_the_run_has_the_session_prompt_id_and_entry_point_that_were_given(holdfast: Command, store: RunStore) -> None:
    options = ["--session", "nightly", "--prompt", "Add up", "--run-id", "my run"]

    done = holdfast("run", "agent:add", *options, "--", "-1", "2")

    header = store.memory("my run").header
    assert (done.code, done.out) == (0, "1\n")
    assert (header.session_id, header.prompt, header.entry) == (
        "nightly",
        "Add up",
        {"target": "agent:add", "args": [-1, 2]},
    )


def test_the_calls_of_the_module_s_own_tools_are_recorded(holdfast: Command, store: RunStore) -> None:
    done = holdfast("run", "agent:later", "4")

    assert [event.payload["tool"] for event in store.events(run_id(done)) if event.type == "tool_ended"] == ["look"]


def test_the_result_as_json_is_an_object_alone_on_stdout(holdfast: Command, store: RunStore) -> None:
    done = holdfast("run", "agent:prints", "--json")

    assert json.loads(done.out) == {"id": run_id(done), "status": "completed", "result": 3}
    assert "on the side" in done.err


def test_json_is_alone_on_stdout_whatever_the_module_and_its_children_print(holdfast: Command, folder: Path) -> None:
    (folder / "talker.py").write_text(TALKER)
    (folder / "bad").touch()

    failed = holdfast("run", "talker:main", "--json")
    (folder / "bad").unlink()
    resumed = holdfast("runs", "resume", json.loads(failed.out)["id"], "--json")

    assert [json.loads(done.out)["status"] for done in (failed, resumed)] == ["failed", "completed"]
    for done in (failed, resumed):
        assert {*SAID} <= {*done.err.splitlines()}


def test_without_json_what_the_module_and_its_children_print_stays_on_stdout(holdfast: Command, folder: Path) -> None:
    (folder / "talker.py").write_text(TALKER)

    done = holdfast("run", "talker:main")

    assert sorted(done.out.split()) == sorted([*SAID, "5"])


def test_stdout_is_what_it_was_after_a_command_with_json(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (folder / "quiet_agent.py").write_text("import os\ndef main(): os.system('echo child')\n")

    code = cli.main(["run", "quiet_agent:main", "--json"])
    os.system("echo afterwards")
    sys.stdout.write("at last")

    out, err = capfd.readouterr()
    assert (code, [*map(str.strip, out.splitlines()[1:])]) == (0, ["afterwards", "at last"])
    assert json.loads(out.splitlines()[0])["status"] == "completed"
    assert "child\n" in err


def test_the_module_opens_the_store_that_was_named(holdfast: Command, folder: Path) -> None:
    (folder / "where.py").write_text("import holdfast\nhf = holdfast.open()\ndef url(): return hf.runs.url\n")

    done = holdfast("run", "where:url", "--store", "other.db")

    assert done.out == f"{folder / 'other.db'}\n"
    assert not (folder / "runs.db").exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["agent"], "MODULE:FUNCTION"),
        (["agent:"], "MODULE:FUNCTION"),
        ([":main"], "MODULE:FUNCTION"),
        (["..agent:main"], "MODULE:FUNCTION"),
        (["agent.py:main"], "no module 'agent.py'"),
        (["nowhere:main"], "no module 'nowhere'; MODULE is looked for in "),
        (["agent:nowhere"], "has no 'nowhere'\n"),
        (["agent:NUMBER"], "is no function\n"),
        (["agent:items"], "generator"),
        (["agent:add"], "missing a required argument: 'a'"),
        (["agent:add", "1", "2", "3"], "too many"),
        (["agent:add", "text"], "write '\"text\"'"),
        (["agent:add", "NaN"], "is not JSON"),
        (["agent:add", "it's"], """write '"it'"'"'s"'"""),
        (["agent:add", "[" * 100_000], "is nested too deeply"),
        (["agent:add", "[" * 500 + "]" * 500], "ARGUMENT[0][0]"),
        (["--run-id", "", "agent:nothing"], "run_id = ''"),
        ([], "Missing argument"),
    ],
)
def test_what_cannot_be_called_is_wrong_usage_and_leaves_no_run(
    arguments: list[str],
    complaint: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "agent", raising=False)

    code = cli.main(["run", *arguments])

    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert complaint in err
    assert not (folder / "runs.db").exists()


def test_a_module_that_fails_by_itself_shows_its_traceback(holdfast: Command, folder: Path) -> None:
    (folder / "broken.py").write_text("import not_installed_anywhere\n")

    done = holdfast("run", "broken:main")

    assert done.code == 1
    assert "No module named 'not_installed_anywhere'" in done.err
    assert "broken.py" in done.err


def test_an_id_that_is_taken_is_a_failure(holdfast: Command) -> None:
    holdfast("run", "agent:nothing", "--run-id", "taken")

    done = holdfast("run", "agent:nothing", "--run-id", "taken")

    assert (done.code, done.out) == (1, "")
    assert "use resume" in done.err
    assert "Traceback" not in done.err


def test_a_store_that_cannot_be_used_ends_with_4(holdfast: Command, folder: Path) -> None:
    (folder / "runs.db").write_bytes(b"this is no database at all, " * 100)

    done = holdfast("run", "agent:nothing")

    assert done.code == 4
    assert "Traceback" not in done.err


# --- ends that are not good ---


def test_a_function_that_timed_out_ends_with_3(holdfast: Command, store: RunStore) -> None:
    done = holdfast("run", "agent:dawdles")

    (run,) = store.list_runs()
    assert (done.code, run.status) == (3, RunStatus.FAILED)


def test_an_error_of_the_function_is_shown_from_its_own_code_on(holdfast: Command, store: RunStore) -> None:
    done = holdfast("run", "agent:fails")

    (run,) = store.list_runs()
    assert (done.code, done.out) == (1, "")
    assert (run.status, run.error) == (RunStatus.FAILED, "RuntimeError: no \\x1b[2J luck")
    assert "in fails\n" in done.err
    assert "RuntimeError: no \\x1b[2J luck\n" in done.err
    assert "holdfast/cli" not in done.err
    assert done.err.endswith(f"holdfast runs resume {run.id}\n")


def test_a_failure_as_json_says_so_on_stdout(holdfast: Command, store: RunStore) -> None:
    done = holdfast("run", "agent:fails_always", "--json")

    (run,) = store.list_runs()
    assert done.code == 1
    assert json.loads(done.out) == {"id": run.id, "status": "failed", "error": "ValueError: first time"}


def test_a_failed_run_goes_on_as_a_fork_that_knows_what_it_knew(
    holdfast: Command, store: RunStore, folder: Path
) -> None:
    failed = run_id(holdfast("run", "agent:fails"))
    (folder / "go").touch()

    done = holdfast("runs", "resume", failed)

    assert (done.code, done.out) == (0, "lucky\n")
    assert run_id(done) != failed
    assert store.snapshot(run_id(done)).forked_from == failed
    assert f"a fork of {failed}" in done.err
    assert calls(folder) == ["fetch 1"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(("function", "tool"), [("steps", "fetch"), ("asteps", "look")])
def test_an_interrupted_run_can_be_resumed_and_repeats_nothing(
    number: signal.Signals, function: str, tool: str, start: Start, holdfast: Command, store: RunStore, folder: Path
) -> None:
    running = start("run", f"agent:{function}", "5")
    running.wait_until(folder / "waiting")

    running.process.send_signal(number)

    interrupted = running.end()
    (run,) = store.list_runs()
    assert (interrupted.code, interrupted.out) == (130, "")
    assert (run.status, run.interrupted) == (RunStatus.EXECUTING, True)
    assert interrupted.err.endswith(f"holdfast runs resume {run.id}\n")
    (folder / "go").touch()
    done = holdfast("runs", "resume", run.id[:10])
    assert (done.code, done.out) == (0, "100\n" if tool == "fetch" else "15\n")
    assert run_id(done) == run.id
    assert calls(folder) == [f"{tool} {number}" for number in range(5)]


@pytest.mark.parametrize("name", ["-z", "--json", "my run"])
def test_the_command_that_is_named_resumes_the_run_whatever_its_id(holdfast: Command, folder: Path, name: str) -> None:
    failed = holdfast("run", "agent:fails", "--run-id", name, "--store", "odd place.db")
    (folder / "go").touch()

    resumed = holdfast(*shlex.split(failed.err.partition("so far: holdfast ")[2]))

    assert (resumed.code, resumed.out) == (0, "lucky\n")


def test_a_killed_run_is_interrupted_and_can_be_resumed(
    start: Start, holdfast: Command, store: RunStore, folder: Path
) -> None:
    running = start("run", "agent:steps", "5")
    running.wait_until(folder / "waiting")

    running.process.send_signal(signal.SIGKILL)

    assert running.end().code == -signal.SIGKILL
    (run,) = json.loads(holdfast("runs", "ls", "--interrupted", "--json").out)
    (folder / "go").touch()
    done = holdfast("runs", "resume", run["id"])
    assert (done.code, done.out) == (0, "100\n")
    assert store.snapshot(run["id"]).status is RunStatus.COMPLETED
    assert calls(folder) == [f"fetch {number}" for number in range(5)]


def test_a_run_that_somebody_runs_cannot_be_resumed(start: Start, holdfast: Command, folder: Path) -> None:
    running = start("run", "agent:steps", "5", "--run-id", "mine")
    running.wait_until(folder / "waiting")

    done = holdfast("runs", "resume", "mine")

    assert (done.code, done.out) == (1, "")
    assert f"process {running.process.pid}" in done.err
    (folder / "go").touch()
    assert running.end().out == "100\n"


@pytest.mark.parametrize("function", ["steps", "asteps"])
def test_a_run_that_is_cancelled_from_elsewhere_ends_with_3(
    function: str, start: Start, holdfast: Command, store: RunStore, folder: Path
) -> None:
    running = start("run", f"agent:{function}", "5", "--run-id", "mine")
    running.wait_until(folder / "waiting")

    holdfast("runs", "cancel", "mine", "--reason", "too dear")

    done = running.end()
    assert (done.code, done.out) == (3, "")
    assert done.err.endswith("holdfast: cancelled: too dear\n")
    assert store.snapshot("mine").status is RunStatus.CANCELLED


def test_a_function_that_does_not_mind_the_cancel_ends_with_3_too(start: Start, store: RunStore, folder: Path) -> None:
    running = start("run", "agent:stubborn", "--run-id", "mine", "--json")
    running.wait_until(folder / "waiting")

    store.cancel("mine", "enough")

    done = running.end()
    assert (done.code, json.loads(done.out)) == (3, {"id": "mine", "status": "cancelled", "error": "enough"})


def test_a_function_that_collapses_when_it_is_cancelled_ends_with_3_too(
    start: Start, store: RunStore, folder: Path
) -> None:
    running = start("run", "agent:collapses", "--run-id", "mine")
    running.wait_until(folder / "waiting")

    store.cancel("mine")

    assert running.end() == (3, "", "holdfast: run mine\nholdfast: cancelled\n")


def test_a_function_that_fails_its_own_run_ends_with_1(holdfast: Command, store: RunStore) -> None:
    done = holdfast("run", "agent:gives_up")

    assert (done.code, done.out) == (1, "")
    assert "holdfast: failed: not today; to go on" in done.err


def test_an_error_after_the_run_was_completed_is_not_hidden(holdfast: Command, store: RunStore) -> None:
    done = holdfast("run", "agent:too_late")

    (run,) = store.list_runs()
    assert (done.code, done.out, run.status) == (1, "", RunStatus.COMPLETED)
    assert "RuntimeError: or not\n" in done.err
    assert "resume" not in done.err


def test_a_function_that_exits_leaves_the_run_interrupted(holdfast: Command, store: RunStore) -> None:
    done = holdfast("run", "agent:leaves")

    (run,) = store.list_runs()
    assert (done.code, run.interrupted) == (7, True)
    assert f"holdfast runs resume {run.id}" in done.err


# --- in doubt ---


def killed_while_paying(start: Start, folder: Path) -> None:
    running = start("run", "agent:shop", "--run-id", "mine")
    running.wait_until(folder / "waiting")
    running.process.send_signal(signal.SIGKILL)
    running.end()
    (folder / "go").touch()


def test_a_call_in_doubt_is_named_with_its_key_and_what_to_do(
    start: Start, holdfast: Command, store: RunStore, folder: Path
) -> None:
    killed_while_paying(start, folder)

    done = holdfast("runs", "resume", "mine")

    (started,) = [event for event in store.events("mine") if event.payload.get("tool") == "pay"]
    assert (done.code, done.out) == (1, "")
    assert "pay(" in done.err
    assert "12" in done.err
    assert started.payload["key"] in done.err
    assert "holdfast runs resume mine --in-doubt repeat" in done.err
    assert "error.answer(value)" in done.err
    assert "Traceback" not in done.err
    assert store.snapshot("mine").interrupted
    assert calls(folder) == ["fetch 1", "pay 12"]


def test_a_call_in_doubt_is_made_again_if_that_is_wished(start: Start, holdfast: Command, folder: Path) -> None:
    killed_while_paying(start, folder)

    done = holdfast("runs", "resume", "mine", "--in-doubt", "repeat")

    assert (done.code, done.out) == (0, "paid\n")
    assert calls(folder) == ["fetch 1", "pay 12", "pay 12"]


# --- runs that cannot be resumed ---


def test_a_run_without_an_entry_point_says_how_to_resume_it_in_code(holdfast: Command, store: RunStore) -> None:
    store.create_run("default", "", run_id="by hand")

    done = holdfast("runs", "resume", "by hand")

    assert (done.code, done.out) == (1, "")
    assert "with hf.resume('by hand'):" in done.err


def test_a_completed_run_cannot_be_resumed(holdfast: Command) -> None:
    completed = run_id(holdfast("run", "agent:nothing"))

    done = holdfast("runs", "resume", completed)

    assert done.code == 1
    assert "has completed" in done.err
    assert "Traceback" not in done.err


def test_a_run_whose_module_is_gone_is_wrong_usage_and_stays_as_it_is(
    holdfast: Command, store: RunStore, folder: Path
) -> None:
    failed = run_id(holdfast("run", "agent:fails"))
    (folder / "agent.py").unlink()

    done = holdfast("runs", "resume", failed)

    assert done.code == 2
    assert "no module 'agent'" in done.err
    assert len(store.list_runs()) == 1


def test_finished_calls_that_are_not_asked_for_are_an_error_if_that_is_wished(
    holdfast: Command, store: RunStore, folder: Path
) -> None:
    failed = run_id(holdfast("run", "agent:forgets"))
    (folder / "go").touch()

    done = holdfast("runs", "resume", failed, "--diverged", "raise")

    assert (done.code, done.out) == (1, "")
    assert "RunDiverged" in done.err
    assert "fetch" in done.err
    assert store.snapshot(run_id(done)).interrupted


# --- the page ---


PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")


@pytest.fixture
def example(folder: Path) -> list[str]:
    """The command of the page that runs its own agent, which is here, and what it prints."""
    (folder / "agent.py").write_text(PAGE.partition("```python\n")[2].partition("```")[0])
    return PAGE.partition("```console\n$ holdfast ")[2].partition("\n```")[0].split("\n")


def test_the_example_of_the_page_does_what_the_page_says(holdfast: Command, example: list[str]) -> None:
    command, _, result = example

    done = holdfast(*shlex.split(command))

    assert (done.code, done.out) == (0, f"{result}\n")


def test_the_events_of_the_page_are_those_of_its_example(holdfast: Command, example: list[str]) -> None:
    holdfast(*shlex.split(example[0]), "--run-id", "92b3")

    found = timeless(holdfast("runs", "tail", "92b3").out)

    on_page = timeless("\n".join(re.findall(r"^ +\d  \d\d:.*", PAGE, re.MULTILINE)))
    assert len(on_page) == 4
    assert {*on_page} <= {*found}


def timeless(text: str) -> list[str]:
    """Its lines, without what is different each time."""
    return re.sub(r"duration_ms=\d+", "duration_ms=N", re.sub(r"\d\d:\d\d:\d\d\.\d{3}", "TIME", text)).splitlines()
