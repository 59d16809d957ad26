"""The demo keeps its word: the same numbers for the same seed, every one of them counted, fit for any terminal."""

from __future__ import annotations

import asyncio
import fcntl
import io
import json
import os
import pty
import random
import re
import signal
import struct
import subprocess
import sys
import termios
from collections import Counter
from functools import cache
from pathlib import Path

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console

from holdfast import ExecutionStats, events
from holdfast.cli.demo import SEED
from holdfast.demo.children import Child
from holdfast.demo.client import Client, Gone
from holdfast.demo.killed import scene
from holdfast.demo.race import ROWS, Race
from holdfast.demo.stage import Played, Saving, Stage, closing, savings
from holdfast.demo.view import result, standing
from holdfast.demo.world import DAY, HttpError, World, latency
from holdfast.testing import ManualClock, Recorder

HOLDFAST = Path(sys.executable).with_name("holdfast")
FIRST = [HOLDFAST, "demo", "--scene", "1"]
PRICE = "texts translated word by word"  # the one line where guards cost something
CONTROL = "\x1b"
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3|4|9|10)[0-8][;m]")
MOVES_CURSOR = re.compile(r"\x1b\[[0-9?]*[A-HJKlh]")


# --- the race ---


async def test_the_same_seed_gives_the_same_report() -> None:
    assert await Race(3).run() == await Race(3).run()


async def test_another_seed_is_another_world() -> None:
    first, second = await Race(3).run(), await Race(4).run()

    assert first.bare != second.bare


async def test_the_guarded_agent_wins_on_every_line_but_the_price_of_a_fallback() -> None:
    report = await Race(SEED).run()

    assert {row.label for row in ROWS if report.guarded[row.label] >= report.bare[row.label]} == {PRICE}


@pytest.mark.parametrize("seed", range(8))
async def test_in_any_world_the_guarded_agent_books_no_flight_twice_and_finishes_more_in_less_time(seed: int) -> None:
    report = await Race(seed).run()

    assert report.guarded["flights booked again by mistake"] == report.guarded["paid for these"] == 0
    assert report.guarded["trips given up"] < report.bare["trips given up"]
    assert report.guarded["seconds it took"] < report.bare["seconds it took"]


async def test_the_default_world_gives_every_guard_something_to_do() -> None:
    race = Race(SEED)

    report = await race.run()

    assert report.guards.keys() == {"cut_off", "retried", "refused", "spared", "paced", "cached"}
    assert all(report.guards.values())
    told = "\n".join(line.text for line in race.journal.lines)
    for word in ("retried", "slowed", "no answer within", "OPEN", "HALF-OPEN", "CLOSED", "not repeated", "refused"):
        assert word in told


# --- its numbers ---


async def test_what_the_guards_did_agrees_with_the_statistics() -> None:
    race = Race(SEED)

    guards = (await race.run()).guards

    stats = race.holdfast.tracker.stats()
    assert guards["cached"] == stats.cached_hits
    assert guards["spared"] + guards["refused"] == stats.denied
    assert guards["spared"] == race.holdfast.breaker.diagnostics("translate").denied_requests


async def test_each_request_the_world_counted_is_an_attempt_of_a_recorded_call() -> None:
    race = Race(SEED)

    await race.run()

    attempts: Counter[str] = Counter()
    for record in race.holdfast.tracker.recent(1000):
        attempts[record.tool] += 0 if record.was_cached else record.attempts
    assert attempts == race.guarded_world.requests


async def test_each_429_cut_off_and_retry_is_an_event() -> None:
    race, recorder = Race(SEED), Recorder()
    race.holdfast.bus.add(recorder)

    report = await race.run()

    failed = [event.payload for event in recorder.of(events.TOOL_ATTEMPT_FAILED)]
    assert report.guarded["429s provoked"] == sum(facts["category"] == "rate_limit" for facts in failed)
    assert report.guards["cut_off"] == sum(facts["category"] == "timeout" for facts in failed)
    assert report.guards["retried"] == sum(facts["retry_in_ms"] is not None for facts in failed)


async def test_the_failures_the_model_read_are_the_calls_that_nobody_answered() -> None:
    race = Race(SEED)

    report = await race.run()

    def failures(stats: ExecutionStats) -> int:
        return stats.failed + stats.timed_out + stats.denied

    tracker = race.holdfast.tracker
    everywhere, covered = failures(tracker.stats()), failures(tracker.stats("translate"))
    assert report.guarded["failed calls the model had to read"] == everywhere - covered
    assert report.guarded[PRICE] == covered


async def test_bookings_add_up() -> None:
    race = Race(SEED)

    report = await race.run()

    answered = race.holdfast.tracker.stats("book_flight")
    assert race.guarded_world.bookings.total() == answered.successful + answered.failed
    again = sum(max(0, times - 1) for times in race.bare_world.bookings.values())
    assert report.bare["flights booked again by mistake"] == again
    assert len(race.guarded_world.bookings) == len(race.guarded.progress)


