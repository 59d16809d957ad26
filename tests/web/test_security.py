"""Who is let in, and who is not: names, sites, tokens, paths."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from starlette.responses import Response
from tests.children import no_file_left, until
from tests.web.conftest import LIMIT, TOKEN, Ui, get, next_of, post

from holdfast.web import files
from holdfast.web.security import Gate, host_of, is_local, rules
from holdfast.web.serving import MOST_CONNECTIONS


def raw(ui: Ui, request: bytes) -> bytes:
    """What is answered to exactly these bytes."""
    with socket.create_connection(("127.0.0.1", ui.port), LIMIT) as connection:
        connection.sendall(request)
        answer = b""
        with suppress(ConnectionResetError):  # it does not read to the end what it refuses
            while piece := connection.recv(65536):
                answer += piece
    return answer


def asked(ui: Ui, target: str, *, host: str | None = None, method: str = "GET", extra: str = "") -> int:
    """The status of the answer to a request that no client would send."""
    name = f"127.0.0.1:{ui.port}" if host is None else host
    head = f"{method} {target} HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n"
    answer = raw(ui, f"{head}Authorization: Bearer {TOKEN}\r\n{extra}\r\n".encode("latin-1"))
    return int(answer.split(b" ", 2)[1])


@contextmanager
def as_browser(ui: Ui) -> Iterator[httpx.Client]:
    """A client that has the cookie, as a browser gets it."""
    with httpx.Client(base_url=ui.url, timeout=LIMIT) as client:
        assert client.get("/", params={"token": TOKEN}).status_code == 303
        yield client


@asynccontextmanager
async def behind(gate: Gate) -> AsyncIterator[httpx.AsyncClient]:
    """A client of *gate* alone, whatever it is bound to."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(gate), base_url="http://127.0.0.1:8642") as client:
        yield client


# --- the token ---


def test_without_the_token_nothing_is_told_but_health(ui: Ui) -> None:
    with httpx.Client(base_url=ui.url, timeout=LIMIT) as stranger:
        for path in (
            "/api/tools",
            "/api/runs",
            "/api/stream",
            "/metrics",
            "/openapi.json",
            "/static/app.js",
            "/nothing",
        ):
            answer = stranger.get(path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "token_missing"), path
            assert answer.headers["www-authenticate"] == "Bearer"
        assert stranger.get("/").status_code == 401
        assert "holdfast ui" in stranger.get("/").text
        assert stranger.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": "Bearer"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": "Bearer \xff"},
        {"Cookie": f"holdfast={TOKEN}"},
    ],
)
def test_a_wrong_token_is_refused(calm: Ui, headers: dict[str, str]) -> None:
    encoded = {name: value.encode("latin-1") for name, value in headers.items()}

    answer = get(f"{calm.url}/api/tools", headers=encoded)

    assert answer.status_code == 401


def test_the_token_itself_is_no_cookie(calm: Ui) -> None:
    answer = get(f"{calm.url}/api/tools", headers={"Cookie": f"holdfast_{calm.port}={TOKEN}"})

    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "token_wrong")


def test_the_token_in_the_address_becomes_a_cookie_and_leaves_the_address(calm: Ui) -> None:
    answer = get(f"{calm.url}/?token={TOKEN}")

    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert TOKEN not in cookie
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))


def test_the_cookie_lets_in(calm: Ui) -> None:
    with as_browser(calm) as browser:
        assert browser.get("/api/tools").status_code == 200
        assert browser.get("/").status_code == 200


def test_a_wrong_token_in_the_address_gives_no_cookie(calm: Ui) -> None:
    answer = get(f"{calm.url}/?token=wrong")

    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers


def test_the_token_counts_in_the_address_of_the_page_alone(calm: Ui) -> None:
    assert get(f"{calm.url}/api/tools?token={TOKEN}").status_code == 401


