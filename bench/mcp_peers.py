"""Who stands between client and server, how each is started, and the servers behind them.

Peers run as their documentation has it, in environments of their own below `.cache/worlds`, which the tests use too.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests import worlds

from bench.disk import CHECKOUT
from bench.mcp_client import HANDSHAKE, Http, Line, Process, Stdio, Unusable

DIRECT, RELAY, OURS = "direct", "raw relay", "holdfast"
FASTMCP, CONNECTED, MCP_PROXY = "fastmcp", "fastmcp, client connected", "mcp-proxy"
ENVIRONMENTS = {"mcp2": "mcp", "fastmcp": "fastmcp", "mcp-proxy": "mcp-proxy"}  # and the package to name
QUICK, SDK = "quick", "SDK"
STDIO, HTTP = "stdio", "HTTP"


@dataclass(frozen=True)
class Scene:
    """What the client speaks, what the server speaks, which server it is, and the version of the protocol."""

    front: str
    back: str
    server: str
    era: str

    def __str__(self) -> str:
        ends = self.front if self.front == self.back else f"{self.front} to {self.back}"
        return f"MCP {ends} {self.era}, {self.server} server"


class World:
    """The environments, the servers that listen, and a folder for all that is written."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.stack = stack
        self.folder = folder
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PYTHON"))}
        self.env = {
            **clean,
            "FASTMCP_CHECK_FOR_UPDATES": "off",
            "FASTMCP_HOME": str(folder),
            "HOLDFAST_STORE": str(folder / "runs.db"),
        }
        self.pythons, self.missing = _environments()
        self._ports: dict[str, int] = {}

    def start(self, *command: str, pipes: bool = True) -> Process:
        """A process that ends with this world, if not before."""
        process = Process(command, folder=self.folder, env=self.env, pipes=pipes)
        self.stack.callback(process.close)
        return process

    def server(self, kind: str, *arguments: str) -> list[str]:
        """The command of a server."""
        if kind == QUICK:
            return [sys.executable, "-P", _script("mcp_quick.py"), *arguments]
        return [self.python("mcp2"), "-P", _script("mcp_server.py"), *arguments]

    def port(self, kind: str) -> int:
        """Where a server listens, which is started first where it is not yet."""
        if kind not in self._ports:
            port = free_port()
            process = self.start(*self.server(kind, "http", str(port)), pipes=False)
            Http(f"http://127.0.0.1:{port}", HANDSHAKE, process).wait()
            self._ports[kind] = port
        return self._ports[kind]

    def counts(self, kind: str) -> dict[str, int]:
        """How many requests a server had, by the first part of their path."""
        line = Http(f"http://127.0.0.1:{self.port(kind)}", HANDSHAKE)
        line.connection.request("GET", "/counts")
        counts: dict[str, int] = json.loads(line.connection.getresponse().read())
        line.connection.close()
        return counts

    def python(self, environment: str) -> str:
        """The interpreter of an environment."""
        if environment not in self.pythons:
            raise Unusable(self.missing[environment])
        return self.pythons[environment]

    def versions(self) -> str:
        """The peers, with their versions."""
        program = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
        found = []
        for environment, package in ENVIRONMENTS.items():
            if environment in self.pythons:
                command = [self.pythons[environment], "-c", program, package]
                told = subprocess.run(command, capture_output=True, text=True, check=True, env=self.env).stdout
                found.append(f"{package} {told.strip()}")
        return ", ".join(found)


@contextmanager
def world(folder: Path) -> Iterator[World]:
    """A world; all its processes end with it."""
    with ExitStack() as stack:
        yield World(stack, folder)


def lines(scene: Scene, world: World) -> dict[str, Callable[[], Line]]:
    """Everybody who can do *scene*, and how to start them; a path of its own each, by which the server counts."""
    makers = {DIRECT: _direct, RELAY: _relay, OURS: _ours, FASTMCP: _fastmcp, CONNECTED: _fastmcp}
    if scene.front != scene.back:
        del makers[RELAY]
        makers[MCP_PROXY] = _mcp_proxy  # which can do nothing else
    return {name: partial(make, scene, world, name) for name, make in makers.items()}


