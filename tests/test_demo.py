"""The demo keeps its word: the same numbers for the same seed, every one of them counted, fit for any terminal."""

from __future__ import annotations

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
from typing import NamedTuple

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console

from holdfast import ExecutionStats, events
from holdfast.cli.demo import SEED
from holdfast.demo.killed import Killed, lines, scene
from holdfast.demo.page import Totals
from holdfast.demo.proxied import Proxied
from holdfast.demo.race import POLICIES, Race, Report
from holdfast.demo.saved import Row, Story, table
from holdfast.demo.saved import rows as savings
from holdfast.demo.view import COLUMNS, GUARDED_BY, closing, frame, rows
from holdfast.demo.world import HttpError, World, latency
from holdfast.testing import ManualClock, Recorder

HOLDFAST = Path(sys.executable).with_name("holdfast")
FIRST = [HOLDFAST, "demo", "--scene", "1"]
PRICE = "texts translated word by word only"  # the one line where guards cost something
CONTROL = "\x1b"
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3|4|9|10)[0-8][;m]")
MOVES_CURSOR = re.compile(r"\x1b\[[0-9?]*[A-HJKlh]")


# --- the race ---


async def test_the_same_seed_gives_the_same_report() -> None:
    assert await Race(3).run() == await Race(3).run()


async def test_another_seed_is_another_world() -> None:
    first, second = await Race(3).run(), await Race(4).run()

    assert first.bare != second.bare


async def test_the_chance_of_the_rest_of_the_process_is_left_as_it_was() -> None:
    before = random.getstate()

    await Race(3).run()

    assert random.getstate() == before


async def test_the_guarded_agent_wins_on_every_line_but_the_price_of_a_fallback() -> None:
    report = await Race(SEED).run()

    assert {row.label for row in rows(report) if not row.better} == {PRICE}


@pytest.mark.parametrize("seed", range(8))
async def test_in_any_world_the_guarded_agent_books_no_flight_twice_and_finishes_more_in_less_time(seed: int) -> None:
    report = await Race(seed).run()

    assert report.guarded.rebooked == report.guarded.wasted == 0
    assert report.guarded.done > report.bare.done
    assert report.guarded.seconds < report.bare.seconds


async def test_the_default_world_gives_every_guard_something_to_do() -> None:
    race = Race(SEED)

    report = await race.run()

    assert all(msgspec.structs.asdict(report.guards).values())
    told = "\n".join(line.text for line in race.journal.lines)
    for word in ("retried", "slower now", "no answer within", "OPEN", "HALF-OPEN", "CLOSED", "not repeated", "refused"):
        assert word in told


# --- its numbers ---


async def test_what_the_guards_did_agrees_with_the_statistics() -> None:
    race = Race(SEED)

    guards = (await race.run()).guards

    stats = race.holdfast.tracker.stats()
    assert guards.cached == stats.cached_hits
    assert guards.circuit_refusals + guards.loop_refusals == stats.denied
    assert guards.circuit_refusals == race.holdfast.breaker.diagnostics("translate").denied_requests


async def test_each_request_the_world_counted_is_an_attempt_of_a_recorded_call() -> None:
    race = Race(SEED)

    await race.run()

    attempts: Counter[str] = Counter()
    for record in race.holdfast.tracker.recent(1000):
        attempts[record.tool] += 0 if record.was_cached else record.attempts
    assert attempts == {tool: ledger.requests for tool, ledger in race.guarded_world.ledgers.items()}


async def test_each_429_cut_off_and_retry_is_an_event() -> None:
    race, recorder = Race(SEED), Recorder()
    race.holdfast.bus.add(recorder)

    report = await race.run()

    failed = [event.payload for event in recorder.of(events.TOOL_ATTEMPT_FAILED)]
    assert report.guarded.too_many == sum(facts["category"] == "rate_limit" for facts in failed)
    assert report.guards.cut_off == sum(facts["category"] == "timeout" for facts in failed)
    assert report.guards.retried == sum(facts["retry_in_ms"] is not None for facts in failed)


async def test_the_failures_the_model_read_are_the_calls_that_nobody_answered() -> None:
    race = Race(SEED)

    report = await race.run()

    def failures(stats: ExecutionStats) -> int:
        return stats.failed + stats.timed_out + stats.denied

    tracker = race.holdfast.tracker
    everywhere, covered = failures(tracker.stats()), failures(tracker.stats("translate"))
    assert report.guarded.failed_calls == everywhere - covered
    assert report.guarded.word_by_word == covered


async def test_bookings_add_up() -> None:
    race = Race(SEED)

    report = await race.run()

    answered = race.holdfast.tracker.stats("book_flight")
    assert race.guarded_world.bookings.total() == answered.successful + answered.failed
    assert report.bare.rebooked == sum(max(0, times - 1) for times in race.bare_world.bookings.values())
    assert len(race.guarded_world.bookings) == report.guarded.done == report.guarded.trips


async def test_a_line_on_which_both_did_alike_claims_nothing() -> None:
    report = await Race(SEED).run()

    alike = msgspec.structs.replace(report, bare=report.guarded)

    assert not any(row.better for row in rows(alike))


