"""Files that are broken, foreign, full, forbidden or gone: a `StoreError` that says so, and nothing is made worse."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.children import eventually, said, tell, until
from tests.stores.children import NOBODY, children
from tests.stores.events import EVENTS

from holdfast.errors import RunNotFound, StoreError
from holdfast.stores import RunStore, SqliteRunStore, schema
from holdfast.stores.place import MUCH, Place


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A store with some runs, as it lies on disk."""
    path = tmp_path_factory.mktemp("sound") / "runs.db"
    with SqliteRunStore(path, synchronous="NORMAL") as store:
        for number in range(5):
            store.create_run("s", "p" * 300, run_id=f"r{number}")
            for type, payload in EVENTS:
                store.record_event(f"r{number}", type, payload)
    return path.read_bytes()


@pytest.fixture
def start() -> Iterator[Any]:
    with children() as start:
        yield start


def look_everywhere(store: RunStore) -> list[str]:
    """Read all there is; gives what the store said where it could not."""
    errors: list[str] = []
    reads = [store.list_runs, store.secret]
    reads += [lambda number=number: store.snapshot(f"r{number}") for number in range(5)]
    reads += [lambda number=number: store.events(f"r{number}") for number in range(5)]
    for read in reads:
        with contextlib.suppress(RunNotFound):
            try:
                read()
            except StoreError as error:
                errors.append(str(error))
    return errors


# --- files that are not what they were ---


@pytest.mark.parametrize("part", [x / 20 for x in range(1, 20)] + [0.0001, 0.001, 0.01, 0.999])
def test_a_truncated_file_is_read_as_far_as_possible_and_not_changed(path: Path, sound: bytes, part: float) -> None:
    cut = sound[: int(len(sound) * part)]
    path.write_bytes(cut)

    with SqliteRunStore(path) as store:
        errors = look_everywhere(store)

    assert errors
    assert all(error.startswith(f"{path}: is ") for error in errors)
    assert path.read_bytes() == cut


@pytest.mark.parametrize("seed", range(6))
def test_flipped_bytes_are_an_error_of_the_store_or_none(path: Path, sound: bytes, seed: int) -> None:
    dice = random.Random(seed)

    for _ in range(15):
        data = bytearray(sound)
        for _ in range(dice.choice([1, 1, 20])):
            data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        path.write_bytes(data)
        with SqliteRunStore(path, synchronous="NORMAL") as store:
            look_everywhere(store)
            with contextlib.suppress(StoreError, RunNotFound):
                store.record_event("r1", "note")
            with contextlib.suppress(StoreError):
                store.create_run("s", "p")
        for rest in path.parent.iterdir():
            rest.unlink()


def test_damage_that_sqlite_can_only_quote_is_damage(path: Path, sound: bytes) -> None:
    path.write_bytes(sound.replace(b"CREATE INDEX runs_newest", b"CREATE \xc9NDEX runs_newest"))

    with SqliteRunStore(path) as store, pytest.raises(StoreError, match="is damaged; keep a copy"):
        store.list_runs()


