"""A server on standard input and output: `add` adds, `slow` tells of progress and waits for a cancel, `ask` asks.

The method `release` has another call answered, `anonymous` is answered twice, first without its id, `unread` is
refused without it.
"""

from __future__ import annotations

import json
import os
import sys
from urllib.request import Request, urlopen


def say(**frame: object) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **frame}) + "\n")
    sys.stdout.flush()


def text(id: object, value: object) -> None:
    say(id=id, result={"content": [{"type": "text", "text": str(value)}], "resultType": "complete"})


def call(id: object, params: dict) -> None:  # type: ignore[type-arg]
    name, arguments = params["name"], params.get("arguments", {})
    token = params.get("_meta", {}).get("progressToken")
    if name == "add":
        text(id, arguments["a"] + arguments["b"])
    elif name in ("pid", "variable"):
        text(id, os.getpid() if name == "pid" else os.environ.get(arguments["name"]))
    elif name == "id":
        text(id, json.dumps([id, token]))
    elif name == "slow":
        say(method="notifications/progress", params={"progressToken": token, "progress": 1})
    elif name == "log":
        say(method="notifications/message", params={"level": "info", "data": "hello"})
        text(id, "logged")
    elif name == "ask":
        say(id="q", method="roots/list")
        text(id, json.loads(sys.stdin.readline())["result"]["roots"])
    elif name == "cancelled":
        text(id, json.dumps(CANCELLED))
    elif name == "flood":
        body = {"jsonrpc": "2.0", "id": 1, "method": "x", "params": {}}
        sent = Request(arguments["url"], json.dumps(body).encode(), {"content-type": "application/json"})
        with urlopen(sent) as answer:  # 40 MB, line by line
            for line in answer:
                if line.startswith(b"data: ") and b'"method"' in line:
                    sys.stdout.write(line[6:].decode())
        text(id, "flooded")
    elif name == "die":
        os._exit(3)


CANCELLED: list[object] = []

for line in sys.stdin:
    frame = json.loads(line)
    if isinstance(frame, list):
        sys.stdout.write(json.dumps([{"jsonrpc": "2.0", "id": part["id"], "result": {}} for part in frame]) + "\n")
        sys.stdout.flush()
        continue
    method, params, id = frame.get("method"), frame.get("params", {}), frame.get("id")
    if method == "initialize":
        info = {"name": "stdio", "version": "1"}
        say(
            id=id,
            result={"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info},
        )
    elif method == "notifications/cancelled":
        CANCELLED.append(params["requestId"])
    elif method == "tools/call":
        call(id, params)
    elif method == "release":
        text(params["of"], "released")
        say(id=id, result={})
    elif method == "anonymous":
        say(id=None, result={})
        say(id=id, result={})
    elif method == "unread":
        say(id=None, error={"code": -32700, "message": "what?"})
    elif method == "subscriptions/listen":
        meta = {"io.modelcontextprotocol/subscriptionId": id}
        say(method="notifications/subscriptions/acknowledged", params={"_meta": meta, "notifications": {}})
    elif id is not None and method == "ping":
        say(id=id, result={})
    elif id is not None and method:
        say(id=id, error={"code": -32601, "message": "no such method"})
