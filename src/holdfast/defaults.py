"""The store, the Redis and the policy file that are used if the caller names none. The environment is read here."""

from __future__ import annotations

import os
import sys
from typing import Final

TOKEN: Final = "HOLDFAST_TOKEN"
STORE: Final = "HOLDFAST_STORE"
REDIS: Final = "HOLDFAST_REDIS"


def named_store(in_file: str | None) -> str | None:
    """The store to use if the caller names none: from the environment, else from the policy file."""
    return os.environ.get(STORE) or in_file


def named_redis(in_file: str | None) -> str | None:
    """The Redis to share guards on, found in the same way."""
    return os.environ.get(REDIS) or in_file


def for_servers() -> dict[str, str]:
    """The environment for servers behind a proxy: without our own token and addresses, which may have passwords."""
    return {name: value for name, value in os.environ.items() if name not in (TOKEN, STORE, REDIS)}


def default_store() -> str | None:
    """A file in the user's data folder; None where there is no home, as in many containers."""
    folder = _folder("XDG_DATA_HOME", *_DATA)
    return os.path.join(folder, "holdfast", "runs.db") if os.path.isabs(folder) else None


_DATA = ("Library", "Application Support") if sys.platform == "darwin" else (".local", "share")


def policy_file() -> tuple[str | None, str]:
    """The policy file to read if the caller names none, and where its name comes from."""
    if named := os.environ.get("HOLDFAST_POLICY"):
        return named, "$HOLDFAST_POLICY"
    user = os.path.join(_folder("XDG_CONFIG_HOME", ".config"), "holdfast", "holdfast.toml")
    for path, origin in (("holdfast.toml", "working directory"), (user, "user's configuration")):
        if os.path.isfile(path):
            return path, origin
    return None, "there is none"


def _folder(variable: str, *usual: str) -> str:
    """The folder that *variable* names, else the *usual* one of the user; as XDG demands, a relative one is ignored."""
    # Not `Path.expanduser`, which fails where a user has no home, as in many containers.
    named = os.path.expanduser(os.environ.get(variable, ""))
    return named if os.path.isabs(named) else os.path.expanduser(os.path.join("~", *usual))
