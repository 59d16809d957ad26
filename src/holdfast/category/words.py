"""Text read as whole words: phrases that name a category, and numbers that are an HTTP status by the words around them.

`RateLimitError`, `rate_limit_error` and "rate limit" are the same two or three words here, so class names, vendors'
error codes and messages share one list. Texts are cut first, and nothing here takes more than linear time.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Mapping, Sequence
from typing import Final

from holdfast.category.kinds import ErrorCategory
from holdfast.category.looking import cut

_C = ErrorCategory

# Mistakes in code. Their texts quote the code, so they prove nothing. A ValueError is not one of them: it may well be
# about an argument that the model gave, and then its text says so.
BUGS: Final = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, NotImplementedError),
    *(RecursionError, SyntaxError, TypeError, UnicodeError),
)


def of_text(text: str) -> ErrorCategory | None:
    """Return the category that a message or a tool's error text names, if any."""
    text = cut(text).strip()
    if all(part in text for part in _REFUSAL):
        said = _of_words(_split(text.rpartition(_REFUSAL[0])[2]))  # without the tool's name, which comes before
        return _C.CIRCUIT_OPEN if said is None or said.trips_breaker else said
    if _TRACEBACK in text:
        text = text.rpartition("\n")[2]  # the lines above quote code
    text = _FETCH.sub("fetch failed", _TOOL.sub("", text))
    raised = _RAISED.match(text)
    if raised is not None and _is_bug(raised["name"]):
        return None
    words = _split(text)
    if (status := _status_in(words if raised is None else _split(text[raised.end() :]))) is not None:
        return of_status(status, quota="insufficient_quota" in text)
    found = _of_words(_split(_FILE.sub(" ", text)))
    return _C.TOOL_NOT_FOUND if found is _C.RESOURCE_NOT_FOUND and _TOOL_GONE.search(text) else found


def of_name(name: str) -> ErrorCategory | None:
    """Return the category that the name of a class or an error code stands for, if any."""
    return _of_words(_split(cut(name)))


def of_status(status: int, *, quota: bool = False) -> ErrorCategory | None:
    """Return the category of an HTTP status; *quota* says that a quota is used up, so that waiting does not help."""
    if not 400 <= status <= 599:
        return None
    if status == 429 and quota:
        return _C.RESOURCE_EXHAUSTED
    # A request that a server rejects does not show that the server is broken, so no 4xx is an execution error.
    return _STATUSES.get(status, _C.INVALID_PARAMETERS if status < 500 else _C.SERVICE_UNAVAILABLE)


def _is_bug(name: str) -> bool:
    kind = getattr(builtins, name, None)
    return isinstance(kind, type) and issubclass(kind, BUGS)


def _split(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


def _of_words(words: Sequence[str]) -> ErrorCategory | None:
    if len(words) == 1 and words[0] in _ALONE:
        return _ALONE[words[0]]
    best: tuple[int, ErrorCategory | None] = (len(_PHRASES), None)
    for place, word in enumerate(words):
        for rank, phrase, category in _INDEX.get(word, ()):
            if rank < best[0] and tuple(words[place : place + len(phrase)]) == phrase:
                best = (rank, category)
    return best[1]


def _status_in(words: Sequence[str]) -> int | None:
    for place, word in enumerate(words):
        if len(word) == 3 and word[0] in "45" and word.isdecimal():
            before = tuple(("", "", *words[max(0, place - 2) : place])[-2:])
            after = (*words[place + 1 : place + 3], "", "")[:2]
            if _is_status(int(word), before, after):
                return int(word)
    return None


def _is_status(number: int, before: tuple[str, ...], after: tuple[str, ...]) -> bool:
    if before[-1] in _STATUS_WORDS or before in _STATUS_PAIRS or after in _STATUS_ENDS:
        return True
    reason = _REASONS.get(number)
    if reason is None:
        return False
    # "returned 503", "a 404 from", "429": a well-known status after a word that announces one, not a count of things.
    return after[: len(reason)] == reason or (before[-1] in _LEADS and after[0] in _FOLLOWS)


_WORD: Final = re.compile(r"(?<![A-Za-z0-9.$#])[0-9]+(?!\.?[A-Za-z0-9])|[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_REFUSAL: Final = (" was not called: ", "Do not repeat this call")  # Holdfast's own text, as another process returns it
_TRACEBACK: Final = "Traceback (most recent call last)"
_TOOL: Final = re.compile(r"\AError executing tool [^:\n]{1,200}: ?")
# JavaScript's messages for a failed network, which look like a mistake in code.
_FETCH: Final = re.compile(r"\ATypeError: (?:fetch failed|Failed to fetch\Z|NetworkError when attempting|terminated\Z)")
_RAISED: Final = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_]{0,60}\.){0,6}(?P<name>[A-Za-z_]{0,60}(?:Error|Exception)): ?")
# The name of a file says what was asked for, not what failed: /repo/timeout, C:\timeout, src/timeout.ts. A word with
# dots counts as a file name if it ends like one, so `socket.timeout` does not.
_FILE: Final = re.compile(
    r"(?<![\w./])(?:~|\.{1,2})?/(?!/)[\w.@+/-]+|(?<!\w)[A-Za-z]:\\[\w.@+\\-]+"
    r"|(?<![\w./@+-])[\w@+-]+(?:[./][\w@+-]+)*\.[a-z][a-z0-9]{0,3}(?!\.?\w)"
)
_TOOL_GONE: Final = re.compile(
    r"\Amethod not found|\b(?:tool|function)\W{1,3}[\w./-]{1,128}\W{1,3}(?:was |is |does )?not (?:found|exist)",
    re.IGNORECASE,
)

