"""`holdfast ui` as it is started: what it prints, what it refuses, and how it ends."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from tests.children import until
from tests.web.conftest import LIMIT, get, messages, next_of, post

import holdfast

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(path: Path) -> Iterator[Start]:
    """Starts `holdfast ui` on the store at *path*, on any port."""
    started = []

    def begin(*words: str, **environment: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "holdfast", "ui", "--port", "0", "--no-open", "--store", str(path), *words]
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )
        started.append(child)
        return child

    yield begin

    for child in started:
        child.kill()
        child.communicate()


def address(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast", "ui", "--no-open", *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT, env={**os.environ, **environment}, check=False
    )


def test_the_address_that_is_printed_lets_in(start: Start) -> None:
    url = httpx.URL(address(start()))

    with httpx.Client(follow_redirects=True, timeout=LIMIT) as browser:
        page = browser.get(url)

        assert page.status_code == 200
        assert page.url == url.copy_with(query=None)
        assert browser.get(url.join("/api/tools")).json()["tools"] == []
    assert get(url.join("/api/tools")).status_code == 401


def test_a_browser_that_is_opened_gets_no_token_but_a_word_that_lets_in_once(path: Path, tmp_path: Path) -> None:
    told = tmp_path / "told"  # the command line of the browser, which everybody on the machine can see
    told.touch()
    reader, terminal = pty.openpty()
    command = [sys.executable, "-m", "holdfast", "ui", "--port", "0", "--store", str(path)]
    opens = {"DISPLAY": ":0", "BROWSER": f"sh -c 'echo %s > {told}'"}

    with subprocess.Popen(command, stdout=terminal, stderr=subprocess.DEVNULL, env={**os.environ, **opens}) as child:
        try:
            until(told.read_text, "the browser")
            url = httpx.URL(told.read_text().strip())
            printed = httpx.URL(os.read(reader, 1000).decode().split()[0])
            first, second = get(url), get(url)
        finally:
            child.kill()
            os.close(reader)
            os.close(terminal)

    assert (url.host, url.port) == (printed.host, printed.port)
    assert url.params["token"] != printed.params["token"]
    assert (first.status_code, second.status_code) == (303, 401)
    assert first.cookies
    assert not second.cookies


def test_programs_get_address_and_token_apart_as_json(start: Start, path: Path) -> None:
    told = json.loads(address(start("--json", "--read-only")))

    answer = get(httpx.URL(told["url"]).join("/api/tools"), headers={"Authorization": f"Bearer {told['token']}"})

    assert answer.status_code == 200
    assert {**told, "url": "", "token": ""} == {"url": "", "token": "", "store": str(path), "read_only": True}


def test_each_start_has_a_token_of_its_own(start: Start) -> None:
    one, two = (httpx.URL(address(start())).params["token"] for _ in range(2))

    assert one != two
    assert len(one) >= 32


def test_the_environment_sets_the_token(start: Start) -> None:
    url = httpx.URL(address(start(HOLDFAST_TOKEN="sixteen-letters-or-more")))

    answer = get(url.join("/metrics"), headers={"Authorization": "Bearer sixteen-letters-or-more"})

    assert url.params["token"] == "sixteen-letters-or-more"
    assert answer.status_code == 200


def test_without_a_token_the_address_has_none(start: Start) -> None:
    url = httpx.URL(address(start("--no-token")))

    assert "token" not in url.params
    assert get(url.join("/api/tools")).status_code == 200


def test_the_command_that_resumes_names_the_store_that_the_server_was_given(start: Start, path: Path) -> None:
    entry = {"target": "agent:main", "args": []}
    with holdfast.open(path, policies={}) as hf, pytest.raises(LookupError), hf.run(run_id="one", entry=entry):
        raise LookupError("oh")

    url = httpx.URL(address(start("--no-token")))

    assert get(url.join("/api/runs/one")).json()["resume"] == f"holdfast runs resume one --store {path}"


def test_a_server_that_only_reads_says_so(start: Start) -> None:
    url = httpx.URL(address(start("--read-only", "--no-token")))

    answer = post(url.join("/api/tools/x/open"), headers={"Origin": str(url).rstrip("/")})

    assert answer.json()["error"]["code"] == "read_only"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0), (signal.SIGHUP, 130)])
def test_a_signal_ends_it_and_its_streams(start: Start, number: signal.Signals, code: int) -> None:
    child = start(HOLDFAST_TOKEN="sixteen-letters-or-more")
    url = httpx.URL(address(child))
    headers = {"Authorization": "Bearer sixteen-letters-or-more"}

    with httpx.stream("GET", url.join("/api/stream"), headers=headers, timeout=LIMIT) as answer:
        found = messages(answer.iter_lines())
        next_of(found, "hello")
        child.send_signal(number)

        assert list(found) == []
    _, errors = child.communicate(timeout=LIMIT)
    assert child.returncode == code
    assert "Traceback" not in errors


def test_a_port_that_is_taken_is_said(path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        done = run("--port", str(port), "--store", str(path))

    assert done.returncode == 1
    assert f"port {port} on 127.0.0.1 cannot be used" in done.stderr
    assert "choose another" in done.stderr


def test_others_may_not_ask_without_a_token(path: Path) -> None:
    done = run("--no-token", "--host", "0.0.0.0", "--store", str(path))

    assert done.returncode == 2
    assert "--no-token with --host 0.0.0.0" in done.stderr


@pytest.mark.parametrize("token", ["with a space in it all", "ümläut-ümläut-ümläut"])
def test_a_token_that_cannot_be_sent_is_refused(path: Path, token: str) -> None:
    done = run("--store", str(path), HOLDFAST_TOKEN=token)

    assert done.returncode == 2
    assert "$HOLDFAST_TOKEN must be ASCII" in done.stderr
    assert token not in done.stderr


def test_a_token_that_others_could_guess_is_refused(path: Path) -> None:
    done = run("--host", "0.0.0.0", "--store", str(path), HOLDFAST_TOKEN="secret")

    assert done.returncode == 2
    assert "$HOLDFAST_TOKEN must be at least 16 characters" in done.stderr


def test_on_this_machine_alone_any_token_will_do(start: Start) -> None:
    url = httpx.URL(address(start(HOLDFAST_TOKEN="secret")))

    assert url.params["token"] == "secret"


@pytest.mark.parametrize("library", ["starlette", "uvicorn"])
def test_the_extra_that_is_missing_is_named(path: Path, library: str) -> None:
    code = f"import sys; sys.modules[{library!r}] = None; from holdfast.cli import main; sys.exit(main(sys.argv[1:]))"

    done = subprocess.run(
        [sys.executable, "-c", code, "ui", "--store", str(path)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )

    assert done.returncode == 2
    assert "pip install 'holdfast[server]'" in done.stderr