def take_anything(path: Path) -> None:
    """Have the tables take what only damage brings in."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_master SET sql = replace(sql, 'NOT NULL', '') WHERE type = 'table'")
        connection.commit()


@pytest.mark.parametrize("column", ["header", "snapshot"])
@pytest.mark.parametrize("value", [None, 7, "no JSON", b"\xff\xfe", "\x00"])
def test_a_row_that_cannot_be_read_is_damage(path: Path, sound: bytes, column: str, value: Any) -> None:
    path.write_bytes(sound)
    take_anything(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"UPDATE runs SET {column} = ? WHERE id = 'r1'", (value,))
        connection.commit()

    with SqliteRunStore(path) as store:
        for use in (lambda: store.snapshot("r1"), store.list_runs, lambda: store.record_event("r1", "note")):
            with pytest.raises(StoreError, match=r"runs\.db: is damaged; keep a copy.*a row cannot be read"):
                use()
        assert store.snapshot("r2").event_count == len(EVENTS)
        assert store.record_event("r2", "note").event_count == len(EVENTS) + 1


@pytest.mark.parametrize("value", [None, 7, "no JSON", "[]", b"\xff\xfe"])
def test_an_event_that_cannot_be_read_is_damage(path: Path, sound: bytes, value: Any) -> None:
    path.write_bytes(sound)
    take_anything(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE events SET payload = ? WHERE run = 2 AND sequence = 3", (value,))
        connection.commit()

    with SqliteRunStore(path) as store:
        with pytest.raises(StoreError, match="is damaged"):
            store.events("r1")
        assert len(store.event_page("r1", limit=3).events) == 3
        assert len(store.events("r2")) == len(EVENTS)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"just a text that somebody wrote " * 40, "is not an SQLite database"),
        (b"xy", "is not an SQLite database"),
        (b"SQLite format 3\0" + b"\xff" * 2000, "is not an SQLite database"),
    ],
)
def test_a_file_that_is_no_database_is_left_alone(path: Path, content: bytes, what: str) -> None:
    path.write_bytes(content)

    with SqliteRunStore(path) as store:
        with pytest.raises(StoreError, match=what):
            store.create_run("s", "p")
        with pytest.raises(StoreError, match=what):
            store.list_runs()

    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "script",
    [
        "CREATE TABLE mine (x)",
        "PRAGMA user_version = 1",
        "PRAGMA application_id = 7",
        "CREATE TABLE runs (id); PRAGMA user_version = 1",
    ],
)
def test_a_database_of_something_else_is_left_alone(path: Path, script: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    before = path.read_bytes()

    with SqliteRunStore(path) as store, pytest.raises(StoreError, match="of something else; nothing was changed"):
        store.create_run("s", "p")

    assert path.read_bytes() == before


def test_a_newer_schema_is_left_alone(path: Path, sound: bytes) -> None:
    path.write_bytes(sound)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 7")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = path.read_bytes()

    with SqliteRunStore(path) as store:
        for use in (lambda: store.create_run("s", "p"), lambda: store.snapshot("r1"), store.list_runs):
            with pytest.raises(
                StoreError, match=rf"newer Holdfast \(schema 7; this one knows {schema.SCHEMA}\).*upgrade"
            ):
                use()

    assert path.read_bytes() == before


@pytest.mark.parametrize("version", [0, -3])
def test_a_schema_that_never_was_is_damage(path: Path, sound: bytes, version: int) -> None:
    path.write_bytes(sound)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")

    with SqliteRunStore(path) as store, pytest.raises(StoreError, match=f"is damaged.*schema {version}"):
        store.snapshot("r1")


def test_a_database_without_its_tables_is_damaged(path: Path, sound: bytes) -> None:
    path.write_bytes(sound)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE runs")

    with SqliteRunStore(path) as store, pytest.raises(StoreError, match="does not have the tables"):
        store.snapshot("r1")


def test_an_empty_file_is_a_new_store(path: Path) -> None:
    path.touch()

    with SqliteRunStore(path) as store:
        assert store.list_runs() == []
        assert store.create_run("s", "p", run_id="r").id == "r"


def test_a_log_without_its_database_is_left_alone(path: Path, sound: bytes) -> None:
    log = path.with_name("runs.db-wal")
    log.write_bytes(b"what was acknowledged last")

    with SqliteRunStore(path) as store:
        with pytest.raises(StoreError, match=r"its log \(runs\.db-wal\) is there; put the database back"):
            store.create_run("s", "p")
        assert log.read_bytes() == b"what was acknowledged last"
        assert not path.exists()

        log.unlink()
        assert store.create_run("s", "p", run_id="r").id == "r"


# --- making the file ---


def test_folder_and_file_are_for_this_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = tmp_path / "a" / "b" / "runs.db"
        with SqliteRunStore(path) as store:
            store.create_run("s", "p", run_id="r")
            store.ownership.row()
            modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
    finally:
        os.umask(before)

    assert modes == {"runs.db": 0o600, "runs.db-wal": 0o600, "runs.db-shm": 0o600, "runs.db-owners": 0o700}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_the_file_is_durable_by_default_and_quicker_by_choice(tmp_path: Path) -> None:
    found = {}
    for name, more in (("full", {}), ("normal", {"synchronous": "NORMAL"})):
        with SqliteRunStore(tmp_path / name, **more) as store:
            store.create_run("s", "p")
            ask = store.file.writing().execute
            found[name] = [
                ask(f"PRAGMA {each}").fetchone()[0]
                for each in ("synchronous", "fullfsync", "journal_mode", "auto_vacuum")
            ]

    assert found == {"full": [2, 1, "wal", 2], "normal": [1, 0, "wal", 2]}


def test_a_copy_without_a_log_gets_one_before_it_is_written(path: Path, tmp_path: Path, sound: bytes) -> None:
    path.write_bytes(sound)
    copy = tmp_path / "copy.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("VACUUM INTO ?", (str(copy),))

    with SqliteRunStore(copy) as store:
        before = len(store.events("r0"))
        read_only = not list(tmp_path.glob("copy.db-*"))
        store.record_event("r0", "note", {})
        with store.file.consistent_reader() as reading:
            reading.execute("SELECT count(*) FROM events").fetchone()
            store.record_event("r0", "note", {})

        assert read_only
        assert len(store.events("r0")) == before + 2


def test_a_link_leads_to_the_same_store(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "deep" / "runs.db")

    with SqliteRunStore(tmp_path / "link.db") as one, SqliteRunStore(tmp_path / "deep" / "runs.db") as two:
        one.create_run("s", "p", run_id="r")

        assert two.snapshot("r").id == "r"
        assert one.url == two.url
    assert not list(tmp_path.glob("link.db-*"))


def test_eight_processes_may_make_the_file_at_once(path: Path, start: Any) -> None:
    makers = [start("make", path) for _ in range(8)]
    for child in makers:
        assert said(child) == "ready"

    for child in makers:
        tell(child)
    told = [said(child).split() for child in makers]

    with SqliteRunStore(path) as store:
        assert sorted(run.id for run in store.list_runs()) == sorted(run for run, _ in told)
        assert {secret for _, secret in told} == {store.secret().hex()}
    assert [child.wait() for child in makers] == [0] * 8
    kept = {"runs.db-wal", "runs.db-shm"}  # by Apple's SQLite
    assert {each.name for each in path.parent.iterdir()} - kept == {"runs.db"}


@pytest.fixture
def next_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have this be the version after this one; gives the file of its migration."""
    folder = tmp_path / "sql"
    shutil.copytree(Path(schema.__file__).with_name("sql"), folder)
    monkeypatch.setattr(schema, "FOLDER", str(folder))
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, "more.sql"))
    monkeypatch.setattr(schema, "SCHEMA", schema.SCHEMA + 1)
    return folder / "more.sql"


