"""How long a server asks to wait: `Retry-After` in headers, an exception's own attribute, or a text."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from holdfast.category.looking import attribute, chain, context, cut, entry, leaves, text_of

_DAY: Final = 86_400


def retry_after(error: object, *, now: float | None = None) -> float | None:
    """Return the seconds that a server asks to wait, read from an exception, a response, its headers or a text.

    A date is compared with the response's own `Date`, as clocks differ, else with *now*, else with the wall clock. A
    wait that is negative, not finite or more than a day is ignored. Of a group of exceptions the longest wait counts.
    """
    if isinstance(error, BaseException):
        waits = [_of_chain(leaf, now) for leaf in leaves(error)]
        return max((wait for wait in waits if wait is not None), default=None)
    return _in_text(error) if isinstance(error, str) else _of_thing(error, now)


def _of_chain(error: BaseException, now: float | None) -> float | None:
    links = list(chain(error))
    for link in links:
        if (wait := _of_thing(link, now)) is not None:
            return wait
    for link in links:
        if (wait := _in_text(text_of(link))) is not None:
            return wait
    replaced = context(links[-1])  # it counts last, and without its text, as in `classify`
    for link in chain(replaced) if replaced is not None else ():
        if (wait := _of_thing(link, now)) is not None:
            return wait
    return None


def _of_thing(thing: object, now: float | None) -> float | None:
    for kind in (float, int):
        if (wait := _sane(attribute(thing, "retry_after", kind))) is not None:
            return wait
    response = attribute(thing, "response", object)
    places = (
        {"retry-after": attribute(thing, "retry_after", str)},  # the unparsed header
        thing,
        attribute(thing, "headers", object),
        attribute(response, "headers", object),
        entry(response, object, "ResponseMetadata", "HTTPHeaders"),
    )
    waits = (_in_headers(place, now) for place in places if place is not None)
    return next((wait for wait in waits if wait is not None), None)


def _in_headers(headers: object, now: float | None) -> float | None:
    milliseconds = _header(headers, "retry-after-ms")
    if _NUMBER.fullmatch(milliseconds) and (wait := _sane(float(milliseconds) / 1000)) is not None:
        return wait
    value = _header(headers, "retry-after")
    if _NUMBER.fullmatch(value):
        return _sane(float(value))
    if (until := _epoch(value)) is None:
        return None
    if (date := _epoch(_header(headers, "date"))) is not None:
        now = date
    if now is None:
        from holdfast.clock import SystemClock

        now = SystemClock().time()
    return _sane(until - now)


def _header(headers: object, name: str) -> str:
    try:
        get = getattr(headers, "get", None)
        value = get(name) if callable(get) else None
        if value is None and isinstance(headers, dict):  # a plain dict is case-sensitive
            value = next((held for key, held in headers.items() if str(key).lower() == name), None)
        return str(value).strip()[:64] if isinstance(value, str | int | float) else ""
    except Exception:  # a foreign mapping that raises
        return ""


def _epoch(date: str) -> float | None:
    if not date:
        return None
    from datetime import UTC
    from email.utils import parsedate_to_datetime  # imports sockets, so not before there is a date

    try:
        when = parsedate_to_datetime(date)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _in_text(text: str) -> float | None:
    match = _compiled(_WAIT).search(cut(text))
    if match is None:
        return None
    if match["bare"] is not None:
        return _sane(float(match["bare"]) / (1000 if match["ms"] else 1))
    return _sane(
        sum(float(number) * _seconds(unit.lower()) for number, unit in _compiled(_PART).findall(match["parts"]))
    )


def _seconds(unit: str) -> float:
    return next(seconds for start, seconds in _UNITS if unit.startswith(start))


def _sane(seconds: float | None) -> float | None:
    return float(seconds) if seconds is not None and 0 <= seconds <= _DAY else None  # excludes NaN and infinity, too


_NUMBER: Final = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,12})?")
_AMOUNT: Final = r"[0-9]{1,9}+(?:\.[0-9]{1,9}+)?+"
_UNIT: Final = r"(?:ms|msecs?|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?)(?![A-Za-z])"
_PART: Final = rf"({_AMOUNT}) ?({_UNIT})"
_UNITS: Final = (("ms", 0.001), ("milli", 0.001), ("m", 60.0), ("h", 3600.0), ("s", 1.0))

# "Retry-After: 30", "retry_after_ms": 500, "try again in 1m30s", "retry after 20 seconds"; not "retry after 3 tries",
# nor where the number goes on: a date, a time of day, "in 5-10 minutes", "in 1,000 ms".
_WAIT: Final = (
    r"(?:retry[-_ ]?after(?P<ms>[-_ ]?ms)?|(?:try|retry) (?:again )?(?:in|after)|available in)[^\w-]{1,4}(?:about )?"
    rf"(?:(?P<parts>(?:{_AMOUNT} ?{_UNIT}[ ,]?)+)|(?P<bare>{_AMOUNT})(?! ?[A-Za-z%]| ?[-–:/] ?[0-9]|[.,][0-9]))"
)


@cache  # compiling both takes as long as loading ten modules, and only failures need them
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)
