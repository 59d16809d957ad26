"""What applies where nobody says: which store, which Redis, which policy file. The environment is read here."""

from __future__ import annotations

import os
import sys
from typing import Final

TOKEN: Final = "HOLDFAST_TOKEN"
STORE: Final = "HOLDFAST_STORE"
REDIS: Final = "HOLDFAST_REDIS"


def named_store(in_file: str | None) -> str | None:
    """The store that somebody has chosen where the caller names none: the environment's, else the policy file's."""
    return os.environ.get(STORE) or in_file


def named_redis(in_file: str | None) -> str | None:
    """The Redis to share guards on, likewise."""
    return os.environ.get(REDIS) or in_file


def for_servers() -> dict[str, str]:
    """The environment of servers behind a proxy: without what opens our own doors, which may have passwords in it."""
    return {name: value for name, value in os.environ.items() if name not in (TOKEN, STORE, REDIS)}


def default_store() -> str | None:
    """A file in the user's data folder; None where there is no home, as in many containers."""
    folder = _folder("XDG_DATA_HOME", *_DATA)
    return os.path.join(folder, "holdfast", "runs.db") if os.path.isabs(folder) else None


_DATA = ("Library", "Application Support") if sys.platform == "darwin" else (".local", "share")


def policy_file() -> tuple[str | None, str]:
    """The policy file to read when the caller names none, and who names it."""
    if named := os.environ.get("HOLDFAST_POLICY"):
        return named, "$HOLDFAST_POLICY"
    user = os.path.join(_folder("XDG_CONFIG_HOME", ".config"), "holdfast", "holdfast.toml")
    for path, origin in (("holdfast.toml", "working directory"), (user, "user's configuration")):
        if os.path.isfile(path):
            return path, origin
    return None, "there is none"


def _folder(variable: str, *usual: str) -> str:
    """The folder that *variable* names, else the *usual* one of the user; XDG has a relative one ignored."""
    # Not `Path.expanduser`, which fails where a user has no home, as in many containers.
    named = os.path.expanduser(os.environ.get(variable, ""))
    return named if os.path.isabs(named) else os.path.expanduser(os.path.join("~", *usual))
