from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import monotonic

import pytest
from tests.children import descriptors, fork

from holdfast.errors import ConfigError, StoreError
from holdfast.stores.watch import Watch

LONG = 30.0  # a wait that lasts so long has failed

Open = Callable[..., Watch]

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "watched").mkdir()
    return tmp_path / "watched" / "log"


@pytest.fixture
def watching(file: Path) -> Iterator[Open]:
    watches: list[Watch] = []

    def watching(**settings: float) -> Watch:
        watches.append(Watch(str(file), **settings))
        return watches[-1]

    yield watching

    for watch in watches:
        watch.close()


def change(path: Path, text: bytes = b"x") -> None:
    """Written in place, as a database does."""
    with path.open("r+b" if path.exists() else "wb") as stream:
        stream.write(text)


# --- what counts as a change ---


def test_a_write_is_a_change(file: Path, watching: Open) -> None:
    file.touch()
    watch = watching()

    change(file)

    assert watch.wait(LONG)


def test_a_write_of_another_process_is_a_change(file: Path, watching: Open) -> None:
    file.touch()
    watch = watching()

    subprocess.run(["sh", "-c", 'echo x >> "$0"', str(file)], check=True)

    assert watch.wait(LONG)


def test_a_file_that_comes_to_be_is_a_change_and_is_followed(file: Path, watching: Open) -> None:
    watch = watching()

    change(file)
    created = watch.wait(LONG)
    change(file)

    assert created
    assert watch.wait(LONG)


def test_a_file_that_is_removed_and_made_anew_is_followed(file: Path, watching: Open) -> None:
    change(file)
    watch = watching()
    with file.open("rb"):  # somebody still has the old one open
        file.unlink()
        change(file)
        made_anew = watch.wait(LONG)
        change(file)

        assert made_anew
        assert watch.wait(LONG)


def test_a_file_that_is_replaced_is_followed(file: Path, watching: Open) -> None:
    change(file)
    watch = watching()
    change(file.with_name("other"))
    file.with_name("other").rename(file)

    replaced = watch.wait(LONG)
    change(file)

    assert replaced
    assert watch.wait(LONG)


@on_linux
def test_what_was_replaced_is_no_longer_watched(file: Path, watching: Open) -> None:
    change(file)
    watch = watching()
    with file.open("r+b", buffering=0) as old:
        change(file.with_name("other"))
        file.with_name("other").rename(file)
        assert watch.wait(LONG)

        old.write(b"y")

        assert not watch.wait(0)


@on_linux
def test_changes_before_a_wait_are_one(file: Path, watching: Open) -> None:
    file.touch()
    watch = watching()
    for _ in range(100):
        change(file)

    assert watch.wait(LONG)

    assert not watch.wait(0)


@on_linux
def test_reading_the_file_wakes_nobody(file: Path, watching: Open) -> None:
    change(file)
    watch = watching()

    file.read_bytes()

    assert not watch.wait(0)


@on_linux
def test_other_files_of_the_folder_wake_nobody(file: Path, watching: Open) -> None:
    file.touch()
    watch = watching()

    for name in ("log2", "lo", "other"):
        change(file.with_name(name))
        change(file.with_name(name))
        file.with_name(name).rename(file.with_name(f"moved-{name}"))

    assert not watch.wait(0)


@on_linux
def test_other_files_of_the_folder_do_not_cut_a_wait_short(file: Path, watching: Open) -> None:
    watch = watching()
    over = threading.Event()

    def make_others() -> None:
        while not over.is_set():
            change(file.with_name("other"))
            file.with_name("other").unlink()

    thread = threading.Thread(target=make_others)
    thread.start()
    before = monotonic()
    changed = watch.wait(0.2)
    waited = monotonic() - before
    over.set()
    thread.join()

    assert not changed
    assert waited >= 0.2


