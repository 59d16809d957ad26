"""Durable runs keep their word under kill -9; and if they did not, the torture would say so.

The long form is `holdfast doctor --torture SECONDS`, or `python -m bench torture` with its thousand kills.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from holdfast import cli
from holdfast.errors import HoldfastError, StoreError
from holdfast.torture import journal, session
from holdfast.torture.agent import POLICIES, STEP
from holdfast.torture.case import Case, Expected, Journalled
from holdfast.torture.desk import PROGRESS
from holdfast.torture.driver import Task, Trouble
from holdfast.torture.journal import JUDGE, Journal, Line, read
from holdfast.torture.judge import Judge
from holdfast.torture.life import POINTS, live
from holdfast.torture.places import FilePlace
from holdfast.torture.process import STOPS, stopped_once
from holdfast.torture.promises import Kept, Progress, Promise, Tally, Verdict
from holdfast.torture.session import torture
from holdfast.torture.shapes import SHAPES
from holdfast.torture.view import closing, line

SEED = 20
KEY = "a" * 32
OTHER = "b" * 32


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the evidence would be."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def place(tmp_path: Path) -> FilePlace:
    return FilePlace(str(tmp_path / "runs.db"))


def told(verdict: Verdict) -> str:
    return "\n".join(f"{kept.promise}: {breach}" for kept in verdict.promises for breach in kept.breaches)


def broken(verdict: Verdict) -> set[Promise]:
    return {kept.promise for kept in verdict.promises if kept.breaches}


# --- the short form ---


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_promise_is_kept_while_processes_are_killed_frozen_raced_and_cancelled(temporary_folder: Path) -> None:
    verdict = torture(3.0, seed=SEED)

    assert verdict.is_clean, f"seed {verdict.seed}, evidence in {verdict.folder}\n{told(verdict)}"
    assert [kept.promise for kept in verdict.promises if not kept.tested] == []
    assert verdict.progress.kills >= 10
    assert verdict.progress.zombies >= 1
    assert list(temporary_folder.iterdir()) == []


DIE_EVERYWHERE = """
import random, sys
from holdfast.torture.life import POINTS, Fate
from holdfast.torture.places import FilePlace
from holdfast.torture.stage import Stage

stage = Stage(FilePlace(sys.argv[1] + "/runs.db"), sys.argv[1], random.Random(1), lambda _: None)
for point in POINTS:
    for shape in ("plain", "tasks"):
        case = stage.case(shape)
        stage.let_live([case], [Fate(point, 1)])
        stage.judge.look(case)
assert stage.tally.is_clean, stage.tally.kept()
print(*stage.progress.points)
"""


def test_a_process_can_be_killed_at_every_point_of_the_protocol(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DIE_EVERYWHERE, str(tmp_path)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == set(POINTS)


# --- a library that breaks its word is found out ---

BREAKING = """
from holdfast.torture import __main__, driver
{damage}
driver.SCENES = (driver.{scene},) * 10
__main__.main()
"""
FORGETS_RESULTS = """
from holdfast.stores import RunStore
remembered = RunStore.memory
RunStore.memory = lambda store, run_id: remembered(store, run_id)._replace(memos=[])
"""
LOSES_WRITES = """
import random
from holdfast.stores.sqlite import SqliteFile
commit = SqliteFile.commit
SqliteFile.commit = lambda file: file.writing().execute("ROLLBACK") if random.random() < 0.1 else commit(file)
"""
HAS_NO_FENCE = """
from holdfast.stores.ledger import Ledger
Ledger.claimed = lambda ledger, claim: ledger.run(claim.run_id)
"""
BELIEVES_ALL_DEAD = """
from holdfast.stores.ledger import Ledger
Ledger.is_owned = lambda ledger, live: False
"""
BELIEVES_ALL_ALIVE = """
from holdfast.stores.owners import LockFiles
LockFiles.is_living = lambda files, owner, host, locked: None
"""
REPEATS_UNASKED = """
from holdfast.runs import Run
begin = Run.__init__
def careless(run, home, plan):
    begin(run, home, plan)
    run.repeats = True
