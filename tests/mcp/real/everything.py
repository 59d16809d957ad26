"""The talk with server-everything: every method and every tool it has, in an order that only one right answer fits.

The same lines are said whatever stands between the client and the server, so two talks can be compared frame by frame.
"""

from __future__ import annotations

from typing import Any

from tests.mcp.real.wire import Answers, Json, Talk

CAPABILITIES: Json = {
    "roots": {"listChanged": True},
    "sampling": {"context": {}, "tools": {}},
    "elicitation": {"form": {}, "url": {}},
    "tasks": {"list": {}, "cancel": {}, "requests": {"sampling": {"createMessage": {}}, "elicitation": {"create": {}}}},
    "experimental": {"example.org/not-yet-invented": {"π": 3.14}},
}
CLIENT = {"name": "by-hand", "version": "1.0", "title": "A client, “by hand”"}
TOOLS = {  # every tool must be called: a new one in the server fails the test that counts them
    "echo", "get-annotated-message", "get-env", "get-resource-links", "get-resource-reference", "get-roots-list",
    "get-structured-content", "get-sum", "get-tiny-image", "gzip-file-as-resource", "simulate-research-query",
    "toggle-simulated-logging", "toggle-subscriber-updates", "trigger-elicitation-request",
    "trigger-elicitation-request-async", "trigger-long-running-operation", "trigger-sampling-request",
    "trigger-sampling-request-async", "trigger-url-elicitation",
}  # fmt: skip
TEXT = "data:text/plain;base64,SGVsbG8sIGhvbGRmYXN0IQ=="


# --- what the client answers ---


def _sample(params: Json) -> Json:
    if "task" in params:
        return {"task": _task("sampling", "working")}
    return {
        "role": "assistant",
        "content": {"type": "text", "text": "sampled – ünïcode 🎣"},
        "model": "m",
        "stopReason": "endTurn",
    }


def _elicit(params: Json) -> Json:
    if "task" in params:
        return {"task": _task("elicitation", "completed")}
    if params.get("mode") == "url":
        return {"action": "accept"}
    if "interpretation" in str(params["requestedSchema"]):
        return {"action": "accept", "content": {"interpretation": "technical"}}
    return {"action": "accept", "content": {"name": "Ada", "check": True, "integer": 7}}


def _task_result(params: Json) -> Json:
    if params["taskId"] == "sampling":
        return _sample({})
    return {"action": "accept", "content": {"name": "Grace", "favoriteColor": "Blue"}}


def _task(name: str, status: str) -> Json:
    moment = "2026-01-01T00:00:00Z"
    return {
        "taskId": name,
        "status": status,
        "createdAt": moment,
        "lastUpdatedAt": moment,
        "ttl": 60000,
        "pollInterval": 10,
    }


ANSWERS: Answers = {
    "ping": lambda _: {},
    "roots/list": lambda _: {
        "roots": [{"uri": "file:///a", "name": "first"}, {"uri": "file:///b", "_meta": {"x/y": 1}}]
    },
    "sampling/createMessage": _sample,
    "elicitation/create": _elicit,
    "tasks/get": lambda params: _task(params["taskId"], "completed"),
    "tasks/result": _task_result,
}


# --- what the client says ---


def converse(talk: Talk, version: str) -> None:
    """Say everything there is to say, in the protocol version *version*."""
    handshake(talk, version)
    for part in (
        _plain,
        _tools,
        _asks_back,
        _progress_and_cancel,
        _resources,
        _prompts,
        _logging,
        _tasks,
        _odd,
        _at_once,
    ):
        talk.scene(part.__name__.strip("_"), ordered=part is not _at_once)
        part(talk)


def handshake(talk: Talk, version: str) -> None:
    params = {
        "protocolVersion": version,
        "capabilities": CAPABILITIES,
        "clientInfo": CLIENT,
        "_meta": {"example.org/trace": "t"},
    }
    answer = talk.ask("initialize", params, id="init-0")
    assert answer["result"]["protocolVersion"] == version
    talk.notify("notifications/initialized")
    talk.wait(lambda m: "Roots updated" in str(m), "the server's look at the roots")


