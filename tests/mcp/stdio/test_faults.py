"""A server that dies, hangs, or says what is no answer: what the client is told, and how often the tool was called."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from tests.mcp.stdio.client import Stage, command, failure, settle, text, until, within

from holdfast.testing import ManualClock

DEATHS = ["kill", "exit 0", "exit 7", "half"]

# --- it dies ---


@pytest.mark.parametrize("death", DEATHS)
@pytest.mark.parametrize("tool", ["read", "put"])
async def test_a_call_that_may_be_repeated_survives_the_death_of_its_server(
    tool: str, death: str, journal: Path
) -> None:
    async with Stage(journal) as client:
        await client.initialize()

        result = await client.result(tool, do=[death, "answer"], say="still here")

        assert text(result) == "still here"
        assert client.effects(tool) == 2


@pytest.mark.parametrize("death", DEATHS)
async def test_any_other_call_is_never_repeated_and_its_outcome_is_unknown(death: str, journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()

        result = await client.result("write", do=[death, "answer"])

        assert failure(result) == {"kind": "ServerLost", "category": "network", "called": True}
        assert "outcome is unknown" in text(result)
        await client.turns("ready")
        assert client.effects("write") == 1
        assert text(await client.result("write", do="answer")) == "write"


async def test_a_call_that_has_reached_its_tool_was_called_though_its_repetition_finds_no_server(
    journal: Path, tmp_path: Path
) -> None:
    program = tmp_path / "program"
    program.symlink_to(command(journal)[0])
    async with Stage(journal, words=[str(program), *command(journal)[1:]]) as client:
        await client.initialize()
        program.unlink()

        result = await client.result("put", do="kill")

        assert "cannot be started" in text(result)
        assert "was not called" not in text(result)
        assert failure(result) == {"kind": "ServerLost", "category": "network", "called": True}


@pytest.mark.parametrize(("do", "said"), [("answer_and_exit 1", "write"), ("unended", "no end of line")])
async def test_an_answer_said_with_the_last_breath_counts(do: str, said: str, journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()

        assert text(await client.result("write", do=do)) == said


async def test_all_calls_in_flight_are_answered_once_each_when_the_server_dies(journal: Path) -> None:
    async with Stage(journal, policies={"tool": {"srv.read": {"retry": {"budget": 1.0}}}}) as client:
        await client.initialize()
        writes = [client.call("write", do=f"hold w{n}") for n in range(3)]
        reads = [client.call("read", n=n, do=["hold r", "hold r", "hold r", "answer"]) for n in range(3)]
        for _ in range(6):
            await client.next("notifications/holds")

        client.call("other", do=["kill", "answer"])
        answers = [await within(each) for each in writes + reads]

        assert [failure(answer["result"])["kind"] for answer in answers[:3]] == ["ServerLost"] * 3
        assert [text(answer["result"]) for answer in answers[3:]] == ["read"] * 3
        assert (client.effects("write"), client.effects("read")) == (3, 6)
        assert all(len(client.answered(answer["id"])) == 1 for answer in answers)


async def test_a_reading_request_is_repeated_and_others_are_answered_with_an_error(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()

        safe = client.begin("resources/read", {"uri": "x:y", "do": ["kill", "answer"]})
        assert text((await within(safe))["result"]) == "resources/read"
        other = await client.ask("custom/do", {"do": "kill"})

        assert other["error"]["code"] == -32000
        assert "killed by SIGKILL" in other["error"]["message"]
        assert len(client.journal("custom/do")) == 1


async def test_a_reading_request_that_kills_every_server_is_given_up(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()

        answer = await client.ask("resources/read", {"uri": "x:y", "do": "kill"})

        assert answer["error"]["code"] == -32000
        assert len(client.journal("resources/read")) == 3


async def test_a_grandchild_of_a_server_that_died_is_killed(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        await client.result("write", do="spawn")

        result = await client.result("write", do="kill")

        assert failure(result)["kind"] == "ServerLost"  # though its pipes were held open; the fixture looks for it


async def test_a_server_that_closes_its_output_is_ended_and_replaced(journal: Path) -> None:
    async with Stage(journal, "stays", patience=0.1) as client:
        await client.initialize()

        result = await client.result("write", do="close_stdout")

        assert failure(result)["kind"] == "ServerLost"
        assert text(await client.result("read")) == "read"


async def test_a_server_that_closes_its_input_is_ended_and_replaced(journal: Path) -> None:
    async with Stage(journal, patience=0.1) as client:
        await client.initialize()
        await client.result("write", do="close_stdin")

        await client.turns("restarting")

        assert text(await client.result("read")) == "read"


@pytest.mark.parametrize("do", ["close_stdin", "unended"])
async def test_a_call_is_not_given_to_a_server_that_reads_or_says_no_more(do: str, journal: Path) -> None:
    async with Stage(journal, patience=0.1) as client:
        await client.initialize()
        await client.result("put", do=do)
        await settle()

        result = await client.result("write")

        assert text(result) == "write"
        assert client.effects("write") == 1


async def test_deaths_open_the_circuit_of_the_server_and_not_of_the_tool(journal: Path) -> None:
    policies = {"server": {"srv": {"breaker": {"failure_threshold": 2, "min_backoff": 60.0}}}}
    async with Stage(journal, policies=policies) as client:
        await client.initialize()
        for _ in range(2):
            await client.result("write", do="kill")
        await client.turns("ready")

        result = await client.result("put")

        assert failure(result)["kind"] == "CircuitOpen"
        assert "its server 'srv' is down" in text(result)
        assert client.effects("put") == 0


async def test_a_death_is_one_failure_of_the_server_however_many_calls_it_took(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        calls = [client.call("write", do=f"hold {n}") for n in range(3)]
        for _ in calls:
            await client.next("notifications/holds")

        await client.result("write", do="kill")
        for call in calls:
            await within(call)

        assert client.hf.breaker.diagnostics("srv").failure_count == 1


async def test_a_call_that_is_answered_by_the_next_server_makes_up_for_the_death_of_the_first(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()

        await client.result("read", do=["kill", "answer"])

        assert client.hf.breaker.diagnostics("srv").failure_count == 0


async def test_a_request_that_died_with_its_server_does_not_keep_the_session_busy(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        client.begin("custom/do", {"do": "kill"})

        await within(client.session.idle())


async def test_a_server_that_nobody_reads_notices_the_end_all_the_same(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        client.upstream.hold(True)
        client.call("write", do="big 1000000")
        await until(lambda: client.effects("write"))

    assert client.journal("end")


# --- it hangs ---


async def test_a_hung_call_is_answered_at_the_deadline_and_the_server_is_told_and_lives_on(
    journal: Path, clock: ManualClock
) -> None:
    async with Stage(journal, clock=clock) as client:
        await client.initialize()
        call = client.call("write", do="hang")
        await client.next("notifications/hangs")
        clock.advance(49.9)
        await settle()
        assert not call.done()

        clock.advance(0.2)
        result = (await within(call))["result"]

        assert failure(result)["kind"] == "ToolTimeout"
        assert "no answer within 50 s" in text(result)
        assert "outcome is unknown" in text(result)
        heard = await client.next("notifications/heard")
        assert heard["params"]["params"]["requestId"] == call_id(client)
        await client.ask("ping")
        clock.advance(5.1)
        assert text(await client.result("read")) == "read"
        assert client.upstream.condition.restarts == 0
        assert len(client.journal("ping")) == 2  # ours and the client's


async def test_silences_are_failures_of_the_server_which_is_asked_once_whether_it_lives(
    journal: Path, clock: ManualClock
) -> None:
    async with Stage(journal, clock=clock) as client:
        await client.initialize()
        calls = [client.call("write", n=n, do="hang") for n in range(2)]
        for _ in calls:
            await client.next("notifications/hangs")

        clock.advance(50.1)
        for call in calls:
            await within(call)
        await client.ask("ping")

        assert client.hf.breaker.diagnostics("srv").failure_count == 2
        assert len(client.journal("ping")) == 2  # ours and the client's


async def test_a_server_that_knows_no_handshake_is_not_asked_whether_it_lives(
    journal: Path, clock: ManualClock
) -> None:
    async with Stage(journal, clock=clock) as client:
        call = client.call("write", do="hang")
        await client.next("notifications/hangs")

        clock.advance(50.1)
        assert failure((await within(call))["result"])["kind"] == "ToolTimeout"
        await client.next("notifications/heard")
        clock.advance(5.1)

        assert text(await client.result("write")) == "write"
        assert not client.journal("ping")


async def test_a_server_that_cannot_be_heard_since_its_client_does_not_read_is_not_taken_for_dead(
    journal: Path, clock: ManualClock
) -> None:
    async with Stage(journal, clock=clock) as client:
        await client.initialize()
        call = client.call("write", do="hang")
        await client.next("notifications/hangs")
        client.upstream.hold(True)

        clock.advance(50.1)
        await within(call)
        await settle()
        clock.advance(5.1)
        await settle()
        client.upstream.hold(False)

        await client.ask("ping")
        assert client.upstream.condition.restarts == 0


@pytest.mark.parametrize("method", ["elicitation/create", "sampling/createMessage"])
async def test_a_call_has_all_the_time_that_a_person_or_a_model_needs_to_answer_its_server(
    method: str, journal: Path, clock: ManualClock
) -> None:
    async with Stage(journal, clock=clock) as client:
        await client.initialize()
        hung = client.call("write", do="hang")
        await client.next("notifications/hangs")
        clock.advance(30.0)
        call = client.call("write", do=f"ask {method}")
        asked = await client.next(method)

        clock.advance(600.0)
        await settle()
        assert not call.done()
        client.say({"jsonrpc": "2.0", "id": asked["id"], "result": {"said": "yes"}})

        assert text((await within(call))["result"]) == '{"said": "yes"}'
        clock.advance(19.9)
        await settle()
        assert not hung.done()
        clock.advance(0.2)
        assert failure((await within(hung))["result"])["kind"] == "ToolTimeout"


async def test_a_question_that_nobody_answers_stops_no_time_once_its_call_is_over(
    journal: Path, clock: ManualClock
) -> None:
    async with Stage(journal, clock=clock) as client:
        await client.initialize()
        client.call("write", do="ask elicitation/create", id="x")
        await client.next("elicitation/create")
        client.cancel("x")
        await client.next("notifications/heard")
        hung = client.call("write", do="hang")
        await client.next("notifications/hangs")

        clock.advance(50.1)
        await settle()

        assert failure(hung.result()["result"])["kind"] == "ToolTimeout"


async def test_a_frozen_server_is_killed_and_replaced_when_it_shows_no_sign_of_life(
    journal: Path, clock: ManualClock
) -> None:
    async with Stage(journal, clock=clock) as client:
        await client.initialize()
        call = client.call("read", do="freeze")
        await client.next("notifications/hangs")

        clock.advance(50.1)
        result = (await within(call))["result"]
        assert failure(result)["kind"] == "ToolTimeout"
        assert "try again later" in text(result)  # it only reads
        await settle()
        clock.advance(5.1)
        await client.turns("restarting")

        assert client.upstream.condition.last_error is not None
        assert "stopped answering and was killed" in client.upstream.condition.last_error
        await settle()
        clock.advance(1.0)
        assert text(await client.result("read")) == "read"


async def test_a_server_that_showed_a_sign_of_life_is_asked_again_when_it_hangs_again(
    journal: Path, clock: ManualClock
) -> None:
    async with Stage(journal, clock=clock) as client:
        await client.initialize()
        for do in ("hang", "freeze"):
            call = client.call("write", do=do)
            await client.next("notifications/hangs")
            clock.advance(50.1)
            await within(call)
            if do == "hang":
                await client.ask("ping")
            await settle()
            clock.advance(5.1)
            await settle()

        await client.turns("restarting")


async def test_a_frozen_server_whose_input_is_full_holds_the_client_until_it_is_replaced(
    journal: Path, clock: ManualClock
) -> None:
    holds: list[bool] = []
    async with Stage(journal, clock=clock) as client:
        client.session.hold = holds.append
        await client.initialize()
        client.call("write", do="freeze")
        await client.next("notifications/hangs")

        client.tell("notifications/large", {"x": "y" * 2**20})

        assert holds == [True]
        clock.advance(50.1)
        await settle()
        clock.advance(5.1)
        await client.turns("restarting")
        assert holds == [True, False]


async def test_a_timeout_of_a_policy_is_heeded_attempt_by_attempt(journal: Path, clock: ManualClock) -> None:
    policies = {"server": {"srv": {"tool": {"read": {"timeout": 1.0, "retry": {"initial": 0.1, "max": 0.1}}}}}}
    async with Stage(journal, clock=clock, policies=policies) as client:
        await client.initialize()
        call = client.call("read", do=["hang", "answer"])
        await client.next("notifications/hangs")
        clock.advance(1.1)
        await client.next("notifications/heard")
        clock.advance(0.2)

        assert text((await within(call))["result"]) == "read"
        assert client.effects("read") == 2


# --- it says what is no answer ---


async def test_lines_that_are_no_frames_are_dropped_and_noted_and_the_call_goes_on(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()

        assert text(await client.result("write", do="garbage")) == "write"
        assert text(await client.result("write", do="latin1_line")) == "write"

        assert b"[]" not in client.heard
        notes = [line for line in client.upstream.command.said if line.startswith("holdfast: ")]
        assert notes == [
            *(f"holdfast: no frame, dropped: {line}" for line in ("I am no frame", "{", "[1, 2]", "[]", '"x"')),
            "holdfast: not UTF-8, dropped: caf�",
        ]
        assert client.upstream.condition.restarts == 0


async def test_an_answer_that_is_not_utf8_fails_at_once_and_is_not_passed_on(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()

        result = await client.result("write", do="latin1")
        passing = await client.ask("custom/do", {"do": "latin1"})

        assert failure(result)["kind"] == "ServerLost"
        assert "its answer was not UTF-8" in text(result)
        assert passing["error"]["message"] == "its answer was not UTF-8"
        assert text(await client.result("read", do=["latin1", "answer"])) == "read"
        assert client.upstream.condition.restarts == 0


async def test_a_second_answer_is_dropped(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()

        answers = [await within(client.call(tool, do="twice")) for tool in ("read", "write")]
        answers.append(await client.ask("custom/do", {"do": "twice"}))
        await client.ask("ping")

        assert [text(answer["result"]) for answer in answers] == ["read first", "write first", "custom/do first"]
        assert all(len(client.answered(answer["id"])) == 1 for answer in answers)


async def test_answers_that_nobody_asked_for_are_dropped_but_for_those_to_no_id(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()

        answer = await within(client.call("read", do="unknown"))
        await client.ask("ping")

        assert text(answer["result"]) == "read"
        assert not client.answered(987654)
        assert not client.answered("987654")
        assert not client.answered(f"{answer['id']}.0")
        assert len(client.answered(None)) == 1  # "I could not read that" belongs to the client


@pytest.mark.parametrize(
    "said",
    [
        '{"jsonrpc":"2.0","id":ID}',
        '{"jsonrpc":"2.0","id":ID,"result":null}',
        '{"jsonrpc":"2.0","id":ID,"result":[1]}',
        '{"jsonrpc":"2.0","id":ID,"result":{"content":"x"}}',
        '{"jsonrpc":"2.0","id":ID,"result":{"isError":"yes"}}',
        '{"jsonrpc":"2.0","id":ID,"error":17}',
        '{"jsonrpc":"2.0","id":ID,"error":{"code":"x","message":7}}',
        '{"jsonrpc":"2.0","id":ID,"result":{"content":[]},"error":null}',
        '{"jsonrpc":"2.0","id":ID,"result":{"content":[],"structuredContent":{"x":NaN,"y":-Infinity}}}',
        '{"unheard":["of",{}],"id":ID,"jsonrpc":"2.0","result":{"content":[{"text":5},1]}}',
    ],
)
async def test_an_answer_of_any_shape_goes_to_the_client_as_it_came(said: str, journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()

        await within(client.call("write", do=f"raw {said}", id=99))

        assert client.heard[-1] == said.replace("ID", "99").encode()


@pytest.mark.parametrize("method", ["tools/call", "custom/do"])
async def test_an_id_that_comes_back_as_a_text_is_the_client_s_number(method: str, journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()

        do = 'raw {"jsonrpc":"2.0","id":"ID","result":{"content":[]}}'
        answer = await client.ask(method, {"name": "write", "arguments": {"do": do}, "do": do})

        assert answer["result"] == {"content": []}


@pytest.mark.parametrize(
    "more",
    ['"result":{"content":[]},"error":null', '"result":{"content":[],"isError":null}', '"result":{"x":NaN}'],
    ids=["error", "isError", "NaN"],
)
async def test_what_is_odd_about_an_answer_is_no_failure(more: str, journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()

        await client.ask("tools/call", {"name": "write", "arguments": {"do": f'raw {{"id":ID,{more}}}'}})

        assert client.hf.tracker.stats("srv.write").failed == 0


@pytest.mark.parametrize("tool", ["read", "write"])
async def test_ten_megabytes_go_through_byte_for_byte_in_both_directions(tool: str, journal: Path) -> None:
    params = {"name": tool, "arguments": {"do": "digest", "x": 'ü€😀\\" ' * 10**6}}
    async with Stage(journal) as client:
        await client.initialize()

        digest = text((await client.ask("tools/call", params))["result"])
        big = text(await client.result(tool, do="big 10000000"))

        assert digest == hashlib.sha256(json.dumps(params, sort_keys=True).encode()).hexdigest()
        assert big == "0123456789" * 10**6


def call_id(client: Stage) -> object:
    return next(entry["id"] for entry in client.journal("tools/call"))


# --- what would take too long to read ---


async def test_an_answer_that_would_take_too_long_to_read_is_none(journal: Path, clock: ManualClock) -> None:
    odd = '{{"jsonrpc":"2.0","id":ID,"result":[{}]}}'.format(",".join(["NaN"] * 150_000))
    async with Stage(journal, clock=clock) as client:
        await client.initialize()
        call = client.call("write", do=f"raw {odd}")
        assert text(await client.result("read", say="meanwhile")) == "meanwhile"

        clock.advance(50.1)

        assert failure((await within(call))["result"])["kind"] == "ToolTimeout"
        assert any("no frame, dropped" in line for line in client.upstream.command.said)


async def test_a_frame_of_the_client_that_would_take_too_long_to_read_is_refused(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        refused = client.expect(None)
        before = len(client.journal())

        client.say(b'{"jsonrpc":"2.0","id":5,"method":"ping","params":[%b]}' % b",".join([b"NaN"] * 150_000))

        assert (await within(refused))["error"]["code"] == -32700
        await client.ask("ping", id="next")
        assert [entry["id"] for entry in client.journal()[before:]] == ["next"]
