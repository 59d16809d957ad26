"""Reads the address of a Redis. The password in it is never shown again, not even in an error.

redis://[user[:password]@]host[:port][/db]                            one server
rediss://…                                                            the same over TLS; ?ca=FILE, else the system's CAs
unix://[user[:password]@]/path[?db=N]                                 one server on this host
redis+sentinel://[user[:password]@]host[:port][,…]/MASTER[/db]        whichever server the sentinels call master
redis+cluster://[user[:password]@]host[:port][,…]                     a cluster; a few of its nodes are enough
?prefix=NAME is what all keys begin with, ?wait=SECONDS how long a call waits for an answer, at most
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Literal, NoReturn
from urllib.parse import quote, unquote

import msgspec

from holdfast.errors import ConfigError, printable

Kind = Literal["one", "sentinel", "cluster"]
Place = tuple[str, int]  # host and port

PREFIX = "holdfast"
WAIT = 0.05  # seconds that a call waits for the shared guards, at most
LONGEST_WAIT = 60.0
SCHEMES: dict[str, tuple[Kind, bool, int]] = {  # the kind, whether over TLS, the usual port
    "redis": ("one", False, 6379),
    "rediss": ("one", True, 6379),
    "unix": ("one", False, 0),
    "redis+sentinel": ("sentinel", False, 26379),
    "rediss+sentinel": ("sentinel", True, 26379),
    "redis+cluster": ("cluster", False, 6379),
    "rediss+cluster": ("cluster", True, 6379),
}
MOST_HOSTS = 100
LONGEST_PATH = 103  # bytes of a socket's path that every system accepts

_SCHEME = re.compile(r"[\w+.-]*+://")
_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,60}")
_HOST = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
_PLACE = re.compile(r"(\[[^\]]*\]|[^:]*)(?::(.*))?", re.DOTALL)
_NUMBER = re.compile(r"[0-9]{1,5}")
_SECONDS = re.compile(r"[0-9]{1,3}(\.[0-9]{1,6})?")


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed address. *places* are servers, sentinels or nodes, depending on *kind*; a Unix socket has a *path*."""

    scheme: str
    kind: Kind
    places: tuple[Place, ...] = ()
    path: str | None = None
    user: str | None = None
    password: str | None = None
    db: int = 0
    master: str = ""
    tls: bool = False
    ca: str | None = None
    prefix: str = PREFIX
    wait: float = WAIT

    @classmethod
    def parse(cls, url: str) -> Address:
        """Parse *url*; raise a `ConfigError` that says what is wrong with it."""
        return _Reader(url).address()

    @property
    def shown(self) -> str:
        """The address without its password."""
        user = f"{quote(self.user)}@" if self.user else ""
        path = quote(self.path or "") + f"/{quote(self.master, '')}" * bool(self.master)
        options = [f"db={self.db}"] if self.db and self.path else []
        if self.db and not self.path:
            path += f"/{self.db}"
        if self.prefix != PREFIX:
            options.append(f"prefix={self.prefix}")
        if self.wait != WAIT:
            options.append(f"wait={self.wait:g}")
        return f"{self.scheme}://{user}{','.join(map(at, self.places))}{path}{'?' * bool(options)}{'&'.join(options)}"

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"

    def __rich_repr__(self) -> list[tuple[str, str]]:  # otherwise rich would show every field, also the password
        return [("address", self.shown)]


