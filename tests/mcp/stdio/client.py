"""A raw MCP client: it says lines and hears lines, of a proxy in a process of its own or of a session right here."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import holdfast
from holdfast.clock import Clock, SystemClock
from holdfast.mcp.refusals import META
from holdfast.mcp.server import DEFAULTS, ProxiedServer
from holdfast.mcp.session import Session
from holdfast.mcp.stdio.child import Command
from holdfast.mcp.stdio.upstream import ChildUpstream
from holdfast.mcp.wire import Event

SERVER = Path(__file__).with_name("server.py")
PATIENCE = 30.0  # seconds after which an answer will not come; no test is meant to wait that long
INITIALIZE = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}


def command(journal: Path, *flags: str) -> list[str]:
    """The words that start the scripted server."""
    return [sys.executable, "-IS", str(SERVER), str(journal), *flags]


class Client:
    """What a client says, by *say*, and what it has heard."""

    def __init__(self, say: Callable[[bytes], object], journal: Path) -> None:
        self.heard: list[bytes] = []
        self.answers: list[dict[str, Any]] = []
        self._say = say
        self._journal = journal
        self._count = 0
        self._waiting: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._others: list[dict[str, Any]] = []
        self._news = asyncio.Event()
        self.over = asyncio.Event()

    # -- saying --------------------------------------------------------------------------------------------------------

    def say(self, frame: object) -> None:
        """Say a frame, or a line of bytes as it is."""
        self._say(frame if isinstance(frame, bytes) else json.dumps(frame).encode())

    def begin(self, method: str, params: object = None, *, id: Any = None, **more: object) -> asyncio.Future[Any]:
        """Ask, and do not wait."""
        if id is None:
            self._count += 1
            id = self._count
        future = self.expect(id)
        self.say(
            {"jsonrpc": "2.0", "id": id, "method": method, **({} if params is None else {"params": params}), **more}
        )
        return future

    def expect(self, id: Any) -> asyncio.Future[Any]:
        """The answer to a request of that *id*, which is to be said in another way."""
        future = self._waiting[json.dumps(id)] = asyncio.get_running_loop().create_future()
        return future

    async def ask(self, method: str, params: object = None, *, id: Any = None) -> dict[str, Any]:
        """Ask, and wait for the answer."""
        answer: dict[str, Any] = await within(self.begin(method, params, id=id))
        return answer

    def call(self, tool: str, *, id: Any = None, token: Any = None, **arguments: object) -> asyncio.Future[Any]:
        """Call a tool, and do not wait."""
        meta = {} if token is None else {"_meta": {"progressToken": token}}
        return self.begin("tools/call", {"name": tool, "arguments": arguments, **meta}, id=id)

    async def result(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool, and wait for its result."""
        answer = await within(self.call(tool, **arguments))
        found: dict[str, Any] = answer["result"]
        return found

    def tell(self, method: str, params: object = None) -> None:
        """Say a notification."""
        self.say({"jsonrpc": "2.0", "method": method, **({} if params is None else {"params": params})})

    def cancel(self, id: Any) -> None:
        """Say that a request is no longer wanted."""
        self.tell("notifications/cancelled", {"requestId": id, "reason": "a test"})

    async def initialize(self, *, lists: bool = True) -> Any:
        """Shake hands, and learn the tools."""
        answer = await self.ask("initialize", INITIALIZE)
        self.tell("notifications/initialized")
        if lists:
            await self.ask("tools/list")
        return answer

    # -- hearing -------------------------------------------------------------------------------------------------------

    def hear(self, line: bytes) -> None:
        """A line has come."""
        self.heard.append(line)
        frame = json.loads(line)
        for each in frame if isinstance(frame, list) else [frame]:
            if "method" in each:
                self._others.append(each)
            else:
                self.answers.append(each)
                waiting = self._waiting.pop(json.dumps(each["id"]), None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(each)
        self._news.set()

    async def next(self, method: str) -> dict[str, Any]:
        """The next notification or request of the server with that *method*, as soon as there is one."""

        async def find() -> dict[str, Any]:
            while True:
                for each in self._others:
                    if each["method"] == method:
                        self._others.remove(each)
                        return each
                self._news.clear()
                await self._news.wait()

        found: dict[str, Any] = await within(find())
        return found

    def unheard(self, method: str) -> list[dict[str, Any]]:
        """What came of that *method*, and was not taken by `next`."""
        return [each for each in self._others if each["method"] == method]

    def answered(self, id: Any) -> list[dict[str, Any]]:
        """All answers to that *id*; 1 and "1" are two."""
        return [each for each in self.answers if json.dumps(each["id"]) == json.dumps(id)]

    # -- the server's side ---------------------------------------------------------------------------------------------

    def journal(self, *methods: str) -> list[dict[str, Any]]:
        """What the server was told, of those *methods* if any are given."""
        if not self._journal.exists():
            return []
        whole = self._journal.read_text("utf-8").rpartition("\n")[0]  # the server may just be writing the next line
        entries = [json.loads(line) for line in whole.splitlines()]
        return [entry for entry in entries if not methods or entry.get("method") in methods]

    def effects(self, tool: str) -> int:
        """How often a call of *tool* has reached a server."""
        return sum(entry["params"]["name"] == tool for entry in self.journal("tools/call"))


class Proxy(Client):
    """A client of the real command."""

    def __init__(self, process: asyncio.subprocess.Process, journal: Path) -> None:
        super().__init__(self._write, journal)
        self.process = process
        self.errors: list[str] = []
        self._reads = asyncio.Event()
        self._reads.set()
        self._tasks = [asyncio.ensure_future(self._read())]
        if process.stderr is not None:
            self._tasks.append(asyncio.ensure_future(self._read_errors()))

    def _write(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")

    async def drain(self) -> None:
        """Wait until all that was said is taken."""
        assert self.process.stdin is not None
        await self.process.stdin.drain()

    def listen(self, reads: bool) -> None:
        """Stop reading, or go on."""
        (self._reads.set if reads else self._reads.clear)()

    async def _read(self) -> None:
        assert self.process.stdout is not None
        begun = b""
        while True:
            await self._reads.wait()
            data = await self.process.stdout.read(2**20)
            if not data:
                break
            *lines, begun = (begun + data).split(b"\n")
            for line in lines:
                self.hear(line)
        assert not begun, "half a line"
        self.over.set()

    async def _read_errors(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.errors.append(line.decode())

    def hang_up(self) -> None:
        """Say no more."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    async def ended(self) -> int:
        """The proxy's exit code, once it has ended and all that it said was heard."""
        self.listen(True)
        code: int = await within(self.process.wait())
        await within(asyncio.gather(*self._tasks))
        return code

    async def close(self) -> None:
        """End it, whatever it does."""
        self.listen(True)
        self.hang_up()
        if self.process.returncode is None:
            try:
                await asyncio.wait_for(self.process.wait(), PATIENCE)
            except TimeoutError:
                self.process.kill()
                await self.process.wait()
                raise
        await within(asyncio.gather(*self._tasks))


async def wrap(
    journal: Path,
    *flags: str,
    options: Sequence[str] = (),
    words: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stderr: int | None = PIPE,
    python: Sequence[str] = (),
) -> Proxy:
    """`holdfast wrap` of the scripted server, as a process."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, *python, "-m", "holdfast", "wrap", "--name", "srv", *options, "--",
        *(words if words is not None else command(journal, *flags)),
        stdin=PIPE, stdout=PIPE, stderr=DEVNULL if stderr is None else stderr, env={**os.environ, **(env or {})},
        cwd=cwd if cwd is not None else journal.parent,
    )  # fmt: skip
    return Proxy(process, journal)


class Stage(Client):
    """A client of a session in this process, with the server in one of its own."""

    def __init__(
        self,
        journal: Path,
        *flags: str,
        policies: Mapping[str, object] | Path | None = None,
        clock: Clock | None = None,
        hides: bool = False,
        words: Sequence[str] | None = None,
        patience: float = 2.0,
        name: str = "srv",
    ) -> None:
        super().__init__(lambda line: self.session.receive(line, self), journal)
        self.clock = clock or SystemClock()
        self.hf = holdfast.open(
            ":memory:", policies=policies or {}, clock=self.clock, on_store_error="continue", defaults=DEFAULTS
        )
        self.server = ProxiedServer(self.hf, name, hides=hides)
        self.server.publish = self._published
        self.upstream = ChildUpstream(Command(words or command(journal, *flags)), self.clock, patience=patience)
        self.session = Session(self.server, self.upstream, self.send, self.clock)
        self._published_news = asyncio.Event()

    async def __aenter__(self) -> Stage:
        self._run = self.hf.note("srv", "a test")
        self.run = await self._run.__aenter__()
        self.session.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.session.close()
            await self._run.__aexit__(kind, error, traceback)
        finally:
            self.hf.close()

    def send(self, event: Event) -> None:
        """As a channel: hear a line."""
        self.hear(event.data)

    def _published(self) -> None:
        self._published_news.set()

    async def turns(self, state: str) -> None:
        """Wait until the server's state is *state*."""

        async def wait() -> None:
            while self.upstream.condition.state != state:
                self._published_news.clear()
                await self._published_news.wait()

        await within(wait())


async def within(waited: Any) -> Any:
    """What is awaited, which comes soon, or the test has failed."""
    return await asyncio.wait_for(waited, PATIENCE)


async def until(there: Callable[[], object]) -> None:
    """Wait for what other processes and threads do, which tell nobody."""

    async def wait() -> None:
        while not there():  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    await within(wait())


async def settle() -> None:
    """Let everything that is ready run."""
    for _ in range(10):
        await asyncio.sleep(0)


def text(result: Mapping[str, Any]) -> str:
    """The text of a tool's result."""
    return "".join(part["text"] for part in result["content"])


def failure(result: Mapping[str, Any]) -> dict[str, Any]:
    """What a refusal says in structure."""
    assert result["isError"] is True
    facts: dict[str, Any] = result["_meta"][META]
    return facts
