"""What a power cut leaves of new names: syncing a file puts its content on disk, syncing its folder its name."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from holdfast.cli import main
from holdfast.folders import make_folder, sync_folder
from holdfast.mcp.clients import saving
from holdfast.stores import SqliteRunStore
from holdfast.stores.owners import LockFiles


class Names:
    """The names on disk: those that each folder had when it was last synced."""

    def __init__(self) -> None:
        self._synced: dict[tuple[int, int], list[str]] = {}

    def note(self, fd: int) -> None:
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            self._synced[status.st_dev, status.st_ino] = os.listdir(fd)

    def of(self, folder: Path) -> list[str]:
        status = folder.stat()
        return self._synced.get((status.st_dev, status.st_ino), [])


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    found, fsync = Names(), os.fsync

    def synced(fd: int) -> None:
        fsync(fd)
        found.note(fd)

    monkeypatch.setattr(os, "fsync", synced)
    return found


def test_folders_made_for_a_store_are_on_disk_with_its_first_run(tmp_path: Path, names: Names) -> None:
    with SqliteRunStore(tmp_path / "a" / "b" / "runs.db") as store:
        store.create_run("s", "p")

        assert names.of(tmp_path) == ["a"]
        assert names.of(tmp_path / "a") == ["b"]  # the names in b are synced by SQLite


def test_folders_made_for_an_owner_are_on_disk(tmp_path: Path, names: Names) -> None:
    file = LockFiles(str(tmp_path / "a" / "runs.db-owners")).take("one")

    assert names.of(tmp_path) == ["a"]
    file.close()


def test_a_finished_export_is_on_disk(tmp_path: Path, names: Names) -> None:
    with SqliteRunStore(tmp_path / "runs.db") as store:
        store.create_run("s", "p")

    done = main(["runs", "export", "-o", str(tmp_path / "out"), "--store", store.url])

    assert done == 0
    assert "out" in names.of(tmp_path)


def test_the_backup_of_a_config_is_on_disk_before_the_config_is_replaced(
    tmp_path: Path, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mcp.json").write_text("{}")
    before: list[str] = []
    replace = os.replace

    def replaced(old: str, new: str) -> None:
        before.extend(names.of(tmp_path))
        replace(old, new)

    monkeypatch.setattr(os, "replace", replaced)

    saving.save(saving.load(str(tmp_path / "mcp.json")), '{"servers": {}}')

    assert "mcp.json.holdfast-backup" in before


def test_a_folder_that_is_there_is_left_as_it_is(tmp_path: Path, names: Names) -> None:
    tmp_path.chmod(0o755)

    make_folder(str(tmp_path))

    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    assert names.of(tmp_path.parent) == []


def test_a_folder_that_cannot_be_synced_is_no_reason_to_fail(tmp_path: Path) -> None:
    sync_folder(str(tmp_path / "gone"))
