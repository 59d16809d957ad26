"""What a client may say: ids, batches, names and parameters of any kind. All of it has an answer, and only one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.mcp.stdio.client import Stage, settle, text, within


def request(method: str, id: Any, **params: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


# --- ids ---


@pytest.mark.parametrize("id", [0, -5, 1.5, 2**53, 2**70, "", "1", "a\nb", "ü😀", "x" * 10_000, "holdfast/1"])
async def test_an_id_is_a_number_or_a_string_of_any_kind(id: Any, journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()

        call = await within(client.call("write", id=id))
        ping = await client.ask("ping", id=id)

        assert text(call["result"]) == "write"
        assert ping["result"] == {}


async def test_a_repeated_call_gets_an_id_that_no_client_uses_not_even_another_proxy(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        other = client.call("write", id="holdfast/1", do="hold first")
        await client.next("notifications/holds")

        again = client.call("read", do=["error connection refused", "hold second"])
        await client.next("notifications/holds")
        await client.result("put", do="release first")

        assert text((await within(other))["result"]) == "released first"
        await client.result("put", do="release second")
        assert text((await within(again))["result"]) == "released second"


async def test_one_and_its_string_are_two_ids(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()

        number = client.call("write", id=1, do="hold a")
        await client.next("notifications/holds")
        string = client.call("write", id="1", do="hold b")
        await client.next("notifications/holds")
        await client.result("put", do="release b")
        assert text((await within(string))["result"]) == "released b"
        await client.result("put", do="release a")

        assert text((await within(number))["result"]) == "released a"


async def test_two_calls_with_one_id_are_both_made_and_both_answered(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        client.call("write", id="x", do="hold a")
        await client.next("notifications/holds")
        second = client.call("write", id="x", say="second")
        await within(second)

        await client.result("put", do="release a")
        await client.ask("ping")

        assert [text(answer["result"]) for answer in client.answered("x")] == ["second", "released a"]


async def test_a_request_with_the_id_of_a_call_does_not_take_its_answer(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        client.call("write", id="x", do="hold a")
        await client.next("notifications/holds")

        assert (await client.ask("ping", id="x"))["result"] == {}
        client.begin("custom/do", {"do": "answer"}, id="x")
        await client.result("put", do="release a")
        await client.ask("ping")

        said = [text(answer["result"]) for answer in client.answered("x") if answer["result"]]
        assert sorted(said) == ["custom/do", "released a"]


async def test_both_of_two_calls_with_one_id_end_with_the_session(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        for _ in range(2):
            client.call("write", id="x", do="hang")
            await client.next("notifications/hangs")

    await settle()  # a task that is left behind is an error


@pytest.mark.parametrize("method", ["tools/call", "ping"])
async def test_a_request_without_a_usable_id_is_the_servers_to_answer(method: str, journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()

        client.say(b'{"jsonrpc":"2.0","id":null,"method":"%s","params":{"name":"write"}}' % method.encode())
        client.say(b'{"jsonrpc":"2.0","id":true,"method":"%s","params":{"name":"write"}}' % method.encode())
        await client.ask("ping")

        assert [answer["id"] for answer in client.answers[-2:]] == [None, 3]
        assert [entry["id"] for entry in client.journal(method)][:2] == [None, True]


# --- what cannot be read ---


@pytest.mark.parametrize(
    "line",
    [
        b"garbage",
        b"{",
        b'"x"',
        b"17",
        b'{"jsonrpc":"2.0","id":9,"method":7}',
        b'{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"w","arguments":{"x":"\xff"}}}',
        b'{"jsonrpc":"2.0","id":9,"method":"\xff"}',
        b"\xff\xfe",
        b"\x00",
    ],
)
async def test_what_cannot_be_read_goes_to_the_server_and_the_session_goes_on(line: bytes, journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        before = len(client.journal())

        client.say(line)
        await client.ask("ping")

        assert len(client.journal()) == before + 2


@pytest.mark.parametrize(
    "params",
    [
        None,
        7,
        "x",
        [],
        ["read"],
        {},
        {"name": 7},
        {"name": None, "arguments": {}},
        {"arguments": {}},
    ],
)
async def test_bad_params_of_a_call_are_the_servers_to_refuse(params: Any, journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()

        answer = await client.ask("tools/call", params, id=9)

        assert answer["error"] == {"code": -32602, "message": f"bad params: {json.dumps(params)}"}
        assert b'{"jsonrpc": "2.0", "id": 9, "error"' in client.heard[-1]


@pytest.mark.parametrize("arguments", [None, 7, "x", [1]])
async def test_arguments_of_any_type_reach_the_server(arguments: Any, journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()

        call = client.begin("tools/call", {"name": "write", "arguments": arguments})
        if arguments is None:
            assert text((await within(call))["result"]) == "write"
        else:  # it kills this server, which is as good a sign as any
            await client.turns("restarting")

        assert client.journal("tools/call")[-1]["params"]["arguments"] == arguments


@pytest.mark.parametrize("name", ["", "\n", "a\nb", "x" * 10_000, "ü😀", "a.b.*[c]", "srv", "\u202e\x00", " "])
async def test_a_tool_of_any_name_is_called_by_that_name(name: str, journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()

        result = await client.result(name, say="yes")

        assert text(result) == "yes"
        assert "isError" not in result


async def test_ten_thousand_names_do_not_stop_the_next(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        for n in range(10_050):
            client.server.tool(f"tool {n}")

        assert text(await client.result("one more")) == "one more"


async def test_a_call_with_a_number_that_is_none_is_guarded_and_answered(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()

        answer = client.expect(9)
        params = b'{"name":"write","arguments":{"x":NaN}}'
        client.say(b'{"jsonrpc":"2.0","id":9,"method":"tools/call","params":%b}' % params)

        assert text((await within(answer))["result"]) == "write"
        assert client.hf.tracker.stats("srv.write").successful == 1


# --- batches ---


async def test_a_batch_without_calls_reaches_the_server_as_it_is_and_is_answered_as_one(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()

        client.say([request("ping", 10), request("tools/list", "11"), {"jsonrpc": "2.0", "method": "notifications/x"}])
        await client.ask("ping", id=12)

        batch = json.loads(client.heard[-2])
        assert [each["id"] for each in batch] == [10, "11"]


async def test_a_batch_that_has_an_id_twice_is_answered_twice_under_it(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()

        answer = client.expect(7)
        client.say([request("ping", 7), request("ping", 7)])
        await within(answer)

        assert [each["id"] for each in json.loads(client.heard[-1])] == [7, 7]


async def test_a_batch_does_not_take_the_answer_to_a_request_of_the_same_id(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        client.begin("custom/do", {"do": "hold a"}, id=7)
        await client.next("notifications/holds")

        client.say([request("ping", 7)])
        await client.result("put", do="release a")
        await client.ask("ping")

        ping, held = client.answered(7)
        assert ping["result"] == {}
        assert text(held["result"]) == "released a"


async def test_a_batch_with_calls_is_answered_as_one_with_each_call_guarded(journal: Path) -> None:
    policies = {"server": {"srv": {"tool": {"put": {"rate": {"per_second": 0.01, "burst": 1.0}}}}}}
    async with Stage(journal, policies=policies) as client:
        await client.initialize()

        answer = client.expect(14)
        client.say(
            [
                request("tools/call", 10, name="write", arguments={"say": "a"}),
                request("ping", 11),
                request("tools/call", 12, name="read", arguments={"do": ["error connection refused", "answer"]}),
                {"jsonrpc": "2.0", "method": "notifications/x"},
                request("tools/call", 13, name="put", arguments={}),
                request("tools/call", 14, name="put", arguments={"n": 1}),
            ]
        )
        refused = await within(answer)

        batch = json.loads(client.heard[-1])
        assert sorted(each["id"] for each in batch) == [10, 11, 12, 13, 14]
        assert refused["result"]["isError"] is True
        assert client.journal("notifications/x")


async def test_an_empty_batch_and_one_of_invalid_members_are_the_servers_to_refuse(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()

        client.say(b"[]")
        client.say(b"[1, {}, null]")
        await client.ask("ping")

        assert [answer["error"]["code"] for answer in client.answered(None)] == [-32600, -32600, -32600]


@pytest.mark.parametrize("other", ["ping", "tools/call"])
async def test_invalid_members_of_a_batch_do_not_harm_the_others(other: str, journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()

        answer = client.expect(10)
        client.say([1, request(other, 10, name="write"), "x", {"id": [], "method": "y"}, request("ping", 11)])

        assert "result" in await within(answer)
        assert client.answered(11)[0]["result"] == {}
        assert client.answered(None)


async def test_a_cancelled_member_does_not_keep_the_rest_of_its_batch(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        client.say(
            [
                request("tools/call", 10, name="write", arguments={"do": "hang"}),
                request("tools/call", 11, name="write", arguments={"do": "answer"}),
                request("custom/do", 12, do="hang"),
            ]
        )
        for _ in range(2):
            await client.next("notifications/hangs")
        await client.ask("ping")
        assert not client.answered(11)

        client.cancel(10)
        client.cancel(12)

        assert [each["id"] for each in json.loads(client.heard[-1])] == [11]


async def test_a_late_answer_to_a_cancelled_member_of_a_batch_still_passes(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        client.say(
            [
                request("tools/call", 10, name="write", arguments={"do": "hold a"}),
                request("tools/call", 11, name="write", arguments={"do": "hang"}),
            ]
        )
        await client.next("notifications/hangs")

        client.cancel(10)
        await client.result("put", do="release a")

        assert [text(answer["result"]) for answer in client.answered(10)] == ["released a"]


async def test_a_batch_in_flight_when_the_server_dies_is_answered_as_one(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()

        answer = client.expect(12)
        client.say([request("ping", 10), request("custom/do", 11, do="kill"), request("tools/list", 12)])
        await within(answer)

        batch = {each["id"]: each for each in json.loads(client.heard[-1])}
        assert batch[10]["result"] == {}
        assert batch[11]["error"]["code"] == -32000
        assert batch[12]["result"]["tools"]