_STATUSES: Final[Mapping[int, ErrorCategory]] = {
    401: _C.AUTHENTICATION,
    402: _C.RESOURCE_EXHAUSTED,
    403: _C.PERMISSION_DENIED,
    404: _C.RESOURCE_NOT_FOUND,
    407: _C.AUTHENTICATION,
    408: _C.TIMEOUT,
    410: _C.RESOURCE_NOT_FOUND,
    429: _C.RATE_LIMIT,
    451: _C.PERMISSION_DENIED,
    499: _C.CANCELLED,
    504: _C.TIMEOUT,
}

# The first words of a status' reason, as they follow the number.
_REASONS: Final[Mapping[int, tuple[str, ...]]] = {
    400: ("bad", "request"),
    401: ("unauthorized",),
    402: ("payment", "required"),
    403: ("forbidden",),
    404: ("not", "found"),
    405: ("method", "not"),
    408: ("request", "timeout"),
    409: ("conflict",),
    410: ("gone",),
    422: ("unprocessable",),
    429: ("too", "many"),
    500: ("internal", "server"),
    502: ("bad", "gateway"),
    503: ("service", "unavailable"),
    504: ("gateway",),
    529: ("overloaded",),
}
_STATUS_WORDS: Final = frozenset({"http", "status", "statuscode"})
_STATUS_PAIRS: Final = frozenset(
    {("http", word) for word in ("1", "2", "3", "error")}  # "HTTP/2 503"; "HTTP/1.1 503" gives only "http", "503"
    | {("status", word) for word in ("is", "of", "was")}
    | {(word, "code") for word in ("error", "http", "response", "status")}
)
_STATUS_ENDS: Final = frozenset({("client", "error"), ("server", "error"), ("error", "responses")})
# An empty word stands for the beginning or the end of the text.
_LEADS: Final = frozenset(
    {"", "a", "an", "answered", "code", "error", "gave", "got", "received", "responded", "returned", "said", "with"}
)
_FOLLOWS: Final = frozenset({"", "after", "at", "by", "error", "for", "from", "message", "on", "response", "when"})

# Words that decide only if they are the whole text; among other words they may be about anything.
_ALONE: Final[Mapping[str, ErrorCategory]] = {
    "authentication": _C.AUTHENTICATION,
    "canceled": _C.CANCELLED,
    "cancelled": _C.CANCELLED,
    "network": _C.NETWORK,
    "unavailable": _C.SERVICE_UNAVAILABLE,
}

