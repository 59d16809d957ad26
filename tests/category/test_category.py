"""The sixteen categories, and the category of statuses, texts and exceptions that need no library."""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
import errno
import http.client
import json
import pickle
import socket
import ssl
import subprocess
import urllib.error
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any, NoReturn

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.category import ErrorCategory, classify
from holdfast.errors import (
    BudgetExceeded,
    CircuitOpen,
    ConcurrencyFull,
    ConfigError,
    Denied,
    LoopDetected,
    RateLimited,
    ToolTimeout,
)

C = ErrorCategory
MEGABYTE = 1_000_000

# --- the categories ---

NAMES = [
    *("network", "timeout", "service_unavailable", "rate_limit", "execution_error", "circuit_open", "authentication"),
    *("invalid_parameters", "tool_not_found", "resource_not_found", "permission_denied", "policy_violation"),
    *("planning_policy_violation", "sandbox_failure", "resource_exhausted", "cancelled"),
]


def test_there_are_sixteen_categories_named_by_their_values() -> None:
    assert [category.value for category in C] == NAMES
    assert [category.name.lower() for category in C] == NAMES


def test_what_may_pass_by_itself_is_retryable_and_nothing_else() -> None:
    retryable = {category for category in C if category.retryable}

    assert retryable == {C.NETWORK, C.TIMEOUT, C.SERVICE_UNAVAILABLE, C.RATE_LIMIT, C.CIRCUIT_OPEN}


def test_what_shows_that_a_tool_is_broken_trips_the_breaker_and_nothing_else() -> None:
    tripping = {category for category in C if category.trips_breaker}

    assert tripping == {C.NETWORK, C.TIMEOUT, C.SERVICE_UNAVAILABLE, C.EXECUTION_ERROR}


@pytest.mark.parametrize("category", C)
def test_every_category_has_a_label_that_fits_a_column(category: C) -> None:
    assert 1 <= len(category.label) <= 40
    assert category.label.isprintable()


def test_no_two_categories_share_a_label() -> None:
    assert len({category.label for category in C}) == len(C)


@pytest.mark.parametrize("category", C)
def test_every_category_has_one_to_three_suggestions_that_are_sentences(category: C) -> None:
    assert 1 <= len(category.suggestions) <= 3
    assert all(text[0].isupper() and text.endswith(".") for text in category.suggestions)


@pytest.mark.parametrize("category", C)
def test_a_category_travels_as_its_value(category: C) -> None:
    assert pickle.loads(pickle.dumps(category)) is category
    assert copy.deepcopy(category) is category
    assert msgspec.json.decode(msgspec.json.encode(category), type=C) is category


@pytest.mark.parametrize("category", C)
def test_the_value_of_a_category_is_classified_as_itself(category: C) -> None:
    assert classify(category) is category
    assert classify(category.value) is category


# --- statuses ---

STATUSES = {
    400: C.INVALID_PARAMETERS,
    401: C.AUTHENTICATION,
    402: C.RESOURCE_EXHAUSTED,
    403: C.PERMISSION_DENIED,
    404: C.RESOURCE_NOT_FOUND,
    407: C.AUTHENTICATION,
    408: C.TIMEOUT,
    409: C.INVALID_PARAMETERS,
    410: C.RESOURCE_NOT_FOUND,
    422: C.INVALID_PARAMETERS,
    429: C.RATE_LIMIT,
    451: C.PERMISSION_DENIED,
    499: C.CANCELLED,
    500: C.SERVICE_UNAVAILABLE,
    501: C.SERVICE_UNAVAILABLE,
    502: C.SERVICE_UNAVAILABLE,
    503: C.SERVICE_UNAVAILABLE,
    504: C.TIMEOUT,
    529: C.SERVICE_UNAVAILABLE,
    599: C.SERVICE_UNAVAILABLE,
}


@pytest.mark.parametrize(("status", "category"), STATUSES.items())
def test_a_status_has_its_category(status: int, category: C) -> None:
    assert classify(status) is category


@pytest.mark.parametrize("status", range(400, 500))
def test_no_4xx_trips_the_breaker_but_a_timeout(status: int) -> None:
    assert classify(status).trips_breaker is (status == 408)


@pytest.mark.parametrize("number", [-32601, -1, 0, 1, True, 200, 302, 399, 600, 4290, 10**30])
def test_a_number_that_is_no_error_status_is_an_execution_error(number: int) -> None:
    assert classify(number) is C.EXECUTION_ERROR


@pytest.mark.parametrize("thing", [None, 4.29, b"429", [429], object()])
def test_what_is_no_error_at_all_is_an_execution_error(thing: Any) -> None:
    assert classify(thing) is C.EXECUTION_ERROR


# --- texts ---

