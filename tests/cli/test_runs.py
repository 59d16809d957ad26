"""`holdfast runs`: what is shown of a store, to people, pipes and programs; how it is steered; the exit codes."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import signal
import stat
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

from holdfast import cli
from holdfast import open as open_
from holdfast.cli.options import bytes_, duration
from holdfast.cli.runs.listing import COLUMNS
from holdfast.history import RunSnapshot, RunStatus
from holdfast.stores import RunStore, SqliteRunStore
from holdfast.stores.ledger import OwnerRow

HOLDFAST = Path(sys.executable).with_name("holdfast")
EVIL = "\x1b]0;owned\x07\x1b[2J[bold red]x[/]\u202e\x9b31m"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
ENTRY = {"target": "agent:main", "args": []}  # of a run that `holdfast run` began


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Done]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the store is that commands use; nothing else of this machine is looked at."""
    path = tmp_path / "runs.db"
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_POLICY", raising=False)
    monkeypatch.setenv("HOLDFAST_STORE", str(path))
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    return path


@pytest.fixture
def store(path: Path) -> Iterator[RunStore]:
    with SqliteRunStore(path) as store:
        yield store


@pytest.fixture
def holdfast(path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command in this process; its output goes to a pipe."""

    def holdfast(*arguments: str) -> Done:
        capsys.readouterr()
        code = cli.main(arguments)
        return Done(code, *capsys.readouterr())

    return holdfast


def interrupt(store: RunStore, run_id: str) -> None:
    """Have the run owned by a process that is long gone."""
    gone = OwnerRow("gone", "elsewhere", 1, 1)
    store.writer.commit(lambda ledger: ledger.claim(ledger.run(run_id), gone))


def leave(store: RunStore, run_id: str, **facts: Any) -> None:
    """A run of which *facts* are known, and whose process is long gone."""
    header = store.header("default", "", run_id, **facts)
    store.writer.commit(lambda ledger: ledger.add(header))
    interrupt(store, run_id)


def as_json(run: RunSnapshot) -> Any:
    return json.loads(json.dumps(run.to_dict()))


def ids(done: Done) -> list[str]:
    return [line.split()[0] for line in done.out.splitlines()[1:]]


def in_terminal(width: int, *arguments: str, typed: str = "", term: str = "xterm-256color") -> str:
    """What the command shows on a terminal of *width* columns, on which *typed* was typed."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    os.write(ours, typed.encode())
    environment = {**os.environ, "TERM": term}
    command = [HOLDFAST, *arguments]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    while chunk := read(ours):
        shown += chunk
    os.close(ours)
    process.wait()
    return shown.decode().replace("\r\n", "\n")


def read(terminal: int) -> bytes:
    """What there is to read; nothing once the other side is closed, which Linux reports as an error."""
    try:
        return os.read(terminal, 65_536)
    except OSError:
        return b""


# --- ls ---


def test_the_newest_run_comes_first(store: RunStore, holdfast: Command) -> None:
    for number in range(3):
        store.create_run("default", "", run_id=f"run-{number}")

    assert ids(holdfast("runs", "ls")) == ["run-2", "run-1", "run-0"]


def test_a_store_that_is_not_there_has_no_runs_and_is_not_made(path: Path, holdfast: Command) -> None:
    done = holdfast("runs", "ls")

    assert (done.code, done.out) == (0, "")
    assert str(path) in done.err
    assert not path.exists()


def test_a_line_has_what_one_wants_to_know_of_a_run(store: RunStore, holdfast: Command) -> None:
    run = store.create_run("nightly", "Find\na flight")
    for call, status in (("a", "success"), ("b", "failed")):
        store.record_event(run.id, "tool_started", {"call_id": call, "tool": "search"})
        store.record_event(run.id, "tool_ended", {"call_id": call, "tool": "search", "status": status})
    store.record_event(run.id, "tool_denied", {"tool": "book"})
    store.record_event(run.id, "tool_started", {"call_id": "c", "tool": "fetch"})

    header, line = holdfast("runs", "ls").out.splitlines()

    assert re.split(" {2,}", header) == [column.title for column in COLUMNS]
    assert re.fullmatch(rf"{run.id} +executing +nightly +\d+ s +3 +1 +1 +fetch +Find a flight", line)


def test_a_run_that_failed_is_shown_with_its_error(store: RunStore, holdfast: Command) -> None:
    run = store.create_run("default", "Find a flight")
    store.record_event(run.id, "tool_started", {"call_id": "a", "tool": "search"})
    store.mark_failed(run.id, "no planes today")

    line = holdfast("runs", "ls").out.splitlines()[1]

    assert line.endswith("no planes today")
    assert "search" not in line


def test_an_error_of_several_lines_is_read_as_such(path: Path, holdfast: Command) -> None:
    with open_(str(path), policies={}) as hf, suppress(ValueError), hf.run(run_id="flawed"):
        hf.call(check)

    shown = holdfast("runs", "show", "flawed").out

    assert re.search(r"^error +ValueError: two flaws:\n +no page\n +no title\\x1b$", shown, re.MULTILINE)
    assert 'error="ValueError: two flaws: no page no title\\x1b"' in shown.replace("\\\\", "\\")


def check() -> None:
    """Fail, in several lines."""
    raise ValueError("two flaws:\nno page\nno title\x1b")


def test_what_is_piped_is_not_cut(store: RunStore, holdfast: Command) -> None:
    store.create_run("session " * 20, "word " * 100)

    shown = holdfast("runs", "ls").out

    assert (shown.count("session "), shown.count("word")) == (1 + 20, 100)


def test_columns_of_wide_letters_are_in_line(store: RunStore, holdfast: Command) -> None:
    for session in ("東京", "plain"):
        store.create_run(session, "THE PROMPT")

    plain, wide = holdfast("runs", "ls").out.splitlines()[1:]

    assert wide.index("THE PROMPT") + 2 == plain.index("THE PROMPT")


def test_an_interrupted_run_is_shown_as_such(store: RunStore, holdfast: Command) -> None:
    run = store.create_run("default", "")
    interrupt(store, run.id)

    assert holdfast("runs", "ls").out.splitlines()[1].split()[1] == "interrupted"


def test_an_interrupted_run_calls_nothing_now(store: RunStore, holdfast: Command) -> None:
    run = store.create_run("default", "")
    store.record_event(run.id, "tool_started", {"call_id": "a", "tool": "search"})
    interrupt(store, run.id)

    assert "search" not in holdfast("runs", "ls").out
    assert "was calling  search" in holdfast("runs", "show", run.id).out


def test_only_interrupted_runs_can_be_listed(store: RunStore, holdfast: Command) -> None:
    for name in ("a", "b", "c", "d"):
        store.create_run("odd" if name in "ac" else "even", "", run_id=name)
    for name in ("a", "b", "c"):
        interrupt(store, name)

    assert ids(holdfast("runs", "ls", "--interrupted")) == ["c", "b", "a"]
    assert ids(holdfast("runs", "ls", "--status", "interrupted")) == ["c", "b", "a"]
    assert ids(holdfast("runs", "ls", "--interrupted", "--session", "odd")) == ["c", "a"]
    assert ids(holdfast("runs", "ls", "--interrupted", "--limit", "1")) == ["c"]
    assert ids(holdfast("runs", "ls", "--interrupted", "--before", "c")) == ["b", "a"]


def test_runs_can_be_listed_by_status_and_session(store: RunStore, holdfast: Command) -> None:
    for name in ("a", "b", "c"):
        store.create_run("odd" if name != "b" else "even", "", run_id=name)
    store.mark_failed("a", "")
    store.mark_failed("b", "")

    assert ids(holdfast("runs", "ls", "--status", "failed")) == ["b", "a"]
    assert ids(holdfast("runs", "ls", "--session", "odd")) == ["c", "a"]
    assert ids(holdfast("runs", "ls", "--session", "odd", "--status", "failed")) == ["a"]


def test_a_list_that_goes_on_says_how_to_see_more(store: RunStore, holdfast: Command) -> None:
    for name in ("a", "b", "c"):
        store.create_run("default", "", run_id=name)

    first = holdfast("runs", "ls", "--limit", "2")
    second = holdfast("runs", "ls", "--limit", "2", "--before", "b")

    assert "--before b" in first.err
    assert (ids(second), second.err) == (["a"], "")


def test_the_list_as_json_is_an_array_of_snapshots(store: RunStore, holdfast: Command) -> None:
    run = store.create_run("default", EVIL)

    done = holdfast("runs", "ls", "--json")

    assert done.json == [as_json(store.snapshot(run.id))]
    assert all(letter.isprintable() or letter == "\n" for letter in done.out)


def test_an_empty_list_as_json_is_an_empty_array(holdfast: Command) -> None:
    assert holdfast("runs", "ls", "--json") == (0, "[]\n", "")


# --- on a terminal ---


@pytest.mark.parametrize("width", [60, 80, 160])
def test_on_a_terminal_ids_are_whole_and_nothing_runs_over_the_edge(width: int, store: RunStore) -> None:
    run = store.create_run("a session with a long name, too long for most", "Find a flight, " * 30)
    store.record_event(run.id, "tool_started", {"call_id": "a", "tool": "search", "arguments": {"text": "x" * 500}})
    interrupt(store, run.id)

    listed = COLOUR.sub("", in_terminal(width, "runs", "ls"))
    followed = COLOUR.sub("", in_terminal(width, "runs", "show", run.id)).partition("events\n")[2]

    assert run.id in listed
    assert all(word in listed for word in ("interrupted", "a session", "Find a flight"))
    assert re.search(r"\b1 call\b|\bcalls\b", listed)
    assert "search" in followed
    data = [line for line in (listed + followed).splitlines() if not line.startswith("holdfast:")]
    assert max(map(len, data)) <= width


def test_an_id_that_is_longer_than_the_terminal_is_not_cut(store: RunStore) -> None:
    run = store.create_run("default", "", run_id="x" * 150)

    assert run.id in in_terminal(60, "runs", "ls")


@pytest.mark.parametrize("command", [["ls"], ["show", "evil"], ["tail", "evil"]])
@pytest.mark.parametrize("width", [60, 160])
def test_what_a_model_wrote_never_commands_the_terminal(width: int, command: list[str], store: RunStore) -> None:
    run = store.create_run(EVIL, EVIL, run_id="evil [red]")
    store.record_event(run.id, "tool_started", {"call_id": EVIL, "tool": EVIL, EVIL: "\x1b[2J", "list": [EVIL]})
    store.mark_failed(run.id, EVIL)

    shown = COLOUR.sub("", in_terminal(width, "runs", *command))

    assert all(letter.isprintable() or letter == "\n" for letter in shown)
    assert "[bold red]x[/]" in shown or width == 60
    assert "evil [red]" in shown or command[0] == "tail"


def test_no_color_is_respected(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.mark_failed(store.create_run("default", "").id, "broken")
    coloured = in_terminal(80, "runs", "ls")

    monkeypatch.setenv("NO_COLOR", "1")

    assert "\x1b[1;31m" in coloured
    assert "31m" not in in_terminal(80, "runs", "ls")


def test_a_terminal_that_cannot_draw_is_as_wide_as_it_is(store: RunStore) -> None:
    store.create_run("default", "a prompt that goes on and on, " * 20)

    shown = {width: in_terminal(width, "runs", "ls", term="dumb") for width in (60, 200)}

    widths = {width: max(map(len, lines.splitlines())) for width, lines in shown.items()}

    assert widths == {60: 60, 200: 200}


# --- show ---


def test_show_tells_all_there_is_to_know(store: RunStore, holdfast: Command) -> None:
    run = store.create_run("nightly", "Find\na flight")
    store.record_event(run.id, "run_started", {})
    store.record_event(run.id, "tool_denied", {"tool": "book"})
    store.record_event(run.id, "spent", {"unit": "usd", "amount": 0.5})
    reports = [{"name": "prices", "checks": [{"name": "low", "status": "passed", "residual_risk": "it may rise"}]}]
    store.record_event(run.id, "verification_ended", {"reports": reports})
    store.record_event(run.id, "run_completed", {"text": "Booked"})

    done = holdfast("runs", "show", run.id)

    facts = dict(re.findall(r"^(\w[\w ]*?)  +(.*)$", done.out.partition("\n\n")[0], re.MULTILINE))
    assert (done.code, done.err) == (0, "")
    assert (facts["run"], facts["status"], facts["session"]) == (run.id, "completed", "nightly")
    assert "prompt       Find\n             a flight\n" in done.out
    assert (facts["calls"], facts["spent"], facts["result"]) == ("0 calls; 1 refused", "0.5 usd", "Booked")
    assert "verification passed (1 passed)\n             risk: it may rise\n" in done.out
    assert [line.split()[2] for line in done.out.partition("events\n")[2].splitlines()] == [
        event.type for event in store.events(run.id)
    ]


def test_show_has_the_last_events_only(store: RunStore, holdfast: Command) -> None:
    run = store.create_run("default", "")
    for number in range(15):
        store.record_event(run.id, f"event_{number}", {})

    some, two, none = (
        holdfast("runs", "show", run.id, *more).out for more in ([], ["--events", "2"], ["--events", "0"])
    )

    assert "event_4 " not in some.replace("\n", " ")
    assert "event_5" in some
    assert "the last 2 of 15 events" in two
    assert "event_" not in none


@pytest.mark.parametrize("command", ["show", "tail"])
def test_what_only_a_resume_needs_is_not_read_to_look_at_a_run(
    command: str, store: RunStore, holdfast: Command
) -> None:
    store.create_run("default", "", run_id="long")
    store.mark_failed("long", "no")
    store.file.writing().execute("DROP TABLE memos")

    done = holdfast("runs", command, "long")

    assert (done.code, "run_failed" in done.out) == (5 if command == "tail" else 0, True), done.err


def test_show_as_json_is_the_snapshot_with_events(store: RunStore, holdfast: Command) -> None:
    run = store.create_run("default", "")
    store.record_event(run.id, "anything", {"a": 1})
    store.record_event(run.id, "last", {"b": 2})

    shown = holdfast("runs", "show", run.id, "--events", "1", "--json").json

    (event,) = shown.pop("events")
    assert (event["sequence"], event["type"], event["payload"], event["late"]) == (1, "last", {"b": 2}, False)
    assert shown == as_json(store.snapshot(run.id))


def test_show_says_how_to_go_on_with_an_interrupted_run(store: RunStore, holdfast: Command) -> None:
    leave(store, "my run", entry=ENTRY)

    assert "holdfast runs resume 'my run'" in holdfast("runs", "show", "my run").err


def test_show_says_what_a_run_in_the_queue_waits_for(store: RunStore, holdfast: Command) -> None:
    store.create_run("default", "", run_id="begun in code")
    submitted = holdfast("runs", "submit", "agent:main", "--priority", "7").out.strip()

    shown = holdfast("runs", "show", submitted, "--store", "./runs.db")

    assert shown.err == "holdfast: it waits for a worker: holdfast worker agent:main --store ./runs.db\n"
    assert "agent:main(), priority 7\n" in shown.out
    assert holdfast("runs", "show", "begun in code").err == ""


def test_a_run_that_no_command_resumes_is_resumed_in_code(store: RunStore, holdfast: Command) -> None:
    leave(store, "my run")

    said = holdfast("runs", "show", "my run").err

    assert "with hf.resume('my run'):" in said
    assert "holdfast runs resume" not in said


def test_nobody_is_told_to_resume_in_code_what_has_completed(store: RunStore, holdfast: Command) -> None:
    leave(store, "my run")
    store.record_event("my run", "run_completed")

    said = holdfast("runs", "resume", "my run")

    assert (said.code, said.out) == (1, "")
    assert "has completed: there is nothing to resume" in said.err
    assert "hf.resume" not in said.err


def test_of_a_session_of_a_proxy_nobody_is_told_to_resume_it(store: RunStore, holdfast: Command) -> None:
    leave(store, "session", noted=True)

    said = [holdfast("runs", command, "session").err for command in ("show", "resume")]

    assert all("it was a proxy's session, and cannot be resumed" in each for each in said)
    assert not any("hf.resume" in each for each in said)


def test_the_command_that_resumes_names_the_store_that_was_named(store: RunStore, holdfast: Command) -> None:
    leave(store, "one", entry=ENTRY)

    assert "holdfast runs resume one --store ./runs.db\n" in holdfast("runs", "show", "one", "--store", "./runs.db").err


def test_the_first_letters_of_an_id_will_do(store: RunStore, holdfast: Command) -> None:
    for name in ("alpha", "beta", "alphabet"):
        store.create_run("default", "", run_id=name)

    found = [holdfast("runs", "show", letters, "--json").json["id"] for letters in ("b", "alphab", "alpha")]

    assert found == ["beta", "alphabet", "alpha"]


def test_letters_that_may_mean_several_runs_are_wrong_usage_and_name_them(store: RunStore, holdfast: Command) -> None:
    for name in ("alpha", "beta", "alphabet"):
        store.create_run("default", "", run_id=name)

    done = holdfast("runs", "show", "al")

    assert (done.code, done.out) == (2, "")
    assert "  alpha\n" in done.err
    assert "  alphabet\n" in done.err
    assert "beta" not in done.err


@pytest.mark.parametrize("command", ["show", "tail", "resume", "export"])
def test_a_run_that_is_not_there_is_a_failure(command: str, store: RunStore, holdfast: Command) -> None:
    store.create_run("default", "", run_id="another")

    done = holdfast("runs", command, "nowhere")

    assert (done.code, done.out) == (1, "")
    assert done.err == "holdfast: there is no run 'nowhere' in this store\n"


def test_an_empty_id_is_wrong_usage(store: RunStore, holdfast: Command) -> None:
    store.create_run("default", "")

    assert holdfast("runs", "show", "").code == 2


# --- tail ---


@pytest.mark.parametrize(("type", "code"), [("run_completed", 0), ("run_cancelled", 3), ("run_failed", 5)])
def test_tail_ends_with_the_run_and_says_how_it_ended(type: str, code: int, store: RunStore, holdfast: Command) -> None:
    run = store.create_run("default", "")
    store.record_event(run.id, "run_started", {})
    store.record_event(run.id, type, {})

    done = holdfast("runs", "tail", run.id)

    assert (done.code, done.err) == (code, "")
    assert [line.split()[2] for line in done.out.splitlines()] == ["run_started", type]


def test_a_line_of_tail_has_what_happened_in_words(store: RunStore, holdfast: Command) -> None:
    run = store.create_run("default", "")
    payload = {"call_id": "abc", "tool": "search", "result": "two words", "status": "success", "error": None}
    store.record_event(run.id, "tool_ended", payload)
    store.record_event(run.id, "run_completed", {"text": ""})
    store.record_event(run.id, "afterwards", {"zero": 0})

    first, _, late = holdfast("runs", "tail", run.id).out.splitlines()

    assert re.fullmatch(r" +0  \d\d:\d\d:\d\d\.\d{3}  tool_ended +search  status=success result=\"two words\"", first)
    assert late.endswith("afterwards            zero=0  (late)")


def test_tail_as_json_is_a_line_an_event(store: RunStore, holdfast: Command) -> None:
    run = store.create_run("default", "")
    store.record_event(run.id, "anything", {"text": EVIL})
    store.record_event(run.id, "run_completed", {})

    done = holdfast("runs", "tail", run.id, "--json")

    events = [json.loads(line) for line in done.out.splitlines()]
    assert [(event["sequence"], event["type"]) for event in events] == [(0, "anything"), (1, "run_completed")]
    assert events[0]["payload"] == {"text": EVIL}


def test_tail_can_begin_in_the_middle(store: RunStore, holdfast: Command) -> None:
    run = store.create_run("default", "")
    for type in ("first", "second", "run_completed"):
        store.record_event(run.id, type, {})

    assert [line.split()[0] for line in holdfast("runs", "tail", run.id, "--after", "0").out.splitlines()] == ["1", "2"]


class Tail:
    """`holdfast runs tail` as a process of its own, whose lines are read as they come."""

    def __init__(self, run_id: str, *more: str) -> None:
        self.process = subprocess.Popen(
            [HOLDFAST, "runs", "tail", run_id, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def interrupt(self) -> None:
        """Ctrl-C; once more if nothing comes of it: Python overlooks what comes just before it begins to wait."""
        for patience in (10, 0):
            self.process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(patience)
                return

    def end(self) -> Done:
        out, err = self.process.communicate(timeout=30)
        return Done(self.process.returncode, out, err)


@pytest.fixture
def tail() -> Iterator[Callable[..., Tail]]:
    started: list[Tail] = []

    def tail(run_id: str, *more: str) -> Tail:
        started.append(Tail(run_id, *more))
        return started[-1]

    yield tail
    for each in started:
        each.process.kill()
        each.process.communicate()


def test_tail_shows_what_another_process_writes_as_it_is_written(store: RunStore, tail: Callable[..., Tail]) -> None:
    run = store.create_run("default", "")
    store.record_event(run.id, "first", {})
    following = tail(run.id, "--json")

    assert json.loads(following.line())["type"] == "first"
    store.record_event(run.id, "second", {})
    assert json.loads(following.line())["type"] == "second"
    store.mark_cancelled(run.id)
    assert json.loads(following.line())["type"] == "run_cancelled"
    assert following.end() == (3, "", "")


def test_an_interrupted_tail_ends_with_130(store: RunStore, tail: Callable[..., Tail]) -> None:
    run = store.create_run("default", "")
    store.record_event(run.id, "first", {})
    following = tail(run.id)
    following.line()

    following.interrupt()

    done = following.end()
    assert done.code == 130
    assert done.err.strip() == "holdfast: interrupted"


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_reader_of_tail_that_goes_away_is_no_reason_for_a_traceback(
    more: list[str], store: RunStore, tail: Callable[..., Tail]
) -> None:
    run = store.create_run("default", "")
    store.record_event(run.id, "first", {})
    following = tail(run.id, *more)
    following.line()
    assert following.process.stdout is not None

    following.process.stdout.close()
    store.record_event(run.id, "second", {})

    assert following.process.stderr is not None
    assert (following.process.wait(30), following.process.stderr.read()) == (1, "")


def test_tail_says_when_nobody_runs_the_run(store: RunStore, tail: Callable[..., Tail]) -> None:
    leave(store, "one", entry=ENTRY)
    following = tail("one")
    assert following.process.stderr is not None

    said = following.process.stderr.readline()
    store.mark_failed("one", "given up")

    assert "holdfast runs resume one" in said
    assert following.end().code == 5


def test_tail_says_what_a_run_in_the_queue_waits_for(
    store: RunStore, holdfast: Command, tail: Callable[..., Tail]
) -> None:
    holdfast("runs", "submit", "agent:main", "--run-id", "one")
    following = tail("one")
    assert following.process.stderr is not None

    said = following.process.stderr.readline()
    store.mark_failed("one", "given up")

    assert said == "holdfast: it waits for a worker: holdfast worker agent:main\n"
    assert following.end().code == 5


def test_tail_names_the_store_that_was_named(store: RunStore, tail: Callable[..., Tail]) -> None:
    leave(store, "one", entry=ENTRY)
    following = tail("one", "--store", "./runs.db")
    assert following.process.stderr is not None

    said = following.process.stderr.readline()
    store.mark_failed("one", "given up")

    assert said.endswith("holdfast runs resume one --store ./runs.db\n")
    assert following.end().code == 5


# --- cancel ---


def test_cancel_tells_what_became_of_each_wish(store: RunStore, holdfast: Command) -> None:
    for name in ("waiting", "done"):
        store.create_run("default", "", run_id=name)
    store.record_event("done", "run_completed", {})

    done = holdfast("runs", "cancel", "waiting", "do", "nowhere")

    assert done.code == 1
    assert done.out.splitlines() == ["waiting  cancel requested", "done  already finished", "nowhere  not found"]
    assert store.snapshot("waiting").status is RunStatus.CANCELLED


def test_the_reason_of_a_cancel_is_recorded(store: RunStore, holdfast: Command) -> None:
    run = store.create_run("default", "")

    done = holdfast("runs", "cancel", run.id[:8], "--reason", "too dear", "--json")

    assert (done.code, done.json) == (0, [{"id": run.id, "result": "requested"}])
    assert store.snapshot(run.id).error == "too dear"


def test_if_one_of_several_is_ambiguous_none_is_cancelled(store: RunStore, holdfast: Command) -> None:
    for name in ("alpha", "beta", "alphabet"):
        store.create_run("default", "", run_id=name)

    done = holdfast("runs", "cancel", "beta", "al")

    assert done.code == 2
    assert all(run.status is RunStatus.CREATED for run in store.list_runs())


# --- export and import ---


def some_runs(store: RunStore) -> None:
    for name in ("one", "two", "three"):
        store.create_run("default", f"prompt of {name}: ü 東京", run_id=name)
        store.record_event(name, "run_started", {})
        store.record_event(name, "run_completed", {"text": EVIL})


def exported(store: RunStore, *run_ids: str) -> str:
    fp = io.StringIO()
    store.export(fp, run_ids or None)
    return fp.getvalue()


def test_an_export_is_what_the_store_exports(store: RunStore) -> None:
    some_runs(store)

    # In a place that knows no letters but those of English: data must be exact all the same.
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([HOLDFAST, "runs", "export"], capture_output=True, env=environment, check=True)

    assert done.stdout.decode() == exported(store)
    assert done.stderr == b"holdfast: exported 3 runs\n"


def test_json_loses_no_character_where_the_output_is_not_in_utf_8(store: RunStore) -> None:
    prompt = "ü 東京 \U0001f525 \x7f"
    store.create_run("default", prompt, run_id="r")

    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run([HOLDFAST, "runs", "ls", "--json"], capture_output=True, env=environment, check=True)

    assert [run["prompt"] for run in json.loads(done.stdout.decode("ascii"))] == [prompt]


def test_single_runs_can_be_exported(store: RunStore, holdfast: Command) -> None:
    some_runs(store)

    assert holdfast("runs", "export", "tw").out == exported(store, "two")


def test_an_export_to_a_file_is_for_its_owner_alone(store: RunStore, holdfast: Command, tmp_path: Path) -> None:
    some_runs(store)

    done = holdfast("runs", "export", "-o", "out.jsonl")

    assert (done.code, done.out) == (0, "")
    assert (tmp_path / "out.jsonl").read_text("utf-8") == exported(store)
    assert stat.S_IMODE((tmp_path / "out.jsonl").stat().st_mode) == 0o600


def test_an_export_that_fails_leaves_the_old_file_as_it_was(store: RunStore, holdfast: Command, tmp_path: Path) -> None:
    some_runs(store)
    store.writer.commit(lambda ledger: store.file.writing().execute("DELETE FROM events WHERE sequence = 1"))
    (tmp_path / "out.jsonl").write_text("as it was")
    before = sorted(tmp_path.iterdir())

    done = holdfast("runs", "export", "-o", "out.jsonl")

    assert done.code == 4
    assert "is damaged" in done.err
    assert (tmp_path / "out.jsonl").read_text() == "as it was"
    assert sorted(tmp_path.iterdir()) == before


def test_an_export_through_a_link_keeps_the_link(store: RunStore, holdfast: Command, tmp_path: Path) -> None:
    some_runs(store)
    (tmp_path / "real.jsonl").write_text("")
    (tmp_path / "link.jsonl").symlink_to("real.jsonl")

    holdfast("runs", "export", "-o", "link.jsonl")

    assert (tmp_path / "link.jsonl").is_symlink()
    assert (tmp_path / "real.jsonl").read_text("utf-8") == exported(store)


def test_an_export_can_go_to_a_device(store: RunStore, holdfast: Command) -> None:
    some_runs(store)

    done = holdfast("runs", "export", "-o", "/dev/null", "--json")

    assert (done.code, done.json) == (0, {"runs": 3, "file": "/dev/null"})
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_an_export_can_go_to_a_pipe_that_is_named(store: RunStore) -> None:
    some_runs(store)

    done = subprocess.run(
        [HOLDFAST, "runs", "export", "-o", "/dev/stdout"], capture_output=True, text=True, encoding="utf-8", check=False
    )

    assert (done.returncode, done.stdout) == (0, exported(store))
    assert done.stderr == "holdfast: exported 3 runs to /dev/stdout\n"


def test_an_export_to_a_place_that_is_not_there_says_so(store: RunStore, holdfast: Command) -> None:
    some_runs(store)

    done = holdfast("runs", "export", "-o", "nowhere/out.jsonl")

    assert done.code == 1
    assert "nowhere/out.jsonl: No such file or directory" in done.err


def test_a_reader_of_an_export_that_goes_away_is_no_reason_for_a_traceback(store: RunStore) -> None:
    run = store.create_run("default", "x" * 200_000)
    read, write = os.pipe()
    os.close(read)

    done = subprocess.run(
        [HOLDFAST, "runs", "export", run.id], stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )

    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_an_import_says_how_many_runs_are_new(store: RunStore, holdfast: Command, tmp_path: Path) -> None:
    some_runs(store)
    holdfast("runs", "export", "-o", "out.jsonl")

    first = holdfast("runs", "import", "out.jsonl", "--store", "other.db")
    second = holdfast("runs", "import", "out.jsonl", "--store", "other.db", "--json")

    assert first.out == f"3 runs are new in {tmp_path / 'other.db'}\n"
    assert second.json == {"new": 0}
    with SqliteRunStore(tmp_path / "other.db") as other:
        assert exported(other) == exported(store)


def test_an_import_can_come_through_a_pipe(store: RunStore, holdfast: Command, tmp_path: Path) -> None:
    some_runs(store)

    done = subprocess.run(
        [HOLDFAST, "runs", "import", "-", "--store", "other.db"],
        input=exported(store).encode(),
        capture_output=True,
        check=True,
    )

    assert done.stdout.decode() == f"3 runs are new in {tmp_path / 'other.db'}\n"


@pytest.mark.parametrize(
    "spoil", [lambda text: text[:-20], lambda text: text.replace("東", "西"), lambda text: "hello"]
)
def test_a_broken_import_changes_nothing(
    spoil: Callable[[str], str], store: RunStore, holdfast: Command, tmp_path: Path
) -> None:
    some_runs(store)
    (tmp_path / "bad.jsonl").write_text(spoil(exported(store)), "utf-8")
    with SqliteRunStore(tmp_path / "other.db") as other:
        other.create_run("default", "", run_id="mine")

        done = holdfast("runs", "import", "bad.jsonl", "--store", "other.db")

        assert (done.code, done.out) == (4, "")
        assert "nothing was imported" in done.err
        assert [run.id for run in other.list_runs()] == ["mine"]


def test_an_import_of_bytes_that_are_no_text_says_so(holdfast: Command, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_bytes(b"\xff\xfe\x00")

    done = holdfast("runs", "import", "bad.jsonl")

    assert done.code == 4
    assert "not UTF-8" in done.err


def test_an_import_of_a_file_that_is_not_there_is_wrong_usage(holdfast: Command) -> None:
    assert holdfast("runs", "import", "nowhere.jsonl").code == 2


# --- prune ---


def test_prune_deletes_what_lies_beyond_the_limits(store: RunStore, holdfast: Command) -> None:
    some_runs(store)

    done = holdfast("runs", "prune", "--max-runs", "1", "--yes")

    assert (done.code, done.out) == (0, "deleted 2 runs and 4 events\n")
    assert [run.id for run in store.list_runs()] == ["three"]


def test_prune_as_json_says_how_much_went(store: RunStore, holdfast: Command) -> None:
    some_runs(store)

    assert holdfast("runs", "prune", "--max-age", "30d", "--max-bytes", "1GB", "--yes", "--json").json == {
        "runs": 0,
        "events": 0,
    }


def test_prune_with_a_limit_that_is_no_number_of_runs_is_wrong_usage(store: RunStore, holdfast: Command) -> None:
    done = holdfast("runs", "prune", "--max-runs", "9" * 25, "--yes")

    assert (done.code, done.out) == (2, "")
    assert "max_runs" in done.err


def test_prune_without_a_limit_is_wrong_usage(store: RunStore, holdfast: Command) -> None:
    done = holdfast("runs", "prune", "--yes")

    assert done.code == 2
    assert "--max-age" in done.err


def test_prune_does_nothing_unasked_where_nobody_can_answer(store: RunStore) -> None:
    some_runs(store)

    done = subprocess.run(
        [HOLDFAST, "runs", "prune", "--max-runs", "0"], input="y\n", capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert "--yes" in done.stderr
    assert len(store.list_runs()) == 3


@pytest.mark.parametrize(("typed", "left"), [("y\n", 0), ("n\n", 3), ("\n", 3)])
def test_prune_asks_before_it_deletes(typed: str, left: int, store: RunStore, path: Path) -> None:
    some_runs(store)

    shown = in_terminal(80, "runs", "prune", "--max-age", "0", "--max-runs", "0", typed=typed)

    asked = (
        f"Delete from {path}: runs that ended, or that nobody went on with, more than 0 ms ago; all but the newest 0"
    )
    assert asked in shown
    assert ("nothing was deleted" in shown) is bool(left)
    assert len(store.list_runs()) == left


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("1.5 h", 5400), ("30min", 1800), ("30D", 2_592_000), ("2w", 1_209_600)],
)
def test_a_duration_is_read_in_its_unit(text: str, seconds: float) -> None:
    assert duration(None, None, text) == seconds  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "count"),
    [("500", 500), ("500B", 500), ("1kB", 1000), ("1.5 MB", 1_500_000), ("1GB", 10**9), ("1GiB", 2**30)],
)
def test_a_size_is_read_in_its_unit(text: str, count: int) -> None:
    assert bytes_(None, None, text) == count  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "d", "-1d", "1 year", "1e9", "nan", "1d2h", "٣d", "9" * 400])
