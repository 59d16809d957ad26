"""Streamable HTTP by hand: a link for `tests.mcp.real.wire.Talk`, and the servers and relays at its other end.

Each POST is a stream of its own, the standing GET another; every frame keeps the name of the stream that carried it,
and each stream begins with the status it had.
"""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from tests.mcp.real.through import HOLDFAST, surroundings
from tests.servers.finding import free_port

PATIENCE = 30.0
ACCEPT = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
STATELESS = "io.modelcontextprotocol/protocolVersion"


class Web:
    """A session at *url*: every line is a POST, and the standing stream is open before the handshake ends."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client = httpx.Client(timeout=PATIENCE, trust_env=False, limits=httpx.Limits(max_connections=200))
        self._headers: dict[str, str] = dict(ACCEPT)
        self._threads: list[threading.Thread] = []
        self._failed: list[str] = []
        self._open: dict[Any, httpx.Response] = {}
        self._take: Callable[[bytes, str], None]

    def open(self, take: Callable[[bytes, str], None]) -> None:
        self._take = take

    def send(self, line: bytes) -> None:
        message = json.loads(line)
        if message.get("method") == "initialize":
            self._post(line, message)
            self._headers["MCP-Protocol-Version"] = message["params"]["protocolVersion"]
            self._listen()
        elif message.get("method") == "notifications/cancelled" and STATELESS in _meta(message):
            hang_up(self._open[message["params"]["requestId"]])  # so this version says it over HTTP
        elif "id" in message and "method" in message:
            self._start(self._post, line, message)
        else:
            self._post(line, message)

    def ended(self) -> bool:
        return bool(self._failed)

    def tail(self) -> str:
        return "\n".join(self._failed)

    def close(self) -> int:
        """End the session as a client does; returns the status. Its streams must end with it."""
        status = 0
        if "Mcp-Session-Id" in self._headers:
            status = self._client.delete(self._url, headers=self._headers).status_code
        for thread in self._threads:
            thread.join(PATIENCE)
        self._client.close()
        assert not self._failed, self.tail()
        return status

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _post(self, line: bytes, message: dict[str, Any]) -> None:
        stream = f"POST {message.get('method', 'answer')} {message.get('id')}"
        meta = _meta(message)
        headers = dict(self._headers)
        if STATELESS in meta:
            headers |= {"MCP-Protocol-Version": meta[STATELESS], "Mcp-Method": message["method"]}
            headers |= {"Mcp-Name": name} if (name := _name(message)) else {}
        try:
            with self._client.stream("POST", self._url, content=line, headers=headers) as response:
                if "mcp-session-id" in response.headers:
                    self._headers["Mcp-Session-Id"] = response.headers["mcp-session-id"]
                self._open[message.get("id")] = response
                self._read(response, stream)
        except httpx.HTTPError as error:
            if not isinstance(error, httpx.RemoteProtocolError):  # that is our own hanging up
                self._failed.append(f"{stream}: {error!r}")

    def _listen(self) -> None:
        opened = threading.Event()

        def listen() -> None:
            try:
                with self._client.stream("GET", self._url, headers=self._headers, timeout=None) as response:
                    opened.set()
                    self._read(response, "GET")
            except httpx.HTTPError:
                return  # the session has ended under it
            finally:
                opened.set()

        self._start(listen)
        assert opened.wait(PATIENCE)

    def _read(self, response: httpx.Response, stream: str) -> None:
        kind = response.headers.get("content-type", "").split(";")[0]
        self._take(f"{response.status_code} {kind}".encode(), stream)
        if kind == "text/event-stream":
            for _, data in events(response):
                if data:
                    self._take(data, stream)
        elif body := response.read():
            self._take(body, stream)


def events(response: httpx.Response) -> Iterator[tuple[str, bytes]]:
    """The events of a stream: id and data. httpx's own lines also end at U+2028, which JSON may hold."""
    rest, id, data = b"", "", list[bytes]()
    for chunk in response.iter_raw():
        *lines, rest = (rest + chunk).replace(b"\r\n", b"\n").split(b"\n")
        for line in lines:
            if line.startswith(b"id:"):
                id = line[3:].strip().decode()
            elif line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif not line and (data or id):
                yield id, b"\n".join(data)
                id, data = "", []


def hang_up(response: httpx.Response) -> None:
    """Break the connection under *response*; whoever reads it in another thread wakes up."""
    response.extensions["network_stream"].get_extra_info("socket").shutdown(socket.SHUT_RDWR)


def _meta(message: dict[str, Any]) -> dict[str, Any]:
    return (message.get("params") or {}).get("_meta") or {}


def _name(message: dict[str, Any]) -> str | None:
    params = message.get("params") or {}
    return {
        "tools/call": params.get("name"),
        "prompts/get": params.get("name"),
        "resources/read": params.get("uri"),
    }.get(message["method"])


# --- the other end ---


@contextmanager
def running(command: list[str], port: int, env: Mapping[str, str] | None = None) -> Iterator[None]:
    """The server that *command* starts, from when it takes connections at *port* until the block ends."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=surroundings(**(env or {}))
        )
        try:
            _await(process, port, output)
            yield
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise


def _await(process: subprocess.Popen[bytes], port: int, output: Any) -> None:
    end = time.monotonic() + 2 * PATIENCE  # the slowest to start reads thousands of files
    while time.monotonic() < end and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
        except OSError:
            time.sleep(0.02)  # no event tells that another process listens
        else:
            return
    output.seek(0)
    raise AssertionError(
        f"nobody listens at {port}; exit {process.poll()}\n{output.read()[-3000:].decode(errors='replace')}"
    )


@contextmanager
def gateway(folder: Path, servers: dict[str, dict[str, Any]]) -> Iterator[Callable[[str], str]]:
    """`holdfast gateway` in front of *servers*, as in `mcpServers`; gives the address of each by its name."""
    config = folder / "mcp.json"
    config.write_text(json.dumps({"mcpServers": servers}))
    port = free_port()
    with running([HOLDFAST, "gateway", "--config", str(config), "--port", str(port)], port):
        yield lambda name: f"http://127.0.0.1:{port}/{name}/mcp"


@contextmanager
def byte_relay(port: int) -> Iterator[int]:
    """A relay of TCP bytes to *port* that understands nothing: the yardstick; gives its own port."""
    listener = socket.create_server(("127.0.0.1", 0))
    sockets: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def accept() -> None:
        while True:
            try:
                near = listener.accept()[0]
            except OSError:
                return  # the block has ended
            sockets.append(near)
            try:
                far = socket.create_connection(("127.0.0.1", port))
            except OSError:
                _end(near)
                continue
            sockets.append(far)
            for source, sink in ((near, far), (far, near)):
                threads.append(threading.Thread(target=_pour, args=(source, sink), daemon=True))
                threads[-1].start()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield listener.getsockname()[1]
    finally:
        _end(listener)
        accepting.join(PATIENCE)  # what it was just accepting is among the sockets then
        for each in sockets:
            _end(each)
        for thread in threads:
            thread.join(PATIENCE)
        for each in (listener, *sockets):
            each.close()


def _end(connection: socket.socket) -> None:
    """Wake whoever waits for it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # the other side has ended it already


def _pour(source: socket.socket, sink: socket.socket) -> None:
    try:
        while chunk := source.recv(1 << 16):
            sink.sendall(chunk)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return  # one of the two has gone
