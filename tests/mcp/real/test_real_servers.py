"""Servers that people use, doing their real work with and without the proxy: files, a graph, git, the time, the web."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests import worlds
from tests.mcp.real.sameness import normal
from tests.mcp.real.through import proxy, surroundings
from tests.mcp.real.wire import Json, Pipe, Talk

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

HELLO: Json = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"roots": {}},
    "clientInfo": {"name": "c", "version": "1"},
}
Calls = list[tuple[str, Json]]


def work(command: list[str], calls: Calls, **env: str) -> list[bytes]:
    """Everything that the server says while it is given the *calls*."""
    with Talk(Pipe(command, env=surroundings(**env)), {"roots/list": lambda _: {"roots": []}}) as talk:
        talk.ask("initialize", HELLO)
        talk.notify("notifications/initialized")
        talk.ask("tools/list")
        for name, arguments in calls:
            talk.call(name, **arguments)
    answers = [frame for frame in talk.frames if frame.sender == "server" and "method" not in frame.message]
    return [normal(frame.raw) for frame in answers]


def results(lines: list[bytes]) -> str:
    return b"\n".join(lines).decode()


def test_files_are_written_and_read_the_same(node: worlds.Node, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    calls: Calls = [
        ("write_file", {"path": str(folder / "a.txt"), "content": "line one\nzweite Zeile 🎣\n"}),
        ("edit_file", {"path": str(folder / "a.txt"), "edits": [{"oldText": "line one", "newText": "line 1"}]}),
        ("read_text_file", {"path": str(folder / "a.txt")}),
        ("list_directory", {"path": str(folder)}),
        ("read_text_file", {"path": str(folder / "missing.txt")}),
        ("read_text_file", {"path": "/etc/hostname"}),
        ("move_file", {"source": str(folder / "a.txt"), "destination": str(folder / "b.txt")}),
    ]
    seen = []

    for between in (list, proxy):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        seen.append(work(between(node.command("server-filesystem", str(folder))), calls))

    assert seen[1] == seen[0]
    assert (folder / "b.txt").read_text() == "line 1\nzweite Zeile 🎣\n"


def test_a_graph_is_remembered_the_same(node: worlds.Node, tmp_path: Path) -> None:
    calls: Calls = [
        (
            "create_entities",
            {"entities": [{"name": n, "entityType": "person", "observations": ["likes ü"]} for n in ("Ada", "Bob")]},
        ),
        ("create_relations", {"relations": [{"from": "Ada", "to": "Bob", "relationType": "knows"}]}),
        ("search_nodes", {"query": "Ada"}),
        ("delete_entities", {"entityNames": ["Bob"]}),
        ("read_graph", {}),
    ]
    seen = []

    for n, between in enumerate((list, proxy)):
        seen.append(work(between(node.command("server-memory")), calls, MEMORY_FILE_PATH=str(tmp_path / f"{n}.jsonl")))

    assert seen[1] == seen[0]
    assert (tmp_path / "1.jsonl").read_bytes() == (tmp_path / "0.jsonl").read_bytes() != b""


def test_a_repository_is_worked_on_the_same(sdk1: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    moment = "1767225600 +0000"
    person = {
        f"GIT_{who}_{what}": value
        for who in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", "A"), ("EMAIL", "a@example.org"), ("DATE", moment))
    }
    calls: Calls = [
        ("git_status", {"repo_path": str(repository)}),
        ("git_diff_unstaged", {"repo_path": str(repository)}),
        ("git_add", {"repo_path": str(repository), "files": ["a.txt"]}),
        ("git_commit", {"repo_path": str(repository), "message": "change: ü"}),
        ("git_log", {"repo_path": str(repository), "max_count": 5}),
        ("git_show", {"repo_path": str(repository), "revision": "no-such-revision"}),
        ("git_status", {"repo_path": str(tmp_path)}),
    ]
    seen = []

    for between in (list, proxy):
        shutil.rmtree(repository, ignore_errors=True)
        for arguments in (
            ["init", "-q", "-b", "main", str(repository)],
            ["-C", str(repository), "commit", "-q", "--allow-empty", "-m", "first"],
        ):
            subprocess.run(["git", *arguments], check=True, env=surroundings(**person))
        (repository / "a.txt").write_text("new\n")
        seen.append(
            work(between([str(sdk1), "-m", "mcp_server_git", "--repository", str(repository)]), calls, **person)
        )

    assert seen[1] == seen[0]
    assert "change: ü" in results(seen[1])


def test_the_time_is_told_the_same(sdk1: Path) -> None:
    zones: Json = {"source_timezone": "Europe/Berlin", "target_timezone": "Asia/Kolkata"}
    calls: Calls = [
        ("convert_time", {**zones, "time": "12:30"}),
        ("convert_time", {**zones, "time": "25:99"}),
        ("get_current_time", {"timezone": "No/Where"}),
    ]
    command = [str(sdk1), "-m", "mcp_server_time", "--local-timezone", "UTC"]

    direct, proxied = work(command, calls), work(proxy(command), calls)

    assert proxied == direct
    assert "T12:30:00+0" in results(proxied)


@pytest.fixture
def site() -> Iterator[str]:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = {
                "/": b"<html><body><h1>Hello</h1><p>from the loopback</p></body></html>",
                "/robots.txt": b"User-agent: *\nDisallow: /private\n",
            }.get(self.path)
            self.send_response(200 if body else 404)
            self.send_header("Content-Type", "text/plain" if self.path == "/robots.txt" else "text/html")
            self.end_headers()
            self.wfile.write(body or b"nothing here")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_page_is_fetched_the_same(sdk1: Path, site: str) -> None:
    calls: Calls = [
        ("fetch", {"url": f"{site}/"}),
        ("fetch", {"url": f"{site}/missing"}),
        ("fetch", {"url": f"{site}/private"}),
        ("fetch", {"url": "no address"}),
    ]
    command = [str(sdk1), "-m", "mcp_server_fetch", "--allow-private-ips"]
    # Where its reader of pages finds a Node it installs packages from npm while the client waits.
    env = {"NO_PROXY": "127.0.0.1", "PATH": str(sdk1.parent)}

    direct, proxied = work(command, calls, **env), work(proxy(command), calls, **env)

    assert proxied == direct
    assert "from the loopback" in results(proxied)
