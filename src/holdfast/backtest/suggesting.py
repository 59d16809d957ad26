"""Suggests settings from the calls on record, each with its reason; none where the record does not say enough.

Never suggested: `retry`, `read_only` and `idempotent`. Whether a call may be made twice is not in any record.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

import msgspec

from holdfast.backtest.playing import play
from holdfast.backtest.reading import GRAIN, Attempt, Call
from holdfast.category import ErrorCategory
from holdfast.guards.breaking import TRIPS, BreakerConfig
from holdfast.policy import PolicyBook

ENOUGH: Final = 30  # calls with a known outcome that a suggestion needs
HEAD_ROOM: Final = 2.0
LEAST_TIMEOUT: Final = 1.0  # seconds
LEAST_THRESHOLD: Final = 3
MOST_THRESHOLD: Final = 50
WINDOWS: Final = (1, 10, 60)  # seconds over which servers count requests
TELLING: Final = 0.5  # share of refusals that must have come above a rate; with fewer, the rate is not their cause
BLIP: Final = BreakerConfig().min_backoff  # seconds; failures over a longer time are what a circuit is for


class Setting(msgspec.Struct, frozen=True):
    """One value and the reason for it; if it is None, the reason why none is suggested."""

    name: str
    value: float | int | dict[str, float | bool] | None
    why: str


class Suggestion(msgspec.Struct, frozen=True):
    """What the record says about one tool; *settings* is empty if it has fewer than `ENOUGH` calls."""

    tool: str
    calls: int  # calls with a known outcome
    settings: list[Setting] = []
    lost: int = 0  # successes lost when the settings are played against the record
    spared: int = 0  # failures spared by them


Try = tuple[float, Attempt]  # when an attempt began, and the attempt


def suggest(calls: Sequence[Call]) -> list[Suggestion]:
    """Return suggestions for each tool, those with the most calls first; *calls* must be sorted by time."""
    tools: defaultdict[str, list[Call]] = defaultdict(list)
    for call in calls:
        found = tools[call.tool]
        if call.known:
            found.append(call)
    settings = {tool: _settings(found) for tool, found in tools.items()}
    # All tools are played together: a run's loop guard looks at the calls of all its tools.
    played = play(calls, lambda tool: PolicyBook.load({"policy": _values(settings[tool])}).resolve(tool))
    made = [
        Suggestion(tool, len(tools[tool]), found, played[tool].lost, played[tool].spared)
        if found
        else Suggestion(tool, len(tools[tool]))
        for tool, found in settings.items()
    ]
    return sorted(made, key=lambda each: (-each.calls, each.tool))


def _settings(calls: list[Call]) -> list[Setting]:
    if len(calls) < ENOUGH:
        return []
    tries = sorted((each for call in calls for each in _tries(call)), key=lambda each: each[0])
    return [_timeout(tries), _rate(tries), _concurrency(tries), _threshold(tries)]


def _values(settings: list[Setting]) -> dict[str, object]:
    """Return the settings as a policy has them; a dotted name is a field of a table."""
    values: dict[str, object] = {}
    for setting in settings:
        table, _, field = setting.name.partition(".")
        if setting.value is not None:
            values[table] = {field: setting.value} if field else setting.value
    return values


def _tries(call: Call) -> Iterator[Try]:
    at = call.at + call.waited
    for attempt in call.attempts:
        yield at, attempt
        at += attempt.duration + (attempt.pause or 0.0)


def _timeout(tries: list[Try]) -> Setting:
    good = sorted(attempt.duration for _, attempt in tries if attempt.category is None)
    if len(good) < ENOUGH:
        return Setting("timeout", None, f"{len(good)} successes are too few; {ENOUGH} are needed")
    p99 = good[math.ceil(len(good) * 0.99) - 1]
    timeout = _rounded_up(max(LEAST_TIMEOUT, p99 * HEAD_ROOM))
    cut = len(good) - bisect_right(good, timeout)
    why = f"99 of 100 of {len(good)} successes took at most {p99:.3g} s, the slowest {good[-1]:.3g} s"
    lost = f"; {cut} on record would be cut" if cut else ""
    rule = f"twice that, at least {LEAST_TIMEOUT:g} s"
    return Setting("timeout", timeout, f"{why}; {rule}{lost}")


def _rate(tries: list[Try]) -> Setting:
    """Suggest the highest rate that met no refusal, over the shortest window that tells refused from accepted calls."""
    starts = [at for at, _ in tries]
    refused = [at for at, attempt in tries if attempt.category is ErrorCategory.RATE_LIMIT]
    if not refused:
        busiest = max(_counts(starts, 60))
        return Setting("rate", None, f"no call was refused for its rate (429); the busiest minute had {busiest}")
    splits = ((window, *_split(starts, refused, window)) for window in WINDOWS)
    fits = next(((window, most) for window, most, beyond in splits if most and beyond >= TELLING), None)
    if fits is None:
        return Setting("rate", None, f"{len(refused)} refusals (429), at rates at which other calls passed")
    window, number = fits
    burst = max(2, min(number, _split(starts, refused, 1)[0]))
    per_second = max(0.001, math.floor(number / window * 1000) / 1000)
    pauses = [each.pause for _, each in tries if each.category is ErrorCategory.RATE_LIMIT and each.pause]
    asked = f"; the longest pause before a repeat was {max(pauses):.3g} s" if pauses else ""
    why = f"{len(refused)} refusals (429); up to {number} calls in {window} s met none{asked}; adapts to further ones"
    return Setting("rate", {"per_second": per_second, "burst": burst, "adaptive": True}, why)


def _split(starts: list[float], refused: list[float], window: int) -> tuple[int, float]:
    """Return the most calls within *window* that met no refusal in it, and the share of refusals that came at more."""
    most, met = 0, []
    for at, count in zip(starts, _counts(starts, window), strict=True):
        before = bisect_right(refused, at)
        if before == bisect_right(refused, at - window):
            most = max(most, count)
        elif refused[before - 1] == at:
            met.append(count)
    return most, sum(count > most for count in met) / len(met)


def _counts(starts: list[float], window: int) -> list[int]:
    """Return for each call how many began within the *window* that ends with it."""
    return [bisect_right(starts, at) - bisect_right(starts, at - window) for at in starts]


def _concurrency(tries: list[Try]) -> Setting:
    """Suggest twice as many as were seen at once: that stops a runaway, and nothing that was seen so far."""
    # Calls that overlap by less than the record's precision perhaps did not overlap.
    met = [(at, at + each.duration - GRAIN) for at, each in tries if each.duration > GRAIN]
    moves = sorted(move for begun, ended in met for move in ((begun, 1), (ended, -1)))
    most = max(accumulate(change for _, change in moves), default=0)
    if most < 2:
        return Setting("concurrency", None, "never more than one call at once, as far as the record tells")
    return Setting("concurrency", int(most * HEAD_ROOM), f"at most {most} at once on record; twice that")


def _threshold(tries: list[Try]) -> Setting:
    """Suggest one more than the longest row of failures after which the tool soon recovered by itself."""
    longest = streak = failures = 0
    since = 0.0
    for ended, category in sorted((at + each.duration, each.category or "") for at, each in tries):
        if category in TRIPS:
            since = since if streak else ended
            streak += 1
            failures += 1
        elif not category:
            if ended - since <= BLIP:
                longest = max(longest, streak)
            streak = 0
    name = "breaker.failure_threshold"
    if not longest:
        what = f"none of {failures} failures was" if failures else "no failure that counts for the circuit, so none was"
        return Setting(name, None, f"{what} followed by a success within {BLIP:g} s")
    value = min(MOST_THRESHOLD, max(LEAST_THRESHOLD, longest + 1))
    why = f"up to {longest} in a row of {failures} failures passed by themselves within {BLIP:g} s; one more"
    return Setting(name, value, f"{why}, within {LEAST_THRESHOLD} to {MOST_THRESHOLD}")


def _rounded_up(seconds: float) -> float:
    """Round up to two digits, as people would."""
    step = 10.0 ** (math.floor(math.log10(seconds)) - 1)
    return round(math.ceil(round(seconds / step, 6)) * step, 6)
