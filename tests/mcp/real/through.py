"""How the tests put the proxy between a client and a server: the installed program, never our own functions."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HOLDFAST = str(Path(sys.executable).parent / "holdfast")


KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "XDG_DATA_HOME", "COVERAGE_PROCESS_CONFIG")


def surroundings(**more: str) -> dict[str, str]:
    """The environment of a child: little, since one of the servers tells all of it to whoever asks."""
    return {**{name: os.environ[name] for name in KEPT if name in os.environ}, **more}


def proxy(command: list[str], *, name: str = "server") -> list[str]:
    """The command that runs *command* behind `holdfast wrap`."""
    return [HOLDFAST, "wrap", "--name", name, "--store", ":memory:", "--", *command]  # clients hand on little else


def proxy_to(url: str, *, name: str = "server") -> list[str]:
    """The command that stands on stdio for the server at *url*."""
    return [HOLDFAST, "wrap", "--name", name, "--store", ":memory:", "--url", url]
