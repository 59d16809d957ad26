"""`holdfast uninstall`, which is defined beside `holdfast install`."""

from __future__ import annotations

from holdfast.cli.install import uninstall

__all__ = ["uninstall"]
