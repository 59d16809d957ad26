"""`holdfast config`: which store and which policies apply here, and where each setting comes from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from holdfast.cli.finding import policies
from holdfast.cli.options import Group, json_option, store_option, text
from holdfast.cli.showing import console, put_json, put_table
from holdfast.wording import one_line
from holdfast.wording.columns import Column

if TYPE_CHECKING:
    from holdfast.policy import PolicyBook


class Fact(NamedTuple):
    """One setting: where it applies, its name, its value, and where it comes from."""

    place: str
    key: str
    value: Any
    origin: str


@click.group(cls=Group)
def config() -> None:
    """Show which store and which policies apply here."""


@config.command()
@click.option("--tool", "tools", metavar="NAME", multiple=True, callback=text, help="The policy of this tool, too.")
@click.option("--origin", "shows_origin", is_flag=True, help="Say of each value where it comes from.")
@store_option
@json_option
def show(tools: tuple[str, ...], shows_origin: bool, store: str | None, as_json: bool) -> None:
    """Show the store, the policy file, and the settings that apply.

    Settings are those of every tool; then what is different for the tools and servers that the policy file names, and
    for those that `--tool` asks for. What a decorator in code says is known only where that code runs.
    """
    facts = list(_facts(store, tools))
    if as_json:
        put_json([fact._asdict() for fact in facts])
        return
    from rich.text import Text

    columns = [Column("of"), Column("setting"), Column("value", most=60)]
    rows = [[Text(one_line(fact.place)), Text(fact.key), Text(one_line(_words(fact.value)))] for fact in facts]
    if shows_origin:
        columns.append(Column("origin"))
        for row, fact in zip(rows, facts, strict=True):
            row.append(Text(one_line(fact.origin)))
    put_table(console(), columns, rows)


def _facts(store: str | None, tools: tuple[str, ...]) -> Iterator[Fact]:
    from holdfast.defaults import default_store, policy_file

    file, file_origin = policy_file()
    book = policies(file)
    named = (
        (store, "--store"),
        (os.environ.get("HOLDFAST_STORE"), "$HOLDFAST_STORE"),
        (book.store, f"file {file}"),
        (default_store(), "default"),
    )
    url, origin = next(((value, who) for value, who in named if value), (None, "there is no home folder"))
    yield Fact("", "store", _shown(url), origin)
    yield from _fleet(book, file)
    yield Fact("", "policy file", file, file_origin)
    common = list(_policy(book, "every tool", ""))  # only patterns that match every name match ""
    yield from common
    said = {(fact.key, str(fact.value), fact.origin) for fact in common}
    for name in (*book.names, *tools):
        yield from (fact for fact in _policy(book, name, name) if (fact.key, str(fact.value), fact.origin) not in said)
        if book.hides(name.removesuffix(".*")):
            yield Fact(name, "hide_open_tools", True, f"file {file}")


def _shown(url: str | None) -> str | None:
    """The store's address without its password; raise ConfigError if the address is not valid."""
    from holdfast.stores import open_store

    if url is not None:
        open_store(url)
    if url is None or not url.startswith(("postgresql://", "postgres://")):
        return url
    from holdfast.stores.postgres.address import parse

    return parse(url).name


def _fleet(book: PolicyBook, file: str | None) -> Iterator[Fact]:
    """The Redis on which guards are shared, if any; its password is not shown."""
    named = ((os.environ.get("HOLDFAST_REDIS"), "$HOLDFAST_REDIS"), (book.redis, f"file {file}"))
    url, origin = next(((value, who) for value, who in named if value), (None, ""))
    if url is not None:
        from holdfast.fleet.address import Address

        yield Fact("", "redis", Address.parse(url).shown, origin)
        yield Fact("", "on_outage", book.on_outage or "local", f"file {file}" if book.on_outage else "default")


def _policy(book: PolicyBook, place: str, tool: str) -> Iterator[Fact]:
    from holdfast.policy.explaining import explain

    for setting in explain(book, tool):
        yield Fact(place, *setting)


def _words(value: object) -> str:
    import msgspec

    return "-" if value is None else value if isinstance(value, str) else msgspec.json.encode(value).decode()
