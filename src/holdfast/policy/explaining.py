"""A policy for people: each setting in force, its value as plain data, and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from holdfast import checks
from holdfast.errors import ConfigError
from holdfast.policy.book import PolicyBook
from holdfast.policy.settings import Policy
from holdfast.values.redaction import redact

LONGEST = 500  # bytes of a value that is shown as data
INCOMPLETE = "incomplete"
CODE = "the code may say the rest"


class Setting(NamedTuple):
    """One setting; the fields of tables have dotted keys."""

    key: str
    value: Any
    origin: str


def explain(book: PolicyBook, tool: str, given: Mapping[str, object] | None = None) -> list[Setting]:
    """Return all settings of *tool*, whose decorator has *given*; values are plain, short and without secrets.

    Settings that make no valid policy by themselves are returned as they are, followed by what is missing.
    """
    try:
        policy = book.resolve(tool, given)
    except ConfigError as error:
        stands = [
            Setting(key, _plain(_sorted(value)), origin) for key, value, origin in book.given_settings(tool, given)
        ]
        return [*stands, *(Setting(INCOMPLETE, problem, CODE) for problem in error.problems)]
    return [Setting(key, _plain(_value_of(policy, key)), origin) for key, origin in book.origins(tool, given).items()]


def _value_of(policy: Policy, key: str) -> object:
    """The setting of *policy* that *key* names."""
    value: Any = policy
    for part in key.split(".", 1):
        value = value[part] if isinstance(value, Mapping) else getattr(value, part)
    return _sorted(value)


def _sorted(value: object) -> object:
    return sorted(value) if isinstance(value, frozenset) else value


def _plain(value: object) -> Any:
    """Return *value* as plain JSON data, else as text: the value of a fallback may be any object."""
    try:
        plain = redact(msgspec.to_builtins(value, str_keys=True))
        return plain if len(msgspec.json.encode(plain)) <= LONGEST else checks.shown(plain)
    except (TypeError, ValueError, RecursionError, OverflowError):
        return checks.shown(value)
