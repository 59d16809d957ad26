"""Mistakes in settings: where they are, and one error for all of them, so that they can be corrected in one go."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from holdfast import checks
from holdfast.errors import ConfigError, printable
from holdfast.values.redaction import MASK, names_secret, redact


class Place(msgspec.Struct, frozen=True):
    """Where settings are written, and the list that takes the mistakes found there."""

    name: str
    mistakes: list[str]

    def refuse(self, key: str, value: object, why: str) -> None:
        """Note that *key* cannot be *value*."""
        self.mistakes.append(f"{self.name} {key} = {shown(value)}: {why}")

    def unknown(
        self, key: object, value: object, allowed: Collection[str], *, within: str = "", hint: str = ""
    ) -> None:
        """Note that *key* is unknown, and which keys are *allowed*; *hint* is added if *value* is a table."""
        import difflib  # costs a fifth of the whole import, and only mistakes need it

        near = difflib.get_close_matches(str(key), allowed, 1)
        guess = f", did you mean {near[0]}?" if near else ";"
        more = f"; {hint}" if hint and isinstance(value, Mapping) else ""
        value = MASK if isinstance(key, str) and names_secret(key) else value
        self.refuse(within + quoted(key), value, f"unknown key{guess} allowed: {', '.join(sorted(allowed))}{more}")

    def settle(self) -> None:
        """Raise one error for all mistakes, if there are any."""
        if self.mistakes:
            raise broken(self.mistakes)


def objection(check: Callable[[], object], settings: Mapping[str, object]) -> tuple[str, str] | None:
    """Return which of *settings* the *check* refuses, and why; None if it accepts them all."""
    try:
        check()
    except ConfigError as error:
        return reason(error, settings)
    return None


def reason(error: ConfigError, settings: Mapping[str, object]) -> tuple[str, str]:
    """Return the setting that a check refused, and why, from the error's text `name = value: why`."""
    name, _, rest = str(error).partition(" = ")
    value = checks.shown(settings[name]) if name in settings else rest.partition(": ")[0]
    return name, rest.removeprefix(f"{value}: ")


def broken(mistakes: Sequence[str]) -> ConfigError:
    """One error for all *mistakes*, a line each; they are its `problems` too."""
    error = ConfigError("\n".join(mistakes))
    error.problems = tuple(mistakes)
    return error


def shown(value: object) -> str:
    """Return *value* as it is written in a policy file, short, printable and without secrets."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return printable(json.dumps(checks.without_login(value), ensure_ascii=False))
    try:
        return checks.shown(redact(value))
    except RecursionError:
        return "a table that is nested too deeply"


def quoted(key: object) -> str:
    """Return *key* as it is written in a policy file."""
    text = str(key)
    return printable(text) if re.fullmatch(r"[A-Za-z0-9_-]+", text) else shown(text)
