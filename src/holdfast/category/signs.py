"""The category of an exception, by the most reliable sign that it shows.

In this order: its own `category`; its type; the status or code of the response that it carries; the name of its type;
the same for the exceptions it was raised from; its text; and last, with care, the exception that it replaced.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Final, cast

import msgspec

from holdfast.category.kinds import ErrorCategory
from holdfast.category.looking import MOST_TEXT, attribute, chain, context, cut, entry, leaves, text_of
from holdfast.category.words import BUGS, of_name, of_status, of_text

_C = ErrorCategory
_MOST_GROUPS: Final = 8


def classify(error: BaseException | int | str) -> ErrorCategory:
    """Return the category of an exception, an HTTP status or a text; `EXECUTION_ERROR` if nothing says more."""
    found: ErrorCategory | None = None
    if isinstance(error, BaseException):
        found = _of_exception(error, set())
    elif isinstance(error, str):
        found = of_text(error)
    elif isinstance(error, int):
        found = of_status(error)
    return found or _C.EXECUTION_ERROR


class _Kind(msgspec.Struct, frozen=True):
    """What the type of an exception says by itself."""

    sure: ErrorCategory | None  # a type of the standard library that means one thing
    named: ErrorCategory | None  # a known type of a library, or one whose name says it
    bug: bool  # a mistake in code: its text quotes the code, so it proves nothing
    group: bool
    system: bool  # an OSError, whose errno may decide
    rpc: bool  # carries a JSON-RPC error
    bare: bool  # an instance without attributes of its own has no other signs


def _of_exception(error: BaseException, groups: set[int]) -> ErrorCategory | None:
    links, bug = [], False
    for link in chain(error):
        if (found := _sign(link, groups)) is not None:
            return found
        links.append(link)
        bug = bug or _kind(type(link)).bug
    if bug:
        return None
    for link in links:
        if (found := of_text(text_of(link))) is not None:
            return found
    return _of_context(links[-1], groups)


def _of_context(error: BaseException, groups: set[int]) -> ErrorCategory | None:
    # Code that forgets `from` still means the error that it replaced. But a cache miss before the tool failed is a
    # context, too, so a context may explain a failure and never excuse one.
    if (replaced := context(error)) is None:
        return None
    signs = (_sign(link, groups) for link in chain(replaced))
    found = next((sign for sign in signs if sign is not None), None)
    return found if found is not None and (found.trips_breaker or found is _C.RATE_LIMIT) else None


def _sign(error: BaseException, groups: set[int]) -> ErrorCategory | None:
    kind = _kind(type(error))
    bare = kind.bare and attribute(error, "__dict__", dict) == {}
    if not bare and (own := _own(error)) is not None:
        return own
    if kind.sure is not None:
        return kind.sure
    if kind.group:
        return _of_group(error, groups)
    if kind.system and (known := _ERRNOS.get(attribute(error, "errno", int) or 0)) is not None:
        return known
    if not bare and (answer := _of_rpc(error) if kind.rpc else _of_answer(error)) is not None:
        return answer
    return kind.named


def _own(error: BaseException) -> ErrorCategory | None:
    """Return the exception's own `category`, a member or the text of one."""
    said = attribute(error, "category", str)
    return _BY_VALUE.get(str.__str__(said)) if said is not None and issubclass(type(said), str) else None


def _read_kind(cls: type[BaseException]) -> _Kind:
    keys = [f"{base.__module__}".partition(".")[0] + "." + base.__name__ for base in cls.__mro__]
    foreign = (key for key in keys if not key.startswith("builtins."))
    named = (_FOREIGN.get(key) or of_name(key.partition(".")[2]) for key in foreign)
    shown = {name for base in cls.__mro__ for name in vars(base)}
    return _Kind(
        sure=next((_STANDARD[key] for key in keys if key in _STANDARD), None),
        named=next((category for category in named if category is not None), None),
        bug=keys[0].startswith("builtins.") and issubclass(cls, BUGS),
        group=issubclass(cls, BaseExceptionGroup),
        system=issubclass(cls, OSError),
        rpc="mcp.McpError" in keys or "mcp.MCPError" in keys,
        bare=shown.isdisjoint(_SHOWN) and cls.__getattribute__ is BaseException.__getattribute__,
    )


# The casts are for mypy, to which a class is not hashable, and a descriptor has no type.
_known_kind = cast("Callable[[type[BaseException]], _Kind]", lru_cache(maxsize=1024)(_read_kind))
_base = cast("Callable[[type[BaseException]], type[BaseException]]", type.__dict__["__base__"].__get__)


