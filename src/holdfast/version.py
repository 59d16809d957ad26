"""Which Holdfast this is: said here, so that it is known where no package is installed, and read by the build."""

from __future__ import annotations

VERSION = "0.1.0"
