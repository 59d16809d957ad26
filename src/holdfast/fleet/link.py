"""One connection to Redis, blocking, with a bound on every wait: what is late is lost, and the connection with it.

Several commands may be sent at once; their answers come in order.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError, HoldfastError

if TYPE_CHECKING:
    import hiredis

    from holdfast.fleet.address import Address
    from holdfast.fleet.places import Node

RECEIVE = 65_536
# The system's own way to notice that the other side is gone; it also keeps what lies between from forgetting us.
_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 3, "TCP_KEEPCNT": 3}


class Away(HoldfastError):
    """Redis cannot be reached, does not answer in time, or will not do what it is asked."""


class Link:
    """A connection to *node*; *bound* is how long it waits for anything."""

    __slots__ = ("node", "socket", "_reader")

    def __init__(self, node: Node, address: Address, *, bound: float) -> None:
        hiredis = parser()
        self.node = node
        self._reader = reader()
        try:
            self.socket = _connect(node, bound)
        except OSError as error:
            raise Away(f"{node.shown}: {error.strerror or error}") from error
        try:
            for reply in self.ask_all(_greeting(address, node)):
                if isinstance(reply, hiredis.ReplyError):
                    raise Away(f"{node.shown}: {reply}")
        except BaseException:
            self.close()
            raise

    def ask(self, command: bytes) -> Any:
        """Send one command and give its answer, which may be an error's."""
        self.send(command)
        return self.receive()

    def ask_all(self, commands: Iterable[bytes]) -> list[Any]:
        """Send commands together and give their answers."""
        commands = list(commands)
        self.send(b"".join(commands))
        return [self.receive() for _ in commands]

    def send(self, data: bytes) -> None:
        """Send all of *data*."""
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise Away(f"{self.node.shown}: {error.strerror or error}") from error

    def receive(self) -> Any:
        """The next answer."""
        reader = self._reader
        while (reply := reader.gets()) is False:
            self._read(reader)
        return reply

    def ready(self) -> list[Any]:
        """What has come in, where something has."""
        reader, found = self._reader, []
        self._read(reader)
        while (reply := reader.gets()) is not False:
            found.append(reply)
        return found

    def _read(self, reader: hiredis.Reader) -> None:
        try:
            data = self.socket.recv(RECEIVE)
        except BlockingIOError as error:  # how a bound on receiving shows itself
            raise Away(f"{self.node.shown}: did not answer in time") from error
        except OSError as error:
            raise Away(f"{self.node.shown}: {error.strerror or error}") from error
        if not data:
            raise Away(f"{self.node.shown}: closed the connection")
        reader.feed(data)

    @property
    def is_stale(self) -> bool:
        """Whether the other side has hung up: while nothing is asked there is nothing else to read."""
        ready = select.poll()
        ready.register(self.socket, select.POLLIN)
        return bool(ready.poll(0))

    def wait_at_most(self, seconds: float) -> None:
        """Have every wait end after *seconds* from now on."""
        _bound(self.socket, seconds)

    def close(self) -> None:
        """Close it; harmless when it is closed."""
        self.socket.close()


def parser() -> Any:
    """What knows how Redis speaks."""
    try:
        import hiredis
    except ImportError as error:
        raise ConfigError("redis: hiredis is not installed: pip install 'holdfast[redis]'") from error
    return hiredis


def reader() -> Any:
    """Reads Redis's answers; what is none is no better than silence."""
    return parser().Reader(protocolError=Away)


def packed(parts: Sequence[bytes | str | int | float]) -> bytes:
    """A command as it is sent."""
    return b"*%d\r\n" % len(parts) + b"".join(map(bulk, parts))


def bulk(part: bytes | str | float) -> bytes:
    """One part of a command."""
    data = part if isinstance(part, bytes) else str(part).encode()
    return b"$%d\r\n%b\r\n" % (len(data), data)


def _greeting(address: Address, node: Node) -> list[bytes]:
    commands: list[bytes] = []
    if node.sentinel:  # which has no databases, and logins of its own
        return [packed(("PING",))]
    if address.password is not None:
        user = (address.user,) if address.user else ()
        commands.append(packed(("AUTH", *user, address.password)))
    if address.db:
        commands.append(packed(("SELECT", address.db)))
    commands.append(packed(("PING",)))
    return commands


def _connect(node: Node, bound: float) -> socket.socket:
    if node.path is not None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(bound)
            connection.connect(node.path)
        except BaseException:
            connection.close()
            raise
    else:
        connection = socket.create_connection((node.host, node.port), bound)
    try:
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _ALIVE.items():
                if hasattr(socket, name):  # not on every system
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        if node.tls:
            import ssl

            context = ssl.create_default_context(cafile=node.ca)
            connection = context.wrap_socket(connection, server_hostname=node.host)
        _bound(connection, bound)
    except BaseException:
        connection.close()
        raise
    return connection


def _bound(connection: socket.socket, seconds: float) -> None:
    """Bound each wait by the system itself: Python would ask it to poll before each."""
    if hasattr(connection, "pending"):  # a socket with TLS, which knows Python's way only
        connection.settimeout(seconds)
        return
    connection.settimeout(None)
    whole = int(seconds)
    time = struct.pack("ll", whole, int((seconds - whole) * 1_000_000))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, time)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, time)