@on_linux
def test_more_events_than_the_system_keeps_count_as_a_change(file: Path, watching: Open) -> None:
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if limit > 50_000:
        pytest.skip(f"this system keeps {limit} events")
    watch = watching()
    spare = str(file.with_name("spare"))
    for i in range(limit + 10):
        os.close(os.open(spare + str(i % 2), os.O_CREAT))
        os.unlink(spare + str(i % 2))
    change(file)  # nobody is told: the queue is full

    changed = watch.wait(LONG)
    while watch.wait(0):
        pass
    change(file)

    assert changed
    assert watch.wait(LONG)


@on_linux
def test_a_change_is_told_again_until_it_has_settled(file: Path, watching: Open) -> None:
    file.touch()
    watch = watching(settle=0.004)
    change(file)

    told = [watch.wait(0.1) for _ in range(5)]

    assert told == [True, True, True, True, False]  # at once, after 1 ms, 2 ms and 4 ms, and then no more


def test_every_commit_of_another_process_is_seen_when_it_counts(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    ours = sqlite3.connect(path, isolation_level=None)
    ours.execute("PRAGMA journal_mode = WAL")
    ours.execute("CREATE TABLE t (x)")
    watch = Watch(path + "-wal", settle=1.0)
    script = (
        "import sqlite3, sys\n"
        "theirs = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "for line in sys.stdin:\n"
        "    theirs.execute('INSERT INTO t VALUES (1)')\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script, path], stdin=subprocess.PIPE)
    assert child.stdin is not None

    for count in range(1, 21):
        child.stdin.write(b"\n")
        child.stdin.flush()
        while ours.execute("SELECT count(*) FROM t").fetchone() != (count,):
            assert watch.wait(LONG), f"commit {count} was missed"

    child.stdin.close()
    child.wait()
    watch.close()
    ours.close()


# --- waking and closing ---


def test_a_wait_ends_at_its_timeout(file: Path, watching: Open) -> None:
    watch = watching(poll=LONG)
    before = monotonic()

    changed = watch.wait(0.05)

    assert monotonic() - before >= 0.05
    assert changed is not watch.notified  # who polls can never say that nothing has changed


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_a_wake_before_the_wait_is_not_lost(watching: Open, monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    watch = watching(poll=LONG)
    for _ in range(100_000):  # more than a pipe holds
        watch.wake()

    assert not watch.wait(None)


@pytest.mark.parametrize("platform", ["linux", "darwin"])
@pytest.mark.parametrize("end", [Watch.wake, Watch.close])
def test_who_waits_can_be_let_go(
    watching: Open, monkeypatch: pytest.MonkeyPatch, platform: str, end: Callable[[Watch], None]
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    watch = watching(poll=LONG)
    changed: list[bool] = []
    thread = threading.Thread(target=lambda: changed.append(watch.wait(None)))
    thread.start()

    end(watch)
    thread.join()

    assert changed == [False]


@on_linux
def test_of_a_change_and_a_wake_at_once_neither_is_lost(file: Path, watching: Open) -> None:
    file.touch()
    watch = watching()
    watch.wake()
    change(file)

    assert watch.wait(None)
    assert not watch.wait(None)


@on_linux
def test_a_wake_is_heard_once(file: Path, watching: Open) -> None:
    watch = watching()
    watch.wake()
    watch.wait(None)
    file.touch()

    assert watch.wait(None)


def test_a_closed_watch_tells_nothing(file: Path, watching: Open) -> None:
    watch = watching()

    watch.close()
    watch.close()
    watch.wake()
    change(file)

    assert watch.closed
    assert not watch.wait(None)


def test_a_closed_watch_leaves_no_descriptor(file: Path) -> None:
    before = descriptors()
    for _ in range(3):
        watch = Watch(str(file))
        thread = threading.Thread(target=watch.wait, args=(None,))
        thread.start()
        watch.close()
        thread.join()

    assert descriptors() == before


@on_linux
def test_whoever_waits_gives_back_what_it_watched_with_though_others_hold_it_still(file: Path) -> None:
    watch = Watch(str(file))
    held = watch._inotify  # as a thread does that is about to wake it
    watch.wait(0)

    watch.close()

    assert held is not None
    assert not any("inotify" in os.readlink(f"/proc/self/fd/{fd}") for fd in held._fds)


def test_closing_again_and_again_while_others_wait_and_wake_harms_nobody(file: Path) -> None:
    wrong: list[BaseException] = []

    def repeat(watch: Watch, act: Callable[[], object]) -> None:
        try:
            while not watch.closed:
                act()
        except BaseException as error:
            wrong.append(error)

    for _ in range(50):
        watch = Watch(str(file))
        acts = [partial(watch.wait, None), watch.wake, partial(change, file)]
        threads = [threading.Thread(target=repeat, args=(watch, act)) for act in acts]
        for thread in threads:
            thread.start()
        watch.close()
        for thread in threads:
            thread.join()

    assert wrong == []


# --- where the system does not tell ---


def test_elsewhere_each_wait_ends_with_a_perhaps(watching: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    watch = watching(poll=0.001)

    assert not watch.notified
    assert watch.wait(None)
    assert watch.wait(LONG)


def test_a_python_without_ctypes_polls(watching: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctypes", None)
    watch = watching(poll=0.001)

    assert not watch.notified
    assert watch.wait(None)


@on_linux
def test_a_folder_that_goes_away_is_polled(file: Path, watching: Open) -> None:
    watch = watching(poll=0.001)
    assert watch.notified

    file.parent.rmdir()

    assert watch.wait(None)
    assert not watch.notified
    assert watch.wait(None)
    watch.wake()
    watch.close()
    assert not watch.wait(None)


@on_linux
def test_a_folder_that_is_moved_is_polled(file: Path, watching: Open) -> None:
    watch = watching(poll=0.001)

    file.parent.rename(file.parent.with_name("moved"))

    assert watch.wait(None)
    assert not watch.notified


@on_linux
def test_a_system_that_cannot_be_waited_for_is_polled(file: Path, watching: Open) -> None:
    class Poor:
        def poll(self, milliseconds: float) -> list[tuple[int, int]]:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")

    watch = watching(poll=0.001)
    watch._inotify._poll = Poor()  # type: ignore[union-attr, assignment]

    assert watch.wait(None)
    assert not watch.notified
    assert watch.wait(None)


@on_linux
@pytest.mark.parametrize("spare", [0, 1, 2, 3])
def test_without_descriptors_to_spare_it_polls_and_takes_none(file: Path, spare: int) -> None:
    script = (
        "import os, resource, sys\n"
        "import ctypes\n"
        "from holdfast.stores.watch import Watch\n"
        "free = os.open('/dev/null', os.O_RDONLY)\n"
        "os.close(free)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (free + int(sys.argv[2]),) * 2)\n"
        "watch = Watch(sys.argv[1])\n"
        "print(watch.notified, watch.wait(None) if not watch.notified else None)\n"
        "if not watch.notified:\n"
        "    [os.open('/dev/null', os.O_RDONLY) for _ in range(int(sys.argv[2]))]\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", script, str(file), str(spare)], capture_output=True, text=True, check=False
    )

    assert (done.stdout, done.stderr) == ("True None\n" if spare == 3 else "False True\n", "")


def test_a_missing_folder_is_a_store_error(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 25) / "missing"  # as long as those that macOS has for temporary files

    with pytest.raises(StoreError, match=r"missing: no such folder.*make it first"):
        Watch(str(folder / "log"))


@pytest.mark.parametrize("settings", [{"poll": 0}, {"poll": float("nan")}, {"settle": -1}])
def test_times_must_make_sense(file: Path, settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Watch(str(file), **settings)


# --- forks ---


def test_a_forked_child_takes_nothing_from_its_parent(file: Path, watching: Open) -> None:
    file.touch()
    watch = watching()
    change(file)
    child = fork()
    if child == 0:
        good = False
        try:
            fewer = 3 if watch.notified else 0
            before = len(os.listdir("/dev/fd"))
            good = watch.closed and not watch.wait(None)
            watch.wake()
            watch.close()
            good = good and len(os.listdir("/dev/fd")) == before - fewer
        finally:
            os._exit(0 if good else 1)

    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert watch.wait(LONG)
    before = monotonic()
    watch.wait(0.02)
    assert monotonic() - before >= 0.02  # no wake of the child's ended it