TEXTS = {
    # a number that its neighbours make a status
    "HTTP 429": C.RATE_LIMIT,
    "HTTP/1.1 503 Service Unavailable": C.SERVICE_UNAVAILABLE,
    "HTTP/2 504": C.TIMEOUT,
    "http_status=401": C.AUTHENTICATION,
    "status code: 503": C.SERVICE_UNAVAILABLE,
    "Request failed with status code 404": C.RESOURCE_NOT_FOUND,
    "the status was 403": C.PERMISSION_DENIED,
    "Error code: 429 - {'error': {'message': 'slow'}}": C.RATE_LIMIT,
    "HTTP Error 418: I'm a teapot": C.INVALID_PARAMETERS,
    "429 Too Many Requests": C.RATE_LIMIT,
    "Client error '404 Not Found' for url 'http://127.0.0.1:8080/500'": C.RESOURCE_NOT_FOUND,
    "418 Client Error: I'm a teapot for url: http://127.0.0.1/": C.INVALID_PARAMETERS,
    "Max retries exceeded (Caused by ResponseError('too many 503 error responses'))": C.SERVICE_UNAVAILABLE,
    "429, message='', url='http://127.0.0.1/'": C.RATE_LIMIT,
    "429": C.RATE_LIMIT,
    "HTTPError: 404": C.RESOURCE_NOT_FOUND,
    "the server returned 503": C.SERVICE_UNAVAILABLE,
    "a 500 error from upstream": C.SERVICE_UNAVAILABLE,
    '{"statusCode":500}': C.SERVICE_UNAVAILABLE,
    '{"error": {"code": 429, "message": "later"}}': C.RATE_LIMIT,
    "Error executing tool fetch: 429": C.RATE_LIMIT,
    "Error executing tool fetch: the API responded with 429 after 3 pages": C.RATE_LIMIT,
    "Error executing tool fetch: Server error '503 Service Unavailable' for url 'http://x/'": C.SERVICE_UNAVAILABLE,
    "HTTP 429: {'code': 'insufficient_quota'}": C.RESOURCE_EXHAUSTED,
    "HTTP 503: {'code': 'insufficient_quota'}": C.SERVICE_UNAVAILABLE,
    # a phrase
    "rate limit exceeded": C.RATE_LIMIT,
    "Rate-limited, please slow down": C.RATE_LIMIT,
    "rate_limit_exceeded": C.RATE_LIMIT,
    "RateLimitError": C.RATE_LIMIT,
    "TOO MANY REQUESTS": C.RATE_LIMIT,
    "You exceeded your current quota, please check your plan": C.RESOURCE_EXHAUSTED,
    "[Errno 28] No space left on device": C.RESOURCE_EXHAUSTED,
    "timed out": C.TIMEOUT,
    "ReadTimeout": C.TIMEOUT,
    "context deadline exceeded": C.TIMEOUT,
    "connect ETIMEDOUT 10.0.0.1:443": C.TIMEOUT,
    "MCP error -32001: Request timed out": C.TIMEOUT,
    "connection refused": C.NETWORK,
    "connect ECONNREFUSED 127.0.0.1:5432": C.NETWORK,
    "Temporary failure in name resolution": C.NETWORK,
    "socket hang up": C.NETWORK,
    "fetch failed": C.NETWORK,
    "TypeError: fetch failed": C.NETWORK,
    "TypeError: Failed to fetch": C.NETWORK,
    "TypeError: terminated": C.NETWORK,
    "TypeError: fetch is not a function": C.EXECUTION_ERROR,
    "TypeError: Failed to fetch the user: it is null": C.EXECUTION_ERROR,
    "FetchError: Invalid response body while trying to fetch http://h/: Premature close": C.NETWORK,
    "page.goto: net::ERR_NAME_NOT_RESOLVED at http://h/": C.NETWORK,
    "page.goto: net::ERR_INTERNET_DISCONNECTED at http://h/": C.NETWORK,
    "Service temporarily unavailable": C.SERVICE_UNAVAILABLE,
    "Overloaded": C.SERVICE_UNAVAILABLE,
    "Internal Server Error": C.SERVICE_UNAVAILABLE,
    "sqlite3.OperationalError: database is locked": C.SERVICE_UNAVAILABLE,
    "database table is locked: notes": C.SERVICE_UNAVAILABLE,
    "deadlock detected": C.SERVICE_UNAVAILABLE,
    "Deadlock found when trying to get lock; try restarting transaction": C.SERVICE_UNAVAILABLE,
    "could not serialize access due to concurrent update": C.SERVICE_UNAVAILABLE,
    "Unauthorized": C.AUTHENTICATION,
    "Incorrect API key provided: sk-…": C.AUTHENTICATION,
    "the access token has expired": C.AUTHENTICATION,
    "permission denied: /etc/shadow": C.PERMISSION_DENIED,
    "User is not authorized to perform: s3:GetObject": C.PERMISSION_DENIED,
    "Unknown tool: 'serach'": C.TOOL_NOT_FOUND,
    "MCP error -32602: Tool search_web not found": C.TOOL_NOT_FOUND,
    "No such function name: getSuite": C.TOOL_NOT_FOUND,
    "Method not found": C.TOOL_NOT_FOUND,
    "MCP error -32601: Method not found": C.TOOL_NOT_FOUND,
    "Error: payment method not found": C.RESOURCE_NOT_FOUND,
    "Error: gift card balance is not enough": C.RESOURCE_EXHAUSTED,
    "user 'mia' not found": C.RESOURCE_NOT_FOUND,
    "The bucket doesn't exist": C.RESOURCE_NOT_FOUND,
    "Error executing tool read_file: file not found": C.RESOURCE_NOT_FOUND,
    "invalid parameter: limit": C.INVALID_PARAMETERS,
    "2 validation errors for search": C.INVALID_PARAMETERS,
    "'query' is a required property": C.INVALID_PARAMETERS,
    "the request was cancelled": C.CANCELLED,
    "Operation canceled by the user": C.CANCELLED,
    "CanceledError: canceled": C.CANCELLED,
    '<RpcError>\n\tstatus = StatusCode.CANCELLED\n\tdetails = ""': C.CANCELLED,
    '<RpcError>\n\tstatus = StatusCode.UNAVAILABLE\n\tdetails = "no address"': C.SERVICE_UNAVAILABLE,
    "[Errno 100] Network is down": C.NETWORK,
    "peer closed connection without sending complete message body": C.NETWORK,
    # a word that is all there is
    "Cancelled": C.CANCELLED,
    "canceled.": C.CANCELLED,
    "UNAVAILABLE": C.SERVICE_UNAVAILABLE,
    "flagged as a content policy violation": C.POLICY_VIOLATION,
    "planning policy violation: no writes": C.PLANNING_POLICY_VIOLATION,
    "HTTP/1.1 200 OK, then HTTP/1.1 502": C.SERVICE_UNAVAILABLE,
    "the sandbox failed to start": C.SANDBOX_FAILURE,
    "circuit breaker is open": C.CIRCUIT_OPEN,
    # the class that a text begins with
    "TimeoutError: ": C.TIMEOUT,
    "asyncio.exceptions.CancelledError: ": C.CANCELLED,
    "botocore.exceptions.NoCredentialsError: none": C.AUTHENTICATION,
    "Traceback (most recent call last):\n  in f, timeout=3\nConnectionResetError: Connection reset by peer": C.NETWORK,
}


