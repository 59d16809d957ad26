"""Documents in JSON with comments, laid out in every way that may be: spaces, comments, escapes, trailing commas."""

from __future__ import annotations

import json
from random import Random

from hypothesis import strategies as st

GAPS = ["", "", " ", "  ", "\n", "\r\n\t", "\n    ", "/* c */", ' /* { " */ ', "// it's [\n", " // \r\n  ", "/**/\n"]

Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None  # type: ignore[misc]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
texts |= st.sampled_from(["é", '"', "\\", "//", "/*", "\n"])
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
values: st.SearchStrategy[Json] = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=12
)


def written(value: Json, random: Random, *, strict: bool = False) -> str:
    """*value* as a document, laid out as *random* will have it; *strict* is JSON without comments."""
    document = _value(value, random, strict)
    return f"{_gap(random, strict)}{document}{_gap(random, strict)}"


def _value(value: Json, random: Random, strict: bool) -> str:
    if isinstance(value, dict):
        items = [
            f"{_text(key, random)}{_gap(random, strict)}:{_gap(random, strict)}{_value(item, random, strict)}"
            for key, item in value.items()
        ]
        return f"{{{_row(items, random, strict)}}}"
    if isinstance(value, list):
        return f"[{_row([_value(item, random, strict) for item in value], random, strict)}]"
    return _text(value, random) if isinstance(value, str) else json.dumps(value)


def _row(items: list[str], random: Random, strict: bool) -> str:
    row = ",".join(f"{_gap(random, strict)}{item}{_gap(random, strict)}" for item in items)
    if not items:
        return _gap(random, strict)
    return f"{row},{_gap(random, strict)}" if not strict and random.random() < 0.3 else row


def _text(value: str, random: Random) -> str:
    return json.dumps(value, ensure_ascii=random.random() < 0.3)


def _gap(random: Random, strict: bool) -> str:
    gap = random.choice(GAPS)
    return gap if not strict or not gap.strip() else " "
