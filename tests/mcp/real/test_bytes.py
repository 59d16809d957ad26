"""Frames that need no decision pass as the bytes they came in, both ways: known, odd, not yet invented."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.mcp.real.through import proxy, surroundings
from tests.mcp.real.wire import Pipe, Talk

pytestmark = pytest.mark.slow

LINES = {
    "spaces": b'{ "jsonrpc" : "2.0" ,\t"method" : "notifications/x" }',
    "order of keys": b'{"params":{"b":1,"a":2},"method":"notifications/x","jsonrpc":"2.0"}',
    "a key twice": b'{"jsonrpc":"2.0","method":"notifications/x","params":{"a":1,"a":2}}',
    "numbers": b'{"jsonrpc":"2.0","method":"notifications/x","params":[1.0,1.50,1e3,-0,-0.0,1E+2,0.1]}',
    "large numbers": b'{"jsonrpc":"2.0","method":"notifications/x","params":[12345678901234567890123456789,1e400]}',
    "escapes": rb'{"jsonrpc":"2.0","method":"notifications/x","params":{"t":"\u00fc\/\u0041\ud83c\udfa3\b"}}',
    "a lone surrogate": rb'{"jsonrpc":"2.0","method":"notifications/x","params":{"t":"\ud83c"}}',
    "unicode": '{"jsonrpc":"2.0","method":"notifications/x","params":{"t":"ü\u2028\u2029\u0085🎣"}}'.encode(),
    "unknown fields": b'{"jsonrpc":"2.0","method":"notifications/x","later":{"x":[null]},"_meta":{"y":1}}',
    "another jsonrpc": b'{"jsonrpc":"3.0","method":"notifications/x"}',
    "deep": b'{"jsonrpc":"2.0","method":"notifications/x","params":' + b'{"a":' * 100 + b"1" + b"}" * 100 + b"}",
    "long": b'{"jsonrpc":"2.0","method":"notifications/x","params":{"t":"' + b"x" * 1_000_000 + b'"}}',
    "a batch of notifications": b'[{"jsonrpc":"2.0","method":"notifications/x"}, {"jsonrpc":"2.0","method":"n/y"}]',
}
REQUESTS = {
    "a batch of asks": b'[{"jsonrpc":"2.0","id":1,"method":"p"},{"jsonrpc":"2.0","id":"2","method":"x","params":[1]}]',
    "a mixed batch": b'[{"jsonrpc":"2.0","method":"n/x"},{"jsonrpc":"2.0","id":9007199254740993,"method":"ping"}]',
    "a large id": b'{"jsonrpc":"2.0","id":9007199254740993,"method":"ping"}',
    "an id with a fraction": b'{"jsonrpc":"2.0","id":1.5,"method":"later/x"}',
    "an empty method": b'{"jsonrpc":"2.0","id":1,"method":""}',
    "parameters in a list": b'{"jsonrpc":"2.0","id":1,"method":"later/x","params":[1, 2]}',
}


@pytest.fixture
def talk() -> Iterator[Talk]:
    command = [sys.executable, str(Path(__file__).parent / "servers" / "mirror.py")]
    with Talk(Pipe(proxy(command), env=surroundings(), obedient=False), {}) as talk:
        yield talk


def heard(talk: Talk, line: bytes) -> list[bytes]:
    """What the server has heard, once it has heard something after *line*."""
    talk.send_line(line)
    talk.notify("notifications/after")
    talk.wait(lambda m: "notifications/after" in str(m), "the line after it")
    told = talk.heard(lambda m: m.get("method") == "notifications/heard")
    return [message["params"]["line"].encode("latin-1") for message in told]


@pytest.mark.parametrize("line", [pytest.param(line, id=name) for name, line in {**LINES, **REQUESTS}.items()])
def test_what_the_client_says_reaches_the_server_as_it_is(talk: Talk, line: bytes) -> None:
    assert heard(talk, line)[0] == line


@pytest.mark.parametrize("line", [pytest.param(line, id=name) for name, line in LINES.items()])
def test_what_the_server_says_reaches_the_client_as_it_is(talk: Talk, line: bytes) -> None:
    said = json.dumps({"jsonrpc": "2.0", "method": "say", "params": {"line": line.decode("latin-1")}}).encode()

    heard(talk, said)

    assert line in [frame.raw for frame in talk.frames if frame.sender == "server"]


def test_the_answers_to_a_batch_come_back_as_the_batch_they_were(talk: Talk) -> None:
    answers = (
        '[{"jsonrpc":"2.0","id":1,"result":{"a":1.0}},{"jsonrpc":"2.0","id":"2","error":{"code":1,"message":"m"}}]'
    )
    talk.send_line(REQUESTS["a batch of asks"])

    heard(talk, json.dumps({"jsonrpc": "2.0", "method": "say", "params": {"line": answers}}).encode())

    assert answers.encode() in [frame.raw for frame in talk.frames if frame.sender == "server"]


# --- half a character, as JavaScript writes it where a text was cut inside an emoji ---


def test_a_result_with_half_a_character_is_answered(talk: Talk) -> None:
    answer = r'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"cut \ud83c"}]}}'
    talk.start("tools/call", {"name": "cut", "arguments": {}}, id=1)
    talk.wait(lambda m: "tools/call" in str(m), "the call")

    heard(talk, json.dumps({"jsonrpc": "2.0", "method": "say", "params": {"line": answer}}).encode())

    assert talk.answer(1)["result"]["content"][0]["text"] == "cut \ud83c"


def test_a_call_with_half_a_character_is_answered(talk: Talk) -> None:
    talk.send_line(
        rb'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"cut","arguments":{"t":"\ud83c"}}}'
    )
    talk.wait(lambda m: "tools/call" in str(m), "the call")

    heard(
        talk,
        b'{"jsonrpc":"2.0","method":"say","params":{"line":"{\\"jsonrpc\\":\\"2.0\\",\\"id\\":1,\\"result\\":{}}"}}',
    )

    assert talk.answer(1)["result"] == {}
