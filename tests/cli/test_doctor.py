"""`holdfast doctor`: each thing that may be wrong is found, told with its remedy, and left as it is."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import stat
import tomllib
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast import cli
from holdfast.cli.doctor import EXTRAS
from holdfast.clock import SystemClock
from holdfast.stores import RunStore, SqliteRunStore
from holdfast.stores.board import Board
from holdfast.stores.entries import Process, ServerEntry
from holdfast.stores.ledger import OwnerRow
from holdfast.stores.schema import APPLICATION, SCHEMA

CHECKS = [
    "Python",
    "SQLite",
    "clock",
    "extras",
    "disk",
    "store",
    "permissions",
    "schema",
    "integrity",
    "runs",
    "owners",
    "times",
]


class Report(NamedTuple):
    """What the doctor found: the exit code, and each check with its status, message and remedy."""

    code: int
    checks: dict[str, dict[str, Any]]

    def status(self, check: str) -> str:
        return str(self.checks[check]["status"])


Doctor = Callable[..., Report]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the store is; nothing else of this machine is looked at."""
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_POLICY", raising=False)
    monkeypatch.setenv("HOLDFAST_STORE", str(folder / "runs.db"))
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    return folder / "runs.db"


@pytest.fixture
def store(path: Path) -> Iterator[RunStore]:
    with SqliteRunStore(path) as store:
        store.create_run("default", "", run_id="first")
        yield store


@pytest.fixture
def doctor(path: Path, capsys: pytest.CaptureFixture[str]) -> Doctor:
    def doctor(*arguments: str) -> Report:
        capsys.readouterr()
        code = cli.main(["doctor", "--json", *arguments])
        report = json.loads(capsys.readouterr().out)
        assert report["ok"] is (code == 0)
        return Report(code, {check["check"]: check for check in report["checks"]})

    return doctor


def test_a_healthy_store_passes_every_check(store: RunStore, doctor: Doctor) -> None:
    report = doctor()

    assert report.code == 0
    assert list(report.checks) == CHECKS
    assert {check["status"] for check in report.checks.values()} == {"PASS"}


def test_people_get_a_line_a_check(store: RunStore, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["doctor"])

    out, err = capsys.readouterr()
    assert (code, err) == (0, "holdfast: all is well\n")
    assert [re.fullmatch(r"PASS  (\w+) +\S.*", line)[1] for line in out.splitlines()] == CHECKS  # type: ignore[index]


def test_every_extra_is_looked_for(doctor: Doctor) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]

    message = doctor("--store", ":memory:").checks["extras"]["message"]

    assert set(re.findall(r"\w+", message.partition("; for more: pip install 'holdfast")[0])) >= {"http", "server"}
    assert set(project["optional-dependencies"]) - {"all"} == set(EXTRAS)
    for extra, modules in EXTRAS.items():
        assert {module.split(".")[0] for module in modules} <= {
            re.split(r"[\[>=-]", need)[0] for need in project["optional-dependencies"][extra]
        }


def test_every_package_that_is_asked_for_has_an_oldest_version() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]

    extras = {name: needs for name, needs in project["optional-dependencies"].items() if name != "all"}

    assert [need for need in [*project["dependencies"], *chain(*extras.values())] if ">=" not in need] == []


def test_a_store_that_is_not_there_yet_is_no_fault_and_is_not_made(path: Path, doctor: Doctor) -> None:
    report = doctor()

    assert report.code == 0
    assert "does not exist yet" in report.checks["store"]["message"]
    assert not path.exists()


def test_a_store_in_memory_has_nothing_to_check(doctor: Doctor) -> None:
    assert doctor("--store", ":memory:").status("store") == "PASS"


def test_a_file_that_others_may_read_is_told_with_the_command_that_mends_it(
    store: RunStore, path: Path, doctor: Doctor
) -> None:
    path.chmod(0o644)

    report = doctor()

    found = report.checks["permissions"]
    assert (report.code, found["status"]) == (0, "WARN")
    assert found["fix"] == f"chmod 600 {path}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_folder_that_others_may_write_is_told(store: RunStore, path: Path, doctor: Doctor) -> None:
    path.parent.chmod(0o777)

    assert doctor().checks["permissions"]["fix"] == f"chmod 700 {path.parent}"


def test_a_folder_for_all_in_which_each_keeps_his_own_is_no_fault(store: RunStore, path: Path, doctor: Doctor) -> None:
    path.parent.chmod(0o1777)

    assert doctor().status("permissions") == "PASS"


