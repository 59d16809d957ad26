"""The exceptions of real clients, raised by real answers and real silence on the loopback interface.

Every case is one of the spec's libraries: httpx, requests (and urllib3), aiohttp, openai, anthropic, botocore, mcp.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import pytest

from holdfast.category import ErrorCategory, classify, retry_after

aiohttp = pytest.importorskip("aiohttp")
anthropic = pytest.importorskip("anthropic")
botocore_session = pytest.importorskip("botocore.session")
botocore_exceptions = pytest.importorskip("botocore.exceptions")
botocore_config = pytest.importorskip("botocore.config")
httpx = pytest.importorskip("httpx")
openai = pytest.importorskip("openai")
pydantic = pytest.importorskip("pydantic")
requests = pytest.importorskip("requests")
urllib3 = pytest.importorskip("urllib3")

C = ErrorCategory
PATIENCE = 30.0  # seconds that a client waits for an answer that will come
SHORT = 0.05  # and for one that will not

STATUSES = {
    400: C.INVALID_PARAMETERS,
    401: C.AUTHENTICATION,
    403: C.PERMISSION_DENIED,
    404: C.RESOURCE_NOT_FOUND,
    408: C.TIMEOUT,
    422: C.INVALID_PARAMETERS,
    429: C.RATE_LIMIT,
    500: C.SERVICE_UNAVAILABLE,
    503: C.SERVICE_UNAVAILABLE,
    504: C.TIMEOUT,
}


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")


# --- the other side ---


class Answer(NamedTuple):
    """What the server says to every request; it may keep the body back, or promise more of it than there is."""

    status: int = 200
    body: bytes = b"{}"
    headers: tuple[tuple[str, str], ...] = (("Content-Type", "application/json"),)
    kept_back: bool = False
    missing: int = 0
    date: str = ""


class Server:
    """A server on the loopback interface that gives the answer it was told to give."""

    def __init__(self) -> None:
        self.answer = Answer()
        self.closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer = server.answer
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.send_response(answer.status)
                length = str(len(answer.body) + answer.missing)
                for name, value in (*answer.headers, ("Content-Length", length), ("Connection", "close")):
                    self.send_header(name, value)
                self.end_headers()
                if answer.kept_back:
                    server.closing.wait()
                with contextlib.suppress(ConnectionError):
                    self.wfile.write(answer.body)

            do_POST = do_GET  # noqa: N815

            def date_time_string(self, timestamp: float | None = None) -> str:
                return server.answer.date or super().date_time_string(timestamp)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def nobody() -> Iterator[str]:
    """The address of a port on which nobody listens, nor can."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def silence() -> Iterator[str]:
    """The address of a server that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        yield f"http://127.0.0.1:{silent.getsockname()[1]}"


@pytest.fixture
def hanging_up() -> Iterator[str]:
    """The address of a server that closes every connection without a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=hang_up, args=(listener,))
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def hang_up(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the listener was shut down
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)


# --- the clients: each asks *url* once and raises its own exception for whatever goes wrong ---


def with_httpx(url: str, wait: float = PATIENCE) -> None:
    httpx.get(url, timeout=wait).raise_for_status()


def with_httpx_async(url: str, wait: float = PATIENCE) -> None:
    async def ask() -> None:
        async with httpx.AsyncClient(timeout=wait) as client:
            (await client.get(url)).raise_for_status()

    asyncio.run(ask())


def with_requests(url: str, wait: float = PATIENCE) -> None:
    with requests.get(url, timeout=wait) as response:
        response.raise_for_status()


def with_aiohttp(url: str, wait: float = PATIENCE) -> None:
    async def ask() -> None:
        timeout = aiohttp.ClientTimeout(sock_read=wait)
        async with (
            aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as session,
            session.get(url) as response,
        ):
            await response.read()

    asyncio.run(ask())


