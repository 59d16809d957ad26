"""PgBouncer before a PostgreSQL server, with transaction pooling: what a session remembers is gone with a commit."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from tests.servers.child import Child, first_started, remove
from tests.servers.finding import named

CONFIGURATION = """\
[databases]
* = host={host} port={port} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 1000
"""


class PgBouncer:
    """A pooler of our own."""

    def __init__(self, folder: Path, binary: Path, dsn: str, port: int, size: int) -> None:
        self.folder = folder
        self.port = port
        self.dsn = dsn
        server = urlsplit(dsn)
        file = folder / "pgbouncer.ini"
        file.write_text(
            CONFIGURATION.format(
                host=server.hostname, port=server.port or 5432, user=server.username, own=port, size=size
            )
        )
        file.chmod(0o644)
        self._child = Child([str(binary), str(file)], folder)
        self._child.wait_until(self._listens, "PgBouncer")

    @classmethod
    def start(cls, folder: Path | None, dsn: str, *, size: int = 5) -> PgBouncer:
        """Start one before the server of *dsn*, with at most *size* connections to it for each database."""
        return first_started(
            named("pgbouncer"),
            folder,
            lambda place, binary, port: cls(place, binary, dsn, port, size),
            "no pgbouncer is installed: apt-get install pgbouncer, or the like",
        )

    @property
    def url(self) -> str:
        """The database of its *dsn*, through it."""
        return self.through(self.dsn)

    def through(self, url: str) -> str:
        """The database that has *url*, through it."""
        parts = urlsplit(url)
        return urlunsplit(parts._replace(netloc=f"{parts.username}@127.0.0.1:{self.port}"))

    @property
    def process(self) -> Child:
        return self._child

    def close(self) -> None:
        """End it and remove its folder."""
        self._child.kill()
        remove(self.folder)

    def __enter__(self) -> PgBouncer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
        except OSError:
            return False
        return True
