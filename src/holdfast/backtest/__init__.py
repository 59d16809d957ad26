"""Backtests: the calls that a store has on record, played against other policies, and policies made from them.

`reading` finds the calls, `playing` asks the real guards about them on a clock of its own, `comparing` does so for a
file and the defaults, `suggesting` reads settings off the calls, `writing` makes those a policy file. Nothing is
called, nothing is written to the store.
"""

from __future__ import annotations

from holdfast.backtest.comparing import Line, Recorded, compare, total
from holdfast.backtest.playing import ASSUMPTIONS, Played, play
from holdfast.backtest.reading import Attempt, Call, Recording, read
from holdfast.backtest.suggesting import ENOUGH, suggest
from holdfast.backtest.writing import as_toml

__all__ = [
    "ASSUMPTIONS",
    "ENOUGH",
    "Attempt",
    "Call",
    "Line",
    "Played",
    "Recorded",
    "Recording",
    "as_toml",
    "compare",
    "play",
    "read",
    "suggest",
    "total",
]