def with_openai(url: str, wait: float = PATIENCE) -> None:
    with openai.OpenAI(api_key="key", base_url=url, max_retries=0, timeout=wait) as client:
        client.models.retrieve("model")


def with_anthropic(url: str, wait: float = PATIENCE) -> None:
    with anthropic.Anthropic(api_key="key", base_url=url, max_retries=0, timeout=wait) as client:
        client.models.retrieve("model")


@functools.cache
def aws() -> Any:
    session = botocore_session.Session()  # reads its many models once
    session.set_credentials("id", "secret")
    return session


def with_botocore(url: str, wait: float = PATIENCE, **arguments: object) -> None:
    config = botocore_config.Config(retries={"total_max_attempts": 1}, read_timeout=wait)
    client = aws().create_client("dynamodb", region_name="eu-west-1", endpoint_url=url, config=config)
    with contextlib.closing(client):
        client.describe_table(**(arguments or {"TableName": "users"}))


def with_urllib(url: str, wait: float = PATIENCE) -> None:
    urllib.request.urlopen(url, timeout=wait).close()


Ask = Callable[..., object]
CLIENTS: list[Ask] = [with_httpx, with_httpx_async, with_requests, with_aiohttp, with_openai, with_anthropic]
CLIENTS += [with_botocore, with_urllib]

each_client = pytest.mark.parametrize("ask", CLIENTS, ids=lambda ask: ask.__name__.removeprefix("with_"))


def raised_by(ask: Ask, *args: object) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        ask(*args)
    if isinstance(caught.value, urllib.error.HTTPError):
        caught.value.close()
    return caught.value


# --- what every client must tell ---


@each_client
@pytest.mark.parametrize(("status", "category"), STATUSES.items())
def test_a_status_has_its_category_through_every_client(server: Server, ask: Ask, status: int, category: C) -> None:
    server.answer = Answer(status)

    error = raised_by(ask, server.url)

    assert classify(error) is category


@each_client
def test_a_tool_that_wraps_its_clients_error_fails_as_the_client_did(server: Server, ask: Ask) -> None:
    server.answer = Answer(503)

    with pytest.raises(RuntimeError) as caught:
        raise RuntimeError("the weather is unknown") from raised_by(ask, server.url)

    assert classify(caught.value) is C.SERVICE_UNAVAILABLE


@each_client
def test_retry_after_is_read_through_every_client(server: Server, ask: Ask) -> None:
    server.answer = Answer(429, headers=(("Retry-After", "7"),))

    error = raised_by(ask, server.url)

    assert retry_after(error) == 7.0


@each_client
def test_a_date_to_retry_after_is_compared_with_the_servers_own_date(server: Server, ask: Ask) -> None:
    until = ("Retry-After", "Fri, 01 Jan 2100 00:01:30 GMT")
    server.answer = Answer(503, headers=(until,), date="Fri, 01 Jan 2100 00:00:00 GMT")

    error = raised_by(ask, server.url)

    assert retry_after(error) == 90.0


@each_client
def test_a_refused_connection_is_a_network_failure(nobody: str, ask: Ask) -> None:
    error = raised_by(ask, nobody)

    assert classify(error) is C.NETWORK


@each_client
def test_a_server_that_hangs_up_is_a_network_failure(hanging_up: str, ask: Ask) -> None:
    error = raised_by(ask, hanging_up)

    assert classify(error) is C.NETWORK


@each_client
def test_a_server_that_does_not_answer_is_a_timeout(silence: str, ask: Ask) -> None:
    error = raised_by(ask, silence, SHORT)

    assert classify(error) is C.TIMEOUT


@each_client
def test_classifying_a_clients_error_warns_nobody(server: Server, ask: Ask, recwarn: pytest.WarningsRecorder) -> None:
    server.answer = Answer(400)
    error = raised_by(ask, server.url)
    recwarn.clear()

    classify(error)

    assert not recwarn.list


QUOTA = json.dumps({"error": {"message": "No credit", "type": "insufficient_quota", "code": "insufficient_quota"}})