def at(place: Place) -> str:
    """A host and its port, as they stand in an address."""
    host, port = place
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _Reader:
    """Parses one address; its errors show the whole address without the password."""

    def __init__(self, url: object) -> None:
        if not isinstance(url, str) or not _SCHEME.match(url):
            raise ConfigError(f"redis: must be an address such as redis://host:6379; its scheme: {_schemes()}")
        scheme, _, rest = url.partition("://")
        if scheme not in SCHEMES:
            raise ConfigError(f"redis = {printable(scheme)}://…: the scheme must be one of {_schemes()}")
        self.scheme = scheme
        self.kind, self.tls, self.usual_port = SCHEMES[scheme]
        rest, _, query = rest.partition("?")
        authority, slash, path = rest.partition("/")
        self.login, self.signed, self.hosts = authority.rpartition("@")
        self.path = slash + path
        self.query = query
        if "@" in self.path or not url.isprintable() or " " in url or "#" in url:
            self.fail(
                "a password, name or path with one of @ / ? # or a blank must have it percent-encoded (%40 for @)"
            )

    def address(self) -> Address:
        """The parsed address."""
        options = self.options()
        user, password = self.credentials()
        db, master = 0, ""
        if self.scheme == "unix":
            db = self.number(options.get("db", "0"), "db")
        elif self.kind == "one":
            db = self.number(self.path[1:] or "0", "the database, after the host,")
        elif self.kind == "sentinel":
            name, _, after = self.path[1:].partition("/")
            master, db = self.plain(name), self.number(after or "0", "the database, after the master's name,")
            if not master:
                self.fail("the name of the master must follow the sentinels: redis+sentinel://host:26379/MASTER")
        elif self.path not in {"", "/"}:
            self.fail("a cluster has no databases: nothing may follow its nodes")
        return Address(
            scheme=self.scheme,
            kind=self.kind,
            places=self.places(),
            path=self.socket(),
            user=user,
            password=password,
            db=db,
            master=master,
            tls=self.tls,
            ca=self.authority(options),
            prefix=self.prefix(options),
            wait=self.wait(options),
        )

    def credentials(self) -> tuple[str | None, str | None]:
        if not self.signed:
            return None, None
        user, colon, password = self.login.partition(":")
        if not user and not colon:
            self.fail("before the @ must stand user, user:password or :password")
        # Without a password it is empty, not None: a user may still have to log in by name.
        return self.plain(user) or None, self.plain(password)

    def places(self) -> tuple[Place, ...]:
        if self.scheme == "unix":
            return ()
        found = tuple(self.place(part) for part in self.hosts.split(","))
        if self.kind == "one" and len(found) > 1:
            self.fail("one host is allowed; for several, redis+sentinel:// or redis+cluster://")
        if len(found) > MOST_HOSTS:
            self.fail(f"at most {MOST_HOSTS} hosts are allowed")
        return found

    def place(self, text: str) -> Place:
        match = _PLACE.fullmatch(text)
        host, port = match.groups() if match else ("", None)
        if host.startswith("["):
            host = host[1:-1]
            if not _is_ip6(host):
                self.fail("between the brackets must stand an IPv6 address")
        elif not _HOST.fullmatch(host):
            self.fail("each host must be a name or an IP address (an IPv6 address in brackets)")
        if port is None:
            return host, self.usual_port
        if not _NUMBER.fullmatch(port) or not 1 <= int(port) <= 65_535:
            self.fail("a port must be a whole number from 1 to 65535")
        return host, int(port)

    def socket(self) -> str | None:
        if self.scheme != "unix":
            return None
        path = self.plain(self.path)
        if self.hosts or len(path) < 2:
            self.fail("a socket must be named by its whole path: unix:///run/redis.sock")
        if len(path.encode()) > LONGEST_PATH:
            self.fail(f"the path of a socket may have at most {LONGEST_PATH} bytes")
        return path

    def options(self) -> dict[str, str]:
        allowed = ["prefix", "wait", *(["ca"] if self.tls else []), *(["db"] if self.scheme == "unix" else [])]
        found: dict[str, str] = {}
        for part in filter(None, self.query.split("&")):
            name, equals, value = part.partition("=")
            if name not in allowed or not equals or name in found:
                self.fail(f"after the ? may stand, once each and with a value: {', '.join(allowed)}")
            found[name] = self.plain(value)
        return found

    def prefix(self, options: dict[str, str]) -> str:
        prefix = options.get("prefix", PREFIX)
        if not _PREFIX.fullmatch(prefix):
            self.fail("prefix must be 1 to 60 of the characters A-Z a-z 0-9 _ . : -")
        return prefix

    def wait(self, options: dict[str, str]) -> float:
        text = options.get("wait", str(WAIT))
        if not _SECONDS.fullmatch(text) or not 0 < float(text) <= LONGEST_WAIT:
            self.fail(f"wait must be a number of seconds above 0 and at most {LONGEST_WAIT:g}")
        return float(text)

    def authority(self, options: dict[str, str]) -> str | None:
        ca = options.get("ca")
        # Checked here, because later a missing file would look like an outage instead of a mistake.
        if ca is not None and not Path(ca).is_file():
            self.fail("ca must name a file with the certificates to trust; there is none of that name")
        return ca

    def number(self, text: str, what: str) -> int:
        if not _NUMBER.fullmatch(text):
            self.fail(f"{what} must be a whole number from 0 to 99999")
        return int(text)

    def plain(self, text: str) -> str:
        try:
            plain = unquote(text, errors="strict")
        except UnicodeDecodeError:
            self.fail("what is percent-encoded must be UTF-8")
        if "\0" in plain:
            self.fail("%00 is not allowed")
        return plain

    def fail(self, what: str) -> NoReturn:
        """Raise a `ConfigError` that shows only the parts that cannot be a password in the wrong place."""
        user = f"{self.login.partition(':')[0]}:…@" if ":" in self.login else f"{self.login}@" * bool(self.signed)
        hosts = re.sub(r":(?![0-9]{1,5}(,|$))[^,]*", ":…", self.hosts)
        path = re.sub(r".*@", "/…@", self.path, flags=re.DOTALL)
        query = re.sub(r"(^|&)(?!prefix=|wait=|db=|ca=)([^&=]*)=[^&]*", r"\1\2=…", self.query)
        # An @ in the path or the query means that everything before it may belong to the password.
        if "@" in self.query:
            user, hosts, path, query = "…", "", "", "…"
        elif "@" in self.path:
            user, hosts = "…", ""
        shown = f"{self.scheme}://{user}{hosts}{path}{'?' * bool(query)}{query}"
        raise ConfigError(f"redis = {printable(shown, 300)}: {what}")


def _is_ip6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


def _schemes() -> str:
    return ", ".join(f"{scheme}://" for scheme in SCHEMES)
