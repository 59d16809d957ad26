"""An agent of its own process, that a page is to show: `python feeder.py STORE` makes guarded calls as it is told.

Each line on stdin is a thing to do, each line on stdout says that it was done, or that a run has ended.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import random
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import holdfast
from holdfast.testing import ManualClock

POLICIES = {
    "policy": {"breaker": {"failure_threshold": 3, "min_backoff": 3600.0, "max_backoff": 3600.0}},  # longer than tests
    "tool": {
        "web_search": {"read_only": True, "cache": 60.0, "rate": {"per_second": 20, "adaptive": True}},
        "fetch_page": {"idempotent": True, "retry": {"attempts": 3, "initial": 0.05, "max": 0.2}},
        "run_query": {"concurrency": 4, "timeout": 5.0},
        "paced": {"rate": {"per_second": 5, "burst": 1}, "idempotent": True},
        "send_mail": {"rate": "5/s"},
        "never_called": {"timeout": 3.0},
    },
}
NOW = int(time.time() * 1000)
SHAKY = ("run_query", "send_mail", "list_files", "get_weather", "translate")
CALM = ("web_search", "fetch_page", "run_query", "send_mail", "list_files", "read_file", "get_weather", "translate")
SERVERS: list[dict[str, Any]] = [
    {
        "name": "github",
        "target": "npx -y @modelcontextprotocol/server-github",
        "state": "ready",
        "pid": 4711,
        "protocol": "2025-11-25",
        "server_info": {"name": "github-mcp-server", "version": "1.4.0"},
        "since_ms": NOW - 754_000,
        "stderr": ["GitHub MCP Server running on stdio"],
    },
    {
        "name": "browser",
        "target": "npx @playwright/mcp",
        "state": "restarting",
        "restarts": 3,
        "protocol": "2025-06-18",
        "server_info": {"name": "Playwright", "version": "0.0.41"},
        "since_ms": NOW - 4_000,
        "last_error": "exited with 1",
        "stderr": ["Error: browserType.launch: Executable doesn't exist", "    at start (/app/server.js:81:15)"],
    },
]


class Feeder:
    """Does what it is told; runs go on in threads of their own until they end."""

    def __init__(self, path: str) -> None:
        self.hf = holdfast.open(path, policies=POLICIES)
        self.fails: dict[str, str] = {}
        self.known: set[str] = set()
        self.asked = random.Random(7)
        self.over = threading.Event()
        self.threads: list[threading.Thread] = []
        self.numbers = itertools.count()
        self.lock = threading.Lock()

    # -- what can be asked for -----------------------------------------------------------------------------------------

    def call(self, tool: str, times: str = "1") -> str:
        """Call *tool*, which works."""
        return ",".join(self._try(tool) for _ in range(int(times)))

    def fail(self, tool: str, times: str = "1", message: str = "the line is dead") -> str:
        """Call *tool*, which does not work."""
        self.fails[tool] = message
        try:
            return ",".join(self._try(tool) for _ in range(int(times)))
        finally:
            del self.fails[tool]

    def traffic(self) -> str:
        """Call tools all the time."""
        self._begin(self._traffic)
        return "traffic"

    def servers(self) -> str:
        """Be a proxy in front of some servers."""
        self.hf.publish(kind="proxy", name="wrap", servers=lambda: SERVERS)
        self.hf.publish_soon()
        return "servers"

    def wait(self, prompt: str = "wait for ever") -> str:
        """Begin a run that waits in a call until it is cancelled; gives its id."""
        run_id = f"waiting-{next(self.numbers)}"
        began = threading.Event()
        self._begin(lambda: asyncio.run(self._wait(run_id, prompt, began)))
        began.wait(30)
        return run_id

    def work(self, calls: str, prompt: str = "many small calls") -> str:
        """Bring in a whole run of so many calls, as if from another store; gives its id."""
        file = io.StringIO()
        with holdfast.MemoryRunStore() as other:
            run = other.create_run("bulk", prompt)
            other.record_event(run.id, "run_started", {"prompt": prompt})
            for number in range(int(calls)):
                facts: dict[str, object] = {"call_id": f"call-{number}", "tool": f"tool_{number % 7}"}
                other.record_event(run.id, "tool_started", {**facts, "key": f"{number}", "arguments": {"n": number}})
                facts |= {"status": "success", "duration_ms": 1, "attempts": 1}
                other.record_event(run.id, "tool_ended", facts)
            other.record_event(run.id, "run_completed", {"text": "done"})
            other.export(file)
        file.seek(0)
        self.hf.runs.import_(file)
        return run.id

    def runs(self, count: str, prompt: str = "a short run") -> str:
        """Make so many short runs."""
        for number in range(int(count)):
            with self.hf.run(f"session-{number % 3}", f"{prompt} {number}") as run:
                self._try("read_file", number)
                run.complete(f"answer {number}")
        return count

    def rich(self, prompt: str = "Plan a week in Lisbon under 900 €") -> str:
        """Make a run with everything: retries, waits in line, answers from the cache, refusals, an idle stretch.

        It has a clock of its own: how long things take is the same on a machine that is busy.
        """
        clock, file = ManualClock(epoch=time.time() - 60), io.StringIO()
        with holdfast.open(":memory:", policies=POLICIES, clock=clock) as hf:
            for name in ("web_search", "fetch_page", "paced", "book_hotel", "translate"):
                hf.tool(name)(self._worker(name, clock.sleep))
            with hf.run("trip-planner", prompt) as run:
                run.spend("usd", 0.0421)
                hf.call("web_search", "flights FRA LIS")
                run.step("think about it", lambda: clock.sleep(0.12))
                self.fails |= {"fetch_page": "connection reset by peer", "book_hotel": "503 Service Unavailable"}
                with suppress(ConnectionError):
                    hf.call("fetch_page", "https://example.org/fares")
                for page in range(3):
                    hf.call("paced", page)
                hf.call("web_search", "flights FRA LIS")
                clock.sleep(1.6)
                for _ in range(4):
                    with suppress(ConnectionError, holdfast.Denied):
                        hf.call("book_hotel")
                del self.fails["fetch_page"], self.fails["book_hotel"]
                run.step("write the plan", lambda: hf.call("translate", "plan"))
                run.complete("Three nights in Alfama, 612 €.")
            hf.runs.export(file)
        file.seek(0)
        self.hf.runs.import_(file)
        return run.id

    def broken(self, prompt: str = "Refund order 1138") -> str:
        """Make a run that fails."""
        try:
            with self.hf.run("support", prompt) as run:
                self.hf.call("run_query", "select 1")
                raise LookupError("no order 1138 in the shop; ask for another number")
        except LookupError:
            return run.id

    def hostile(self, name: str, value: str) -> str:
        """Make a run with a call of a tool of a bad name, with bad arguments and a bad result."""
        name, value = (text.encode().decode("unicode_escape") for text in (name, value))
        big = value + "A" * 1_000_000
        with self.hf.run("hostile", value) as run:
            self.hf.tool(name)(lambda question: question)(value)
            self.hf.tool(name)(lambda question: question)(big)
            self._try_with(name, ValueError(value))
            run.complete(big)
        return run.id

    def state(self, tool: str) -> str:
        """The circuit of a tool, as this process has it."""
        return str(self.hf.breaker.state(tool))

    # -- inside --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join(10)
        self.hf.close()

    def _begin(self, work: Callable[[], object]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self.threads.append(thread)
        thread.start()

    def _try(self, tool: str, *args: object) -> str:
        self._know(tool)
        try:
            self.hf.call(tool, *args)
        except holdfast.Denied as error:
            return type(error).__name__
        except (ConnectionError, TimeoutError):
            return "failed"
        return "done"

    def _try_with(self, tool: str, error: Exception) -> None:
        def broken(question: str) -> str:
            raise error

        try:
            self.hf.tool(tool)(broken)("?")
        except ValueError:
            return

    def _traffic(self) -> None:
        while not self.over.wait(self.asked.uniform(0.002, 0.03)):
            tool = self.asked.choice(CALM)
            if tool in SHAKY and self.asked.random() < 0.08:
                self.fail(tool)
            else:
                self._try(tool, self.asked.randrange(1_000_000))

    async def _wait(self, run_id: str, prompt: str, began: threading.Event) -> None:
        try:
            async with self.hf.run("waiting", prompt, run_id=run_id) as run:
                began.set()
                await self.hf.acall("approval", run)
        except asyncio.CancelledError as error:
            self.say(f"ended {run_id} {type(error).__name__}")

    def say(self, words: str) -> None:
        with self.lock:
            sys.stdout.write(f"{words}\n")
            sys.stdout.flush()

    def tools(self) -> None:
        """Make the tools known."""
        for name in (*CALM, "paced", "book_hotel", "charge_card", "never_called"):
            self._know(name)

        @self.hf.tool("approval")
        async def approval(_: object) -> None:
            await asyncio.get_running_loop().create_future()  # nobody approves

    def _know(self, name: str) -> None:
        if name not in self.known:
            self.known.add(name)
            self.hf.tool(name)(self._worker(name, self.over.wait))

    def _worker(self, name: str, rest: Callable[[float], object]) -> Callable[..., object]:
        slow = {"run_query": 0.06, "web_search": 0.03, "fetch_page": 0.045, "translate": 0.02}.get(name, 0.004)

        def work(question: object = None) -> object:
            rest(self.asked.lognormvariate(0.0, 0.5) * slow)
            if (message := self.fails.get(name)) is not None:
                raise ConnectionError(message)
            return {"tool": name, "question": question, "answer": 42}

        return work


class Child:
    """A feeder in a process of its own."""

    def __init__(self, store: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(store)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.hear() == "ready"

    def ask(self, *words: object) -> str:
        """Have it do something; what it answers."""
        assert self.process.stdin is not None
        self.process.stdin.write(shlex.join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return self.hear()

    def hear(self) -> str:
        """The next line that it says."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.communicate()


def main(path: str) -> None:
    feeder = Feeder(path)
    feeder.tools()
    feeder.say("ready")
    for line in sys.stdin:
        order, *arguments = shlex.split(line)
        feeder.say(getattr(feeder, order)(*arguments))
    feeder.close()


if __name__ == "__main__":
    main(sys.argv[1])