@pytest.mark.parametrize("ask", [with_openai, with_httpx, with_httpx_async, with_requests])
def test_a_429_without_quota_is_resource_exhausted(server: Server, ask: Ask) -> None:
    server.answer = Answer(429, QUOTA.encode())

    error = raised_by(ask, server.url)

    assert classify(error) is C.RESOURCE_EXHAUSTED


# --- what only some can tell ---


def test_a_body_that_nobody_has_read_is_not_read_to_classify(server: Server) -> None:
    server.answer = Answer(429, b"never", kept_back=True)

    with requests.get(server.url, timeout=PATIENCE, stream=True) as response:
        with pytest.raises(requests.HTTPError) as caught:
            response.raise_for_status()

        assert classify(caught.value) is C.RATE_LIMIT
        assert response.raw.tell() == 0


def test_an_answer_that_breaks_off_is_a_network_failure(server: Server) -> None:
    server.answer = Answer(200, b"short", missing=5)

    errors = [raised_by(ask, server.url) for ask in (with_httpx, with_requests, with_aiohttp)]

    assert [classify(error) for error in errors] == [C.NETWORK] * 3


def test_what_urllib3_gave_up_after_retries_is_the_last_failure(server: Server, nobody: str) -> None:
    server.answer = Answer(503)
    retries = urllib3.Retry(total=1, backoff_factor=0, status_forcelist=[503])

    with urllib3.PoolManager(retries=retries) as pool:
        unavailable = raised_by(lambda url: pool.request("GET", url), server.url)
        refused = raised_by(lambda url: pool.request("GET", url), nobody)

    assert classify(unavailable) is C.SERVICE_UNAVAILABLE
    assert classify(refused) is C.NETWORK


def test_what_requests_gave_up_after_retries_is_the_last_failure(server: Server) -> None:
    server.answer = Answer(503)

    with requests.Session() as session:
        retries = urllib3.Retry(total=1, backoff_factor=0, status_forcelist=[503])
        session.mount("http://", requests.adapters.HTTPAdapter(max_retries=retries))
        error = raised_by(session.get, server.url)

    assert type(error) is requests.exceptions.RetryError
    assert classify(error) is C.SERVICE_UNAVAILABLE


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/", "127.0.0.1/", "http://[::1/"])
@pytest.mark.parametrize("ask", [with_httpx, with_requests, with_aiohttp])
def test_an_address_that_is_none_is_a_wrong_argument(ask: Ask, url: str) -> None:
    error = raised_by(ask, url)

    assert classify(error) is C.INVALID_PARAMETERS


def test_json_that_is_none_is_an_execution_error(server: Server) -> None:
    server.answer = Answer(200, b"<html>")

    error = raised_by(lambda url: requests.get(url, timeout=PATIENCE).json(), server.url)

    assert classify(error) is C.EXECUTION_ERROR


def test_a_failure_in_the_middle_of_a_stream_of_anthropic_has_its_category(server: Server) -> None:
    event = {"type": "error", "error": {"type": "overloaded_error", "message": "Come back"}}
    server.answer = events(f"event: error\ndata: {json.dumps(event)}\n\n")

    def stream(url: str) -> None:
        with anthropic.Anthropic(api_key="key", base_url=url, max_retries=0) as client:
            list(client.messages.create(model="m", max_tokens=1, messages=[], stream=True))

    assert classify(raised_by(stream, server.url)) is C.SERVICE_UNAVAILABLE


def test_a_failure_in_the_middle_of_a_stream_of_openai_has_its_category(server: Server) -> None:
    event = {"error": {"type": "requests", "code": "rate_limit_exceeded", "message": "Come back"}}
    server.answer = events(f"data: {json.dumps(event)}\n\n")

    def stream(url: str) -> None:
        with openai.OpenAI(api_key="key", base_url=url, max_retries=0) as client:
            list(client.chat.completions.create(model="m", messages=[], stream=True))

    assert classify(raised_by(stream, server.url)) is C.RATE_LIMIT


