"""Runs: pieces of an agent's work that are recorded as they happen, and can be resumed after a crash."""

from __future__ import annotations

from holdfast.runs.blame import mark
from holdfast.runs.current import current_run, inside, open_runs, running
from holdfast.runs.ending import is_lasting
from holdfast.runs.home import Home, Plan
from holdfast.runs.keeper import Keeper
from holdfast.runs.log import LOST, Write
from holdfast.runs.run import Run
from holdfast.runs.steps import Step

__all__ = [
    "LOST",
    "Home",
    "Keeper",
    "Plan",
    "Run",
    "Step",
    "Write",
    "current_run",
    "inside",
    "is_lasting",
    "mark",
    "open_runs",
    "running",
]