def test_a_file_that_cannot_be_written_is_a_failure(
    store: RunStore, path: Path, doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)  # root may write everything

    report = doctor()

    assert (report.code, report.status("permissions")) == (1, "FAIL")
    assert "integrity" not in report.checks  # nothing is said of what could not be read


def test_a_disk_that_is_mounted_to_be_read_only_is_not_to_be_mended_by_another_owner(
    store: RunStore, path: Path, doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = (*os.statvfs(path)[:8], os.ST_RDONLY, *os.statvfs(path)[9:])
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(flags))

    fix = doctor().checks["permissions"]["fix"]

    assert fix == "mount it to be written, as nobody may now, or put the store elsewhere: --store or $HOLDFAST_STORE"


def test_a_store_that_is_not_there_yet_and_cannot_be_made_is_a_failure(
    path: Path, doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.parent.rmdir()
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)  # root may write everything

    report = doctor()

    assert (report.code, report.status("permissions")) == (1, "FAIL")
    assert str(path.parent.parent) in report.checks["permissions"]["message"]
    assert report.checks["permissions"]["fix"].endswith(f"install -d -m 700 -o $(id -u) {path.parent}")


def test_nobody_is_told_to_make_a_folder_his_own_that_may_be_the_systems(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)  # root may write everything

    found = doctor("--store", "/no-such.db").checks["permissions"]

    assert found["fix"] == "use a store of your own (--store or $HOLDFAST_STORE), or ask who owns /"


def test_a_store_that_cannot_be_looked_at_is_not_taken_for_none(path: Path, doctor: Doctor) -> None:
    path.touch()

    report = doctor("--store", str(path / "runs.db"))

    assert (report.code, report.status("store")) == (1, "FAIL")
    assert "Not a directory" in report.checks["store"]["message"]


def test_a_folder_whose_name_is_no_text_is_no_fault(path: Path, doctor: Doctor) -> None:
    folder = os.fsencode(path.parent) + b"/caf\xe9"
    try:
        os.mkdir(folder, 0o700)
    except OSError as error:
        pytest.skip(f"the file system takes texts alone for names: {error}")
    with SqliteRunStore(os.fsdecode(folder + b"/runs.db")) as store:
        store.create_run("default", "")

    report = doctor("--store", os.fsdecode(folder + b"/runs.db"))

    assert report.code == 0
    assert report.checks["store"]["message"].startswith(os.fsdecode(folder))


def test_a_newer_schema_is_a_failure_and_is_not_touched(store: RunStore, path: Path, doctor: Doctor) -> None:
    change(path, f"PRAGMA user_version = {SCHEMA + 1}")
    crashed = path.with_name("crashed.db")
    for suffix in ("", "-wal"):  # as a crash leaves it: the last writes are not in the database yet
        shutil.copy(f"{path}{suffix}", f"{crashed}{suffix}")
    before = crashed.read_bytes()

    report = doctor("--store", str(crashed))

    assert (report.code, report.status("schema")) == (1, "FAIL")
    assert "upgrade" in report.checks["schema"]["fix"]
    assert crashed.read_bytes() == before


@pytest.mark.parametrize("version", range(SCHEMA))
def test_an_older_schema_is_told_and_not_brought_up_to_date(version: int, path: Path, doctor: Doctor) -> None:
    path.touch(0o600)
    if version:
        change(path, f"PRAGMA application_id = {APPLICATION}")
        change(path, f"PRAGMA user_version = {version}")
    before = path.read_bytes()

    report = doctor()

    assert (report.code, report.status("schema")) == (0, "PASS")
    assert report.checks["schema"]["message"].startswith(f"version {version}; brought to {SCHEMA} with the next use")
    assert "runs" not in report.checks
    assert path.read_bytes() == before


def test_a_database_of_something_else_is_a_failure_and_is_not_touched(path: Path, doctor: Doctor) -> None:
    change(path, "CREATE TABLE theirs (x)")
    before = path.read_bytes()

    report = doctor()

    assert (report.code, report.status("schema")) == (1, "FAIL")
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_a_failure(path: Path, doctor: Doctor) -> None:
    path.write_bytes(b"this is no database at all, " * 100)

    report = doctor()

    assert (report.code, report.status("integrity")) == (1, "FAIL")