def slug(scene: Scene, name: str) -> str:
    """The first part of the path that *name* uses in *scene*."""
    return "-".join(f"{name} {scene.front} {scene.era}".replace(",", "").split()).lower()


def _direct(scene: Scene, world: World, name: str) -> Line:
    if scene.back == STDIO:
        return Stdio(world.start(*world.server(scene.server, "stdio")), scene.era)
    return Http(_url(scene, world, name), scene.era)


def _relay(scene: Scene, world: World, name: str) -> Line:
    if scene.back == STDIO:
        relay = str(CHECKOUT / "tests" / "mcp" / "real" / "raw_relay.py")
        return _front(scene, world, "", sys.executable, "-P", relay, "--", *world.server(scene.server, "stdio"))
    port = free_port()
    command = (sys.executable, "-P", _script("mcp_relay.py"), str(port), str(world.port(scene.server)))
    return _front(scene, world, f"http://127.0.0.1:{port}/{slug(scene, name)}/mcp", *command)


def _ours(scene: Scene, world: World, name: str) -> Line:
    program = str(Path(sys.executable).parent / "holdfast")
    if scene.front == STDIO:
        target = ["--url", _url(scene, world, name)]
        if scene.back == STDIO:
            target = ["--", *world.server(scene.server, "stdio")]
        return _front(scene, world, "", program, "wrap", "--name", "bench", *target)
    port = free_port()
    entry: dict[str, object] = {"type": "http", "url": _url(scene, world, name)}
    if scene.back == STDIO:
        command, *arguments = world.server(scene.server, "stdio")
        entry = {"command": command, "args": arguments}
    config = world.folder / f"{port}.json"
    config.write_text(json.dumps({"mcpServers": {"bench": entry}}), encoding="utf-8")
    url = f"http://127.0.0.1:{port}/bench/mcp"
    return _front(scene, world, url, program, "gateway", "--config", str(config), "--port", str(port))


def _fastmcp(scene: Scene, world: World, name: str) -> Line:
    port = free_port()
    mode = "fresh" if name == FASTMCP else "legacy" if scene.era == HANDSHAKE else scene.era
    command = (world.python("fastmcp"), "-P", _script("mcp_fastmcp.py"), "stdio" if scene.front == STDIO else str(port))
    return _front(scene, world, f"http://127.0.0.1:{port}/mcp", *command, mode, *_target(scene, world, name))


def _mcp_proxy(scene: Scene, world: World, name: str) -> Line:
    program = str(Path(world.python("mcp-proxy")).parent / "mcp-proxy")
    target = _target(scene, world, name)
    if scene.front == STDIO:
        return _front(scene, world, "", program, "--transport", "streamablehttp", "--log-level", "ERROR", *target)
    port = free_port()
    command = (program, "--port", str(port), "--log-level", "ERROR", "--", *target)
    return _front(scene, world, f"http://127.0.0.1:{port}/mcp", *command)


def _front(scene: Scene, world: World, url: str, *command: str) -> Line:
    process = world.start(*command, pipes=scene.front == STDIO)
    return Stdio(process, scene.era) if scene.front == STDIO else Http(url, scene.era, process)


def _target(scene: Scene, world: World, name: str) -> list[str]:
    return world.server(scene.server, "stdio") if scene.back == STDIO else [_url(scene, world, name)]


def _url(scene: Scene, world: World, name: str) -> str:
    return f"http://127.0.0.1:{world.port(scene.server)}/{slug(scene, name)}/mcp"


def _script(name: str) -> str:
    return str(CHECKOUT / "bench" / name)


def _environments() -> tuple[dict[str, str], dict[str, str]]:
    """The interpreters, made first where they are not there, and why some cannot be had."""
    found, missing = {}, {}
    with ThreadPoolExecutor() as pool:
        for name, made in [(name, pool.submit(worlds.python, name)) for name in ENVIRONMENTS]:
            try:
                found[name] = str(made.result())
            except worlds.Missing as error:
                missing[name] = f"not installed: {str(error)[:200]}"
    return found, missing


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
