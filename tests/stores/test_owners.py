from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.children import descriptors

from holdfast.clock import SystemClock
from holdfast.errors import ConfigError, StoreError
from holdfast.stores import SqliteRunStore
from holdfast.stores.owners import LockFiles, OwnerFile
from holdfast.stores.ownership import Ownership
from holdfast.stores.watch import Watch

START = "import os, sys\nfrom holdfast.stores.owners import OwnerFile\nfile = OwnerFile(sys.argv[1], sys.argv[2])\n"
STAY = "print('ready', flush=True)\nsys.stdin.read()\n"
FORK = (
    "if os.fork() == 0:\n"
    "    file.after_fork()\n"
    "    print('ready', flush=True)\n"
    "    sys.stdin.read()\n"
    "    os._exit(0)\n"
    "import signal\n"
    "signal.pause()\n"
)
SPAWN = (
    "import signal, subprocess\n"
    "subprocess.Popen([sys.executable, '-c', 'import sys; print(\"ready\", flush=True); sys.stdin.read()'],\n"
    "    close_fds=False)\n"
    "signal.pause()\n"
)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "owners")


@pytest.fixture
def start(folder: str) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a process that owns a file, and says when it does."""
    children: list[subprocess.Popen[bytes]] = []

    def start(owner: str, script: str = STAY) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", START + script, folder, owner]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        return child

    yield start

    for child in children:
        child.kill()
        child.communicate()  # whoever the child left behind ends when its input does


# --- processes ---


def test_an_owner_that_was_killed_is_gone_at_once(folder: str, start: Callable[..., subprocess.Popen[bytes]]) -> None:
    child = start("a1")
    before = LockFiles(folder).is_gone("a1")

    child.kill()
    child.wait()

    assert not before
    assert LockFiles(folder).is_gone("a1")


def test_an_owner_that_is_stopped_is_not_gone(folder: str, start: Callable[..., subprocess.Popen[bytes]]) -> None:
    child = start("a1")

    child.send_signal(signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)  # says that it is stopped, and reaps nothing

    assert not LockFiles(folder).is_gone("a1")


@pytest.mark.parametrize("script", [FORK, SPAWN], ids=["forked", "spawned"])
def test_an_owner_is_gone_although_a_child_of_its_lives_on(
    folder: str, start: Callable[..., subprocess.Popen[bytes]], script: str
) -> None:
    child = start("a1", script)
    before = LockFiles(folder).is_gone("a1")

    child.kill()
    child.wait()

    assert not before
    assert LockFiles(folder).is_gone("a1")


def test_a_forked_child_leaves_the_lock_to_its_parent(
    folder: str, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    start("a1", "if os.fork() == 0:\n    file.close()\n    os._exit(0)\nos.wait()\n" + STAY)

    assert os.listdir(folder) == ["a1.owner"]
    assert not LockFiles(folder).is_gone("a1")


def test_the_child_of_a_process_that_has_closed_all_its_files_is_not_taken_for_its_parent(folder: str) -> None:
    ownership = Ownership(LockFiles(folder), SystemClock(), 15.0)
    parent = ownership.row().id
    numbers = {int(name) for name in os.listdir("/dev/fd")}
    file = Path(folder, f"{parent}.owner").stat()
    os.close(next(fd for fd in numbers if _is_open_as(fd, file)))

    ownership.after_fork()

    assert ownership.id is None
    assert ownership.row().id != parent
    ownership.end()


def _is_open_as(fd: int, file: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), file)
    except OSError:  # what the folder itself was read by
        return False


def test_sweeping_removes_the_dead_and_leaves_the_living_and_what_is_not_ours(
    folder: str, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    start("living")
    for owner in ("dead1", "dead2"):
        child = start(owner)
        child.kill()
        child.wait()
    Path(folder, "notes.txt").touch()
    Path(folder, "folder.owner").mkdir()
    Path(folder, "link.owner").symlink_to("notes.txt")

    assert LockFiles(folder).sweep() == 2

    assert sorted(os.listdir(folder)) == ["folder.owner", "link.owner", "living.owner", "notes.txt"]
    assert LockFiles(folder).sweep() == 0


def test_asking_for_an_owner_leaves_no_file_open(folder: str) -> None:
    Path(folder).mkdir()
    Path(folder, "dead.owner").touch()
    living = OwnerFile(folder, "living")
    before = descriptors()

    assert [LockFiles(folder).is_gone(owner) for owner in ("living", "dead", "nobody")] == [False, True, True]

    assert descriptors() == before
    living.close()


def test_what_an_owner_left_that_died_while_starting_is_swept(folder: str) -> None:
    Path(folder).mkdir()
    Path(folder, "0123456789abcdef.new").touch()

    assert LockFiles(folder).sweep() == 1

    assert os.listdir(folder) == []


# --- one file ---


def test_only_its_user_may_read_an_owners_file(folder: str) -> None:
    file = OwnerFile(folder, "a1")

    modes = [stat.S_IMODE(os.stat(path).st_mode) for path in (folder, file.path)]

    file.close()
    assert modes == [0o700, 0o600]


def test_an_owner_of_the_same_process_is_not_gone(folder: str) -> None:
    file = OwnerFile(folder, "a1")

    assert not LockFiles(folder).is_gone("a1")
    assert file.locked

    file.close()


def test_closing_removes_the_file_and_the_empty_folder_and_may_be_done_twice(folder: str) -> None:
    file = OwnerFile(folder, "a1")

    file.close()
    file.close()

    assert not os.path.exists(folder)
    assert LockFiles(folder).is_gone("a1")


def test_an_owner_that_nobody_has_any_more_is_gone_and_leaves_nothing(folder: str) -> None:
    before = descriptors()
    file = OwnerFile(folder, "a1")

    del file

    assert not os.path.exists(folder)
    assert descriptors() == before


def test_dropping_an_owner_says_nothing_where_its_making_was_interrupted_or_its_descriptor_is_gone(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda told: said.append(told.exc_value))
    dropped = [OwnerFile.__new__(OwnerFile), OwnerFile(folder, "a"), OwnerFile(folder, "b")]  # the first: interrupted
    for file in dropped[1:]:
        assert file._fd is not None
        os.close(file._fd)
        file._fd = 2**30  # a number that is nobody's
    dropped[2]._pid = 0  # as in a forked child
    del file

    dropped.clear()

    assert said == []


def test_a_forked_child_that_drops_an_owner_leaves_the_file_to_its_parent(folder: str) -> None:
    file = OwnerFile(folder, "a1")
    file._pid += 1  # as if another process had made it

    del file

    assert os.listdir(folder) == ["a1.owner"]


def test_closing_leaves_the_folder_to_others(folder: str) -> None:
    first, second = OwnerFile(folder, "a1"), OwnerFile(folder, "a2")

    first.close()

    assert os.listdir(folder) == ["a2.owner"]
    assert not LockFiles(folder).is_gone("a2")
    second.close()


def test_closing_a_file_that_was_removed_is_no_error(folder: str) -> None:
    file = OwnerFile(folder, "a1")
    os.unlink(file.path)

    file.close()

    assert not os.path.exists(folder)


def test_asking_does_not_disturb_others_who_ask(folder: str) -> None:
    Path(folder).mkdir()
    path = Path(folder, "a1.owner")
    path.write_bytes(b"\0")

    with path.open("rb") as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)

        assert LockFiles(folder).is_gone("a1")


def test_a_name_is_not_given_to_two_living_owners(folder: str) -> None:
    file = OwnerFile(folder, "a1")

    with pytest.raises(StoreError, match="take another"):
        OwnerFile(folder, "a1")

    assert not LockFiles(folder).is_gone("a1")
    file.close()


def test_a_file_is_made_although_others_tidy_its_folder_away(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, tidied = os.mkdir, []

    def make_and_tidy(path: str, mode: int) -> None:
        make(path, mode)
        if not tidied:
            tidied.append(os.rmdir(path))

    monkeypatch.setattr(os, "mkdir", make_and_tidy)
    file = OwnerFile(folder, "a1")

    assert os.listdir(folder) == ["a1.owner"]
    file.close()


def test_a_file_is_made_although_others_who_tidy_hold_it(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, held = fcntl.flock, []

    def lock_once_held(fd: int, kind: int) -> None:
        if not held:
            held.append(fd)
            raise BlockingIOError
        lock(fd, kind)

    monkeypatch.setattr(fcntl, "flock", lock_once_held)
    file = OwnerFile(folder, "a1")

    assert os.listdir(folder) == ["a1.owner"]
    file.close()


def test_the_name_of_a_dead_owner_can_be_taken(folder: str) -> None:
    Path(folder).mkdir()
    Path(folder, "a1.owner").touch()

    file = OwnerFile(folder, "a1")

    assert not LockFiles(folder).is_gone("a1")
    file.close()


@pytest.mark.parametrize("owner", ["", ".", "..", "a/b", "/etc/passwd", "a\0b", "a b", "ä", "x" * 201, None])
@pytest.mark.parametrize("use", [LockFiles.take, LockFiles.is_gone, LockFiles.poke])
def test_an_owner_that_could_lead_out_of_the_folder_is_refused(
    folder: str, use: Callable[[LockFiles, object], object], owner: object
) -> None:
    with pytest.raises(ConfigError, match="owner ="):
        use(LockFiles(folder), owner)

    assert not os.path.exists(folder)


def test_a_poke_wakes_a_watch_on_the_owners_file(folder: str) -> None:
    file = OwnerFile(folder, "a1")
    watch = Watch(file.path)

    LockFiles(folder).poke("a1")

    assert watch.wait(30)
    assert not LockFiles(folder).is_gone("a1")
    watch.close()
    file.close()


def test_poking_an_owner_that_is_gone_makes_nothing(folder: str) -> None:
    LockFiles(folder).poke("a1")

    assert not os.path.exists(folder)


# --- what cannot be told ---


def test_the_name_of_the_machine_can_be_written_down_whatever_bytes_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, _, *rest = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((system, "b\udcfcro\x1b", *rest)))

    with SqliteRunStore(tmp_path / "runs.db") as store:
        owner = store.ownership.row()
        store.writer.commit(lambda ledger: ledger.renew_owner(owner))

    assert owner.host == r"b\udcfcro\x1b"


def test_without_a_folder_there_is_nobody(folder: str) -> None:
    assert LockFiles(folder).is_gone("a1")
    assert LockFiles(folder).sweep() == 0


def test_the_file_of_another_user_tells_nothing(folder: str) -> None:
    file = OwnerFile(folder, "a1")
    os.chmod(file.path, 0)
    script = (
        "import os, sys\n"
        "from holdfast.stores.owners import LockFiles\n"
        "if os.getuid() == 0:\n    os.setuid(65534)\n"
        "locks = LockFiles(sys.argv[1])\n"
        "locks.poke('a1')\n"
        "print(locks.is_gone('a1'))\n"
    )

    done = subprocess.run([sys.executable, "-c", script, folder], capture_output=True, text=True, check=False)

    file.close()
    assert (done.stdout, done.stderr) == ("False\n", "")


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP])
def test_where_the_file_system_has_no_locks_nobody_is_gone(
    folder: str, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(fcntl, "flock", failing(code))

    file = OwnerFile(folder, "a1")

    assert not file.locked
    assert not LockFiles(folder).is_gone("a1")
    assert LockFiles(folder).sweep() == 0
    file.close()
    assert LockFiles(folder).is_gone("a1")


def test_an_owner_that_found_no_locks_is_not_gone_for_those_who_find_some(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", failing(errno.ENOLCK))
        file = OwnerFile(folder, "a1")

    LockFiles(folder).poke("a1")

    assert not LockFiles(folder).is_gone("a1")
    file.close()


def test_another_error_says_where_and_what_to_do(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = OwnerFile(folder, "a1")
    monkeypatch.setattr(fcntl, "flock", failing(errno.EIO))

    with pytest.raises(StoreError, match=r"a1\.owner: .*; .*see that"):
        LockFiles(folder).is_gone("a1")

    file.close()


def test_a_folder_that_cannot_be_made_is_a_store_error_and_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    before = descriptors()

    for folder in (tmp_path / "file", tmp_path / "missing" / "owners"):
        with pytest.raises(StoreError, match="may write"):
            OwnerFile(str(folder), "a1")

    assert descriptors() == before


def test_what_fails_in_the_middle_leaves_no_file_and_no_descriptor(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = descriptors()
    monkeypatch.setattr(fcntl, "flock", failing(errno.EIO))

    with pytest.raises(StoreError):
        OwnerFile(folder, "a1")

    assert os.listdir(folder) == []
    assert descriptors() == before


# --- all at once ---


def test_owners_come_and_go_while_others_ask_and_sweep(folder: str) -> None:
    wrong: list[str] = []
    over = threading.Event()

    def live(name: str) -> None:
        for i in range(150):
            file = OwnerFile(folder, f"{name}-{i}")
            if LockFiles(folder).is_gone(f"{name}-{i}"):
                wrong.append(f"{name}-{i} was gone while it lived")
            file.close()

    def tidy() -> None:
        while not over.is_set():
            LockFiles(folder).sweep()

    lives = [threading.Thread(target=guarded(live, wrong, name)) for name in "abc"]
    others = [threading.Thread(target=guarded(tidy, wrong)) for _ in range(2)]
    for thread in [*lives, *others]:
        thread.start()
    for thread in lives:
        thread.join()
    over.set()
    for thread in others:
        thread.join()

    assert wrong == []
    assert not os.path.exists(folder)


def guarded(act: Callable[..., None], wrong: list[str], *arguments: str) -> Callable[[], None]:
    def run() -> None:
        try:
            act(*arguments)
        except Exception as error:
            wrong.append(repr(error))

    return run


def failing(code: int) -> Callable[..., None]:
    def flock(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    return flock