def _kind(cls: type[BaseException]) -> _Kind:
    try:
        return _known_kind(cls)
    except Exception:  # a foreign metaclass that raises: its base class decides
        return msgspec.structs.replace(_kind(_base(cls)), bare=False)


def _of_group(group: BaseException, groups: set[int]) -> ErrorCategory | None:
    # Exceptions can hold each other in circles of groups and causes.
    if id(group) in groups or len(groups) >= _MOST_GROUPS:
        return None
    groups.add(id(group))
    found = {_of_exception(leaf, groups) or _C.EXECUTION_ERROR for leaf in leaves(group)}
    return min(found, key=_SEVERITY.index, default=None)


# --- what a server answered ---


def _of_answer(error: BaseException) -> ErrorCategory | None:
    response = attribute(error, "response", object)
    status = _status(error, response)
    by_status = of_status(status, quota=status == 429 and _says_quota(error, response))
    codes = (of_name(code) for code in _codes(error, response))
    by_code = next((category for category in codes if category is not None), None)
    # A code is more precise, as AWS throttles with a 400; but some vendors say "invalid request" with every 4xx.
    if by_code is None or (by_status is not None and by_code is _C.INVALID_PARAMETERS):
        return by_status
    return by_code


def _status(error: BaseException, response: object) -> int:
    for thing in (error, response):
        numbers = (attribute(thing, name, int) for name in ("status_code", "status", "code"))
        status = next((number for number in numbers if number is not None), 0)
        if 100 <= status <= 599:  # a vendor's own numbers are not statuses
            return status
    return entry(response, int, "ResponseMetadata", "HTTPStatusCode") or 0


def _codes(error: BaseException, response: object) -> Iterator[str]:
    body = attribute(error, "body", dict)
    found = [entry(response, str, "Error", "Code")]
    found += [entry(body, str, "error", "code"), entry(body, str, "error", "type")]
    found += [entry(body, str, "code"), entry(body, str, "type")]
    if attribute(error, "status", int) is None:  # aiohttp's errors have one, and reading their code gives a warning
        found.append(attribute(error, "code", str))
    found.append(attribute(error, "type", str))
    return (code for code in found if code is not None)


def _says_quota(error: BaseException, response: object) -> bool:
    # The public attributes for a body may read from the network or decode megabytes. So only what is stored already is
    # read: where httpx and requests store it, or in plain attributes.
    kept = attribute(response, "__dict__", dict)
    body = next(filter(None, (entry(kept, bytes, name) for name in ("_content", "content"))), b"")
    texts = (body[:MOST_TEXT].decode(errors="replace"), entry(kept, str, "text") or "", text_of(error))
    return any("insufficient_quota" in cut(text) for text in texts)


def _of_rpc(error: BaseException) -> ErrorCategory | None:
    data = attribute(error, "error", object)
    code = attribute(data, "code", int)
    return None if code is None else of_rpc(code, attribute(data, "message", str) or "")


def of_rpc(code: int, message: str) -> ErrorCategory:
    """Return the category of a JSON-RPC or MCP error."""
    said = of_status(code) or (None if message.lower() in _RPC_PHRASES else of_text(message))
    default, may_say = _RPC.get(code, (_C.EXECUTION_ERROR, _ANYTHING))
    return said if said in may_say else default


# --- tables ---

_BY_VALUE: Final[Mapping[str, ErrorCategory]] = {category.value: category for category in _C}
# Of a group's categories the first here counts: those that trip a breaker lead, of them those not to be repeated.
_SEVERITY: Final = tuple(sorted(_C, key=lambda one: (one is _C.CANCELLED, not one.trips_breaker, one.retryable)))

_SHOWN: Final = frozenset(
    ["category", "status_code", "status", "code", "response", "body", "type", "error", "reason", "__getattr__"]
)


def _table(rows: Mapping[ErrorCategory, str]) -> Mapping[str, ErrorCategory]:
    return {name: category for category, names in rows.items() for name in names.split()}