Run.__init__ = careless
"""
CALLS_BEFORE_IT_WRITES = """
from holdfast.calls.recording import Record
start = Record.start
Record.start = lambda record, arguments, waits: start(record, arguments, waits=False)
"""
KNOWS_NO_CALL_AGAIN = """
import os
from holdfast.runs.steps import Steps
begin = Steps.begin
Steps.begin = lambda steps, root, secret: begin(steps, f"{root} {os.getpid()}", secret)
"""


@pytest.mark.parametrize(
    ("damage", "scene", "promise"),
    [
        pytest.param(FORGETS_RESULTS, "killed", Promise.FINISHED, id="forgets results"),
        pytest.param(LOSES_WRITES, "killed", Promise.KEPT, id="loses writes"),
        pytest.param(HAS_NO_FENCE, "frozen", Promise.ZOMBIE, id="has no fence"),
        pytest.param(BELIEVES_ALL_DEAD, "raced", Promise.RACE, id="believes all dead"),
        pytest.param(BELIEVES_ALL_ALIVE, "killed", Promise.AT_ONCE, id="believes all alive"),
        pytest.param(REPEATS_UNASKED, "killed", Promise.DOUBT, id="repeats unasked"),
        pytest.param(CALLS_BEFORE_IT_WRITES, "killed", Promise.BEFORE, id="calls before it writes"),
        pytest.param(KNOWS_NO_CALL_AGAIN, "killed", Promise.KEY, id="knows no call again"),
    ],
)
@pytest.mark.slow
def test_a_library_that_breaks_a_promise_is_found_out(
    damage: str, scene: str, promise: Promise, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = BREAKING.format(damage=damage, scene=scene)
    monkeypatch.setattr(session, "DRIVER", (sys.executable, "-c", script))

    verdict = torture(0.0, kills=200, seed=SEED)

    assert promise in broken(verdict), told(verdict)
    assert verdict.folder is not None
    assert any(Path(verdict.folder).glob("*.journal"))


# --- the agent ---


@pytest.mark.parametrize("shape", SHAPES)
def test_an_undisturbed_agent_makes_more_than_thirty_calls_of_every_kind_and_finishes(
    shape: str, place: FilePlace, tmp_path: Path
) -> None:
    path = str(tmp_path / "journal")

    live(Case("one", shape, path, None), 1, place)
    live(Case("two", shape, path, None), 2, place)
    lines = read(path)

    calls = [line for line in lines if line.life == 1 and line.word == journal.END]
    assert len(calls) > 30
    assert {line.tool for line in calls} >= {*POLICIES, STEP}
    first, second = (line.text for line in lines if line.word == journal.DONE)
    assert first == second
    assert not any(line.word == journal.ERROR for line in lines)


# --- the judge ---


class Court:
    """A run with a log and a journal that a test can make up."""

    def __init__(self, place: FilePlace, folder: Path) -> None:
        self.place = place
        self.tally = Tally()
        self.judge = Judge(place, self.tally)
        self.case = Case("run", "plain", str(folder / "journal"), None)

    def log(self, type: str, **payload: object) -> None:
        with self.place.open() as store:
            store.create_run("torture", "plain", run_id="run")
            store.record_event("run", type, payload)

    def made(self, key: str = KEY, mark: str = "1.0", *, repeat: bool = False) -> None:
        """Log a finished call."""
        self.log("tool_started", call_id=key[:16], tool="charge", key=key, repeat=repeat)
        self.log("tool_ended", call_id=key[:16], tool="charge", status="success", result={"mark": mark})

    def say(
        self, word: str, key: str = KEY, tool: str = "charge", label: str = "1", life: int = 1, **more: object
    ) -> None:
        Journal(self.case.journal, life).say(word, key, tool, label, **more)

    def break_store(self, sql: str) -> None:
        connection = sqlite3.connect(self.place.path)
        with connection:
            connection.execute(sql)
        connection.close()

    def broken(self, *, is_left: bool = False) -> set[Promise]:
        self.judge.look(self.case, is_left=is_left)
        return {kept.promise for kept in self.tally.kept() if kept.breaches}


@pytest.fixture
def court(place: FilePlace, tmp_path: Path) -> Court:
    court = Court(place, tmp_path)
    court.log("run_started")
    return court


def test_a_call_that_was_made_once_and_seen_is_no_breach(court: Court) -> None:
    court.made()
    court.say(journal.BEGIN)
    court.say(journal.EFFECT, mark="1.0")
    court.say(journal.ACK, mark="1.0")

    assert court.broken() == set()


def test_a_call_that_is_made_after_its_result_was_seen_is_a_breach(court: Court) -> None:
    court.made()
    court.say(journal.ACK, mark="1.0")
    court.say(journal.BEGIN, life=2)

    assert court.broken() == {Promise.FINISHED}


def test_a_call_that_is_made_after_the_judge_saw_its_end_in_the_log_is_a_breach(court: Court) -> None:
    court.made()
    before = court.broken()
    court.say(journal.BEGIN, tool="notify", life=2)

    assert before == set()
    assert court.broken() == {Promise.FINISHED}


def test_a_finished_call_that_is_in_doubt_is_a_breach(court: Court) -> None:
    court.made()
    court.say(journal.ACK, mark="1.0")
    court.say(journal.ANSWER, life=2)

    assert court.broken() == {Promise.FINISHED}


def test_a_finished_call_that_gives_another_result_is_a_breach(court: Court) -> None:
    court.made()
    court.made(mark="2.0", repeat=True)
    court.say(journal.ACK, mark="1.0")
    court.say(journal.ACK, mark="2.0", life=2)

    assert court.broken() == {Promise.FINISHED}


def test_a_result_that_was_seen_and_is_not_in_the_log_is_a_breach(court: Court) -> None:
    court.say(journal.ACK, mark="1.0")

    assert court.broken() == {Promise.KEPT}


def test_an_event_that_was_committed_and_is_not_in_the_log_is_a_breach(court: Court) -> None:
    court.log(PROGRESS, mark="1.0")
    court.say(journal.ACK, key="", tool=PROGRESS, mark="1.0")
    before = court.broken()
    court.say(journal.ACK, key="", tool=PROGRESS, mark="1.1")

    assert before == set()
    assert court.broken() == {Promise.KEPT}


def test_a_run_that_is_gone_is_a_breach(place: FilePlace, tmp_path: Path) -> None:
    court = Court(place, tmp_path)
    court.say(journal.ENTERED)

    assert court.broken() == {Promise.KEPT}


def test_a_log_that_was_longer_before_is_a_breach(court: Court) -> None:
    court.log("note", mark="1.0")
    before = court.broken()
    court.break_store("DELETE FROM events WHERE sequence = 1")

    assert before == set()
    assert Promise.KEPT in court.broken()


def test_a_gap_in_the_sequences_is_a_breach(court: Court) -> None:
    court.log("note")
    court.break_store("UPDATE events SET sequence = 5 WHERE sequence = 1")

    assert court.broken() == {Promise.SEQUENCE}


def test_a_time_that_goes_back_is_a_breach(court: Court) -> None:
    court.log("note", mark="1.0")
    court.break_store("UPDATE events SET at = 7 WHERE sequence = 1")

    assert Promise.TIME in court.broken()


def test_a_snapshot_that_does_not_fold_is_a_breach(court: Court) -> None:
    court.log("tool_started", call_id="x", tool="charge", key=KEY)
    court.break_store("UPDATE events SET type = 'note', payload = '{\"mark\": \"1.0\"}' WHERE sequence = 1")

    assert court.broken() == {Promise.FOLD}


def test_a_tool_that_was_called_before_its_start_was_written_is_a_breach(court: Court) -> None:
    court.say(journal.BEGIN)

    assert court.broken() == {Promise.BEFORE}


def test_an_idempotent_tool_may_be_called_before_its_start_is_written(court: Court) -> None:
    court.say(journal.BEGIN, tool="notify")

    assert court.broken() == set()


def test_a_call_in_doubt_may_be_repeated_only_by_whoever_decided_so(court: Court) -> None:
    court.log("tool_started", call_id=KEY[:16], tool="charge", key=KEY)
    court.say(journal.BEGIN)
    court.say(journal.REPEAT, life=2)
    court.say(journal.BEGIN, life=2)
    decided = court.broken()
    court.say(journal.BEGIN, life=3)

    assert decided == set()
    assert court.broken() == {Promise.DOUBT}


def test_an_effect_that_came_twice_is_a_breach(court: Court) -> None:
    court.log("tool_started", call_id=KEY[:16], tool="charge", key=KEY)
    court.say(journal.EFFECT, mark="1.0")
    court.say(journal.REPEAT, life=2)
    court.say(journal.EFFECT, mark="2.0", life=2)

    assert court.broken() == {Promise.DOUBT}


def test_a_call_with_more_keys_than_an_undisturbed_run_has_is_a_breach(court: Court) -> None:
    court.say(journal.BEGIN, tool="notify")
    court.case.expected = Expected("", Journalled(read(court.case.journal)).keys())
    before = court.broken()
    court.say(journal.BEGIN, OTHER, tool="notify", life=2)

    assert before == set()
    assert court.broken() == {Promise.KEY}


def test_a_run_of_the_dead_that_seems_to_have_an_owner_is_a_breach(court: Court) -> None:
    court.break_store("INSERT INTO owners (id, host, pid, until) VALUES ('x', 'elsewhere', 1, 99999999999999)")
    court.break_store("UPDATE runs SET owner = 'x', fence = 1")

    assert court.broken(is_left=True) == {Promise.AT_ONCE}


def test_a_result_that_differs_is_a_breach(court: Court) -> None:
    court.log("run_completed", text="wrong")
    court.case.expected = Expected("right", Journalled([]).keys())

    assert court.broken(is_left=True) == {Promise.RESULT}


def test_an_error_that_reached_the_agent_is_a_breach(court: Court) -> None:
    court.log("run_failed", error="oh")
    court.say(journal.ERROR, text="database is locked")

    assert court.broken(is_left=True) == {Promise.CALM}


def zombie(court: Court, *, refused: bool = True) -> None:
    """Life 1 has lost its run to life 2, at sequence 1, and is woken; what the test says next comes too late."""
    court.log("run_resumed")
    court.say(journal.WOKEN, key="", tool="", label="1", count=1, life=JUDGE)
    if refused:
        court.say(journal.LOST)


def test_a_zombie_that_is_refused_is_no_breach(court: Court) -> None:
    zombie(court)

    assert court.broken() == set()


def test_a_zombie_that_is_not_refused_is_a_breach(court: Court) -> None:
    zombie(court, refused=False)

    assert court.broken() == {Promise.ZOMBIE}


def test_an_event_that_a_zombie_wrote_is_a_breach(court: Court) -> None:
    zombie(court)
    court.log("note", mark="2.0")
    before = court.broken()
    court.log("note", mark="1.0")

    assert before == set()
    assert court.broken() == {Promise.ZOMBIE}


def test_the_end_of_a_call_that_a_zombie_wrote_is_a_breach(court: Court) -> None:
    zombie(court)
    court.made(mark="1.0")

    assert court.broken() == {Promise.ZOMBIE}


def test_a_result_that_a_zombie_saw_too_late_is_a_breach(court: Court) -> None:
    zombie(court)
    court.made(mark="2.0")
    court.say(journal.ACK, mark="2.0")

    assert court.broken() == {Promise.ZOMBIE}


def test_a_call_that_a_zombie_began_too_late_is_a_breach_unless_it_may_be_repeated(court: Court) -> None:
    zombie(court)
    court.made(mark="2.0")
    court.say(journal.BEGIN, tool="notify")
    before = court.broken()
    court.say(journal.BEGIN)

    assert before == set()
    assert court.broken() == {Promise.ZOMBIE}


def test_a_race_with_two_winners_or_none_is_a_breach(court: Court) -> None:
    court.say(journal.ENTERED, life=1)
    court.say(journal.CONFLICT, life=2)
    court.judge.raced(court.case, [1, 2])
    fair = court.tally.is_clean
    court.say(journal.ENTERED, life=2)
    court.judge.raced(court.case, [1, 2])

    assert fair
    assert not court.tally.is_clean


def test_a_call_that_begins_after_its_run_was_cancelled_is_a_breach(court: Court) -> None:
    court.log("run_cancelled")
    court.say(journal.CANCELLED)
    court.judge.cancelled(court.case, 1, so_far=1)
    clean = court.tally.is_clean
    court.say(journal.BEGIN)
    court.judge.cancelled(court.case, 1, so_far=1)

    assert clean
    assert not court.tally.is_clean


# --- the journal ---


def test_a_line_that_was_cut_short_was_never_said_and_harms_no_other(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    Journal(str(path), 1).say("first")
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])

    Journal(str(path), 2).say("second")

    assert read(str(path)) == [Line(1, "first"), Line(2, "second")]


# --- what is shown, and what is left ---

FAILED = Verdict(
    seed=7,
    progress=Progress(seconds=3.0, kills=12, answered=2, repeated=3),
    promises=(Kept(Promise.FINISHED, 5, ("plain-1: charge came again [red]",)), Kept(Promise.KEPT, 4)),
)


def says(what: Verdict | Trouble) -> tuple[str, ...]:
    """A driver that says nothing else."""
    return (sys.executable, "-c", f"print({msgspec.json.encode(what).decode()!r})")


KEPT = Verdict(seed=7, progress=Progress(kills=12), promises=(Kept(Promise.FINISHED, 5),))


def test_kept_promises_end_with_0_and_leave_nothing_behind(
    temporary_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", str(tmp_path / "of-the-user.db"))
    monkeypatch.setattr(session, "DRIVER", says(KEPT))

    code = cli.main(["doctor", "--torture", "1", "--json"])
    said = json.loads(capsys.readouterr().out)

    assert code == 0
    assert said["ok"]
    assert said["progress"]["kills"] == 12
    assert said["promises"] == [{"promise": Promise.FINISHED, "status": "PASS", "tested": 5, "breaches": []}]
    assert list(temporary_folder.iterdir()) == []
    assert not (tmp_path / "of-the-user.db").exists()


def test_a_broken_promise_is_told_with_its_evidence_and_ends_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", str(tmp_path / "runs.db"))
    monkeypatch.setattr(session, "DRIVER", says(FAILED))

    code = cli.main(["doctor", "--torture", "1"])
    said = capsys.readouterr().out

    assert code == 1
    assert f"FAIL  {Promise.FINISHED}" in said
    assert f"PASS  {Promise.KEPT}" in said
    assert "plain-1: charge came again [red]" in said
    (kept,) = Path(tempfile.gettempdir()).iterdir()
    assert str(kept) in said


def test_a_store_in_memory_cannot_be_tortured(capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["doctor", "--torture", "1", "--store", ":memory:"])

    assert code == 2
    assert "nothing to torture" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["", "-1", "nan", "x"])
def test_a_time_that_is_none_is_wrong_usage(seconds: str) -> None:
    assert cli.main(["doctor", f"--torture={seconds}"]) == 2


def test_a_driver_that_breaks_off_is_an_error_and_keeps_what_it_had(
    temporary_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "DRIVER", (sys.executable, "-c", "raise SystemExit(3)"))

    with pytest.raises(HoldfastError, match="broke off"):
        torture(1.0)

    assert len(list(temporary_folder.iterdir())) == 1


def test_the_verdict_fits_a_terminal_and_says_in_words_what_it_colours() -> None:
    out = io.StringIO()
    Console(file=out, width=80).print(closing(FAILED))

    assert all(len(each) <= 80 for each in out.getvalue().splitlines())
    assert {"FAIL", "PASS"} <= set(out.getvalue().split())


def test_progress_is_one_line_of_numbers() -> None:
    assert line(FAILED.progress).split()[:4] == ["3", "s", "12", "killed,"]
    assert "5 doubts decided" in line(FAILED.progress)


def test_a_driver_whose_store_fails_is_an_error_of_the_store(
    temporary_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "DRIVER", says(Trouble("the server is away")))

    with pytest.raises(StoreError, match="broke off: the server is away"):
        torture(1.0)

    assert list(temporary_folder.iterdir()) == []


def test_a_driver_that_is_stopped_takes_its_processes_along(place: FilePlace, tmp_path: Path) -> None:
    orders = tmp_path / "orders"
    orders.write_bytes(msgspec.json.encode(Task(os.getpid(), place, str(tmp_path), 1, 60.0, 0)))
    with (
        orders.open() as stdin,
        subprocess.Popen(session.DRIVER, stdin=stdin, stdout=subprocess.PIPE, start_new_session=True) as driver,
    ):
        assert driver.stdout is not None
        driver.stdout.readline()

        driver.terminate()
        driver.stdout.read()

    with pytest.raises(ProcessLookupError):
        os.killpg(driver.pid, 0)
    assert orders.exists()  # its parent tidies


TORTURES = """
from holdfast.torture.session import torture

