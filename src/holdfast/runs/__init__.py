"""Runs: what the guarded calls of one piece of an agent's work share."""

from __future__ import annotations

from holdfast.runs.run import Run, current_run

__all__ = ["Run", "current_run"]
