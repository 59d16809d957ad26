"""Files that come with the package, wherever it was loaded from: a folder, or an archive.

They are read by the loader of the package: `importlib.resources` would take longer to import than all else together.
"""

from __future__ import annotations

from typing import Any


def read_shipped(path: str) -> bytes:
    """The file at *path*, which is made from the `__file__` of a module of ours."""
    assert __spec__ is not None
    loader: Any = __spec__.loader
    data: bytes = loader.get_data(path)
    return data