def test_a_damaged_database_is_a_failure(store: RunStore, path: Path, doctor: Doctor) -> None:
    for number in range(200):
        store.record_event("first", f"event_{number}", {"text": "x" * 500})
    store.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 2)
        file.write(b"\xff" * (size // 4))

    report = doctor()

    assert (report.code, report.status("integrity")) == (1, "FAIL")
    assert "restore" in report.checks["integrity"]["fix"]


def test_interrupted_runs_are_told_with_what_to_do(store: RunStore, doctor: Doctor) -> None:
    gone = OwnerRow("gone", "elsewhere", 1, 1)
    store.writer.commit(lambda ledger: ledger.claim(ledger.run("first"), gone))

    report = doctor()

    assert (report.code, report.status("runs")) == (0, "WARN")
    assert report.checks["runs"]["message"].startswith("1 interrupted")
    assert "holdfast runs show ID" in report.checks["runs"]["fix"]


def test_a_run_that_lies_in_the_future_is_told(path: Path, store: RunStore, doctor: Doctor) -> None:
    ahead = int((SystemClock().time() + 3 * 3600 + 60) * 1000)
    store.close()
    with SqliteRunStore(path) as later:
        header = later.header("default", "", "later")
        made = type(header)(
            **{name: getattr(header, name) for name in header.__struct_fields__} | {"created_at_ms": ahead}
        )
        later.writer.commit(lambda ledger: ledger.add(made))

    report = doctor()

    assert (report.code, report.status("times")) == (0, "WARN")
    assert "3 h ahead" in report.checks["times"]["message"]


def test_what_dead_processes_left_behind_is_counted(store: RunStore, path: Path, doctor: Doctor) -> None:
    store.ownership.row()
    for name in ("feed", "beef", "no owner of ours!"):
        (path.parent / "runs.db-owners" / f"{name}.owner").touch()

    message = doctor().checks["owners"]["message"]

    assert message.startswith("1 alive, 2 left behind")


@pytest.mark.parametrize(("free", "status", "code"), [(10**10, "PASS", 0), (5 * 10**8, "WARN", 0), (10**6, "FAIL", 1)])
def test_a_disk_that_fills_up_is_told(
    free: int, status: str, code: int, doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=free))

    report = doctor()

    assert (report.code, report.status("disk")) == (code, status)


def test_a_clock_that_is_wrong_is_a_failure(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SystemClock, "time", lambda self: 1000.0)

    report = doctor()

    assert (report.code, report.status("clock")) == (1, "FAIL")


def test_a_policy_file_that_is_wrong_is_a_failure(path: Path, doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "holdfast.toml").write_text("[policy]\ntimeout = -1\n")

    report = doctor()

    assert report.code == 1
    assert "timeout" in report.checks["settings"]["message"]


def test_a_name_that_is_no_store_is_a_failure(doctor: Doctor) -> None:
    assert doctor("--store", "ftp://example.org/").status("settings") == "FAIL"


def change(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    ("state", "status", "code"),
    [
        ("ready", "PASS", 0),
        ("starting", "WARN", 0),
        ("restarting", "WARN", 0),
        ("stopped", "WARN", 0),
        ("failed", "FAIL", 1),
    ],
)
def test_each_server_behind_a_living_proxy_is_looked_at(
    store: RunStore, doctor: Doctor, state: str, status: str, code: int
) -> None:
    show_server(store, state=state, restarts=3, last_error="exit code 1", stderr=["first", "Cannot find module 'x'"])

    report = doctor()

    found = report.checks["server"]
    assert (report.code, found["status"]) == (code, status)
    assert f"github is {state} behind process 7, 3 restarts" in found["message"]
    assert ("Cannot find module 'x'" in found["message"]) is (state != "ready")
    assert (found["fix"] is None) is (state == "ready")


def test_a_server_that_nobody_has_asked_for_is_well(store: RunStore, doctor: Doctor) -> None:
    show_server(store, state="idle")

    found = doctor().checks["server"]

    assert (found["status"], found["fix"]) == ("PASS", None)


def test_a_server_over_http_is_to_answer_not_to_start(store: RunStore, doctor: Doctor) -> None:
    show_server(store, state="failed", kind="http", last_error="cannot be reached")

    assert doctor().checks["server"]["fix"] == "see that it answers: npx server"


def test_the_servers_of_a_dead_proxy_are_no_matter(store: RunStore, doctor: Doctor) -> None:
    show_server(store, until=-1.0, state="failed")

    assert "server" not in doctor().checks


def show_server(store: RunStore, *, until: float = 600.0, **facts: Any) -> None:
    now = int(SystemClock.time() * 1000)
    server = ServerEntry(name="github", target="npx server", **facts)
    process = Process(id="p", host="elsewhere", pid=7, until_ms=now + int(until * 1000), servers=[server])
    Board(store).publish(process, [])
