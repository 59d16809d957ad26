"""`holdfast uninstall`, which is told with `holdfast install`."""

from __future__ import annotations

from holdfast.cli.install import uninstall

__all__ = ["uninstall"]