def test_an_older_schema_is_brought_up_to_date_and_keeps_its_runs(path: Path, sound: bytes, next_version: Path) -> None:
    path.write_bytes(sound)
    next_version.write_text("-- More.\nALTER TABLE runs ADD COLUMN mood TEXT;\nCREATE INDEX moods ON runs (mood);\n")

    with SqliteRunStore(path) as one, SqliteRunStore(path) as two:
        secret = one.secret()
        assert len(two.events("r1")) == len(EVENTS)
        assert two.record_event("r1", "note").event_count == len(EVENTS) + 1
        assert two.secret() == secret
        found = one.file.reader().execute("SELECT mood FROM runs").fetchall()

    assert found == [(None,)] * 5


def test_a_migration_that_fails_changes_nothing(path: Path, sound: bytes, next_version: Path) -> None:
    path.write_bytes(sound)
    next_version.write_text("ALTER TABLE runs ADD COLUMN mood TEXT;\nCREATE TABLE runs (id);\n")

    with SqliteRunStore(path) as store, pytest.raises(StoreError, match="already exists"):
        store.list_runs()

    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (schema.SCHEMA - 1,)
        assert "mood" not in [row[1] for row in connection.execute("PRAGMA table_info(runs)")]


def test_whoever_else_makes_the_file_is_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.executescript("CREATE TABLE t (x); DROP TABLE t; BEGIN IMMEDIATE")
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            other.rollback()

        monkeypatch.setattr(schema.SystemClock, "sleep", staticmethod(pause))
        with SqliteRunStore(path) as store:
            store.create_run("s", "p", run_id="r")

    assert len(pauses) == 1