def events(text: str) -> Answer:
    return Answer(200, text.encode(), headers=(("Content-Type", "text/event-stream"),))


@pytest.mark.parametrize("make", [openai.OpenAI, openai.AsyncOpenAI])
def test_a_client_without_a_key_is_not_signed_in(monkeypatch: pytest.MonkeyPatch, make: Callable[[], object]) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    assert classify(raised_by(make)) is C.AUTHENTICATION


AWS = [
    (400, "ThrottlingException", C.RATE_LIMIT),
    (400, "Throttling", C.RATE_LIMIT),
    (400, "ProvisionedThroughputExceededException", C.RATE_LIMIT),
    (400, "RequestLimitExceeded", C.RATE_LIMIT),
    (400, "LimitExceededException", C.RATE_LIMIT),
    (400, "EC2ThrottledException", C.RATE_LIMIT),
    (429, "TooManyRequestsException", C.RATE_LIMIT),
    (503, "SlowDown", C.RATE_LIMIT),
    (400, "ServiceQuotaExceededException", C.RESOURCE_EXHAUSTED),
    (400, "ExpiredTokenException", C.AUTHENTICATION),
    (403, "ExpiredToken", C.AUTHENTICATION),
    (400, "UnrecognizedClientException", C.AUTHENTICATION),
    (403, "InvalidClientTokenId", C.AUTHENTICATION),
    (403, "SignatureDoesNotMatch", C.AUTHENTICATION),
    (400, "AccessDeniedException", C.PERMISSION_DENIED),
    (403, "AccessDenied", C.PERMISSION_DENIED),
    (403, "UnauthorizedOperation", C.PERMISSION_DENIED),
    (400, "ResourceNotFoundException", C.RESOURCE_NOT_FOUND),
    (404, "NoSuchKey", C.RESOURCE_NOT_FOUND),
    (400, "ValidationException", C.INVALID_PARAMETERS),
    (400, "ConditionalCheckFailedException", C.INVALID_PARAMETERS),
    (400, "RequestTimeout", C.TIMEOUT),
    (503, "ServiceUnavailable", C.SERVICE_UNAVAILABLE),
    (500, "InternalServerError", C.SERVICE_UNAVAILABLE),
]


@pytest.mark.parametrize(("status", "code", "category"), AWS)
def test_a_code_of_aws_says_more_than_its_status(server: Server, status: int, code: str, category: C) -> None:
    server.answer = Answer(status, json.dumps({"__type": f"x#{code}", "message": "no"}).encode())

    error = raised_by(with_botocore, server.url)

    assert error.response["Error"]["Code"] == code  # type: ignore[attr-defined]
    assert classify(error) is category


def test_arguments_that_botocore_does_not_take_are_wrong_arguments() -> None:
    error = raised_by(lambda url: with_botocore(url, Table="users"), "http://127.0.0.1:9")

    assert classify(error) is C.INVALID_PARAMETERS


BOTOCORE = [
    (botocore_exceptions.NoCredentialsError(), C.AUTHENTICATION),
    (botocore_exceptions.PartialCredentialsError(provider="env", cred_var="key"), C.AUTHENTICATION),
    (botocore_exceptions.ProfileNotFound(profile="work"), C.AUTHENTICATION),
    (botocore_exceptions.TokenRetrievalError(provider="sso", error_msg="no"), C.AUTHENTICATION),
    (botocore_exceptions.UnauthorizedSSOTokenError(), C.AUTHENTICATION),
    (botocore_exceptions.NoRegionError(), C.EXECUTION_ERROR),
    (botocore_exceptions.ResponseStreamingError(error="broken"), C.NETWORK),
    (botocore_exceptions.IncompleteReadError(actual_bytes=1, expected_bytes=2), C.NETWORK),
]


