"""What the tests of the board have other processes do: `python board_children.py COMMAND PATH …`.

Each line on stdout says that something was done; each line on stdin is one more thing to do.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import holdfast


@contextmanager
def children() -> Iterator[Any]:
    """Starts children, and sees to it that none is left."""
    started: list[subprocess.Popen[str]] = []

    def start(command: str, *args: object) -> subprocess.Popen[str]:
        words = [sys.executable, __file__, command, *map(str, args)]
        child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(child)
        return child

    try:
        yield start
    finally:
        for child in started:
            child.kill()
            child.communicate()


def ask(child: subprocess.Popen[str], line: str) -> str:
    """Have a child do something; what it answers."""
    assert child.stdin is not None
    child.stdin.write(f"{line}\n")
    child.stdin.flush()
    return said(child)


def said(child: subprocess.Popen[str]) -> str:
    """The next line of a child."""
    assert child.stdout is not None
    return child.stdout.readline().rstrip("\n")


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def agent(path: str, *tools: str) -> None:
    """Call tools as told: `ok NAME` and `fail NAME` call, `state NAME` asks, `run` begins and ends a run."""
    with holdfast.open(path, policies={"policy": {"breaker": {"failure_threshold": 1, "min_backoff": 100.0}}}) as hf:
        for tool in tools:
            hf.tool(tool)(_work)
        say("ready")
        for line in sys.stdin:
            say(_obey(hf, *line.split()))


def proxy(path: str, name: str) -> None:
    """Be a proxy in front of one server; says each change of its circuits."""
    hf = holdfast.open(path, policies={})
    state = ["starting"]
    hf.bus.add(lambda event: say(event.type, event.tool) if event.type.startswith("circuit_") else None)
    hf.publish(
        kind="proxy",
        name=name,
        servers=lambda: [
            {"name": name, "kind": "stdio", "target": "npx x", "state": state[0], "restarts": 2, "stderr": ["oh no"]}
        ],
    )
    say("ready")
    for line in sys.stdin:
        state[0] = line.strip()
        hf.publish_soon()
        say(state[0])


def _obey(hf: holdfast.Holdfast, order: str, name: str = "") -> str:
    if order == "run":
        with hf.run():
            return "ran"
    if order == "state":
        return str(hf.breaker.state(name))
    try:
        return str(hf.call(name, order == "fail"))
    except holdfast.Denied:
        return "denied"
    except ConnectionError:
        return "failed"


def _work(fails: bool) -> str:
    if fails:
        raise ConnectionError("the line is dead")
    return "done"


if __name__ == "__main__":
    {each.__name__: each for each in (agent, proxy)}[sys.argv[1]](*sys.argv[2:])
