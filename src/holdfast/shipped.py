"""Files that come with the package, wherever it was loaded from: a folder, or an archive.

They are asked of whoever loaded it: `importlib.resources` would take longer to import than all else together.
"""

from __future__ import annotations

from typing import Any


def read_shipped(path: str) -> bytes:
    """The file at *path*, which begins with the `__file__` of a module of ours."""
    assert __spec__ is not None
    loader: Any = __spec__.loader
    data: bytes = loader.get_data(path)
    return data
