"""The talk of 2026-07-28: no handshake, the metadata in every request, notifications only to those who listen.

It is held with the Python SDK's own server, since server-everything does not speak this version yet.
"""

from __future__ import annotations

from tests.mcp.real.wire import Answers, Json, Talk

VERSION = "2026-07-28"
PREFIX = "io.modelcontextprotocol/"
META: Json = {
    f"{PREFIX}protocolVersion": VERSION,
    f"{PREFIX}clientInfo": {"name": "by-hand", "version": "1.0"},
    f"{PREFIX}clientCapabilities": {"elicitation": {"form": {}}, "sampling": {}, "roots": {}},
    "example.org/trace": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
}
ANSWERS: Answers = {}


def converse(talk: Talk) -> None:
    for part in (_lists, _calls, _progress_and_cancel, _listening, _reads, _odd):
        talk.scene(part.__name__.strip("_"), ordered=part is not _listening)  # there the server's own tasks race
        part(talk)
    talk.scene("at_once", ordered=False)
    for id in [talk.start("tools/call", _with(name="add", arguments={"a": n, "b": n})) for n in range(20)]:
        talk.answer(id)


def _lists(talk: Talk) -> None:
    found = talk.ask("server/discover", _with())["result"]
    assert VERSION in found["supportedVersions"]
    for method in ("tools/list", "resources/list", "resources/templates/list", "prompts/list"):
        talk.ask(method, _with())


def _calls(talk: Talk) -> None:
    call(talk, "add", a=1, b=2)
    call(talk, "remember", note="ünï 🎣")
    call(talk, "fail", message="no such city")
    call(talk, "crash")
    call(talk, "add", a="x")
    call(talk, "nothing")
    call(talk, "big", size=200_000)
    talk.ask("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}})  # without the metadata
    other = {**META, f"{PREFIX}protocolVersion": "2099-01-01"}
    talk.ask("tools/call", {"name": "add", "arguments": {"a": 3, "b": 2}, "_meta": other})


def _progress_and_cancel(talk: Talk) -> None:
    talk.ask("tools/call", {"name": "steps", "arguments": {"count": 4}, "_meta": {**META, "progressToken": "p"}})
    doomed = talk.start(
        "tools/call", {"name": "wait", "arguments": {"name": "w"}, "_meta": {**META, "progressToken": 9}}
    )
    talk.wait(lambda m: m.get("params", {}).get("progressToken") == 9, "the beginning of the call to cancel")
    talk.notify("notifications/cancelled", {"requestId": doomed, "reason": "enough", "_meta": META})
    call(talk, "add", a=7, b=7)
    assert not talk.heard(lambda m: m.get("id") == doomed), "a cancelled request was answered"


def _listening(talk: Talk) -> None:
    wanted = {"toolsListChanged": True, "resourceSubscriptions": ["notes://all"]}
    listening = talk.start("subscriptions/listen", _with(notifications=wanted), id="ears")
    talk.wait(lambda m: m.get("method") == "notifications/subscriptions/acknowledged", "the acknowledgement")
    call(talk, "announce")
    for news in ("resources/updated", "tools/list_changed"):  # which of them comes first is nobody's promise
        talk.wait(lambda m, news=news: m.get("method") == f"notifications/{news}", f"the news: {news}")  # type: ignore[misc]
    talk.notify("notifications/cancelled", {"requestId": listening, "_meta": META})
    call(talk, "announce", again=True)
    talk.ask("server/discover", _with())


def _reads(talk: Talk) -> None:
    talk.ask("resources/read", _with(uri="notes://all"))
    talk.ask("resources/read", _with(uri="greeting://Ada"))
    talk.ask("resources/read", _with(uri="nothing://here"))
    talk.ask("prompts/get", _with(name="review", arguments={"code": "x = 1"}))
    talk.ask("prompts/get", _with(name="nothing"))


def _odd(talk: Talk) -> None:
    talk.ask("not/invented/yet", _with(a=[1.0, 1e3, None]))
    talk.ask("ping", _with())
    talk.ask("logging/setLevel", _with(level="debug"))


def call(talk: Talk, tool: str, /, **arguments: object) -> Json:
    return talk.ask("tools/call", _with(name=tool, arguments=arguments))


def _with(**params: object) -> Json:
    return {**params, "_meta": META}