def test_a_duration_that_cannot_be_read_is_wrong_usage(text: str, holdfast: Command) -> None:
    done = holdfast("runs", "prune", "--max-age", text, "--yes")

    assert done.code == 2
    assert "such as 90s" in done.err


# --- bad input ---


@pytest.mark.parametrize(
    "command", ["ls --session", "ls --before", "show", "tail", "cancel", "cancel x --reason", "resume", "export"]
)
def test_bytes_that_are_no_text_are_wrong_usage(command: str, store: RunStore) -> None:
    done = subprocess.run([HOLDFAST, "runs", *command.split(), b"\xff"], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (2, "")
    assert "is not UTF-8 text" in done.stderr


def test_a_time_that_no_calendar_knows_can_be_shown(store: RunStore, holdfast: Command) -> None:
    run = store.create_run("default", "")
    store.record_event(run.id, "run_completed", {})
    store.writer.commit(lambda ledger: store.file.writing().execute(f"UPDATE events SET at = {2**62}"))

    assert holdfast("runs", "show", run.id).code == 0


# --- stores that cannot be used ---


@pytest.mark.parametrize("command", [["ls"], ["show", "x"], ["tail", "x"], ["cancel", "x"], ["export"]])
def test_a_store_that_cannot_be_read_ends_with_4(command: list[str], path: Path, holdfast: Command) -> None:
    path.write_bytes(b"this is no database at all, " * 100)

    done = holdfast("runs", *command)

    assert (done.code, done.out) == (4, "")
    assert str(path) in done.err
    assert done.err.count("\n") == 1


def test_a_name_that_is_no_store_is_wrong_usage(holdfast: Command) -> None:
    done = holdfast("runs", "ls", "--store", "ftp://example.org/runs")

    assert done.code == 2
    assert "sqlite:///PATH" in done.err


@pytest.mark.parametrize(
    "command", [["runs", "submit", "agent:main"], ["runs", "import", "out.jsonl"], ["tools", "open", "charge"]]
)
def test_what_has_no_place_to_last_is_refused(
    command: list[str], path: Path, holdfast: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path.parent / "out.jsonl").touch()
    for name in ("HOLDFAST_STORE", "XDG_DATA_HOME"):
        monkeypatch.delenv(name)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)

    done = holdfast(*command)

    assert (done.code, done.out) == (2, "")
    assert "no home folder" in done.err


