"""JSON that is not plain, though other programs write it: NaN, Infinity, halves of characters, too many levels. It is
repaired to be read; what is passed on stays as it is. Repairing is slow, and nothing else is done meanwhile: so there
are limits to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

DEEPEST: Final = 200  # levels of nesting that are read of a frame that has too many
LONGEST_REPAIRED: Final = 16 * 2**20  # bytes
MOST_REPAIRED: Final = 100_000  # places that are repaired
MOST_MARKS: Final = 3_000_000  # brackets and texts of a frame with too many levels

# The escape of a lone surrogate, which JavaScript writes where it has cut a text in the middle of a character.
_HALF = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
# Matches a string as a whole, whatever it holds; also one without an end, so that no byte is scanned twice.
_TEXT = rb'(?s:"(?:[^"\\]++|\\.)*+"?)'
# Matches as much as possible that is not odd, at once: strings without surrogates, and what stands between strings.
_PLAIN = rb"""(?sx: (?:
    [^"NI-]++ | N(?!aN) | -?+I(?!nfinity) | -(?!I)
    | " (?: [^"\\]++ | \\ (?: [^u] | u(?![dD][89a-fA-F]) ) )*+ "
)++ )"""
# NaN and Infinity are no JSON numbers, but Python writes them.
_ODD = re.compile(_PLAIN + rb"|(?P<number>NaN|-?Infinity)|(?P<text>" + _TEXT + rb")")
_PLACEHOLDERS: Final = {b"NaN": b"0e0", b"Infinity": b"0e000000", b"-Infinity": b"-0e000000"}
# What stands before a part of an object or an array.
_BEFORE = re.compile(rb"\s*(?:[{,]\s*" + _TEXT + rb"\s*:|[\[,])\s*")
_MARK = re.compile(_TEXT + rb"|[\[\]{}]")


class TooOdd(msgspec.DecodeError):
    """It may be a frame or a batch, but to read it would take too long."""


def repaired(data: bytes) -> bytes:
    """*data* with texts in place of numbers that are none; raise a `TooOdd` if that is too much."""
    return _repaired(data, _mend)


def repaired_in_place(data: bytes) -> bytes:
    """The same, as long as *data* itself: with other numbers in place of those."""
    return _repaired(data, _mend_in_place)


def as_they_stand(data: bytes, plain: bytes, mended: Iterable[msgspec.Raw]) -> list[bytes] | None:
    """What stands in *data* where *plain*, which is as long, has the parts *mended*; None if they do not follow one
    another.
    """
    parts, end = [], 0
    for part in map(bytes, mended):
        gap = _BEFORE.match(plain, end)
        if gap is None or not plain.startswith(part, gap.end()):
            return None
        end = gap.end() + len(part)
        parts.append(data[gap.end() : end])
    return parts


def shallow(data: bytes) -> bytes:
    """*data* with null in place of each array and object at level `DEEPEST`, so that the decoder can read it."""
    parts, depth, since = [], 0, 0
    for count, mark in enumerate(_MARK.finditer(data)):
        if count > MOST_MARKS:
            raise TooOdd("a frame has too many levels, and is too large")
        if mark[0] in (b"[", b"{"):
            depth += 1
            if depth == DEEPEST:
                parts += [data[since : mark.start()], b"null"]
        elif mark[0] in (b"]", b"}"):
            if depth == DEEPEST:
                since = mark.end()
            depth -= 1
    return b"".join((*parts, data[since:]))


def _repaired(data: bytes, mend: Callable[[re.Match[bytes]], bytes]) -> bytes:
    if len(data) > LONGEST_REPAIRED:
        raise TooOdd(f"a frame over {LONGEST_REPAIRED} bytes must be plain JSON")
    mended, count = _ODD.subn(mend, data, 2 * MOST_REPAIRED)  # every second match is one that is not odd
    if count == 2 * MOST_REPAIRED:
        raise _too_many()
    return mended


def _mend(odd: re.Match[bytes]) -> bytes:
    return b'"%b"' % odd["number"] if odd["number"] else _mend_text(odd)


def _mend_in_place(odd: re.Match[bytes]) -> bytes:
    """Something plain that is as long."""
    return _PLACEHOLDERS[odd["number"]] if odd["number"] else _mend_text(odd)


def _mend_text(odd: re.Match[bytes]) -> bytes:
    if not odd["text"]:
        return odd[0]
    mended, count = _HALF.subn(rb"\\ufffd", odd[0], MOST_REPAIRED)
    if count == MOST_REPAIRED:
        raise _too_many()
    return mended


def _too_many() -> TooOdd:
    return TooOdd(f"a frame must be plain JSON, except in {MOST_REPAIRED} places")