def test_servers_on_two_ports_have_cookies_of_their_own(serve: Callable[..., Ui]) -> None:
    one, two = serve(), serve()

    with as_browser(one) as browser:
        name = next(iter(browser.cookies))
        assert get(f"{two.url}/api/tools", headers={"Cookie": f"{name}={browser.cookies[name]}"}).status_code == 401


async def test_the_cookie_of_an_earlier_start_lets_nobody_in() -> None:
    earlier, later = (Gate(Response("in"), rules("127.0.0.1", 8642, token=token)) for token in ("earlier", "later"))
    async with behind(earlier) as browser, behind(later) as same_browser:
        await browser.get("/?token=earlier")
        same_browser.cookies = browser.cookies

        assert (await browser.get("/")).status_code == 200
        assert (await same_browser.get("/")).status_code == 401


async def test_a_wrong_token_is_refused_although_there_is_a_cookie() -> None:
    async with behind(Gate(Response("in"), rules("127.0.0.1", 8642, token=TOKEN))) as browser:
        await browser.get(f"/?token={TOKEN}")

        assert (await browser.get("/", headers={"Authorization": "Bearer wrong"})).status_code == 401


def test_without_a_token_everybody_on_this_machine_is_let_in(serve: Callable[..., Ui]) -> None:
    ui = serve(token=None)

    assert get(f"{ui.url}/api/tools").status_code == 200
    assert get(f"{ui.url}/?token=old").headers["location"] == "/"


# --- names: DNS rebinding ---


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8642", "127.0.0.1.evil.example", "localhost.example"])
def test_a_foreign_name_that_leads_here_is_refused(calm: Ui, host: str) -> None:
    assert asked(calm, "/api/tools", host=host) == 403
    assert asked(calm, "/healthz", host=host) == 403
    assert asked(calm, "/", host=host) == 403


@pytest.mark.parametrize("host", ["", "a@127.0.0.1", "127.0.0.1:x", "127.0.0.1/", "[::1", "127.0.0.1 evil.example"])
def test_what_is_no_name_is_refused(calm: Ui, host: str) -> None:
    assert asked(calm, "/api/tools", host=host) in {400, 403}


def test_a_request_with_no_name_or_two_is_refused(calm: Ui) -> None:
    bearer = f"Authorization: Bearer {TOKEN}\r\n".encode()
    none = raw(calm, b"GET /api/tools HTTP/1.0\r\n" + bearer + b"\r\n")
    two = raw(calm, b"GET /api/tools HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n" + bearer + b"\r\n")

    assert none.split(b" ", 2)[1] == b"403"
    assert two.split(b" ", 2)[1] == b"400"


def test_the_local_names_are_ours_on_any_port(calm: Ui) -> None:
    for host in ("localhost", "LOCALHOST:9000", "127.0.0.1", "[::1]:80"):
        assert asked(calm, "/api/tools", host=host) == 200, host


def test_a_name_that_was_allowed_is_ours(serve: Callable[..., Ui]) -> None:
    ui = serve(names=["Board.Example"])

    assert asked(ui, "/api/tools", host="board.example:80") == 200


@pytest.mark.parametrize(
    ("bound_to", "host", "status"),
    [
        ("0.0.0.0", "10.1.2.3:8642", 200),
        ("0.0.0.0", "[fe80::1]:8642", 200),
        ("0.0.0.0", "evil.example:8642", 403),
        ("0.0.0.0", "a@10.1.2.3", 403),
        ("127.0.0.1", "10.1.2.3:8642", 403),
    ],
)
async def test_a_server_for_others_answers_to_addresses_but_to_no_foreign_name(
    bound_to: str, host: str, status: int
) -> None:
    async with behind(Gate(Response("in"), rules(bound_to, 8642, token=None))) as client:
        assert (await client.get("/", headers={"Host": host})).status_code == status


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost", "LOCALHOST"])
def test_what_only_this_machine_can_reach_is_local(host: str) -> None:
    assert is_local(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "localhost.example", ""])
def test_what_others_may_reach_is_not_local(host: str) -> None:
    assert not is_local(host)