async def test_a_guard_that_had_nothing_to_do_is_told_as_nought() -> None:
    report = await Race(SEED).run()

    idle = msgspec.structs.replace(report, guards={})

    assert "circuit: 0 spared" in drawn(result(idle, 80), 80)


def test_a_healthy_service_answers_as_the_real_ones_do() -> None:
    answers = sorted(latency(random.Random(number)) for number in range(20_000))

    p50, p95 = (answers[len(answers) * percent // 100] for percent in (50, 95))
    assert p50 == pytest.approx(0.32, rel=0.05)
    assert p95 == pytest.approx(1.84, rel=0.05)


# --- how it looks ---


@pytest.mark.parametrize("width", [40, 80, 200])
async def test_how_far_both_agents_are_fits_the_terminal(width: int) -> None:
    race = Race(SEED)
    await race.run()

    lines = drawn(standing(race, ", 4 × speed"), width).splitlines()

    assert [line.split()[0] for line in lines[1:3]] == ["guarded", "bare"]
    assert len(lines) == 4
    assert max(map(cell_len, lines)) <= width


async def test_a_line_of_the_story_fits_eighty_columns() -> None:
    shown = plain().stderr.splitlines()

    assert max(map(cell_len, shown)) <= 80


@pytest.mark.parametrize("width", [50, 80, 200])
async def test_no_number_of_the_result_is_cut(width: int) -> None:
    report = await Race(SEED).run()

    shown = drawn(result(report, width), width)

    assert numbers(shown) == [(row.shown(report.bare[row.label]), row.shown(report.guarded[row.label])) for row in ROWS]


# --- the first scene as a process ---


def test_without_a_terminal_it_writes_plain_lines_and_ends_well() -> None:
    done = plain()

    assert done.returncode == 0
    assert CONTROL not in done.stdout + done.stderr
    assert "circuit OPEN" in done.stderr
    assert "Next: README.md" in done.stdout


def test_the_result_shows_the_numbers_of_the_report() -> None:
    done = subprocess.run([*FIRST, "--json"], capture_output=True, check=True, env=environment())

    report = json.loads(done.stdout)

    assert numbers(plain().stdout) == [
        (row.shown(report["bare"][row.label]), row.shown(report["guarded"][row.label])) for row in ROWS
    ]


def test_json_is_one_line_of_data() -> None:
    done = subprocess.run([*FIRST, "--json"], capture_output=True, check=True, env=environment(), text=True)

    assert json.loads(done.stdout)["seed"] == SEED
    assert done.stdout.count("\n") == 1


def test_in_a_terminal_it_draws_in_colour_and_ends_with_the_same_numbers() -> None:
    shown, code = in_terminal("--fast")

    assert code == 0
    assert COLOUR.search(shown)
    assert MOVES_CURSOR.search(shown)
    assert numbers(without_codes(shown)) == numbers(plain().stdout)


def test_no_color_is_honoured() -> None:
    shown, code = in_terminal("--fast", NO_COLOR="1")

    assert code == 0
    assert not COLOUR.search(shown)


def test_a_dumb_terminal_gets_plain_lines() -> None:
    shown, code = in_terminal("--fast", TERM="dumb")

    assert code == 0
    assert CONTROL not in shown
    assert "An agent plans" in shown


def test_colour_that_is_forced_into_a_pipe_does_not_move_its_cursor() -> None:
    done = subprocess.run(FIRST, capture_output=True, check=True, env=environment(FORCE_COLOR="1"))

    assert not MOVES_CURSOR.search((done.stdout + done.stderr).decode())


def test_an_interrupt_gives_the_cursor_back_and_ends_with_130() -> None:
    shown, code = in_terminal(interrupt_at="429 Too Many")

    assert code == 130
    assert "Traceback" not in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
    assert shown.rstrip().endswith("holdfast: interrupted")


def test_the_policies_of_whoever_runs_it_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "holdfast.toml").write_text("this is no TOML")

    done = subprocess.run(FIRST, capture_output=True, check=False, cwd=tmp_path, env=environment())

    assert done.returncode == 0, done.stderr


def drawn(what: object, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, height=1000, color_system=None)
    console.print(what)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def numbers(shown: str) -> list[tuple[str, str]]:
    """The two numbers in each line of the result."""
    table = shown[shown.index("the same agent, twice ") : shown.index("Same agent,")]
    number = r"\s{2,}(\$?[\d,]+(?: s)?)"
    found = (re.match(rf"\S.*?{number}{number}(?:\s|$)", line) for line in table.splitlines()[2:])
    return [(match[1], match[2]) for match in found if match]


@cache
def plain() -> subprocess.CompletedProcess[str]:
    return subprocess.run([*FIRST, "--fast"], capture_output=True, text=True, check=False, env=environment())


def environment(**more: str) -> dict[str, str]:
    unset = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM", "DISPLAY", "WAYLAND_DISPLAY", "BROWSER"}
    return {**{key: value for key, value in os.environ.items() if key not in unset}, **more}


def in_terminal(*options: str, interrupt_at: str | None = None, **more: str) -> tuple[str, int]:
    """What the demo writes to a terminal of 80 × 24, and its exit code; it may be interrupted at a word."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    # As from a terminal, also where the tests themselves run in the background, with interrupts ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [*FIRST, *options],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(**{"TERM": "xterm-256color", **more}),
    )
    signal.signal(signal.SIGINT, before)
    os.close(theirs)
    shown = b""
    while chunk := read(ours):
        shown += chunk
        if interrupt_at is not None and interrupt_at.encode() in shown:
            process.send_signal(signal.SIGINT)
            interrupt_at = None
    os.close(ours)
    return shown.decode().replace("\r\n", "\n"), process.wait()


def read(terminal: int) -> bytes:
    """What there is to read; nothing once the other side is closed, which Linux reports as an error."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def without_codes(shown: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)


# --- kill -9 ---


async def test_an_agent_that_is_killed_while_it_books_goes_on_and_books_nothing_twice(tmp_path: Path) -> None:
    out = io.StringIO()

    played = await scene(stage(out), tmp_path)

    status = {"status": "completed"}
    assert played.numbers["killed"] == {
        "kills": 2, "booked": 6, "twice": 0, "in_doubt": 2, "from_the_log": 14, **status,
    }  # fmt: skip
    assert played.saved == {Saving.TWICE: 2, Saving.CRASHES: 2}
    told = out.getvalue().splitlines()
    assert sum("kill -9" in line for line in told) == sum("not booked again" in line for line in told) == 2
    assert told[-1].strip() == "6 trips are booked, 0 of them twice; the run is completed"
    assert max(map(len, told)) <= 80


def stage(out: io.StringIO) -> Stage:
    console = Console(file=out, width=80)
    return Stage(console, console, seed=SEED, scenes=(), fast=True, draws=False, stays=False, opens=False)


# --- what was saved ---

STORY = {
    1: Played(saved={Saving.TRIPS: 10, Saving.WAITING: 463.4, Saving.CALLS: 31, Saving.TWICE: 3, Saving.DOLLARS: 870}),
    2: Played(saved={Saving.TWICE: 2, Saving.CRASHES: 2}),
    3: Played(saved={Saving.CALLS: 5, Saving.TWICE: 1, Saving.CRASHES: 2}),
    4: Played(saved={Saving.CALLS: 7, Saving.CRASHES: 0}),
}


def test_what_was_not_played_has_saved_nothing() -> None:
    assert savings({}) == {}


def test_the_savings_are_what_the_scenes_counted() -> None:
    saved = savings(STORY)

    assert saved[Saving.CALLS] == {1: 31, 3: 5, 4: 7}
    assert saved[Saving.TWICE] == {1: 3, 2: 2, 3: 1}
    assert saved[Saving.CRASHES] == {2: 2, 3: 2, 4: 0}
    assert Saving.ERRORS not in saved


def test_the_savings_of_the_race_are_the_differences_of_its_result() -> None:
    report = json.loads(subprocess.run([*FIRST, "--json"], capture_output=True, check=True, env=environment()).stdout)

    saved = {row["what"]: row["amount"] for row in report["saved"]}

    assert saved["dollars for these"] == report["bare"]["paid for these"]
    waited = "waited for answers that never came"
    assert saved["waiting for answers that never came"] == report["bare"][waited] - report["guarded"][waited]


def test_what_comes_to_nothing_is_no_saving() -> None:
    assert savings({2: Played(saved={Saving.TWICE: 1}), 3: Played(saved={Saving.TWICE: -1})}) == {}


@pytest.mark.parametrize("width", [50, 80, 120])
def test_the_savings_fit_their_terminal(width: int) -> None:
    shown = drawn(closing(STORY, width), width).splitlines()

    assert max(map(cell_len, shown)) <= width
    assert [line.split()[-1] for line in shown[2:]] == ["10", "s", "43", "6", "$870", "4"]


async def test_what_is_down_once_is_down_again_a_day_later(clock: ManualClock) -> None:
    world = World(SEED, clock)

    for _ in range(2):
        clock.advance(15.0)
        with pytest.raises(HttpError, match="503"):
            await world.translate("a menu")
        clock.advance(30.0)
        await world.translate("a menu")
        clock.advance(DAY - clock.monotonic() % DAY)

    assert world.in_vain == 2


async def test_a_client_whose_proxy_gives_no_answer_is_told_so(tmp_path: Path) -> None:
    said = json.dumps({"id": 1, "error": {"code": -32000, "message": "lost"}})
    code = f"import sys; sys.stdin.readline(); print({said!r}, flush=True); sys.stdin.read()"
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    (tmp_path / "errors").touch()
    client = Client(Child(process, process.stdin, process.stdout), tmp_path / "errors")
    listening = asyncio.ensure_future(client.listen())

    with pytest.raises(Gone):
        await asyncio.wait_for(client.greet(), 20)

    await listening
    process.stdin.close()
    await process.wait()