@pytest.mark.parametrize(("text", "category"), TEXTS.items())
def test_a_text_is_classified_by_its_words(text: str, category: C) -> None:
    assert classify(text) is category


PLAIN_TEXTS = [
    "",
    "boom",
    "∞ ☠",
    "line 429",
    "5001 bytes",
    "error in line 429, column 500",
    "processed 500 rows",
    "Error: 500 items could not be saved",
    "returned 429 rows",
    "the query returned 450",
    "took 503.2 seconds",
    "version 4.0.429",
    "flight HAT429 is full",
    "it costs $500",
    "see issue #404",
    "port 50300",
    "10429 records",
    "404 of 500 cases passed",
    "the breaker is timeoutless",
    "unlimited rates",
    "the callback was not called",
    "notfoundry",
    "cancelled orders cannot be changed",
    "the order was cancelled",
    "item unavailable",
    "invalid literal for int() with base 10: 'x'",
    "not enough values to unpack (expected 2, got 1)",
    "KeyError: 'timeout'",
    "TypeError: connect() got an unexpected keyword argument 'rate_limit'",
    "ModuleNotFoundError: No module named 'redis'",
    "Error executing tool rate_limit_report: it failed",
    "Error executing tool fetch: KeyError: 'timeout'",
    "Traceback (most recent call last):\n  File 'x', line 429\n    wait(timeout=3)  # HTTP 503\nIndexError: timed out",
]


@pytest.mark.parametrize("text", PLAIN_TEXTS)
def test_a_number_or_word_in_another_sense_makes_no_category(text: str) -> None:
    assert classify(text) is C.EXECUTION_ERROR


FILES = {
    "ENOENT: no such file or directory, open '/repo/src/timeout.ts'": C.RESOURCE_NOT_FOUND,
    "ENOENT: no such file or directory, open 'C:\\repo\\rate_limit\\main'": C.RESOURCE_NOT_FOUND,
    "File not found: src/rate_limit.py.": C.RESOURCE_NOT_FOUND,
    "File not found: test_timeout.spec.ts, timeouts.mp4": C.RESOURCE_NOT_FOUND,
    "Parent directory does not exist: ~/tests/rate-limit": C.RESOURCE_NOT_FOUND,
    "Permission denied:/etc/timeout.conf": C.PERMISSION_DENIED,
    "FAILED ../tests/test_timeout.py::test_x - assert 1 == 2": C.EXECUTION_ERROR,
    "could not open ./cancelled/connection-error": C.EXECUTION_ERROR,
    "/repo/timeout.ts: timed out": C.TIMEOUT,
    "cannot fetch https://example.com/a.html: connection refused.": C.NETWORK,
    "cannot read /repo/a.py: HTTP 503": C.SERVICE_UNAVAILABLE,
}


@pytest.mark.parametrize(("text", "category"), FILES.items())
def test_the_name_of_a_file_says_what_was_asked_for_and_not_what_failed(text: str, category: C) -> None:
    assert classify(text) is category


@pytest.mark.parametrize(
    "text",
    [
        *("socket.timeout", "httpx.ReadTimeout: ", "it raised java.net.SocketTimeoutException", "i/o timeout"),
        *("net/http: request failed (Client.Timeout exceeded)", "request.timeout=30 timed out", "timeout/cancelled"),
    ],
)
def test_a_name_with_dots_or_slashes_that_is_no_file_is_read(text: str) -> None:
    assert classify(text) is C.TIMEOUT


@pytest.mark.parametrize("text", ["timeout must be positive", "invalid timeout value", "unknown timeout parameter"])
def test_a_timeout_that_is_an_argument_is_no_timeout(text: str) -> None:
    assert classify(text) is C.INVALID_PARAMETERS


@pytest.mark.parametrize("text", ["HTTP 429" + "." * MEGABYTE, "." * MEGABYTE + "HTTP 429"])
def test_a_long_text_is_read_at_its_beginning_and_its_end(text: str) -> None:
    assert classify(text) is C.RATE_LIMIT


