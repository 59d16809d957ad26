"""The address of a store on PostgreSQL: a URL as libpq takes it, with three settings of ours in it.

`schema` names the tables' schema, `pool=transaction` says that a pool lends connections for one transaction each (which
is also detected), `session` is the address for the one connection that must last, if the other one leads to a pool.

No error shows an address, as any part of it may be a password; libpq would quote an address that it cannot parse, so it
is given none of those.
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
LONGEST_WAIT = 86_400.0  # seconds; the system accepts no endless waits
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


# By TCP keepalives the system notices that the server is gone, and firewalls in between do not drop idle connections.
_ALIVE = {"keepalives_idle": "10", "keepalives_interval": "3", "keepalives_count": "3"}


class Address(NamedTuple):
    """The parts of a URL; *name* is the part that may be shown."""

    url: str
    dsn: str
    session: str
    schema: str
    pooled: bool
    name: str


def parse(url: str, setting: str = "dsn") -> Address:
    """The parts of *url*; errors call it by the name *setting*."""
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
    # With a slash before the query: up to the first slash, libpq takes everything before an @ for the user.
    dsn = f"{scheme}://{user}{password}{at}{hosts}{path or '/'}{'?' if rest else ''}{rest}"
    session = parse(ours["session"], "session").dsn if "session" in ours else dsn
    name = f"{scheme}://{user}{at}{hosts}{path}{'' if schema == SCHEMA else f'?schema={schema}'}"
    return Address(url, dsn, session, schema, pool == "transaction", printable(name, 300))


def parameters(dsn: str, seconds: float, *, gone: float, turn: int = 0) -> tuple[bytes, float]:
    """What to connect with, and how long connecting may take: *seconds*, unless *dsn* says it.

    A server that does not acknowledge what was sent for *gone* seconds counts as gone. If several hosts are named,
    *turn* says which is tried first.
    """
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    try:
        given = {name: str(value) for name, value in conninfo_to_dict(dsn).items() if value is not None}
        wanted = float(given.get("connect_timeout", 0))
    except (psycopg.Error, ValueError) as error:
        raise ConfigError(f"dsn: {' '.join(str(error).split())}") from error
    for name in ("host", "hostaddr", "port"):
        several = given.get(name, "").split(",")
        if len(several) > 1:
            given[name] = ",".join(several[turn % len(several) :] + several[: turn % len(several)])
    ours = {"fallback_application_name": "holdfast", **_ALIVE, "tcp_user_timeout": str(int(1000 * gone))}
    named = {**ours, **given, "client_encoding": "UTF8"}
    return make_conninfo("", **named).encode(), min(wanted, LONGEST_WAIT) if wanted > 0 else seconds