@pytest.mark.parametrize(
    ("header", "name"),
    [("A:1", "a"), ("[::1]:2", "::1"), ("a/b", None), ("u@a", None), ("a?b", None), ("a#b", None), ("", None)],
)
def test_a_name_is_read_as_browsers_write_it(header: str, name: str | None) -> None:
    assert host_of(header) == name


# --- sites: foreign pages ---


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1"},
        {"Origin": "http://localhost:{port}"},
        {"Origin": "file://127.0.0.1:{port}"},
        {"Origin": "http://127.0.0.1:{port}", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://127.0.0.1:{port}", "Sec-Fetch-Site": "same-site"},
        {"Origin": "http://127.0.0.1:{port}.evil.example"},
        {"Referer": "http://127.0.0.1:{port}/"},
    ],
)
def test_a_foreign_page_that_has_the_cookie_changes_nothing(ui: Ui, headers: dict[str, str]) -> None:
    ui.store.create_run("s", "p", run_id="one")
    with as_browser(ui) as browser:
        sent = {name: value.replace("{port}", str(ui.port)) for name, value in headers.items()}

        answer = browser.post("/api/runs/one/cancel", headers=sent)

    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "origin_not_allowed")
    assert ui.store.snapshot("one").status == "created"


def test_a_foreign_page_changes_nothing_where_no_token_is_asked_for(serve: Callable[..., Ui]) -> None:
    ui = serve(token=None)

    assert post(f"{ui.url}/api/tools/x/open").status_code == 403
    assert post(f"{ui.url}/api/tools/x/open", headers={"Origin": "http://evil.example"}).status_code == 403
    assert post(f"{ui.url}/api/tools/x/open", headers={"Origin": ui.url}).status_code == 200


def test_the_page_itself_changes_things(ui: Ui) -> None:
    with as_browser(ui) as browser:
        headers = {"Origin": ui.url, "Sec-Fetch-Site": "same-origin"}

        assert browser.post("/api/tools/x/open", headers=headers).status_code == 200


def test_the_token_in_a_header_needs_no_origin_but_no_foreign_one_either(ui: Ui) -> None:
    assert ui.client.post("/api/tools/x/open").status_code == 200
    assert ui.client.post("/api/tools/x/open", headers={"Origin": "http://evil.example"}).status_code == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_foreign_page_reads_nothing(calm: Ui, site: str) -> None:
    with as_browser(calm) as browser:
        assert browser.get("/api/tools", headers={"Sec-Fetch-Site": site}).status_code == 403
        assert browser.get("/static/app.js", headers={"Sec-Fetch-Site": site}).status_code == 403
        assert browser.get("/", headers={"Sec-Fetch-Site": site}).status_code == 200  # a link leads here


def test_no_answer_may_be_shared_with_other_sites(calm: Ui) -> None:
    answer = calm.client.options("/api/tools", headers={"Origin": "http://evil.example"})

    assert answer.status_code in {403, 405}
    for path in ("/api/tools", "/", "/static/app.js"):
        found = calm.client.get(path, headers={"Origin": calm.url}).headers
        assert not [name for name in found if name.startswith("access-control-")]


# --- what every answer says ---


@pytest.mark.parametrize("path", ["/", "/static/app.js", "/api/tools", "/nothing", "/healthz", "/openapi.json"])
def test_every_answer_forbids_what_the_page_does_not_need(ui: Ui, path: str) -> None:
    headers = ui.client.get(path).headers

    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "server" not in headers


def test_answers_about_tools_and_runs_are_kept_nowhere(calm: Ui) -> None:
    assert calm.client.get("/api/tools").headers["cache-control"] == "no-store"
    assert get(f"{calm.url}/?token={TOKEN}").headers["cache-control"] == "no-store"


# --- read-only ---


def test_a_server_that_only_reads_refuses_every_change(serve: Callable[..., Ui]) -> None:
    ui = serve(read_only=True)
    ui.store.create_run("s", "p", run_id="one")

    for path in ("/api/tools/x/open", "/api/tools/x/reset", "/api/runs/one/cancel", "/api/runs/cancel?all=true", "/x"):
        answer = ui.client.post(path, headers={"Origin": ui.url})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "read_only"), path

    assert ui.get("/api/runs/one")["run"]["status"] == "created"
    assert ui.get("/api/tools")["tools"] == []