def test_the_middle_of_a_long_text_is_not_read() -> None:
    assert classify("." * MEGABYTE + "HTTP 429" + "." * MEGABYTE) is C.EXECUTION_ERROR


@pytest.mark.parametrize("digits", range(1, 12))
def test_a_number_cut_in_two_is_no_status(digits: int) -> None:
    text = "." * (2000 - len("HTTP ") - digits) + "HTTP 4290000000000" + "." * MEGABYTE

    assert classify(text) is C.EXECUTION_ERROR


@pytest.mark.parametrize(
    "piece",
    [
        *("a", "A", "4", ".", " ", "_", "Error", "Error: ", "tool ", "tool a not ", "not ", "rate ", "HTTP ", "Aa1"),
        *("/", "/a", "~/", "a/", "a.", "a.py", "a.py.", "-", "a:\\", "../"),
    ],
)
@pytest.mark.timeout(5)
def test_a_megabyte_of_anything_is_read_in_no_time(piece: str) -> None:
    text = piece * (MEGABYTE // len(piece))

    for _ in range(20):
        classify(text)


@given(st.text())
def test_no_text_makes_it_raise(text: str) -> None:
    assert classify(text) in C


@given(st.integers(100, 999), st.sampled_from(["line {}", "{} bytes", "page {} of 900", "id={}", "v{}", "{}ms", "n{}"]))
def test_no_number_is_a_status_by_itself_among_other_words(number: int, sentence: str) -> None:
    assert classify(sentence.format(number)) is C.EXECUTION_ERROR


# --- Holdfast's own exceptions ---

OWN = [
    (Denied("search"), C.CIRCUIT_OPEN),
    (CircuitOpen("search", retry_after=5.0), C.CIRCUIT_OPEN),
    (RateLimited("search", retry_after=0.5), C.RATE_LIMIT),
    (ConcurrencyFull("search"), C.RESOURCE_EXHAUSTED),
    (LoopDetected("search"), C.POLICY_VIOLATION),
    (BudgetExceeded("search"), C.RESOURCE_EXHAUSTED),
]


@pytest.mark.parametrize(("error", "category"), OWN)
def test_a_local_refusal_is_never_a_failure_of_the_tool(error: Denied, category: C) -> None:
    assert classify(error) is category
    assert not classify(error).trips_breaker


@pytest.mark.parametrize(("error", "category"), OWN)
def test_a_local_refusal_that_comes_back_as_text_is_never_a_failure_of_the_tool(error: Denied, category: C) -> None:
    assert classify(error.for_model()) is category


@pytest.mark.parametrize("tool", ["rate_limit_check", "unauthorized", "content_filter", "x was not called: timeout"])
@pytest.mark.parametrize(("error", "category"), OWN)
def test_the_name_of_the_tool_says_nothing_about_its_refusal(error: Denied, category: C, tool: str) -> None:
    refusal = type(error)(tool, retry_after=error.retry_after)

    assert classify(refusal.for_model()) is category


@pytest.mark.parametrize("reason", ["its last answer was HTTP 503", "it timed out", "somebody said so"])
def test_a_local_refusal_as_text_is_no_failure_whatever_reason_it_gives(reason: str) -> None:
    assert classify(Denied("search", reason).for_model()) is C.CIRCUIT_OPEN


def test_a_tool_that_fails_because_another_tool_was_refused_has_not_failed_itself() -> None:
    error = raised_from(RuntimeError("no weather"), CircuitOpen("weather"))

    assert classify(error) is C.CIRCUIT_OPEN


def test_our_other_errors_bear_their_category() -> None:
    assert classify(ToolTimeout("search", 2.0)) is C.TIMEOUT
    assert classify(ConfigError("attempts = 0")) is C.INVALID_PARAMETERS


def test_a_users_exception_that_names_its_category_is_taken_at_its_word() -> None:
    class Blocked(TimeoutError):
        category = C.POLICY_VIOLATION

    marked = RuntimeError("HTTP 503")
    marked.category = C.SANDBOX_FAILURE  # type: ignore[attr-defined]
    written = RuntimeError("out of order")
    written.category = "network"  # type: ignore[attr-defined]

    assert classify(Blocked("timed out")) is C.POLICY_VIOLATION
    assert classify(marked) is C.SANDBOX_FAILURE
    assert classify(written) is C.NETWORK


@pytest.mark.parametrize("category", ["NETWORK", "weather", "", 5, ["network"], None])
def test_a_category_that_is_none_of_ours_is_not_taken(category: object) -> None:
    error = TimeoutError()
    error.category = category  # type: ignore[attr-defined]

    assert classify(error) is C.TIMEOUT


# --- exceptions of the standard library ---

BUILTINS: list[tuple[BaseException, C]] = [
    (TimeoutError(), C.TIMEOUT),
    (socket.timeout("timed out"), C.TIMEOUT),  # noqa: UP041
    (asyncio.TimeoutError(), C.TIMEOUT),  # noqa: UP041
    (concurrent.futures.TimeoutError(), C.TIMEOUT),
    (subprocess.TimeoutExpired("sleep", 1), C.TIMEOUT),
    (OSError(errno.ETIMEDOUT, "timed out"), C.TIMEOUT),
    (ConnectionError(), C.NETWORK),
    (ConnectionRefusedError(), C.NETWORK),
    (BrokenPipeError(), C.NETWORK),
    (OSError(errno.ECONNRESET, "reset"), C.NETWORK),
    (OSError(errno.EHOSTUNREACH, "no route"), C.NETWORK),
    (OSError(errno.ENETUNREACH, "unreachable"), C.NETWORK),
    (OSError(errno.EPROTOTYPE, "wrong type"), C.NETWORK),
    (socket.gaierror(socket.EAI_NONAME, "unknown"), C.NETWORK),
    (ssl.SSLCertVerificationError("expired"), C.NETWORK),
    (http.client.RemoteDisconnected("closed"), C.NETWORK),
    (http.client.IncompleteRead(b""), C.NETWORK),
    (asyncio.IncompleteReadError(b"", 1), C.NETWORK),
    (urllib.error.URLError(ConnectionRefusedError()), C.NETWORK),
    (urllib.error.URLError("unknown url type"), C.EXECUTION_ERROR),
    (PermissionError(), C.PERMISSION_DENIED),
    (OSError(errno.EACCES, "denied"), C.PERMISSION_DENIED),
    (OSError(errno.EROFS, "read-only"), C.PERMISSION_DENIED),
    (FileNotFoundError(), C.RESOURCE_NOT_FOUND),
    (OSError(errno.ENODEV, "no device"), C.RESOURCE_NOT_FOUND),
    (FileExistsError(), C.INVALID_PARAMETERS),
    (IsADirectoryError(), C.INVALID_PARAMETERS),
    (NotADirectoryError(), C.INVALID_PARAMETERS),
    (OSError(errno.ENAMETOOLONG, "too long"), C.INVALID_PARAMETERS),
    (MemoryError(), C.RESOURCE_EXHAUSTED),
    (OSError(errno.ENOSPC, "full"), C.RESOURCE_EXHAUSTED),
    (OSError(errno.EMFILE, "too many"), C.RESOURCE_EXHAUSTED),
    (OSError(errno.EIO, "input/output"), C.EXECUTION_ERROR),
    (OSError("no number"), C.EXECUTION_ERROR),
    (asyncio.CancelledError(), C.CANCELLED),
    (concurrent.futures.CancelledError(), C.CANCELLED),
    (OSError(errno.ECANCELED, "cancelled"), C.CANCELLED),
    (KeyboardInterrupt(), C.CANCELLED),
    (GeneratorExit(), C.CANCELLED),
    (SystemExit(404), C.CANCELLED),
    (type("GreenletExit", (BaseException,), {"__module__": "greenlet"})(), C.CANCELLED),
    (RuntimeError("boom"), C.EXECUTION_ERROR),
    (Exception(), C.EXECUTION_ERROR),
    (StopIteration(), C.EXECUTION_ERROR),
    (EOFError(), C.EXECUTION_ERROR),
    (subprocess.CalledProcessError(1, "false"), C.EXECUTION_ERROR),
    (json.JSONDecodeError("Expecting value", "", 0), C.EXECUTION_ERROR),
]


@pytest.mark.parametrize(("error", "category"), BUILTINS, ids=lambda value: repr(value)[:40])
def test_an_exception_of_the_standard_library_has_its_category(error: BaseException, category: C) -> None:
    assert classify(error) is category


def test_a_subclass_of_cancelled_is_cancelled() -> None:
    class RunCancelled(asyncio.CancelledError):
        pass

    assert classify(RunCancelled("timed out")) is C.CANCELLED


@pytest.mark.parametrize(
    "error", [type("Canceled", (Exception,), {})(), Exception("Cancelled"), ValueError("canceled")]
)
def test_an_exception_that_says_no_more_than_cancelled_is_neutral(error: Exception) -> None:
    assert classify(error) is C.CANCELLED


def test_the_name_of_a_code_is_enough() -> None:
    error = RuntimeError("try later")
    error.code = "unavailable"  # type: ignore[attr-defined]

    assert classify(error) is C.SERVICE_UNAVAILABLE


BUGS = [
    TypeError("send() missing 1 required positional argument: 'timeout'"),
    AttributeError("'NoneType' object has no attribute 'timeout'"),
    NameError("name 'rate_limit' is not defined"),
    KeyError("timeout"),
    IndexError("HTTP 429"),
    ZeroDivisionError("timed out"),
    AssertionError("status 503"),
    ModuleNotFoundError("No such file"),
    NotImplementedError("permission denied"),
    RecursionError("rate limit"),
    SyntaxError("invalid value"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "not found"),
]


@pytest.mark.parametrize("error", BUGS, ids=lambda error: type(error).__name__)
def test_a_bug_in_the_tool_is_an_execution_error_whatever_its_text_quotes(error: Exception) -> None:
    assert classify(error) is C.EXECUTION_ERROR


@pytest.mark.parametrize("bug", BUGS, ids=lambda error: type(error).__name__)
def test_a_wrapper_that_quotes_a_bug_is_an_execution_error(bug: Exception) -> None:
    error = raised_from(RuntimeError(f"Error executing tool x: {bug}"), bug)

    assert classify(error) is C.EXECUTION_ERROR


def test_a_value_error_is_about_the_arguments_only_if_it_says_so() -> None:
    assert classify(ValueError("boom")) is C.EXECUTION_ERROR
    assert classify(ValueError("invalid parameter: limit must be positive")) is C.INVALID_PARAMETERS
    assert classify(msgspec.ValidationError("Expected `int`, got `str`")) is C.INVALID_PARAMETERS


def test_garbage_that_the_tool_could_not_decode_is_an_execution_error() -> None:
    assert classify(msgspec.DecodeError("Input data was truncated")) is C.EXECUTION_ERROR


# --- what an exception carries ---


class ApiError(Exception):
    """A client's exception with whatever attributes a test gives it."""

    def __init__(self, text: str = "boom", **attributes: object) -> None:
        super().__init__(text)
        vars(self).update(attributes)


@pytest.mark.parametrize("name", ["status_code", "status", "code"])
def test_a_status_is_found_on_the_exception_and_on_its_response(name: str) -> None:
    assert classify(ApiError("boom", **{name: 403})) is C.PERMISSION_DENIED
    assert classify(ApiError("boom", **{name: HTTPStatus.NOT_FOUND})) is C.RESOURCE_NOT_FOUND
    assert classify(ApiError(response=SimpleNamespace(**{name: 429}))) is C.RATE_LIMIT


@pytest.mark.parametrize("status", [0, 200, 302, 600, "429", 4.29, None])
def test_a_status_that_is_no_error_says_nothing(status: object) -> None:
    assert classify(ApiError(status_code=status)) is C.EXECUTION_ERROR


@pytest.mark.parametrize("own", [{"code": 50001}, {"status": -1}, {"status_code": True}, {"code": 0, "status": 0}])
def test_a_number_that_is_no_status_does_not_hide_the_status_of_the_response(own: dict[str, int]) -> None:
    assert classify(ApiError(**own, response=SimpleNamespace(status_code=503))) is C.SERVICE_UNAVAILABLE
    assert classify(ApiError(**own, response={"ResponseMetadata": {"HTTPStatusCode": 429}})) is C.RATE_LIMIT


CODES = [
    ({"code": "insufficient_quota", "status_code": 429}, C.RESOURCE_EXHAUSTED),
    ({"code": "rate_limit_exceeded", "status_code": 429}, C.RATE_LIMIT),
    ({"type": "invalid_request_error", "code": "unheard_of", "status_code": 401}, C.AUTHENTICATION),
    ({"type": "invalid_request_error", "status_code": 404}, C.RESOURCE_NOT_FOUND),
    ({"type": "invalid_request_error"}, C.INVALID_PARAMETERS),
    ({"code": "content_policy_violation", "status_code": 400}, C.POLICY_VIOLATION),
    ({"body": {"type": "error", "error": {"type": "overloaded_error"}}, "status_code": 200}, C.SERVICE_UNAVAILABLE),
    ({"body": {"type": "error", "error": {"type": "rate_limit_error"}}}, C.RATE_LIMIT),
    ({"body": {"code": "permission_denied"}}, C.PERMISSION_DENIED),
    ({"code": "ECONNRESET"}, C.NETWORK),
    ({"code": "e3q8", "type": "", "body": None}, C.EXECUTION_ERROR),
    ({"code": 7, "type": 7, "body": {"error": [], "code": 7}}, C.EXECUTION_ERROR),
]


@pytest.mark.parametrize(("attributes", "category"), CODES)
def test_a_vendors_code_refines_the_status_unless_it_only_says_invalid(attributes: Any, category: C) -> None:
    assert classify(ApiError(**attributes)) is category


def test_a_429_that_says_insufficient_quota_is_resource_exhausted() -> None:
    told = ApiError("429: {'type': 'insufficient_quota'}", status_code=429)
    answered = ApiError(response=SimpleNamespace(status_code=429, _content=b'{"code": "insufficient_quota"}'))
    plain = ApiError(response=SimpleNamespace(status_code=429, text='{"code": "insufficient_quota"}'))
    elsewhere = ApiError("insufficient_quota", status_code=404)

    assert classify(told) is C.RESOURCE_EXHAUSTED
    assert classify(answered) is C.RESOURCE_EXHAUSTED
    assert classify(plain) is C.RESOURCE_EXHAUSTED
    assert classify(elsewhere) is C.RESOURCE_NOT_FOUND


@pytest.mark.parametrize(
    "name",
    ["httpx.ReadError", "requests.exceptions.SSLError", "aiohttp.ClientConnectorError", "botocore.exceptions.SSLError"],
)
def test_a_library_s_exception_is_known_by_its_name_alone(name: str) -> None:
    module, _, kind = name.rpartition(".")

    assert classify(type(kind, (Exception,), {"__module__": module})("no")) is C.NETWORK


@pytest.mark.parametrize(
    ("module", "kind", "category"),
    [
        ("hyx.bulkhead.exceptions", "BulkheadFull", C.RESOURCE_EXHAUSTED),
        ("hyx.circuitbreaker.exceptions", "BreakerFailing", C.CIRCUIT_OPEN),
        ("hyx.timeout.exceptions", "MaxDurationExceeded", C.TIMEOUT),
        ("nopanic.errors", "CircuitOpen", C.CIRCUIT_OPEN),
        ("purgatory.domain.model", "OpenedState", C.CIRCUIT_OPEN),
        ("pybreaker", "CircuitBreakerError", C.CIRCUIT_OPEN),
    ],
)
def test_what_a_guard_of_another_library_raises_is_known(module: str, kind: str, category: C) -> None:
    assert classify(type(kind, (Exception,), {"__module__": module})("no")) is category


def test_the_type_of_an_exception_counts_before_its_status() -> None:
    error = ConnectionResetError()
    error.status_code = 401  # type: ignore[attr-defined]

    assert classify(error) is C.NETWORK


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("RateLimitError", C.RATE_LIMIT),
        ("ServerSelectionTimeoutError", C.TIMEOUT),
        ("ConnectionClosed", C.NETWORK),
        ("AuthenticationError", C.AUTHENTICATION),
        ("UserNotFoundError", C.RESOURCE_NOT_FOUND),
        ("ToolNotFoundError", C.TOOL_NOT_FOUND),
        ("QuotaExceeded", C.RESOURCE_EXHAUSTED),
        ("ValidationError", C.INVALID_PARAMETERS),
        ("ResponseValidationError", C.EXECUTION_ERROR),
        ("SomethingError", C.EXECUTION_ERROR),
    ],
)
def test_the_name_of_an_unknown_type_speaks_and_its_subclasses_inherit_that(name: str, category: C) -> None:
    base = type(name, (LookupError,), {})
    derived = type("Special", (base,), {})

    assert classify(base("boom")) is category
    assert classify(derived("boom")) is category