@pytest.mark.parametrize(("error", "category"), BOTOCORE, ids=lambda value: type(value).__name__)
def test_what_botocore_raises_by_itself_has_its_category(error: Exception, category: C) -> None:
    assert classify(error) is category


def test_arguments_that_pydantic_does_not_take_are_wrong_arguments() -> None:
    model = pydantic.create_model("Arguments", limit=int)

    error = raised_by(lambda text: model(limit=text), "timed out")

    assert classify(error) is C.INVALID_PARAMETERS


# --- the MCP SDKs ---

RPC = [
    (-32700, "Parse error", C.INVALID_PARAMETERS),
    (-32600, "Invalid request", C.INVALID_PARAMETERS),
    (-32600, "Session terminated", C.NETWORK),
    (32600, "Session terminated", C.NETWORK),  # the first major sends it without the sign
    (-32601, "Method not found", C.TOOL_NOT_FOUND),
    (-32601, "timed out", C.TOOL_NOT_FOUND),
    (-32602, "Invalid params: 'timeout' timed out", C.INVALID_PARAMETERS),
    (-32602, "Unknown tool: serach", C.TOOL_NOT_FOUND),
    (-32602, "Resource file:///x not found", C.RESOURCE_NOT_FOUND),
    (-32602, "Unknown resource: file:///x", C.RESOURCE_NOT_FOUND),
    (-32602, "Unknown prompt: review", C.RESOURCE_NOT_FOUND),
    (0, "Unknown resource: file:///x", C.RESOURCE_NOT_FOUND),  # the first major has no code for it
    (-32603, "Internal error", C.EXECUTION_ERROR),
    (-32603, "Internal server error", C.EXECUTION_ERROR),
    (-32603, "upstream said 429 Too Many Requests", C.RATE_LIMIT),
    (-32000, "Connection closed", C.NETWORK),
    (-32000, "boom", C.EXECUTION_ERROR),
    (-32001, "Request 'tools/call' timed out", C.TIMEOUT),
    (-32001, "too slow", C.TIMEOUT),
    (-32001, "Unauthorized", C.AUTHENTICATION),
    (-32002, "no resource", C.RESOURCE_NOT_FOUND),
    (-32022, "Unsupported protocol version", C.INVALID_PARAMETERS),
    (-32042, "URL elicitation required", C.AUTHENTICATION),
    (408, "Timed out while waiting for response. Waited 5.0 seconds.", C.TIMEOUT),
    (429, "no", C.RATE_LIMIT),
    (0, "Request cancelled", C.CANCELLED),
    (0, "boom", C.EXECUTION_ERROR),
]


@pytest.fixture(scope="module")
def mcp_error() -> Callable[[int, str], Exception]:
    """How the installed major of the MCP SDK makes its exception."""
    exceptions: Any = pytest.importorskip("mcp.shared.exceptions", reason="the MCP SDK is not installed")
    if hasattr(exceptions, "MCPError"):
        return exceptions.MCPError  # type: ignore[no-any-return]
    from mcp.types import ErrorData

    return lambda code, message: exceptions.McpError(ErrorData(code=code, message=message))


@pytest.mark.parametrize(("code", "message", "category"), RPC)
def test_an_error_of_an_mcp_server_has_its_category(
    mcp_error: Callable[[int, str], Exception], code: int, message: str, category: C
) -> None:
    assert classify(mcp_error(code, message)) is category


def test_an_mcp_error_that_lost_its_data_is_an_execution_error(mcp_error: Callable[[int, str], Exception]) -> None:
    error = mcp_error(-32601, "boom")
    error.error = None  # type: ignore[attr-defined]

    assert classify(error) is C.EXECUTION_ERROR


def test_a_broken_stream_to_an_mcp_server_is_a_network_failure() -> None:
    anyio = pytest.importorskip("anyio")

    assert classify(anyio.ClosedResourceError()) is C.NETWORK
    assert classify(anyio.BrokenResourceError()) is C.NETWORK
