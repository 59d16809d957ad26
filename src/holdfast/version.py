"""The version of Holdfast. It is here so that it is known without an installed package; the build reads it, too."""

from __future__ import annotations

VERSION = "0.1.0"
