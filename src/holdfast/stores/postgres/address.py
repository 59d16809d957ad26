"""Where a store on PostgreSQL is: a URL as libpq has it, and three settings of ours in it.

`schema` names the tables' schema, `pool=transaction` says that connections are lent by the transaction (which is also
found out), `session` is the address for the one connection that must last, where the other leads to a pool.

No error shows an address, as anything in it may be a password; libpq would quote one that it cannot read, so it gets
none of those.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote

from holdfast.checks import choice, shown
from holdfast.errors import ConfigError, printable

SCHEMES = ("postgresql", "postgres")
SCHEMA = "holdfast"
LONGEST = 4096  # characters
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,40}")
_OURS = ("pool", "schema", "session")

_HOST = r"(?:\[[^]/?@]+\]|[^[/?@:,][^/?@:,]*)?(?::[0-9]*)?"
_PAIR = r"(?:[^&=]+=[^&]*)?"
_URL = re.compile(
    rf"(?P<scheme>{'|'.join(SCHEMES)})://"
    r"(?:(?P<user>[^/?@:]*)(?P<password>:[^/@]*)?(?P<at>@))?"
    rf"(?P<hosts>{_HOST}(?:,{_HOST})*)"
    r"(?P<path>/[^?@]*)?"
    rf"(?:\?(?P<query>{_PAIR}(?:&{_PAIR})*))?"
)
_WRONG = re.compile(r"[\0\s\ud800-\udfff]|%00|%(?![0-9A-Fa-f]{2})")


class Address(NamedTuple):
    """The parts of a URL; *name* is what may be shown of it."""

    url: str
    dsn: str
    session: str
    schema: str
    pooled: bool
    name: str


def parse(url: str, setting: str = "dsn") -> Address:
    """The parts of *url*, which is the value of *setting*."""
    text = url.strip() if isinstance(url, str) else ""
    found = _URL.fullmatch(text) if len(text) <= LONGEST and not _WRONG.search(text) else None
    if found is None:
        raise ConfigError(
            f"{setting}: must be postgresql://USER:PASSWORD@HOST:PORT/DATABASE?NAME=VALUE&…; in a name or password, "
            "@ is %40, / is %2F, % is %25, a blank is %20"
        )
    scheme, user, password, at, hosts, path, query = found.groups(default="")
    given = [pair for pair in query.split("&") if pair]
    ours = {name: unquote(value) for name, _, value in (pair.partition("=") for pair in given) if name in _OURS}
    schema, pool = ours.get("schema", SCHEMA), ours.get("pool", "")
    if not _NAME.fullmatch(schema) or schema.startswith("pg_"):
        raise ConfigError(f"schema = {shown(schema)}: must be 1 to 41 small letters, digits and underscores")
    choice("pool", pool or "session", ("session", "transaction"))
    rest = "&".join(pair for pair in given if pair.partition("=")[0] not in _OURS)
    # With a slash before the query, for libpq takes whatever stands before an @ for the user until it sees one.
    dsn = f"{scheme}://{user}{password}{at}{hosts}{path or '/'}{'?' if rest else ''}{rest}"
    session = parse(ours["session"], "session").dsn if "session" in ours else dsn
    name = f"{scheme}://{user}{at}{hosts}{path}{'' if schema == SCHEMA else f'?schema={schema}'}"
    return Address(url, dsn, session, schema, pool == "transaction", printable(name, 300))
