"""Runs that another version of Holdfast has begun: their files, as it left them, are in `tests/data`."""

# ruff: noqa: PT012 (what leaves the block of a run is what is tested, so the block is within `raises`)

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.runs.durable import stopped
from tests.runs.upgraded import HIDDEN_ID, RUN_ID, SPARED_ID, Desk

from holdfast import Holdfast, InDoubt
from holdfast.policy import PolicyBook
from holdfast.runs import beginning
from holdfast.runs.identity import KEY_SCHEME, Identity
from holdfast.stores import MemoryRunStore, SqliteRunStore
from holdfast.testing import ManualClock

DATA = Path(__file__).parents[1] / "data"
TODAY, FIRST = f"runs_keys_{KEY_SCHEME}.db.gz", "runs_schema_1.db.gz"
WITH_DEFAULTS = "runs_keys_1.db.gz"  # the keys of its calls have the defaults in them
KEPT = sorted({TODAY, *(path.name for path in DATA.glob("runs_*.db.gz"))})
LAST = "the last"

Opening = Callable[[], Holdfast]


@pytest.fixture(params=KEPT, ids=lambda name: name.partition(".")[0])
def left_by(request: pytest.FixtureRequest) -> str:
    kept: str = request.param
    return kept


@pytest.fixture
def opening(left_by: str, tmp_path: Path, clock: ManualClock) -> Iterator[Opening]:
    """Opens the file that was left, for one process after the other."""
    path = tmp_path / "runs.db"
    path.write_bytes(gzip.decompress((DATA / left_by).read_bytes()))
    opened: list[Holdfast] = []

    def open_again() -> Holdfast:
        for hf in opened:
            hf.close()
        opened.append(Holdfast(PolicyBook.load({}), clock, SqliteRunStore(path, synchronous="NORMAL", clock=clock)))
        return opened[-1]

    yield open_again
    for hf in opened:
        hf.close()


def test_what_another_version_has_finished_is_not_repeated(opening: Opening) -> None:
    desk = Desk(opening())

    with pytest.raises(InDoubt, match="pay"), desk.hf.resume(RUN_ID) as run:
        desk.work(run)

    assert desk.made == []


def test_what_another_version_has_finished_is_answered_from_its_log(opening: Opening) -> None:
    desk = Desk(opening())

    with desk.hf.resume(RUN_ID, in_doubt="repeat") as run:
        got = desk.work(run)

    assert desk.made == [LAST]
    with desk.hf.run() as run:
        assert got == desk.work(run)
    snapshot = desk.hf.runs.snapshot(RUN_ID)
    assert (snapshot.status, snapshot.tool_calls, snapshot.spend) == ("completed", 14, {"usd": 0.25})
    assert "run_diverged" not in [event.type for event in desk.hf.runs.events(RUN_ID)]


def test_a_run_that_was_gone_on_with_finds_what_both_versions_have_finished(opening: Opening) -> None:
    desk = Desk(opening())
    with pytest.raises(KeyboardInterrupt), desk.hf.resume(RUN_ID, in_doubt="repeat") as run:
        desk.work(run)
        desk.pay((3, 4))
        run.spend("usd", 0.5)
        raise KeyboardInterrupt

    desk = Desk(opening())
    with desk.hf.resume(RUN_ID) as run:
        desk.work(run)
        again = desk.pay((3, 4))
        run.spend("usd", 0.5)

    assert (again, desk.made) == ({"paid": "(3, 4)"}, [])
    assert desk.hf.runs.snapshot(RUN_ID).spend == {"usd": 0.75}


@pytest.mark.parametrize("left_by", [FIRST])
def test_a_finished_call_that_cannot_be_told_from_others_is_in_doubt(opening: Opening) -> None:
    desk = Desk(opening())

    with pytest.raises(InDoubt), desk.hf.resume(HIDDEN_ID):
        desk.hide()

    assert desk.made == []


@contextmanager
def another_version() -> Iterator[None]:
    """Within it, keys are made in another way."""
    base = Identity.base

    def otherwise(self: Identity, parent: str, name: str, sign: bytes, kind: bytes) -> bytes:
        return base(self, parent, name, b"otherwise" + sign, kind)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beginning, "KEY_SCHEME", KEY_SCHEME - 1)
        patch.setattr(Identity, "base", otherwise)
        yield


@pytest.fixture
def hf(clock: ManualClock) -> Iterator[Holdfast]:
    with Holdfast(PolicyBook.load({}), clock, MemoryRunStore(clock=clock)) as hf:
        yield hf


def test_a_result_of_another_version_is_not_given_to_a_call_that_cannot_be_told_from_others(hf: Holdfast) -> None:
    log_in = hf.tool("log_in")(lambda password: f"as {password}")
    with another_version():
        run_id = stopped(hf, lambda: log_in("ann"))

    with pytest.raises(InDoubt), hf.resume(run_id):
        log_in("bob")


@pytest.mark.parametrize(("amount", "spent"), [(1.0, 1.0), (2.0, 3.0)])
def test_an_amount_that_another_version_has_counted_stands_for_no_other(
    hf: Holdfast, amount: float, spent: float
) -> None:
    with another_version(), pytest.raises(KeyboardInterrupt), hf.run() as run:
        run.spend("usd", 1.0)
        raise KeyboardInterrupt

    with hf.resume(run.id) as again:
        again.spend("usd", amount)

    assert hf.runs.snapshot(run.id).spend == {"usd": spent}


class LaterDesk(Desk):
    """The same agent after a deploy that gave a tool one more parameter."""

    def _ship(self, item: str, express: bool = False, gift: str | None = None) -> str:
        return super()._ship(item, express)


@pytest.mark.parametrize("left_by", [WITH_DEFAULTS, TODAY])
def test_calls_that_leave_out_or_say_what_has_a_default_are_known_again(opening: Opening) -> None:
    desk = Desk(opening())

    with desk.hf.resume(SPARED_ID, in_doubt="repeat"):
        got = desk.send()

    assert desk.made == [LAST]
    assert got[:3] == ["tea, False", "tea, True", "cup, False"]


@pytest.mark.parametrize("left_by", [TODAY])
def test_a_tool_that_has_a_new_parameter_with_a_default_knows_its_finished_calls_again(opening: Opening) -> None:
    desk = LaterDesk(opening())

    with desk.hf.resume(SPARED_ID, in_doubt="repeat"):
        desk.send()

    assert desk.made == [LAST]


@pytest.mark.parametrize("left_by", [TODAY])
def test_whoever_changes_what_keys_are_made_of_raises_their_number(opening: Opening) -> None:
    """Else a run that was interrupted by an upgrade would make its finished calls again."""
    desk = Desk(opening())

    with desk.hf.resume(HIDDEN_ID, in_doubt="repeat"):
        desk.hide()

    assert desk.made == [LAST]


@pytest.mark.parametrize("left_by", [TODAY])
def test_an_export_says_nothing_of_keys_so_that_other_versions_take_it_and_its_own_store_knows_it(
    opening: Opening,
) -> None:
    store, file = opening().runs, io.StringIO()

    store.export(file)

    assert '"keys"' not in file.getvalue()
    assert store.import_(io.StringIO(file.getvalue())) == 0