USES: dict[str, Callable[[RunStore], object]] = {
    "read": lambda store: store.list_runs(),
    "write": lambda store: store.create_run("s", "p"),
    "export": lambda store: store.export(io.StringIO()),
    "prune": lambda store: store.prune(max_runs=1),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_folder_that_is_a_file_is_an_error(tmp_path: Path, use: Callable[[RunStore], object]) -> None:
    (tmp_path / "a").write_text("a file")

    with SqliteRunStore(tmp_path / "a" / "runs.db") as store, pytest.raises(StoreError, match="look at the folder"):
        use(store)


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_name_that_no_file_can_have_is_an_error(tmp_path: Path, use: Callable[[RunStore], object]) -> None:
    with SqliteRunStore(tmp_path / ("x" * 300)) as store, pytest.raises(StoreError, match="name too long"):
        use(store)


def test_a_path_that_is_too_long_for_sqlite_is_said_to_be(tmp_path: Path) -> None:
    path = tmp_path.joinpath(*["d" * 100] * 6, "runs.db")

    with SqliteRunStore(path) as store, pytest.raises(StoreError, match="a path over 500 bytes is too long"):
        store.create_run("s", "p")


def test_a_path_that_is_a_folder_is_an_error(tmp_path: Path) -> None:
    with SqliteRunStore(tmp_path) as store:
        with pytest.raises(StoreError, match="cannot be opened"):
            store.create_run("s", "p")
        with pytest.raises(StoreError, match="cannot be opened"):
            store.list_runs()


# --- permissions ---


@pytest.fixture
def theirs() -> Iterator[Path]:
    """A folder of a user who is not root, as root may do anything."""
    folder = Path(tempfile.mkdtemp())
    with SqliteRunStore(folder / "runs.db") as store:
        store.create_run("s", "p", run_id="r")
    for log in folder.glob("runs.db-*"):  # Apple's SQLite keeps it, empty
        log.unlink()
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
        os.chown(folder / "runs.db", NOBODY, NOBODY)
    yield folder
    shutil.rmtree(folder)


def test_a_read_only_file_can_be_read_and_written_once_it_may(theirs: Path, start: Any) -> None:
    path = theirs / "runs.db"
    path.chmod(0o400)
    child = start("powerless", path)

    tell(child, "write")
    assert "cannot be written: the file (or its -wal or -shm) or the folder is read-only" in said(child)
    tell(child, "read")
    assert said(child) == "ok 1"
    for each in theirs.iterdir():
        each.chmod(0o600)
    tell(child, "write")
    assert said(child) == "ok 1"


def test_a_worker_on_a_read_only_file_says_so_and_ends(theirs: Path, start: Any) -> None:
    path = theirs / "runs.db"
    path.chmod(0o400)
    child = start("powerless", path)

    tell(child, "work")

    assert "cannot be written: the file (or its -wal or -shm) or the folder is read-only" in said(child)


def test_a_folder_that_may_not_be_written_is_an_error_until_it_may(theirs: Path, start: Any) -> None:
    theirs.chmod(0o500)
    child = start("powerless", theirs / "runs.db")

    tell(child, "write")
    answer = said(child)
    assert answer.startswith("StoreError")
    assert "look at the folder and its permissions" in answer or "read-only" in answer
    theirs.chmod(0o700)
    tell(child, "write")
    assert said(child) == "ok 1"


def test_a_file_that_may_not_even_be_seen_is_an_error(theirs: Path, start: Any) -> None:
    theirs.chmod(0o000)
    child = start("powerless", theirs / "runs.db")

    for use in ("write", "read"):
        tell(child, use)
        assert "look at the folder and its permissions" in said(child)
    theirs.chmod(0o700)
    tell(child, "read")
    assert said(child) == "ok 1"


# --- a full disk ---


def test_a_full_disk_is_said_and_passes(path: Path, start: Any) -> None:
    told = json.loads(said(start("full", path)))

    assert "the disk is full, or a limit on file sizes is reached; make room and go on" in told["trouble"]
    assert told["written"] > 5
    assert told["readable"] >= told["written"]
    with SqliteRunStore(path) as store:
        events = store.events("r")
        kept = [event.payload["at"] for event in events if event.type == "note"]
        assert kept == list(range(told["written"]))
        assert [event.type for event in events].count("big") == 3 - told["failed"]
        assert [event.sequence for event in events] == list(range(len(events)))
        assert store.snapshot("r").event_count == len(events)
        assert events[-1].type == "run_completed"


# --- files that go away ---


@pytest.fixture(params=["at once", "after a quiet while", "after much else"])
def used(path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunStore]:
    if request.param == "after much else":
        monkeypatch.setattr("holdfast.stores.place.MUCH", 0)  # then the system tells of changes
    with SqliteRunStore(path) as store:
        store.create_run("s", "p", run_id="r")
        store.record_event("r", "note")
        store.snapshot("r")
        if request.param != "at once":
            monkeypatch.setattr("holdfast.stores.place.TRUST", 1000.0)
            wait_for_trust(store)
            if place_of(store)._news is None and request.param == "after much else":
                pytest.skip("this system does not tell of changes")
        yield store


def wait_for_trust(store: RunStore) -> None:
    """Return when the store looks at the folder alone."""
    until(lambda: store.writer.flush() or place_of(store)._whole is not None)


def place_of(store: RunStore) -> Place:
    place = store.file._place  # type: ignore[attr-defined]
    assert isinstance(place, Place)
    return place


def uses(store: RunStore) -> list[Any]:
    return [
        lambda: store.record_event("r", "note"),
        lambda: store.snapshot("r"),
        lambda: store.events("r"),
        store.list_runs,
        lambda: store.cancel("r"),
    ]


def test_a_file_that_was_deleted_underfoot_is_missed_by_all(used: RunStore, path: Path) -> None:
    path.unlink()

    for use in uses(used):
        with pytest.raises(StoreError, match="was deleted or moved while in use; put it back, or close the store"):
            use()
    assert not path.exists()


def test_a_file_that_was_moved_and_put_back_is_used_on(used: RunStore, path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    with pytest.raises(StoreError):
        used.record_event("r", "note")
    path.with_name("elsewhere").rename(path)

    assert used.record_event("r", "note").event_count == 2


def test_a_file_that_was_replaced_underfoot_is_not_written(used: RunStore, path: Path, sound: bytes) -> None:
    path.unlink()
    path.write_bytes(sound)

    for use in uses(used):
        with pytest.raises(StoreError, match="was replaced by another file while in use; put it back, or close"):
            use()
    assert path.read_bytes() == sound


def test_a_file_that_was_mounted_over_is_missed_soon(path: Path, tmp_path: Path, sound: bytes) -> None:
    other = tmp_path / "other.db"
    other.write_bytes(sound)
    with SqliteRunStore(path) as store:
        store.create_run("s", "p", run_id="r")
        wait_for_trust(store)
        if subprocess.run(["mount", "--bind", other, path], capture_output=True, check=False).returncode:
            pytest.skip("only root can mount, and not everywhere")
        try:  # the folder says nothing of it
            with pytest.raises(StoreError, match="was replaced by another file"):
                eventually(store.writer.flush)
        finally:
            subprocess.run(["umount", path], check=True)


def test_a_file_whose_folder_was_moved_is_missed(used: RunStore, path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))

    with pytest.raises(StoreError, match="was deleted or moved while in use"):
        used.record_event("r", "note")

    path.parent.with_name("elsewhere").rename(path.parent)
    assert used.record_event("r", "note").event_count == 2


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of changes in a folder")
def test_a_store_that_writes_much_is_told_of_changes_until_it_is_closed(path: Path) -> None:
    gc.collect()  # what earlier tests have left behind
    open_files = len(os.listdir("/proc/self/fd"))
    with SqliteRunStore(path) as store:
        place = place_of(store)
        for _ in range(MUCH):
            store.writer.flush()
        assert place._news is None
        (path.parent / "another").touch()  # so that it looks

        store.writer.flush()

        assert place._news is not None
    assert place._news is None
    assert len(os.listdir("/proc/self/fd")) <= open_files  # fewer if something of an earlier test has ended meanwhile


def test_a_forked_child_and_its_parent_both_miss_a_file_that_is_gone(used: RunStore, path: Path) -> None:
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        with contextlib.suppress(BaseException):
            used.record_event("r", "note")
            os.read(reading, 1)
            path.unlink()
            used.record_event("r", "note")
            os._exit(1)
        os._exit(0 if not path.exists() else 2)
    used.record_event("r", "note")
    os.write(writing, b"\0")
    _, status = os.waitpid(child, 0)
    os.close(reading)
    os.close(writing)

    assert status == 0
    with pytest.raises(StoreError, match="was deleted or moved while in use"):
        used.record_event("r", "note")


def test_files_that_come_and_go_beside_it_do_not_matter(used: RunStore, path: Path) -> None:
    for number in range(20):
        (path.parent / f"{number}").touch()
        assert used.record_event("r", "note").event_count == number + 2
        (path.parent / f"{number}").unlink()
        assert used.snapshot("r").event_count == number + 2


def test_a_store_whose_file_is_gone_can_be_closed_and_begun_anew(used: RunStore, path: Path) -> None:
    for each in path.parent.glob("runs.db*"):
        each.unlink()
    used.close()

    assert used.list_runs() == []
    assert used.create_run("s", "p", run_id="new").id == "new"
    assert used.record_event("new", "note").event_count == 1


def test_a_file_that_goes_away_while_it_is_written_is_not_acknowledged(path: Path) -> None:
    def crash(point: str) -> None:
        if point == "written" and armed:
            path.unlink()

    armed = False
    with SqliteRunStore(path, crash=crash) as store:
        store.create_run("s", "p", run_id="r")
        armed = True

        with pytest.raises(StoreError, match="was deleted or moved"):
            store.record_event("r", "note")


@pytest.mark.parametrize("suffixes", [("-wal", "-shm"), ("-wal",), ("-shm",)])
def test_a_log_that_was_deleted_underfoot_takes_nothing_along(
    used: RunStore, path: Path, tmp_path: Path, suffixes: tuple[str, ...]
) -> None:
    for suffix in suffixes:
        os.unlink(f"{path}{suffix}")

    seen = len(used.events("r"))
    for suffix in suffixes:
        os.unlink(f"{path}{suffix}")
    used.record_event("r", "note")

    assert (seen, *on_disk(path, tmp_path)) == (1, "note", "note")


def test_a_log_that_another_process_has_deleted_takes_nothing_along(
    used: RunStore, path: Path, tmp_path: Path, start: Any
) -> None:
    let_another_delete_the_log(path, start)

    used.record_event("r", "note")

    assert on_disk(path, tmp_path) == ["note", "note"]
    assert len(used.list_runs()) == 2


def test_a_log_that_was_deleted_is_not_written_while_something_has_it_open(
    used: RunStore, path: Path, start: Any
) -> None:
    with used.file.consistent_reader():
        let_another_delete_the_log(path, start)

        with pytest.raises(StoreError, match="its log was deleted while in use; close all that this process has open"):
            used.record_event("r", "note")

    assert used.record_event("r", "note").event_count == 2


def let_another_delete_the_log(path: Path, start: Any) -> None:
    path.read_bytes()  # with its end the locks of this process are gone, and the other takes itself for the last one
    child = start("make", path)
    assert said(child) == "ready"
    tell(child)
    assert said(child)
    log = path.with_name("runs.db-wal")
    if sqlite3.sqlite_version_info >= (3, 51) and log.exists():
        pytest.skip("this SQLite keeps its locks though somebody else in the process closes the file")
    if keeps_its_log(path.with_name("other.db")):
        pytest.skip("this SQLite, like Apple's, deletes no log")
    assert not log.exists()


def keeps_its_log(path: Path) -> bool:
    """Whether the last one to close a file leaves its log, for the next one to use."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE anything (at)")
    return path.with_name(f"{path.name}-wal").exists()


def on_disk(path: Path, tmp_path: Path) -> list[str]:
    """The events that are found if all processes end here."""
    (tmp_path / "copy").mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", tmp_path / "copy")
    with SqliteRunStore(tmp_path / "copy" / "runs.db") as store:
        return [event.type for event in store.events("r")]


def test_an_owner_can_close_a_store_that_is_gone(used: RunStore, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    used.ownership.row()
    path.unlink()

    used.close()

    assert "could not be written that its owner has left" in caplog.text


def test_a_store_that_is_gone_frees_whoever_follows(used: RunStore, path: Path) -> None:
    following = used.follow("r")
    next(following)
    path.unlink()
    failed = threading.Event()

    def write() -> None:
        with pytest.raises(StoreError):
            used.record_event("r", "note")
        failed.set()
        used.close()

    writer = threading.Thread(target=write)
    writer.start()

    with contextlib.suppress(StoreError):  # it may see for itself that the file is gone, before the store is closed
        assert list(following) == []
    writer.join()
    assert failed.is_set()


# --- closed by another thread ---


def test_a_file_that_is_closed_while_another_thread_looks_at_it_was_not_replaced(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SqliteRunStore(path) as store:
        store.create_run("s", "p", run_id="r")
        place = place_of(store)
        stat = os.stat

        def interrupted(*args: Any, **kwargs: Any) -> os.stat_result:
            monkeypatch.undo()
            place.forget()
            return stat(*args, **kwargs)

        monkeypatch.setattr(os, "stat", interrupted)
        place.check()


def test_nobody_opens_a_file_while_it_is_being_forgotten(path: Path) -> None:
    came: list[bool] = []

    class Closing:
        def close(self) -> None:
            reader = threading.Thread(target=lambda: came.append(store.file.reading.acquire(blocking=False)))  # type: ignore[attr-defined]
            reader.start()
            reader.join()

    with SqliteRunStore(path) as store:
        store.create_run("s", "p", run_id="r")
        store.file._in_use.append(Closing())  # type: ignore[attr-defined]
        store.file.close()

    assert came == [False]
