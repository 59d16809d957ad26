"""Options that several commands have, and how durations and sizes are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from holdfast.checks import is_text

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Words = TypeVar("Words", str, None, tuple[str, ...])
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class Group(click.Group):
    """A group that lists its commands with their full summaries, which click would cut at the end of the line."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(1000)) for name, each in sorted(self.commands.items())])


def text(ctx: click.Context, param: click.Parameter, value: Words) -> Words:
    """A callback that rejects what is not UTF-8 text: the arguments of a process may be any bytes."""
    for word in value if isinstance(value, tuple) else (value or "",):
        if not is_text(word):
            raise click.BadParameter(f"{word!r} is not UTF-8 text.")
    return value


def files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Have the shell complete file names, which it no longer does by itself once it asks us for completions."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


store_option: Final[Decorator] = click.option(
    "--store",
    metavar="URL",
    shell_complete=files,
    help="The store: a path, sqlite:///PATH or postgresql://USER@HOST/DATABASE. Else $HOLDFAST_STORE, the policy "
    "file's, or one in your data folder.",
)
json_option: Final[Decorator] = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
policy_option: Final[Decorator] = click.option(
    "--policy",
    metavar="FILE",
    callback=text,
    shell_complete=files,
    help="The policy file; else $HOLDFAST_POLICY or holdfast.toml.",
)
hides_option: Final[Decorator] = click.option(
    "--hide-open-tools", "hides", is_flag=True, help="Take tools whose circuit is open off the list of tools."
)
session_option: Final[Decorator] = click.option(
    "--session", default="default", show_default=True, callback=text, help="The session that the run belongs to."
)
prompt_option: Final[Decorator] = click.option(
    "--prompt", default="", callback=text, help="What the run is about; it is recorded, and shown in lists."
)

_SECONDS: Final[Mapping[str, float]] = {
    "ms": 0.001,
    "s": 1,
    "": 1,
    "m": 60,
    "min": 60,
    "h": 3600,
    "d": 86_400,
    "w": 604_800,
}
_BYTES: Final[Mapping[str, float]] = {
    "": 1, "b": 1,
    "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "t": 10**12, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_AMOUNT: Final = re.compile(r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*([a-z]*)\s*", re.ASCII | re.IGNORECASE)


def duration(ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
    """A callback that reads 90, 90s, 30min, 12h, 30d or 2w as seconds."""
    return _read(text, _SECONDS, "such as 90s, 30min, 12h, 30d or 2w")


def bytes_(ctx: click.Context, param: click.Parameter, text: str | None) -> int | None:
    """A callback that reads 500000, 500kB, 200MB, 1GB or 1GiB as bytes."""
    found = _read(text, _BYTES, "such as 500kB, 200MB, 1GB or 1GiB")
    return None if found is None else int(found)


def _read(text: str | None, units: Mapping[str, float], examples: str) -> float | None:
    if text is None:
        return None
    amount = _AMOUNT.fullmatch(text)
    if amount is None or amount[2].lower() not in units:
        raise click.BadParameter(f"{text!r} must be a number with a unit, {examples}.")
    return float(amount[1]) * units[amount[2].lower()]