def _plain(talk: Talk) -> None:
    talk.ask("ping")
    talk.ask("ping", {"_meta": {"example.org/deep": {"a": [1, 2.0, None]}}}, id="a string as id")
    talk.ask("tools/list")
    talk.ask("tools/list", {"_meta": {"progressToken": "tools"}}, id=0)


def _tools(talk: Talk) -> None:
    talk.call("echo", message='quotes " and \\ and \u2028 and 🎣')
    talk.ask(
        "tools/call",
        {"name": "echo", "arguments": {"message": "with meta"}, "_meta": {"example.org/k": [1.0]}, "later": {"x": 1}},
    )
    talk.call("get-annotated-message", messageType="error", includeImage=True)
    talk.call("get-annotated-message", messageType="debug")
    talk.call("get-env")
    talk.call("get-resource-links", count=4)
    talk.call("get-resource-reference", resourceType="Blob", resourceId=2)
    talk.call("get-resource-reference", resourceType="Text", resourceId=3)
    talk.call("get-structured-content", location="Chicago")
    talk.call("get-sum", a=0.1, b=12345678901)
    talk.call("get-tiny-image")
    talk.call("gzip-file-as-resource", name="a.gz", data=TEXT, outputType="resource")
    talk.call("gzip-file-as-resource", name="b.gz", data=TEXT, outputType="resourceLink")
    talk.ask("resources/read", {"uri": "demo://resource/session/b.gz"})
    talk.call("echo", wrong=True)
    talk.call("get-sum", a="not a number", b=2)
    talk.call("no-such-tool")
    talk.ask("tools/call", {"arguments": {}})
    talk.ask("tools/call")


def _asks_back(talk: Talk) -> None:
    talk.call("get-roots-list")
    talk.call("trigger-sampling-request", prompt="Say something", maxTokens=7)
    talk.call("trigger-sampling-request-async", prompt="Take your time")
    talk.call("trigger-elicitation-request")
    talk.call("trigger-elicitation-request-async")
    talk.call("trigger-url-elicitation", url="https://example.org/go", elicitationId="e-1")
    talk.call("trigger-url-elicitation", url="https://example.org/err", elicitationId="e-2", errorPath=True)
    talk.notify("notifications/roots/list_changed")
    talk.wait(lambda m: "Roots updated" in str(m), "the second look at the roots", count=2)


def _progress_and_cancel(talk: Talk) -> None:
    for token, steps in (("a-token", 3), (7, 2)):
        arguments = {"duration": 0.15, "steps": steps}
        talk.ask(
            "tools/call",
            {"name": "trigger-long-running-operation", "arguments": arguments, "_meta": {"progressToken": token}},
        )
    talk.call("trigger-long-running-operation", duration=0.05, steps=1)
    # The steps go on, for this server does not stop, and meet the pings anywhere. There is a second to cancel it after
    # the first, and one more until a gateway waits no longer for the last.
    talk.scene("cancelled", ordered=False)
    arguments = {"duration": 2.0, "steps": 2}
    params = {"name": "trigger-long-running-operation", "arguments": arguments, "_meta": {"progressToken": "cancelled"}}
    doomed = talk.start("tools/call", params)
    talk.wait(lambda m: _token(m) == "cancelled", "progress of the call to cancel")
    talk.notify("notifications/cancelled", {"requestId": doomed, "reason": "changed my mind"})
    talk.ask("ping", id="after the cancel")
    talk.notify("notifications/cancelled", {"requestId": "nobody knows it"})
    talk.ask("ping", id="after the second cancel")
    talk.wait(lambda m: _token(m) == "cancelled", "the last step of the cancelled call", count=2)
    assert not talk.heard(lambda m: m.get("id") == doomed), "a cancelled request was answered"


def _resources(talk: Talk) -> None:
    listed = talk.ask("resources/list")["result"]["resources"]
    talk.ask("resources/templates/list")
    talk.ask("resources/read", {"uri": listed[0]["uri"]})
    talk.ask("resources/read", {"uri": "demo://resource/dynamic/text/1"})
    talk.ask("resources/read", {"uri": "demo://resource/dynamic/blob/2"})
    talk.ask("resources/read", {"uri": "demo://nothing/here"})
    talk.ask("resources/subscribe", {"uri": "demo://resource/dynamic/text/1"})
    talk.ask("resources/subscribe", {"uri": "demo://resource/dynamic/blob/2"})
    talk.call("toggle-subscriber-updates")
    talk.wait(lambda m: m.get("method") == "notifications/resources/updated", "updates of both", count=2)
    talk.call("toggle-subscriber-updates", off=True)
    talk.ask("resources/unsubscribe", {"uri": "demo://resource/dynamic/text/1"})
    talk.ask("resources/unsubscribe", {"uri": "demo://resource/dynamic/blob/2"})