def test_a_status_counts_before_the_name_of_the_type() -> None:
    class RateLimitError(ApiError):
        pass

    assert classify(RateLimitError(status_code=401)) is C.AUTHENTICATION


# --- chains ---


def raised_from(error: BaseException, cause: BaseException | None) -> BaseException:
    try:
        raise error from cause
    except BaseException as caught:
        return caught


def raised_while_handling(error: BaseException, context: BaseException) -> BaseException:
    try:
        try:
            raise context
        except BaseException:
            raise error  # noqa: B904
    except BaseException as caught:
        return caught


def test_what_an_exception_was_raised_from_decides_before_its_text() -> None:
    error = raised_from(RuntimeError("permission denied"), TimeoutError())

    assert classify(error) is C.TIMEOUT


def test_a_bug_that_was_raised_from_a_failure_is_that_failure() -> None:
    error = raised_from(KeyError("price"), ConnectionResetError())

    assert classify(error) is C.NETWORK


def test_the_outermost_sign_counts() -> None:
    error = raised_from(PermissionError(), raised_from(RuntimeError(), TimeoutError()))

    assert classify(error) is C.PERMISSION_DENIED


def test_the_text_of_a_cause_counts_when_nothing_else_tells() -> None:
    error = raised_from(RuntimeError("search failed"), RuntimeError("HTTP 503"))

    assert classify(error) is C.SERVICE_UNAVAILABLE


