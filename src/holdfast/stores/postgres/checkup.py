"""Facts about the server of a store, for `holdfast doctor`. It changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast.stores.postgres.address import parse
from holdfast.stores.postgres.link import Link, ServerError
from holdfast.stores.postgres.schema import found
from holdfast.stores.postgres.trouble import READ_ONLY
from holdfast.stores.trouble import errors_of

if TYPE_CHECKING:
    from holdfast.stores.database import Database

_FACTS = """
SELECT current_setting('server_version'),
    current_setting('fsync') = 'on' AND current_setting('synchronous_commit') <> 'off',
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
    current_setting('max_connections')::bigint,
    current_setting('transaction_read_only') = 'on',
    (SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint
     FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relkind = 'r')
"""


class Checkup(NamedTuple):
    """A server, and our tables on it; *schema* is 0 if there are none."""

    version: str
    is_durable: bool
    connections: int
    most_connections: int
    bytes: int
    schema: int
    is_pooled: bool


def checkup(file: Database) -> Checkup:
    """Ask the server of *file*, on a connection of its own."""
    address = parse(file.url)
    with errors_of(file):
        link = Link(address.dsn, pooled=address.pooled)
        try:
            link.connect()
            schema = found(link, address.schema, address.name)
            ((version, is_durable, used, most, is_read_only, size),) = link.ask(_FACTS, address.schema)
            if is_read_only:
                raise ServerError(READ_ONLY, "nothing can be written", link)
        finally:
            link.close()
        pooled = link.pooled
        if pooled and address.session != address.dsn:
            direct = Link(address.session)
            direct.connect()
            direct.close()
            pooled = direct.pooled
    return Checkup(version, is_durable, used, most, size, schema, pooled)
