"""Folders, and the names in them: syncing a file puts its content on disk, but not the name of a new file."""

from __future__ import annotations

import contextlib
import os


def make_folder(path: str) -> None:
    """Create the folder at the absolute *path*, for this user alone, and those above it that are missing, on disk."""
    missing = []
    above = path
    while not os.path.isdir(above):
        missing.append(above)
        above = os.path.dirname(above)
    os.makedirs(path, mode=0o700, exist_ok=True)
    for folder in missing:
        sync_folder(os.path.dirname(folder))


def sync_folder(path: str) -> None:
    """Put the names in the folder at *path* on disk, if the system can."""
    with contextlib.suppress(OSError):  # this user may not read the folder, say; the names are there without it
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