torture(60.0, tell=lambda progress: print(progress.kills, flush=True))
"""


def test_a_driver_whose_parent_was_killed_tidies_in_its_place(temporary_folder: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(temporary_folder)}
    with subprocess.Popen(
        [sys.executable, "-c", TORTURES], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        assert parent.stderr is not None
        parent.stdout.readline()

        parent.kill()
        said = parent.stderr.read()  # to its end, which is the driver's

    assert said == b""
    assert list(temporary_folder.iterdir()) == []


LEAVES_A_PROCESS = """
import fcntl, json, os, signal, sys

held = open(json.load(sys.stdin)["folder"] + "/held", "w")
fcntl.flock(held, fcntl.LOCK_EX)
if os.fork():
    os.kill(os.getpid(), signal.SIGKILL)
os.close(1)
signal.pause()
"""


def test_what_a_killed_driver_leaves_is_ended(temporary_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "DRIVER", (sys.executable, "-c", LEAVES_A_PROCESS))

    with pytest.raises(HoldfastError, match="broke off"):
        torture(1.0)

    (folder,) = temporary_folder.iterdir()
    with (folder / "held").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # for ever, if it were not


def test_whoever_is_stopped_leaves_once_and_is_not_stopped_again_while_it_tidies() -> None:
    tidied = []

    def work() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            for number in STOPS:
                signal.raise_signal(number)
            tidied.append(True)

    before = [signal.getsignal(number) for number in STOPS]
    with pytest.raises(KeyboardInterrupt), stopped_once(KeyboardInterrupt()):
        work()

    assert tidied == [True]
    assert [signal.getsignal(number) for number in STOPS] == before


def test_a_stop_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopped_once(KeyboardInterrupt()):
            signal.raise_signal(signal.SIGHUP)

            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