def test_an_exception_that_wraps_another_is_as_good_as_raised_from_it() -> None:
    assert classify(RuntimeError(TimeoutError())) is C.TIMEOUT
    assert classify(ApiError(reason=PermissionError())) is C.PERMISSION_DENIED


def test_a_deep_chain_is_followed_only_so_far() -> None:
    near, far = (nested(depth) for depth in (10, 1000))

    assert classify(near) is C.TIMEOUT
    assert classify(far) is C.EXECUTION_ERROR


def nested(depth: int) -> BaseException:
    error: BaseException = TimeoutError()
    for _ in range(depth):
        outer = RuntimeError("boom")
        outer.__cause__ = error
        error = outer
    return error


def test_a_circle_of_causes_ends() -> None:
    first, second = RuntimeError("boom"), RuntimeError("boom")
    first.__cause__, second.__cause__ = second, first

    assert classify(first) is C.EXECUTION_ERROR


@pytest.mark.parametrize(
    ("context", "category"),
    [
        (TimeoutError(), C.TIMEOUT),
        (raised_from(RuntimeError(), ConnectionResetError()), C.NETWORK),
        (ApiError(status=503), C.SERVICE_UNAVAILABLE),
        (ApiError(status=429), C.RATE_LIMIT),
        (FileNotFoundError(), C.EXECUTION_ERROR),
        (KeyError("cached"), C.EXECUTION_ERROR),
        (asyncio.CancelledError(), C.EXECUTION_ERROR),
        (CircuitOpen("other"), C.EXECUTION_ERROR),
        (RuntimeError("HTTP 503"), C.EXECUTION_ERROR),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_an_exception_replaced_explains_a_failure_but_never_excuses_it(context: Exception, category: C) -> None:
    error = raised_while_handling(RuntimeError("no price"), context)

    assert classify(error) is category


def test_what_an_exception_replaced_counts_after_its_text() -> None:
    error = raised_while_handling(RuntimeError("access denied"), TimeoutError())

    assert classify(error) is C.PERMISSION_DENIED


def test_what_an_exception_hides_with_from_none_stays_hidden() -> None:
    error = raised_while_handling(RuntimeError("no price"), TimeoutError())
    error.__suppress_context__ = True

    assert classify(error) is C.EXECUTION_ERROR


def test_a_bug_while_handling_a_failure_is_a_bug() -> None:
    error = raised_while_handling(TypeError("boom"), TimeoutError())

    assert classify(error) is C.EXECUTION_ERROR


# --- groups ---


def test_a_group_whose_leaves_agree_is_of_their_category() -> None:
    inner = ExceptionGroup("inner", [ApiError(status=429)])
    group = ExceptionGroup("timed out", [ApiError(status=429), inner, RuntimeError("rate limit")])

    assert classify(group) is C.RATE_LIMIT


@pytest.mark.parametrize(
    ("leaves", "category"),
    [
        ([TimeoutError(), ValueError("boom"), PermissionError()], C.EXECUTION_ERROR),
        ([PermissionError(), TimeoutError(), asyncio.CancelledError()], C.TIMEOUT),
        ([ApiError(status=429), PermissionError()], C.PERMISSION_DENIED),
        ([asyncio.CancelledError(), ApiError(status=429)], C.RATE_LIMIT),
        ([asyncio.CancelledError(), KeyboardInterrupt()], C.CANCELLED),
    ],
)
def test_a_group_whose_leaves_differ_is_of_the_worst_category(leaves: list[BaseException], category: C) -> None:
    assert classify(BaseExceptionGroup("several", leaves)) is category


def test_a_group_as_a_cause_counts_like_any_cause() -> None:
    error = raised_from(RuntimeError("boom"), ExceptionGroup("one", [TimeoutError()]))

    assert classify(error) is C.TIMEOUT


def test_a_group_that_is_the_cause_of_its_own_leaf_ends() -> None:
    leaf = RuntimeError("boom")
    leaf.__cause__ = ExceptionGroup("circle", [leaf])

    assert classify(leaf) is C.EXECUTION_ERROR


def test_groups_within_causes_within_groups_end() -> None:
    error: Exception = TimeoutError()
    for _ in range(5000):
        outer = RuntimeError("boom")
        outer.__cause__ = ExceptionGroup("one", [error])
        error = outer

    assert classify(error) is C.EXECUTION_ERROR


def test_a_group_of_many_is_judged_by_some() -> None:
    group = ExceptionGroup("many", [ExceptionGroup("inner", [TimeoutError()] * 1000)] * 1000)

    assert classify(group) is C.TIMEOUT


def test_a_group_that_hides_its_leaves_is_an_execution_error() -> None:
    class Hiding(ExceptionGroup[Exception]):
        exceptions = ()

    assert classify(Hiding("hidden", [TimeoutError()])) is C.EXECUTION_ERROR


# --- exceptions that resist being looked at ---


def refuse(*_: object) -> NoReturn:
    raise RuntimeError("do not look")


class Liar:
    """A value that cannot even be asked for its class."""

    __class__ = property(refuse)


class Text(str):
    __slots__ = ()
    __getitem__ = __len__ = strip = lower = refuse


HOSTILE: dict[str, dict[str, Any]] = {
    "text": {"__str__": refuse},
    "text that is none": {"__str__": lambda _: 429},
    "text of its own kind": {"__str__": lambda _: Text("boom" * 2000)},
    "attributes": {"__getattr__": refuse},
    "all attributes": {"__getattribute__": refuse},
    "own attributes": {"__dict__": property(refuse)},
    "properties": {
        name: property(refuse)
        for name in ("category", "status_code", "response", "body", "reason", "args", "__cause__", "__context__")
    },
    "values": {name: Liar() for name in ("category", "status_code", "code", "response", "body", "reason", "type")},
    "response": {"response": property(lambda _: type("R", (), {"__getattr__": refuse})())},
    "representation": {"__repr__": refuse, "__eq__": refuse, "__bool__": refuse, "__hash__": refuse},
}


def kind(traits: dict[str, Any]) -> Any:
    """A kind of classes whose members, too, do as *traits* say."""
    return type("Kind", (type,), traits)


HOSTILE_KINDS = {
    "no hash": kind({"__eq__": lambda cls, other: cls is other, "__hash__": None}),
    "hash": kind({"__hash__": refuse}),
    "module": kind({"__module__": property(refuse)}),
    "name": kind({"__name__": property(refuse)}),
    "all attributes": kind({"__getattribute__": refuse}),
}


@pytest.mark.parametrize("habits", HOSTILE.values(), ids=HOSTILE)
def test_an_exception_that_resists_is_an_execution_error(habits: dict[str, Any]) -> None:
    error = type("Hostile", (Exception,), habits)(Liar())

    assert classify(error) is C.EXECUTION_ERROR


@pytest.mark.parametrize("kind", HOSTILE_KINDS.values(), ids=HOSTILE_KINDS)
def test_an_exception_whose_class_resists_is_still_known_by_the_class_below_and_what_it_carries(kind: Any) -> None:
    plain, late = (kind("Hostile", (base,), {"__module__": "tests"}) for base in (Exception, TimeoutError))
    told = kind("Hostile", (ApiError,), {"__module__": "tests", "status_code": 403})

    assert classify(plain("boom")) is C.EXECUTION_ERROR
    assert classify(late()) is C.TIMEOUT
    assert classify(told()) is C.PERMISSION_DENIED


@pytest.mark.parametrize("habits", HOSTILE.values(), ids=HOSTILE)
def test_an_exception_that_resists_is_still_known_by_its_type(habits: dict[str, Any]) -> None:
    error = type("Hostile", (TimeoutError,), habits)()

    assert classify(error) is C.TIMEOUT


@pytest.mark.parametrize("habits", HOSTILE.values(), ids=HOSTILE)
def test_an_exception_that_resists_does_no_harm_as_a_cause(habits: dict[str, Any]) -> None:
    error = RuntimeError("HTTP 503")
    error.__cause__ = type("Hostile", (Exception,), habits)()

    assert classify(error) is C.SERVICE_UNAVAILABLE


def test_an_interrupt_while_looking_is_not_swallowed() -> None:
    def interrupted(_: object) -> NoReturn:
        raise KeyboardInterrupt

    error = type("Slow", (Exception,), {"response": property(interrupted)})()

    with pytest.raises(KeyboardInterrupt):
        classify(error)