def test_a_healthy_service_answers_as_the_real_ones_do() -> None:
    answers = sorted(latency(random.Random(number)) for number in range(20_000))

    p50, p95, p99 = (answers[len(answers) * percent // 100] for percent in (50, 95, 99))
    assert p50 == pytest.approx(0.32, rel=0.05)
    assert p95 == pytest.approx(1.84, rel=0.05)
    assert p99 == pytest.approx(6.2, rel=0.1)


# --- how it looks ---


@pytest.mark.parametrize("size", [(40, 10), (50, 24), (80, 24), (100, 30), (120, 40), (160, 45), (200, 50)])
async def test_a_frame_fits_its_terminal(size: tuple[int, int]) -> None:
    race = Race(SEED)
    width, height = size
    await race.run()

    lines = drawn(frame(race, width, height, "a note"), width).splitlines()

    assert len(lines) < height
    assert max(map(cell_len, lines)) <= width
    assert any(line.startswith("guarded ") for line in lines)


@pytest.mark.parametrize("column", [column for column in COLUMNS if column.width], ids=lambda column: column.title)
async def test_a_column_is_there_once_there_is_room_for_it_and_is_not_cut(column: NamedTuple) -> None:
    race = Race(SEED)
    width, title = int(column[1]), str(column[0])
    await race.run()

    wide, narrow = (drawn(frame(race, each, 24, ""), each) for each in (width, width - 1))

    assert title in wide.splitlines()[2]
    assert title not in narrow.splitlines()[2]
    assert "…" not in "".join(wide.splitlines()[2:12])


@pytest.mark.parametrize("width", [50, 80, 200])
async def test_no_number_of_the_closing_table_is_cut(width: int) -> None:
    report = await Race(SEED).run()

    shown = drawn(closing(report, width), width)

    assert numbers(shown) == [(row.bare, row.guarded) for row in rows(report)]


def test_every_tool_says_what_guards_it() -> None:
    assert GUARDED_BY.keys() == POLICIES.keys()


# --- the first scene as a process ---


def test_without_a_terminal_it_writes_plain_lines_and_ends_well() -> None:
    done = plain()

    assert done.returncode == 0
    assert CONTROL not in done.stdout + done.stderr
    assert "circuit OPEN" in done.stderr
    assert "Next: README.md" in done.stdout


def test_the_closing_table_shows_the_numbers_of_the_report() -> None:
    done = subprocess.run([*FIRST, "--json"], capture_output=True, check=True, env=environment())

    report = msgspec.json.decode(done.stdout, type=Report)

    assert numbers(plain().stdout) == [(row.bare, row.guarded) for row in rows(report)]


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
    shown, code = in_terminal(interrupt_at="geocode")

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
    """The two numbers in each line of the closing table."""
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


def test_an_agent_that_is_killed_while_it_books_goes_on_and_books_nothing_twice(tmp_path: Path) -> None:
    killed = scene(tmp_path)

    assert killed == Killed(kills=2, booked=6, twice=0, in_doubt=2, from_the_log=14, status="completed")


def test_the_scene_is_told_in_words_that_fit_eighty_columns() -> None:
    told = list(lines(Killed(kills=2, booked=6, twice=0, in_doubt=2, from_the_log=14, status="completed")))

    assert told[-1] == " 6 trips are booked, 0 of them twice; the run is completed"
    assert max(map(len, told)) <= 77


# --- what was saved ---


def test_what_was_not_played_has_saved_nothing() -> None:
    assert savings(Story()) == []


async def test_the_savings_are_the_sums_of_what_the_scenes_counted() -> None:
    race = await Race(SEED).run()

    saved = {row.what: row for row in savings(story(race))}

    assert saved["calls to a tool that was down"].scenes == {1: race.guards.circuit_refusals, 3: 5, 4: 7}
    assert saved["calls to a tool that was down"].total == race.guards.circuit_refusals + 12
    assert saved["bookings and payments made twice"].scenes == {1: race.bare.rebooked, 2: 2, 3: 1}
    assert saved["dollars for these"].total == race.bare.wasted
    assert saved["waiting for answers that never came"].total == race.bare.lost - race.guarded.lost
    assert saved["crashes that end the work"].scenes == {2: 2, 3: 2, 4: 1}


def test_a_payment_that_was_made_twice_is_no_saving() -> None:
    twice = msgspec.structs.replace(PROXIED, paid_twice=1)

    assert "bookings and payments made twice" not in {row.what for row in savings(Story(proxied=twice))}


@pytest.mark.parametrize("width", [50, 80, 120])
async def test_the_savings_fit_their_terminal(width: int) -> None:
    told = story(await Race(SEED).run())

    shown = drawn(table(told, width), width).splitlines()

    assert max(map(cell_len, shown)) <= width
    assert [line.split()[-1] for line in shown[2:]] == [last_word(row) for row in savings(told)]


def last_word(row: Row) -> str:
    return row.shown(row.total).split()[-1]


PROXIED = Proxied(
    crashes=2, repeated=1, in_doubt=1, paid=1, paid_twice=0, hung=1, waited=1.5, failed=3, refused=5, meanwhile=3,
    paced=12, too_many=5, recovered=1,
)  # fmt: skip


def story(race: Report) -> Story:
    return Story(
        race=race,
        killed=Killed(kills=2, booked=6, twice=0, in_doubt=2, from_the_log=14, status="completed"),
        proxied=PROXIED,
        live=Totals(calls=90, failed=4, not_made=7, crashes=1),
    )


async def test_what_is_down_once_is_down_again_a_day_later(clock: ManualClock) -> None:
    world = World(SEED, clock, day=60.0)

    for _ in range(2):
        clock.advance(15.0)
        with pytest.raises(HttpError, match="503"):
            await world.translate("a menu")
        clock.advance(30.0)
        await world.translate("a menu")
        clock.advance(60.0 - clock.monotonic() % 60.0)

    assert world.asked_while_down == 2
