"""One blocking connection to Redis. Every question has a time limit; after a late answer the connection is given up.

Several commands may be sent at once; their answers come in order.
"""

from __future__ import annotations

import re
import select
import socket
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.clock import SystemClock
from holdfast.errors import ConfigError, HoldfastError, printable

if TYPE_CHECKING:
    import hiredis

    from holdfast.fleet.address import Address, Place
    from holdfast.fleet.topology import Node

RECEIVE = 65_536
PATIENCE = 1.0  # seconds that a connection may take to be made
LONGEST_ERROR = 300  # characters of a server's error that are shown
_ENORMOUS = re.compile(rb"[*%~>][0-9]{7}")  # announces a million parts or more, which the parser allocates at once
# TCP keepalive: the kernel notices that the other side is gone, and firewalls in between do not drop the connection.
# The idle time is called TCP_KEEPALIVE on macOS.
_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPALIVE": 10, "TCP_KEEPINTVL": 3, "TCP_KEEPCNT": 3}


class Away(HoldfastError):
    """Redis cannot be reached, does not answer in time, or will not do what it is asked."""


class Refused(Away):
    """Redis answers, and will not do what it is asked, perhaps about one tool alone."""


class Link:
    """A connection to *node*, at *place* if that is known.

    *bound* is how long it may take to make, and then how long a question waits for its answer.
    """

    __slots__ = ("bound", "node", "socket", "_reader", "__weakref__")

    def __init__(self, node: Node, address: Address, *, bound: float, place: Place | None = None) -> None:
        self.node = node
        self.bound = bound
        self._reader = reader()
        until = SystemClock.monotonic() + bound
        try:
            self.socket = _connect(node, bound, place or (node.host, node.port))
        except (OSError, UnicodeError) as error:  # a cluster may name a node by what cannot be the name of a host
            raise Away(f"{node.shown}: {getattr(error, 'strerror', None) or error}") from error
        try:
            self._greet(address, until)
        except BaseException:
            self.close()
            raise

    def _greet(self, address: Address, until: float) -> None:
        commands = _greeting(address, self.node)
        self.send(b"".join(commands))
        replies = [self._receive(until) for _ in commands]
        if address.password is not None and not self.node.sentinel and isinstance(replies[0], Exception):
            code, _, _ = str(replies[0]).partition(" ")  # the rest may repeat the login that was sent
            raise Away(f"{self.node.shown}: refuses the login: {code if code.isupper() else 'it does not say why'}")
        for reply in replies:
            if isinstance(reply, Exception):
                raise Away(f"{self.node.shown}: {reply}")

    def ask(self, command: bytes) -> Any:
        """Send one command and return its answer, which may be an error object."""
        until = self.send(command)
        return self._receive(until)

    def ask_all(self, commands: Iterable[bytes]) -> list[Any]:
        """Send commands together and return their answers."""
        commands = list(commands)
        until = self.send(b"".join(commands))
        return [self._receive(until) for _ in commands]

    def send(self, data: bytes) -> float:
        """Send all of *data*; return the time by which the answer must be there."""
        until = SystemClock.monotonic() + self.bound
        try:
            self.socket.settimeout(self.bound)
            self.socket.sendall(data)
        except OSError as error:
            raise Away(f"{self.node.shown}: {error.strerror or error}") from error
        return until

    def ready(self) -> list[Any]:
        """The answers that have come in; to be called when the socket is readable."""
        reader, found = self._reader, []
        self._read(reader, SystemClock.monotonic() + self.bound)
        while (reply := reader.gets()) is not False:
            found.append(reply)
        return found

    def _receive(self, until: float) -> Any:
        """The next answer."""
        reader = self._reader
        while (reply := reader.gets()) is False:
            self._read(reader, until)
        return reply

    def _read(self, reader: hiredis.Reader, until: float) -> None:
        try:
            self.socket.settimeout(max(0.0, until - SystemClock.monotonic()))  # data that is there already is not late
            data = self.socket.recv(RECEIVE)
        except OSError as error:
            is_late = isinstance(error, TimeoutError | BlockingIOError) or wants_more(error)
            why = "did not answer in time" if is_late else error.strerror or error
            raise Away(f"{self.node.shown}: {why}") from error
        if not data:
            raise Away(f"{self.node.shown}: closed the connection")
        feed(reader, data)

    @property
    def is_even(self) -> bool:
        """True if no data is left over: otherwise the next question would get the answer to another one."""
        return not self._reader.has_data()

    @property
    def place(self) -> Place | None:
        """The peer's IP address and port, so that the host name need not be looked up again."""
        try:
            return None if self.node.path is not None else self.socket.getpeername()[:2]
        except OSError:  # no longer connected
            return None

    @property
    def is_stale(self) -> bool:
        """True if the other side has closed it: while no question is open, there is nothing else to read."""
        ready = select.poll()
        ready.register(self.socket, select.POLLIN)
        return bool(ready.poll(0))

    def close(self) -> None:
        """Close it; harmless if it is closed already."""
        self.socket.close()


def parser() -> Any:
    """The module that parses Redis's protocol; raise `ConfigError` if it is not installed."""
    try:
        import hiredis
    except ImportError as error:
        raise ConfigError("redis: hiredis is not installed: pip install 'holdfast[redis]'") from error
    return hiredis


def reader() -> Any:
    """A parser of Redis's answers; raises `Away` for anything else, as if there were no answer."""
    error = parser().ReplyError
    return parser().Reader(protocolError=Away, replyError=lambda text: error(printable(text, LONGEST_ERROR)))


def feed(reader: hiredis.Reader, data: bytes) -> None:
    """Pass *data* to *reader*; raise `Away` if it announces too many parts."""
    if _ENORMOUS.match(data) and not reader.has_data():
        raise Away("Protocol error: no answer has so many parts")
    reader.feed(data)


def wants_more(error: OSError) -> bool:
    """True if TLS has to read before it can write, or the other way round."""
    import ssl

    return isinstance(error, ssl.SSLWantReadError | ssl.SSLWantWriteError)


def packed(parts: Sequence[bytes | str | int | float]) -> bytes:
    """A command, encoded."""
    return b"*%d\r\n" % len(parts) + b"".join(map(bulk, parts))


def bulk(part: bytes | str | float) -> bytes:
    """One part of a command, encoded."""
    data = part if isinstance(part, bytes) else str(part).encode()
    return b"$%d\r\n%b\r\n" % (len(data), data)


def _greeting(address: Address, node: Node) -> list[bytes]:
    if node.sentinel:  # it has no databases, and logins of its own
        return [packed(("PING",))]
    commands = []
    if address.password is not None:
        user = (address.user,) if address.user else ()
        commands.append(packed(("AUTH", *user, address.password)))
    if address.db:
        commands.append(packed(("SELECT", address.db)))
    commands.append(packed(("PING",)))
    return commands


def _connect(node: Node, bound: float, place: Place) -> socket.socket:
    if node.path is not None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(bound)
            connection.connect(node.path)
        except BaseException:
            connection.close()
            raise
    else:
        connection = socket.create_connection(place, bound)
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
    except BaseException:
        connection.close()
        raise
    return connection