# By the first part of the module and the name of the class; subclasses count as the class.
_STANDARD: Final = _table(
    {
        _C.NETWORK: "builtins.ConnectionError socket.gaierror socket.herror ssl.SSLError http.BadStatusLine"
        " http.IncompleteRead asyncio.IncompleteReadError",
        _C.TIMEOUT: "builtins.TimeoutError subprocess.TimeoutExpired",
        _C.PERMISSION_DENIED: "builtins.PermissionError",
        _C.RESOURCE_NOT_FOUND: "builtins.FileNotFoundError",
        _C.INVALID_PARAMETERS: "builtins.FileExistsError builtins.IsADirectoryError builtins.NotADirectoryError",
        _C.RESOURCE_EXHAUSTED: "builtins.MemoryError",
        _C.CANCELLED: "builtins.KeyboardInterrupt builtins.GeneratorExit builtins.SystemExit asyncio.CancelledError"
        " concurrent.CancelledError trio.Cancelled greenlet.GreenletExit",
    }
)
# Only those whose names do not say it by themselves, as ReadTimeout and APIConnectionError do.
_FOREIGN: Final = _table(
    {
        _C.NETWORK: "httpx.RemoteProtocolError httpx.ProxyError httpx2.RemoteProtocolError httpx2.ProxyError"
        " httpx.ReadError httpx.WriteError httpx.CloseError aiohttp.ClientOSError aiohttp.ClientConnectorError"
        " requests.SSLError requests.ProxyError botocore.SSLError aiohttp.ClientConnectorDNSError"
        " aiohttp.ClientConnectorSSLError"
        " httpcore.RemoteProtocolError httpcore.ProxyError httpcore2.RemoteProtocolError httpcore2.ProxyError"
        " aiohttp.ClientPayloadError requests.ChunkedEncodingError requests.ContentDecodingError urllib3.ProtocolError"
        " urllib3.IncompleteRead urllib3.ProxyError urllib3.SSLError botocore.HTTPClientError"
        " botocore.IncompleteReadError anyio.BrokenResourceError anyio.ClosedResourceError anyio.EndOfStream",
        _C.TIMEOUT: "urllib3.EmptyPoolError hyx.MaxDurationExceeded",
        _C.CIRCUIT_OPEN: "hyx.BreakerFailing purgatory.OpenedState",
        _C.AUTHENTICATION: "botocore.LoginError botocore.ProfileNotFound botocore.SSOError mcp.OAuthFlowError",
        _C.INVALID_PARAMETERS: "aiohttp.NonHttpUrlClientError",
        _C.EXECUTION_ERROR: "requests.JSONDecodeError",  # an InvalidJSONError, as errors in a request's JSON are
    }
)

_ERRNOS: Final[Mapping[int, ErrorCategory]] = {
    **dict.fromkeys(
        (errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET, errno.ENOTCONN),
        _C.NETWORK,
    ),
    errno.EPROTOTYPE: _C.NETWORK,  # macOS, for a connection that the other side is just closing
    **dict.fromkeys(
        (errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ENOSPC), _C.RESOURCE_EXHAUSTED
    ),
    **dict.fromkeys((errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTEMPTY), _C.INVALID_PARAMETERS),
    **dict.fromkeys((errno.ENODEV, errno.ENXIO), _C.RESOURCE_NOT_FOUND),
    errno.ECANCELED: _C.CANCELLED,
    errno.EROFS: _C.PERMISSION_DENIED,
}

# For each code of JSON-RPC or MCP: its category, and those that its message may name instead.
_ANYTHING: Final = frozenset(_C)
_NOTHING: Final[frozenset[ErrorCategory]] = frozenset()
_GONE: Final = frozenset({_C.TOOL_NOT_FOUND, _C.RESOURCE_NOT_FOUND, _C.NETWORK})
_RPC_PHRASES: Final = frozenset({"internal error", "internal server error"})
_RPC: Final[Mapping[int, tuple[ErrorCategory, frozenset[ErrorCategory]]]] = {
    -32700: (_C.INVALID_PARAMETERS, _GONE),
    -32600: (_C.INVALID_PARAMETERS, _GONE),
    -32601: (_C.TOOL_NOT_FOUND, _NOTHING),
    -32602: (_C.INVALID_PARAMETERS, _GONE),
    -32001: (_C.TIMEOUT, _ANYTHING),
    -32002: (_C.RESOURCE_NOT_FOUND, _NOTHING),
    -32020: (_C.INVALID_PARAMETERS, _NOTHING),
    -32021: (_C.INVALID_PARAMETERS, _NOTHING),
    -32022: (_C.INVALID_PARAMETERS, _NOTHING),
    -32042: (_C.AUTHENTICATION, _NOTHING),
}