# Earlier rows win over later ones. Words are separated by a blank, phrases by a comma.
_PHRASES: Final[Sequence[tuple[ErrorCategory, str]]] = (
    (_C.EXECUTION_ERROR, "response validation"),
    (
        _C.RESOURCE_EXHAUSTED,
        "insufficient quota, quota exceeded, exceeded your current quota, billing hard limit, billing error,"
        "spend limit, credit balance is too low, insufficient credits, insufficient funds,"
        "insufficient balance, not enough balance, balance is not enough, payment required,"
        "out of memory, cannot allocate memory, memory error, no space left on device, disk full, too many open files,"
        "resource exhausted, bulkhead full, too many calls of it are running, budget is used up",
    ),
    (
        _C.RATE_LIMIT,
        "rate limit, rate limits, rate limited, rate limiting, ratelimit, ratelimited, too many requests, throttled,"
        "throttling, slow down, request limit exceeded, bandwidth limit exceeded, limit exceeded exception,"
        "throughput exceeded, prior request not complete, transaction in progress",
    ),
    (_C.PLANNING_POLICY_VIOLATION, "planning policy violation"),
    (
        _C.POLICY_VIOLATION,
        "policy violation, content filter, content policy, blocked by policy, denied by policy, not allowed by policy,"
        "violates the policy, same arguments keeps failing",
    ),
    (_C.SANDBOX_FAILURE, "sandbox failure, sandbox failed, sandbox error, sandbox violation, sandbox crashed"),
    (
        _C.CIRCUIT_OPEN,
        "circuit open, circuit is open, circuit breaker open, circuit breaker is open, circuit breaker error,"
        "has failed repeatedly and is temporarily disabled",
    ),
    (
        _C.TOOL_NOT_FOUND,
        "unknown tool, no such tool, tool not found, unknown function, no such function, function not found,"
        "unknown method, 32601",
    ),
    (
        _C.INVALID_PARAMETERS,
        "invalid timeout, timeout must, timeout should, timeout value, timeout parameter, timeout argument,"
        "timeout is not, timeout cannot",
    ),
    (_C.TIMEOUT, "timeout, timeouts, timed out, time out, etimedout, deadline exceeded"),
    (
        _C.CANCELLED,
        "client closed request, context canceled, context cancelled, keyboard interrupt,"
        "interrupted by user, aborted by user, aborted by the user, user aborted, operation was aborted,"
        + ",".join(
            f"request {word}, request was {word}, operation {word}, operation was {word}, task {word}, task was {word},"
            f"call {word}, run {word}, {word} by user, {word} by the user, {word} by client, {word} by the client,"
            f"user {word}, {word} error, status code {word}"
            for word in ("cancelled", "canceled")
        ),
    ),
    (_C.PERMISSION_DENIED, "unauthorized operation"),
    (
        _C.AUTHENTICATION,
        "unauthorized, unauthorised, unauthenticated, not authenticated, authentication error, authentication failed,"
        "authentication required, authentication method, invalid api key, incorrect api key, invalid x api key,"
        "missing api key, api key required, api key expired, api key not valid, api key is invalid, expired token,"
        "token expired, token has expired, token is expired, session expired, credentials expired, expired credentials,"
        "invalid credentials, bad credentials, missing credentials, no credentials, partial credentials,"
        "credentials error, credential retrieval, unable to locate credentials, no auth token, token retrieval,"
        "invalid access token, invalid client token, invalid access key, unrecognized client, signature does not match,"
        "invalid signature, auth failure, request expired, login required, not logged in, invalid grant",
    ),
    (
        _C.PERMISSION_DENIED,
        "permission denied, permission error, access denied, access is denied, forbidden, not authorized,"
        "not authorised, not permitted, insufficient permission, insufficient permissions, insufficient privileges,"
        "insufficient scope, eacces, eperm, read only file system",
    ),
    (
        _C.NETWORK,
        "connection refused, connection reset, connection aborted, connection closed, connection lost,"
        "connection error, connection failed, connection attempts failed, connection terminated, connection was closed,"
        "connect error, could not connect, cannot connect, failed to connect, unable to connect, failed to establish,"
        "econnrefused, econnreset, econnaborted, ehostunreach, enetunreach, enotfound, eai again, epipe,"
        "name or service not known, name resolution, dns resolution, dns lookup failed, nodename nor servname,"
        "getaddrinfo, network error, network unreachable, network is unreachable, network is down, no route to host,"
        "host is down, broken pipe, remote end closed, peer closed connection, server disconnected, socket hang up,"
        "fetch failed, session terminated, premature close, name not resolved, internet disconnected,"
        "address unreachable, network changed",
    ),
    (
        _C.SERVICE_UNAVAILABLE,
        "service unavailable, temporarily unavailable, currently unavailable, status code unavailable, bad gateway,"
        "overloaded, server error, internal failure, over capacity, at capacity, under maintenance, database is locked,"
        "database table is locked, deadlock detected, deadlock found, could not serialize access",
    ),
    (
        _C.RESOURCE_NOT_FOUND,
        "not found, does not exist, doesn t exist, do not exist, no such, enoent, unknown resource, unknown prompt",
    ),
    (
        _C.INVALID_PARAMETERS,
        "invalid parameter, invalid parameters, invalid params, invalid argument, invalid arguments, invalid input,"
        "invalid request, request invalid, invalid value, invalid json, invalid url, invalid schema, invalid format,"
        "missing schema, unsupported protocol, validation error, validation errors, validation exception,"
        "validation failed, bad request, missing required, missing parameter, missing argument, field required,"
        "required field, required parameter, required property, required positional argument,"
        "unexpected keyword argument, unknown parameter, unprocessable entity",
    ),
)


def _index() -> Mapping[str, Sequence[tuple[int, tuple[str, ...], ErrorCategory]]]:
    """The phrases by their first word."""
    index: dict[str, list[tuple[int, tuple[str, ...], ErrorCategory]]] = {}
    for rank, (category, phrases) in enumerate(_PHRASES):
        for phrase in phrases.split(","):
            words = tuple(phrase.split())
            index.setdefault(words[0], []).append((rank, words, category))
    return index


_INDEX: Final = _index()
