"""An MCP server that does what its callers say, however bad. Run as a script, with the standard library alone.

    server.py JOURNAL [FLAG…]

What comes in is noted in JOURNAL, one JSON line a frame, across restarts. A call does what its argument `do` says; of a
list, the word for the first such call, the second, and so on, the last for all that follow. Flags: `stays` (does not
end with its input), `ignores-term`, `dies-with=FILE` and `refuses-with=FILE` (at start, or the handshake, while FILE
exists).
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

JOURNAL, *FLAGS = sys.argv[1:]
TOOLS = {
    "read": {"readOnlyHint": True},
    "other": {"readOnlyHint": True},
    "put": {"idempotentHint": True},
    "write": {},
}


class Server:
    def __init__(self) -> None:
        self.held: dict[str, Any] = {}  # calls that wait for `release`
        self.asked: dict[Any, tuple[Any, str]] = {}  # our requests to the client: the call that waits for the answer
        self.batch: list[object] | None = None
        self.tools: dict[str, object] = dict(TOOLS)

    # -- frames --------------------------------------------------------------------------------------------------------

    def take(self, line: bytes) -> None:
        try:
            frame = json.loads(line)
        except ValueError:
            note({"line": line.decode(errors="replace")})
            self.say({"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "no JSON"}})
            return
        if isinstance(frame, list):
            self.batch = []
            for each in frame:
                self.take_one(each)
            answers, self.batch = self.batch, None
            if not frame:
                self.say(invalid(None))
            elif answers:
                self.say(answers)
        else:
            self.take_one(frame)

    def take_one(self, frame: Any) -> None:
        if not isinstance(frame, dict):
            note({"frame": frame})
            self.say(invalid(None))
            return
        method, id, params = frame.get("method"), frame.get("id"), frame.get("params")
        short = params if len(json.dumps(params)) < 2000 else {"sha256": digest(params)}
        note({"method": method, "id": id, "params": short, "result": frame.get("result"), "error": frame.get("error")})
        if method is None:
            self.answered(frame)
        elif "id" in frame:
            self.request(method, id, params)
        elif method == "notifications/cancelled":
            self.tell("notifications/heard", {"method": method, "params": params})

    def request(self, method: str, id: Any, params: Any) -> None:
        if method == "tools/call":
            if not isinstance(params, dict) or not isinstance(params.get("name"), str):
                self.say(failure(id, -32602, f"bad params: {json.dumps(params)}"))
            else:
                self.call(id, params)
        elif method == "initialize":
            if flag("refuses-with"):
                self.say(failure(id, -32603, "no handshake today"))
            else:
                told = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}, "logging": {}}}
                self.say(result(id, {**told, "serverInfo": {"name": "scripted", "version": str(os.getpid())}}))
        elif method == "tools/list":
            tools = [{"name": name, "inputSchema": {}, "annotations": said} for name, said in self.tools.items()]
            self.say(result(id, {"tools": tools}))
        elif method in ("logging/setLevel", "resources/subscribe") and "refused" in params.values():
            self.say(failure(id, -32602, "refused"))
        elif method in ("ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"):
            self.say(result(id, {}))
        elif method in ("resources/read", "custom/do"):
            self.call(id, {"name": method, "arguments": params})
        else:
            self.say(failure(id, -32601, f"no such method: {method}"))

    def answered(self, frame: dict[str, Any]) -> None:
        waiting = self.asked.pop(frame.get("id"), None)
        if waiting is not None:
            self.say(result(waiting[0], text(json.dumps(frame.get("result", frame.get("error"))))))

    # -- calls ---------------------------------------------------------------------------------------------------------

    def call(self, id: Any, params: dict[str, Any]) -> None:
        arguments = params.get("arguments") or {}
        do = arguments.get("do", "answer")
        if isinstance(do, list):
            before = sum(
                was.get("params", {}).get("name", was["method"]) == params["name"]
                for was in journal()[:-1]
                if was.get("method") in ("tools/call", "resources/read", "custom/do")
            )
            do = do[min(before, len(do) - 1)]
        word, _, rest = do.partition(" ")
        behaviour: Callable[[Any, dict[str, Any], str], None] = getattr(self, f"do_{word}")
        behaviour(id, params, rest)

    def do_answer(self, id: Any, params: dict[str, Any], rest: str) -> None:
        said = (params.get("arguments") or {}).get("say", params["name"])
        self.say(result(id, text(f"{said}{rest}")))

    def do_digest(self, id: Any, params: dict[str, Any], rest: str) -> None:
        self.say(result(id, text(digest(params))))

    def do_pid(self, id: Any, params: dict[str, Any], rest: str) -> None:
        self.say(result(id, text(str(os.getpid()))))

    def do_hang(self, id: Any, params: dict[str, Any], rest: str) -> None:
        self.tell("notifications/hangs", {"id": id})

    def do_freeze(self, id: Any, params: dict[str, Any], rest: str) -> None:
        self.tell("notifications/hangs", {"id": id})
        while True:
            signal.pause()

    def do_hold(self, id: Any, params: dict[str, Any], rest: str) -> None:
        self.held[rest] = id
        self.tell("notifications/holds", {"id": id})

    def do_release(self, id: Any, params: dict[str, Any], rest: str) -> None:
        if rest in self.held:
            self.say(result(self.held.pop(rest), text(f"released {rest}")))
        self.say(result(id, text("done")))

    def do_exit(self, id: Any, params: dict[str, Any], rest: str) -> None:
        os._exit(int(rest))

    def do_kill(self, id: Any, params: dict[str, Any], rest: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def do_answer_and_exit(self, id: Any, params: dict[str, Any], rest: str) -> None:
        self.do_answer(id, params, "")
        os._exit(int(rest))

    def do_garbage(self, id: Any, params: dict[str, Any], rest: str) -> None:
        write(b'I am no frame\n{\n[1, 2]\n[]\n"x"\n')
        self.do_answer(id, params, "")

    def do_half(self, id: Any, params: dict[str, Any], rest: str) -> None:
        write(json.dumps(result(id, text("half"))).encode()[:30])
        os._exit(0)

    def do_unended(self, id: Any, params: dict[str, Any], rest: str) -> None:
        write(json.dumps(result(id, text("no end of line"))).encode())
        os._exit(0)

    def do_latin1(self, id: Any, params: dict[str, Any], rest: str) -> None:
        write(json.dumps(result(id, text("caf@"))).encode().replace(b"@", b"\xe9") + b"\n")

    def do_latin1_line(self, id: Any, params: dict[str, Any], rest: str) -> None:
        write(b"caf\xe9\n")
        self.do_answer(id, params, "")

    def do_twice(self, id: Any, params: dict[str, Any], rest: str) -> None:
        self.do_answer(id, params, " first")
        self.do_answer(id, params, " second")

    def do_unknown(self, id: Any, params: dict[str, Any], rest: str) -> None:
        for other in (987654, "987654", f"{id}.0", None):
            if other != id:
                self.say(result(other, text("for nobody")))
        self.do_answer(id, params, "")

    def do_big(self, id: Any, params: dict[str, Any], rest: str) -> None:
        self.say(result(id, text("0123456789" * (int(rest) // 10))))

    def do_error(self, id: Any, params: dict[str, Any], rest: str) -> None:
        self.say(result(id, {**text(rest), "isError": True}))

    def do_rpc(self, id: Any, params: dict[str, Any], rest: str) -> None:
        code, _, message = rest.partition(" ")
        self.say(failure(id, int(code), message))

    def do_raw(self, id: Any, params: dict[str, Any], rest: str) -> None:
        write(rest.replace("ID", json.dumps(id)).encode() + b"\n")

    def do_progress(self, id: Any, params: dict[str, Any], rest: str) -> None:
        for each in rest.split():
            if each == "exit":
                os._exit(1)
            told = {"progressToken": params["_meta"]["progressToken"], "progress": float(each)}
            self.tell("notifications/progress", told)
        self.do_answer(id, params, "")

    def do_ask(self, id: Any, params: dict[str, Any], rest: str) -> None:
        mine = f"ask-{os.getpid()}-{len(self.asked)}"
        self.asked[mine] = (id, rest)
        self.say({"jsonrpc": "2.0", "id": mine, "method": rest, "params": {"why": "a test"}})

    def do_log(self, id: Any, params: dict[str, Any], rest: str) -> None:
        complain(rest)
        self.do_answer(id, params, "")

    def do_shout(self, id: Any, params: dict[str, Any], rest: str) -> None:
        for number in range(int(rest)):
            os.write(2, f"{number} {'x' * 1000}\n".encode())
        self.do_answer(id, params, "")

    def do_spawn(self, id: Any, params: dict[str, Any], rest: str) -> None:
        code = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()  # of {JOURNAL}"
        child = subprocess.Popen([sys.executable, "-IS", "-c", code])
        self.say(result(id, text(str(child.pid))))

    def do_close_stdout(self, id: Any, params: dict[str, Any], rest: str) -> None:
        os.close(1)

    def do_close_stdin(self, id: Any, params: dict[str, Any], rest: str) -> None:
        os.close(0)
        self.do_answer(id, params, "")
        while True:
            signal.pause()

    def do_add_tool(self, id: Any, params: dict[str, Any], rest: str) -> None:
        self.tools[rest] = []
        self.tell("notifications/tools/list_changed", {})
        self.do_answer(id, params, "")

    # -- out -----------------------------------------------------------------------------------------------------------

    def tell(self, method: str, params: dict[str, Any]) -> None:
        write(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode() + b"\n")

    def say(self, frame: object) -> None:
        if self.batch is not None and isinstance(frame, dict):
            self.batch.append(frame)
        else:
            write(json.dumps(frame).encode() + b"\n")


def result(id: Any, value: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": id, "result": value}


def failure(id: Any, code: int, message: str) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}


def invalid(id: Any) -> dict[str, object]:
    return failure(id, -32600, "no request")


def text(said: str) -> dict[str, object]:
    return {"content": [{"type": "text", "text": said}]}


def digest(params: object) -> str:
    return hashlib.sha256(json.dumps(params, sort_keys=True).encode()).hexdigest()


def write(data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(1, left) :]


def complain(line: str) -> None:
    os.write(2, f"{line}\n".encode())


def note(entry: dict[str, object]) -> None:
    with open(JOURNAL, "a", encoding="utf-8") as file:
        file.write(json.dumps({"pid": os.getpid(), **entry}) + "\n")


def journal() -> list[dict[str, Any]]:
    with open(JOURNAL, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def flag(name: str) -> bool:
    return any(
        each == name or (each.startswith(f"{name}=") and os.path.exists(each[len(name) + 1 :])) for each in FLAGS
    )


def main() -> None:
    if flag("ignores-term"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    complain("scripted: here I am")
    if flag("dies-with"):
        complain("scripted: I cannot live like this")
        sys.exit(3)
    note({"method": "start"})
    server = Server()
    for line in sys.stdin.buffer:
        server.take(line)
    note({"method": "end"})
    while flag("stays"):
        signal.pause()


main()
