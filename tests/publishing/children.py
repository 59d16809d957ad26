"""What the tests of the board have other processes do: `python -m tests.publishing.children COMMAND PATH …`.

Each line on stdout says that something was done; each line on stdin is one more thing to do.
"""

from __future__ import annotations

import os
import sys
import threading

from tests.children import SlowLoader, fork, main, processes, say

import holdfast

children = processes("tests.publishing.children")


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


def forking(path: str) -> None:
    """Fork just when the publisher is about to load what it watches files with; both processes call a tool."""
    loader = SlowLoader("ctypes")
    with holdfast.open(path, policies={}) as hf:
        os.register_at_fork(before=loader.fork.set)
        search = hf.tool("search")(lambda: None)
        search()
        loader.begun.wait()

        fork()
        # The first new thread may have the number of the one that is gone, and what that one held.
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        search()
        say(str(os.getpid()))
        sys.stdin.read()


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
    main(agent, proxy, forking)
