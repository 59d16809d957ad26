"""Suggestions as a policy file: each value with its reason, and what is not suggested as comments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from holdfast.backtest.suggesting import ENOUGH, Setting, Suggestion
from holdfast.errors import printable
from holdfast.policy.rules import is_pattern


def as_toml(suggestions: Iterable[Suggestion], head: Sequence[str] = ()) -> str:
    """Return a policy file; *head* holds the lines of its opening comment."""
    lines = [f"# {printable(line, 1000)}" for line in head]
    left_out: list[str] = []
    for each in suggestions:
        if not each.settings:
            left_out.append(f"{printable(each.tool, 200)}: {each.calls}")
        elif not each.tool or is_pattern(each.tool):
            lines += ["", f"# {printable(each.tool, 200)}: its name would be read as a pattern"]
        else:
            lines += ["", *_table(each)]
    if left_out:
        lines += ["", f"# Too few calls with a known outcome ({ENOUGH} are needed):"]
        lines += [f"#   {line}" for line in left_out]
    return "\n".join(lines).lstrip("\n") + "\n"


def _table(suggestion: Suggestion) -> Iterator[str]:
    outcome = f"played against them, this loses {suggestion.lost} successes and spares {suggestion.spared} failures"
    yield f"[tool.{_quoted(suggestion.tool)}]  # {suggestion.calls} calls; {outcome}"
    for setting in suggestion.settings:
        yield f"# {setting.name}: {setting.why}"
        if setting.value is not None:
            yield f"{setting.name} = {_value(setting)}"


def _value(setting: Setting) -> str:
    if isinstance(setting.value, dict):
        inner = ", ".join(f"{key} = {_plain(value)}" for key, value in setting.value.items())
        return f"{{ {inner} }}"
    return _plain(setting.value)


def _plain(value: object) -> str:
    return msgspec.json.encode(value).decode()  # numbers and booleans look the same in JSON and TOML


def _quoted(name: str) -> str:
    """Return *name* as a quoted key: JSON's escapes are those of TOML, except for one control character."""
    text = msgspec.json.encode(name).decode().replace("\x7f", "\\u007f")
    return "".join(letter if letter.isprintable() else f"\\U{ord(letter):08x}" for letter in text)