# --- paths ---


@pytest.mark.parametrize(
    "target",
    [
        "/static/../app.py", "/static/..%2fapp.py", "/static/%2e%2e/app.py", "/static/..%5capp.py",
        "/static//etc/passwd", "/static/%2Fetc%2Fpasswd", "/static/app.js%00.html", "/static/app.js/", "/static/.",
        "/static/", "/static", "/static/app.py", "/static/../../../../etc/passwd", "/static/a/../app.js",
        "//static/app.js", "/static/APP.JS", "/%73tatic/app.js", "/API/tools", "/api/tools/", "/api//tools",
        "/./api/tools", "/api/../api/tools", "http://evil.example/api/tools", "/api/runs/x/../../tools",
    ],
)  # fmt: skip
def test_tricks_with_paths_lead_nowhere(calm: Ui, target: str) -> None:
    assert asked(calm, target) in {400, 404}


def test_only_what_is_shipped_is_served(ui: Ui) -> None:
    shipped = [path.relative_to(files.FOLDER) for path in Path(files.FOLDER).rglob("*") if path.is_file()]

    assert shipped
    for name in shipped:
        assert ui.client.get(f"/static/{name}").status_code == 200, name


@pytest.mark.parametrize("target", ["/api/tools/%ff", "/api/runs/%c3%28", "/api/runs/%ed%a0%80"])
def test_a_name_that_is_no_text_is_refused(calm: Ui, target: str) -> None:
    assert asked(calm, target) == 400


def test_a_slash_in_a_name_is_no_other_path(ui: Ui) -> None:
    ui.client.post("/api/tools/x%2Fopen/close")

    assert [each["name"] for each in ui.get("/api/tools")["tools"]] == ["x/open"]


def test_a_method_in_disguise_is_not_believed(ui: Ui) -> None:
    answer = ui.client.get("/api/tools/x/open", headers={"X-HTTP-Method-Override": "POST"})

    assert answer.status_code == 405
    assert ui.get("/api/tools")["tools"] == []


def test_a_request_without_end_is_cut_off(calm: Ui) -> None:
    answer = raw(calm, b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000)

    assert answer.split(b" ", 2)[1] == b"400"


def test_connections_that_ask_for_nothing_keep_nobody_out(calm: Ui) -> None:
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", calm.port), LIMIT))
            for _ in range(MOST_CONNECTIONS + 1)
        ]
        for each in silent:
            each.sendall(b"GET / HTTP/1.1\r\nHost: local")  # and never the rest

        answer = get(f"{calm.url}/healthz")

        with suppress(ConnectionResetError):
            assert silent[0].recv(1) == b""  # the one that has been silent for longest
    assert answer.status_code == 200


def test_where_no_file_is_left_a_client_waits_and_is_tried_once_a_while(
    calm: Ui, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("asyncio.constants.ACCEPT_RETRY_DELAY", 0.1)
    with socket.socket() as client:
        client.settimeout(LIMIT)
        with no_file_left():
            client.connect(("127.0.0.1", calm.port))
            until(lambda: caplog.records, "a try")
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")

        assert client.recv(1000).startswith(b"HTTP/1.1 200")
    assert 1 <= caplog.text.count("out of system resource") < 10


def test_a_stream_is_not_let_go_for_connections_that_ask_for_nothing(ui: Ui) -> None:
    with ui.stream() as found, ExitStack() as stack:
        assert next(found).event == "hello"
        for _ in range(MOST_CONNECTIONS):
            stack.enter_context(socket.create_connection(("127.0.0.1", ui.port), LIMIT))
        assert get(f"{ui.url}/healthz").status_code == 200

        ui.store.create_run("s", "p", run_id="seen")

        assert next_of(found, "runs").data["runs"][0]["id"] == "seen"
