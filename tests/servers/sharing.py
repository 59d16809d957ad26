"""One PostgreSQL for all tests of a process that only need one: started when first wanted, ended with the process.

Its disk is never waited for, as nobody kills it: those that do take a server of their own.
"""

from __future__ import annotations

import atexit
from functools import cache

from tests.servers.postgres import GivenPostgres, PostgresServer, given_postgres


@cache
def shared_postgres() -> PostgresServer | GivenPostgres:
    """The server that the environment names, else one of our own."""
    if (given := given_postgres()) is not None:
        return given
    server = PostgresServer.start(None, "fsync=off", "synchronous_commit=off", "full_page_writes=off")
    atexit.register(server.close)
    return server
