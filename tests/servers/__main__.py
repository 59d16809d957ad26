"""`python -m tests.servers`: where nothing may be missing, have the system's servers before the tests count seconds.

The wheels come with the environment. What the system has is wanted too: the Redis that most people run, and PgBouncer.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from tests.servers.finding import named

PACKAGES = {"redis-server": "redis-server", "pgbouncer": "pgbouncer"}
PATIENCE = 300  # seconds for one command


def prepare() -> str | None:
    """Install what is missing where that is ours to do; else, or if it fails, say what is missing."""
    missing = [package for program, package in PACKAGES.items() if not named(program)]
    if not missing or os.environ.get("CI") != "true":
        return None
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return f"not installed: {', '.join(missing)}"
    # Debian starts what it installs, but for a machine that runs on level 1.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for command in (["update", "-q"], ["install", "-y", "-q", "--no-install-recommends", *missing]):
        try:
            subprocess.run(["apt-get", *command], env=environment, capture_output=True, timeout=PATIENCE, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            return f"apt-get {command[0]}: {error}"
    return None


if __name__ == "__main__":
    sys.exit(prepare())
