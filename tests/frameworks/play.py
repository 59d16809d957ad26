"""Agents, played in the environment of their framework: `python -m tests.frameworks.play` reads orders, a line each,
and answers each with a line. Each is played by a fork, which what it plays may kill: that is answered by `null`.

A framework's file in `agents` has `play(hf, tools, turns, settings)`: it makes tools of the framework out of functions,
guarded with *settings* unless these are None, and an agent whose model makes the calls of each turn at once, and says
"done" after the last, as `scripted(turns)` makes one. It gives the texts that the model was told, one a call, in the
order of the calls.
"""

# No `from __future__ import annotations`: frameworks read those of the tools, which stand inside a function.
import asyncio
import importlib
import inspect
import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import msgspec

import holdfast


class Ask(msgspec.Struct):
    """One call of a model."""

    tool: str
    arguments: dict[str, Any] = {}


class Order(msgspec.Struct):
    """What to play, and in which run: a new one, or one that is resumed."""

    framework: str
    store: str
    journal: str
    turns: list[list[Ask]]
    policies: dict[str, Any] = {}
    run: str | None = None
    resume: str | None = None
    guarded: bool = True
    settings: dict[str, Any] = {}  # of all tools, given to `guard`
    plain: bool = False  # tools are functions, not coroutine functions
    decorated: bool = False  # they have guards of their own
    example: str | None = None  # a file with `main(hf, model)`, to be played in place of all that


class Answer(msgspec.Struct):
    """What came of it."""

    told: list[str] | None
    error: str | None
    calls: dict[str, tuple[int, int]]  # of each tool: successes and failures that its guards have seen


def tools(journal: Path, hf: holdfast.Holdfast) -> list[Callable[..., Any]]:
    """Functions that note each call in the *journal*."""

    def note(line: str) -> int:
        with journal.open("a") as file:
            file.write(f"{line}\n")
        return journal.read_text().splitlines().count(line)

    async def weather(city: str) -> str:
        """The weather in a city."""
        note(f"weather {city}")
        return f"sunny in {city}"

    async def pay(amount: int) -> str:
        """Pay an amount."""
        note(f"pay {amount}")
        return f"paid {amount}"

    async def flaky(key: str) -> str:
        """Comes through when it is asked for the third time."""
        if note(f"flaky {key}") < 3:
            raise ConnectionError("connection reset by peer")
        return f"came through for {key}"

    async def broken(key: str) -> str:
        """Always fails."""
        note(f"broken {key}")
        raise RuntimeError(f"no such row: {key}")

    async def hang(key: str) -> str:
        """Never answers."""
        note(f"hang {key}")
        await never()
        return "never"

    async def die(key: str) -> str:
        """Kills its process when it is first called."""
        if note(f"die {key}") == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return f"survived {key}"

    async def stop(reason: str) -> str:
        """Cancels the run that it is called in."""
        run = hf.current_run
        assert run is not None
        run.cancel(reason)
        return "asked to stop"

    async def whose(key: str) -> str:
        """The run that it is called in."""
        run = hf.current_run
        return "nobody's" if run is None else f"{run.id}'s"

    return [weather, pay, flaky, broken, hang, die, stop, whose]


async def never() -> None:
    """Wait for ever: as a task, or as a function in a thread of its own does."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        threading.Event().wait()
    await asyncio.Event().wait()


def plain(tool: Callable[..., Coroutine[Any, Any, str]]) -> Callable[..., str]:
    """The same tool as a function."""

    def made(*args: Any, **kwargs: Any) -> str:
        try:
            tool(*args, **kwargs).send(None)
        except StopIteration as end:
            return str(end.value)
        raise AssertionError("it waits, which a function cannot")

    made.__name__ = made.__qualname__ = tool.__name__
    made.__doc__ = tool.__doc__
    made.__annotations__ = tool.__annotations__
    made.__signature__ = inspect.signature(tool)  # type: ignore[attr-defined]
    return made


async def perform(order: Order) -> Answer:
    """Play it."""
    agents = importlib.import_module(f"tests.frameworks.agents.{order.framework}")
    async with holdfast.open(order.store, policies=order.policies) as hf:
        told, error = None, None
        try:
            if order.example is not None:
                await runpy.run_path(order.example)["main"](hf, agents.scripted(order.turns))
            else:
                async with _run(hf, order):
                    functions = tools(Path(order.journal), hf)
                    functions = [plain(each) for each in functions] if order.plain else functions
                    functions = [hf.tool(each) for each in functions] if order.decorated else functions
                    told = await agents.play(hf, functions, order.turns, order.settings if order.guarded else None)
        except (Exception, asyncio.CancelledError) as failure:
            error = f"{type(failure).__name__}: {failure}"
        stats = {name: hf.tracker.stats(name) for name in hf.tracker.tools()}
        calls = {name: (each.successful, each.failed + each.timed_out) for name, each in stats.items()}
        return Answer(told, error, calls)


def _run(hf: holdfast.Holdfast, order: Order) -> AbstractAsyncContextManager[object]:
    if order.resume is not None:
        return hf.resume(order.resume)
    return nullcontext() if order.run is None else hf.run(run_id=order.run)


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # frameworks print
    decoder = msgspec.json.Decoder(Order)
    for line in sys.stdin.buffer:
        order = decoder.decode(line)
        importlib.import_module(f"tests.frameworks.agents.{order.framework}")  # here, and so once
        if (child := os.fork()) == 0:
            os.setpgid(0, 0)
            answers.write(msgspec.json.encode(asyncio.run(perform(order))) + b"\n")
            os._exit(0)
        _, status = os.waitpid(child, 0)
        with suppress(ProcessLookupError):  # what it started, and was killed before it could end it
            os.killpg(child, signal.SIGKILL)
        if status == signal.SIGKILL:
            answers.write(b"null\n")
        elif status:
            sys.exit(f"it ended with {status}")


if __name__ == "__main__":
    main()