def _prompts(talk: Talk) -> None:
    talk.ask("prompts/list")
    talk.ask("prompts/get", {"name": "simple-prompt"})
    talk.ask("prompts/get", {"name": "args-prompt", "arguments": {"city": "Zürich", "state": "ZH"}})
    talk.ask("prompts/get", {"name": "completable-prompt", "arguments": {"department": "Sales", "name": "Eve"}})
    talk.ask("prompts/get", {"name": "resource-prompt", "arguments": {"resourceType": "Text", "resourceId": "5"}})
    talk.ask("prompts/get", {"name": "args-prompt"})
    talk.ask("prompts/get", {"name": "no-such-prompt"})
    prompt = {"type": "ref/prompt", "name": "completable-prompt"}
    talk.ask("completion/complete", {"ref": prompt, "argument": {"name": "department", "value": "S"}})
    context = {"arguments": {"department": "Engineering"}}
    talk.ask("completion/complete", {"ref": prompt, "argument": {"name": "name", "value": "A"}, "context": context})
    template = {"type": "ref/resource", "uri": "demo://resource/dynamic/text/{resourceId}"}
    talk.ask("completion/complete", {"ref": template, "argument": {"name": "resourceId", "value": "3"}})
    talk.ask(
        "completion/complete", {"ref": {"type": "ref/prompt", "name": "none"}, "argument": {"name": "x", "value": ""}}
    )


def _logging(talk: Talk) -> None:
    talk.ask("logging/setLevel", {"level": "debug"})
    talk.call("toggle-simulated-logging")
    talk.wait(lambda m: "-level message" in str(m) or "level-message" in str(m), "a simulated message")
    talk.call("toggle-simulated-logging", off=True)
    talk.ask("logging/setLevel", {"level": "no such level"})
    talk.ask("logging/setLevel", {"level": "emergency"})


def _tasks(talk: Talk) -> None:
    params = {"name": "simulate-research-query", "arguments": {"topic": "holdfasts"}, "task": {"ttl": 60000}}
    task = talk.ask("tools/call", params)["result"]["task"]["taskId"]
    talk.ask("tasks/get", {"taskId": task})
    talk.ask("tasks/list")
    talk.ask("tasks/cancel", {"taskId": task})
    talk.ask("tasks/get", {"taskId": "unknown"})
    talk.call("simulate-research-query", topic="without a task")


def _odd(talk: Talk) -> None:
    talk.ask("not/invented/yet", {"a": {"b": [1, 2, {"c": None}]}})
    talk.ask("server/discover", {"_meta": {}})
    talk.notify("notifications/not/invented/yet", {"x": 1.50})
    talk.start("ping", id="with more", futureField={"kept": True})
    if any(frame.stream for frame in talk.frames):
        talk.answer("with more")
    else:  # on stdio this server drops it without a word
        talk.notify("notifications/cancelled", {"requestId": "with more"})
    talk.send_line(b'  {"id" : 900719925474099 , "method":"ping",  "jsonrpc":"2.0" ,"params":{ }}  ')
    talk.answer(900719925474099)
    talk.send_line(rb'{"jsonrpc":"2.0","id":"\u00fc\ud83c\udfa3","method":"ping"}')
    talk.answer("ü🎣")


def _at_once(talk: Talk) -> None:
    started = [
        *(talk.start("tools/call", {"name": "get-sum", "arguments": {"a": n, "b": n}}) for n in range(20)),
        *(talk.start("ping") for _ in range(5)),
        talk.start("tools/list"),
        talk.start("resources/list"),
    ]
    for id in reversed(started):
        talk.answer(id)


def _token(message: Any) -> object:
    return message.get("params", {}).get("progressToken") if message.get("method") == "notifications/progress" else None