def test_the_option_comes_before_the_environment(store: RunStore, holdfast: Command, tmp_path: Path) -> None:
    store.create_run("default", "")
    with SqliteRunStore(tmp_path / "other.db") as other:
        run = other.create_run("default", "")

        assert ids(holdfast("runs", "ls", "--store", f"sqlite:///{tmp_path / 'other.db'}")) == [run.id]


# --- the page ---

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")


def commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """Every command below *command*, by its whole name."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command)
    for each in command.list_commands(context):
        below = command.get_command(context, each)
        assert below is not None
        yield from commands(below, f"{name} {each}")


COMMANDS = dict(commands(cli.holdfast, "holdfast"))


def test_the_page_has_every_command_and_no_other() -> None:
    assert set(re.findall(r"^##+ (holdfast .+)$", PAGE, re.MULTILINE)) == {*COMMANDS, "holdfast runs", "holdfast tools"}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_has_every_option_of_a_command_and_an_example(name: str) -> None:
    section = re.search(rf"^##+ {name}\n(.*?)(^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    options = {option for each in COMMANDS[name].params for option in each.opts if option.startswith("-")}
    assert section is not None

    tabled = re.findall(r"^\| (`-.*?) \|", section[1], re.MULTILINE)

    assert {option for cell in tabled for option in re.findall(r"`(-[\w-]+)`", cell)} == options
    assert f"$ {name}" in section[1]


def test_the_page_has_the_exit_codes_of_the_code() -> None:
    codes = {value for name, value in vars(cli).items() if name.isupper() and isinstance(value, int)}

    assert {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)} == codes
