"""A real Chromium for the tests: `$CHROME`, else the system's, else the one that Playwright installs.

Where none can be had the tests are skipped with the reason; on CI that is a failure. `python -m tests.web.browser`
installs what is missing before the tests run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE = 600  # seconds for an installation
HOME = Path(__file__).parents[2] / ".cache" / "playwright"


class Missing(Exception):
    """A browser that cannot be had here; its text says why."""


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser without a window, closed afterwards."""
    from playwright.sync_api import Error, sync_playwright

    try:
        found = executable()
    except Missing as error:
        missing(str(error))
    # A sandbox cannot be made by root, nor does /dev/shm have room in most containers.
    arguments = ["--disable-dev-shm-usage", *(["--no-sandbox"] if is_root() else [])]
    with sync_playwright() as playwright:
        try:
            made = playwright.chromium.launch(executable_path=found, args=arguments, chromium_sandbox=not is_root())
        except Error as error:
            missing(f"{found} does not start: {error.message.splitlines()[0]}")
        try:
            yield made
        finally:
            made.close()


def executable() -> str:
    """The path of a Chromium, which is installed first where it is not there."""
    if given := os.environ.get("CHROME"):
        if shutil.which(given):
            return given
        raise Missing(f"$CHROME is {given}, which cannot be run")
    for look in (_on_the_path, _from_the_system, _from_playwright):
        if found := look():
            return found
    raise Missing("no Chromium is on the PATH, and none could be installed; name one in $CHROME")


def missing(reason: str) -> NoReturn:
    """Skip, or fail where nothing may be missing."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"no browser: {reason}")
    pytest.skip(f"no browser: {reason}")


def is_root() -> bool:
    return os.geteuid() == 0


def _on_the_path() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def _from_the_system() -> str | None:
    if os.environ.get("CI") != "true" or not is_root() or not shutil.which("apt-get"):
        return None
    for command in (["apt-get", "update", "-q"], ["apt-get", "install", "-y", "-q", "chromium"]):
        if not _done(command, {"DEBIAN_FRONTEND": "noninteractive"}):
            return None
    return shutil.which("chromium")


def _from_playwright() -> str | None:
    where = {"PLAYWRIGHT_BROWSERS_PATH": str(HOME)}
    if not _done([sys.executable, "-m", "playwright", "install", "chromium"], where):
        return None
    found = sorted(HOME.glob("chromium-*/chrome-*/chrome")) + sorted(
        HOME.glob("chromium-*/chrome-*/*/Contents/MacOS/*")
    )
    return str(found[-1]) if found else None


def _done(command: list[str], environment: dict[str, str]) -> bool:
    try:
        done = subprocess.run(
            command, env={**os.environ, **environment}, capture_output=True, timeout=PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


if __name__ == "__main__":
    try:
        executable()
    except Missing as error:
        sys.exit(str(error))
