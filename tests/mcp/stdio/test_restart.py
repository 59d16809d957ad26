"""A server is started again: what it is told, how long that takes, when it is given up, and what happens in between."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from pathlib import Path

import pytest
from tests.mcp.stdio.client import INITIALIZE, Stage, command, failure, settle, text, until, within

from holdfast.mcp import frames, handshake, questions
from holdfast.mcp.handshake import Handshake
from holdfast.mcp.ids import Ids
from holdfast.mcp.stdio.upstream import MOST_QUEUED, REPLAY_PATIENCE
from holdfast.testing import ManualClock

ASKS = 'raw {"jsonrpc":"2.0","id":7,"method":"elicitation/create"}'
WITHDRAWS = '{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}'

# --- what a new server is told ---


async def test_the_handshake_the_level_and_the_subscriptions_are_told_to_the_new_server(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        await client.ask("logging/setLevel", {"level": "error"})
        await client.ask("logging/setLevel", {"level": "debug"})
        for uri in ("a:1", "a:2", "a:3"):
            await client.ask("resources/subscribe", {"uri": uri})
        await client.ask("resources/unsubscribe", {"uri": "a:2"})
        before = len(client.journal())

        await client.result("read", do=["kill", "answer"])

        told = [(entry["method"], entry.get("params")) for entry in client.journal()[before + 1 :]]
        assert told[:6] == [
            ("start", None),
            ("initialize", INITIALIZE),
            ("notifications/initialized", None),
            ("logging/setLevel", {"level": "debug"}),
            ("resources/subscribe", {"uri": "a:1"}),
            ("resources/subscribe", {"uri": "a:3"}),
        ]
        assert told[6][0] == "tools/call"


async def test_what_the_server_refused_is_not_told_to_the_new_server(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        await client.ask("logging/setLevel", {"level": "debug"})
        await client.ask("logging/setLevel", {"level": "refused"})
        await client.ask("resources/subscribe", {"uri": "a:1"})
        await client.ask("resources/subscribe", {"uri": "refused"})
        before = len(client.journal())

        await client.result("read", do=["kill", "answer"])

        told = [entry.get("params") for entry in client.journal()[before + 1 :]]
        assert told[3:5] == [{"level": "debug"}, {"uri": "a:1"}]
        assert {"level": "refused"} not in told
        assert {"uri": "refused"} not in told


async def test_only_so_many_subscriptions_are_told_to_the_new_server(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "MOST_SUBSCRIBED", 2)
    async with Stage(journal) as client:
        await client.initialize()
        for uri in ("a:1", "a:2", "a:1", "a:3", "a:" + "4" * 20_000):
            await client.ask("resources/subscribe", {"uri": uri})
        before = len(client.journal())

        await client.result("read", do=["kill", "answer"])

        told = [entry.get("params") for entry in client.journal()[before + 1 :] if "subscribe" in entry["method"]]
        assert told == [{"uri": "a:1"}, {"uri": "a:3"}]


async def test_the_end_of_the_handshake_is_told_to_a_new_server_once(journal: Path, clock: ManualClock) -> None:
    async with Stage(journal, clock=clock) as client:
        begun = await client.ask("initialize", INITIALIZE)
        os.kill(int(begun["result"]["serverInfo"]["version"]), signal.SIGKILL)
        await client.turns("restarting")
        client.tell("notifications/initialized")
        await paused(clock, 1)
        clock.advance(1.0)

        await client.ask("ping")

        told = [entry["method"] for entry in client.journal()]
        assert told == ["start", "initialize", "start", "initialize", "notifications/initialized", "ping"]


async def test_a_new_server_is_ready_even_while_the_client_does_not_read(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        client.upstream.hold(True)
        client.call("write", do="kill")
        await client.turns("restarting")

        await client.turns("ready")
        call = client.call("write", say="unread")
        await until(lambda: client.effects("write") == 2)

        assert not call.done()
        client.upstream.hold(False)
        assert text((await within(call))["result"]) == "unread"


async def test_the_client_hears_nothing_of_the_new_handshake(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        await client.ask("resources/subscribe", {"uri": "a:1"})
        heard = len(client.heard)

        await client.result("read", do=["kill", "answer"])
        await client.ask("ping")

        assert len(client.heard) == heard + 2


async def test_what_only_speaks_of_ids_like_those_of_the_new_handshake_is_for_the_client(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        await client.result("read", do=["kill", "answer"])

        assert text(await client.result("write", say='"holdfast/1"', id="x")) == '"holdfast/1"'


async def test_a_client_that_is_a_proxy_itself_is_answered_after_a_new_handshake(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        await client.result("read", do=["kill", "answer"])

        answer = await client.ask("ping", id=Ids().next())

        assert answer["result"] == {}


async def test_a_client_without_a_handshake_has_its_server_started_again_all_the_same(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.ask("tools/list")

        assert text(await client.result("read", do=["kill", "answer"])) == "read"

        assert not client.journal("initialize")


async def test_what_is_said_while_it_is_started_waits_for_it_in_order(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        await client.result("write", do="kill")
        await client.turns("restarting")

        calls = [client.call("write", say=str(n)) for n in range(3)]
        client.tell("notifications/custom", {"n": 1})
        pings = [client.begin("ping") for _ in range(2)]
        for each in [*calls, *pings]:
            await within(each)

        assert [entry["params"] for entry in client.journal("notifications/custom")] == [{"n": 1}]
        assert client.effects("write") == 4


def test_a_handshake_that_names_no_capabilities_is_told_to_the_new_server_too() -> None:
    made = Handshake()
    asked = frames.request(1, "initialize", INITIALIZE)
    made.note(frames.head(asked), asked)

    made.answered(frames.head(frames.result(1, {"protocolVersion": "2025-06-18", "capabilities": None})))

    assert made.begins is not None


async def test_the_last_words_of_a_server_are_not_those_of_the_one_before(journal: Path) -> None:
    says = "import sys; sys.stderr.write('bad password\\n'); sys.stderr.flush(); sys.stdin.readline(); sys.exit(1)"
    async with Stage(journal, words=[sys.executable, "-IS", "-c", says]) as client:
        await client.turns("ready")
        client.upstream.command.words = [sys.executable, "-IS", "-c", "import sys; sys.stdin.readline(); sys.exit(7)"]

        first, second = [text(await client.result("write", n=n)) for n in range(2)]

        assert "exited with code 1; its last words: bad password" in first
        assert "exited with code 7" in second
        assert "bad password" not in second


# --- its own requests ---


async def test_a_request_of_a_server_that_died_is_cancelled_and_its_late_answer_goes_nowhere(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        client.call("write", do="ask sampling/createMessage")
        asked = await client.next("sampling/createMessage")

        await client.result("read", do=["kill", "answer"])
        cancelled = await client.next("notifications/cancelled")
        client.say({"jsonrpc": "2.0", "id": asked["id"], "result": {"late": True}})
        await client.ask("ping")

        assert cancelled["params"]["requestId"] == asked["id"]
        assert not any(entry.get("id") == asked["id"] for entry in client.journal())


@pytest.mark.parametrize("withdrawn", [False, True], ids=["open", "taken back"])
async def test_a_late_answer_to_a_server_that_died_is_none_to_what_the_next_one_asks_under_the_same_id(
    journal: Path, withdrawn: bool
) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        client.call("write", do=ASKS)
        old = await client.next("elicitation/create")
        if withdrawn:
            client.call("write", do=f"raw {WITHDRAWS}")
            await client.next("notifications/cancelled")
        await client.result("read", do=["kill", "answer"])
        client.call("write", do=ASKS)
        new = await client.next("elicitation/create")

        client.say({"jsonrpc": "2.0", "id": old["id"], "result": {"to": "the old question"}})
        client.say({"jsonrpc": "2.0", "id": new["id"], "result": {"to": "the new question"}})
        await client.ask("ping")

        answers = [entry["result"] for entry in client.journal() if entry.get("id") == 7 and entry["method"] is None]
        assert answers == [{"to": "the new question"}]
        assert len(client.unheard("notifications/cancelled")) == (0 if withdrawn else 1), "it is cancelled once"


async def test_what_a_new_server_asks_in_a_batch_has_another_id_than_what_the_old_one_asked(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        client.call("write", do=ASKS)
        old = await client.next("elicitation/create")
        await client.result("read", do=["kill", "answer"])

        client.call("write", do=f"raw [{ASKS.removeprefix('raw ')}]")

        assert (await client.next("elicitation/create"))["id"] != old["id"]


@pytest.mark.parametrize("wrapped", ["%s", "[%s]"], ids=["alone", "in a batch"])
async def test_a_server_withdraws_a_question_under_the_id_by_which_its_client_knows_it(
    journal: Path, wrapped: str
) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        client.call("write", do=ASKS)
        old = await client.next("elicitation/create")
        await client.result("read", do=["kill", "answer"])
        await client.next("notifications/cancelled")
        client.call("write", do=ASKS)
        asked = await client.next("elicitation/create")
        client.say({"jsonrpc": "2.0", "id": old["id"], "result": {}})

        client.call("put", do=f"raw {wrapped % WITHDRAWS}")

        assert (await client.next("notifications/cancelled"))["params"]["requestId"] == asked["id"]


async def test_questions_that_a_server_takes_back_are_forgotten_but_for_the_last_which_may_be_answered_yet(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "MOST_LATE", 3)
    async with Stage(journal) as client:
        await client.initialize()
        for _ in range(10):
            client.call("write", do=ASKS.replace("7", "ID"))
            asked = await client.next("elicitation/create")
            client.call("write", do="raw " + WITHDRAWS.replace("7", str(asked["id"])))
            await client.next("notifications/cancelled")

        client.say({"jsonrpc": "2.0", "id": asked["id"], "result": {"said": "yes"}})
        await client.ask("ping")

        assert [entry["id"] for entry in client.journal() if entry.get("result") == {"said": "yes"}] == [asked["id"]]
        open, withdrawn = client.session._questions._open, client.session._questions._withdrawn
        assert (len(open), len(withdrawn)) == (0, 2)


async def test_an_answer_of_the_client_whose_id_comes_back_as_a_text_is_to_the_server_s_number(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        client.call("write", do=ASKS)
        await client.next("elicitation/create")

        client.say({"jsonrpc": "2.0", "id": "7", "result": {"said": "yes"}})
        await client.ask("ping")

        assert [entry["id"] for entry in client.journal() if entry.get("result") == {"said": "yes"}] == [7]


@pytest.mark.parametrize("method", ["sampling/createMessage", "roots/list", "elicitation/create", "not/invented"])
async def test_a_request_of_the_server_is_answered_by_the_client(method: str, journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        call = client.call("write", do=f"ask {method}")
        asked = await client.next(method)

        client.say({"jsonrpc": "2.0", "id": asked["id"], "result": {"said": "yes"}})

        assert text((await within(call))["result"]) == '{"said": "yes"}'


async def test_a_request_of_the_server_may_be_answered_with_an_error(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        call = client.call("write", do="ask roots/list")
        asked = await client.next("roots/list")

        client.say({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -1, "message": "no"}})

        assert '"message": "no"' in text((await within(call))["result"])


# --- backoff, giving up, trying again ---


async def test_the_pauses_grow_and_after_five_failures_it_is_started_only_when_asked(
    journal: Path, tmp_path: Path, clock: ManualClock
) -> None:
    broken = tmp_path / "broken"
    async with Stage(journal, f"dies-with={broken}", clock=clock) as client:
        await client.initialize()
        broken.touch()

        lost = await client.result("write", do="kill")
        for failures in range(1, 5):
            await paused(clock, failures)
            clock.advance(clock.slept[-1])
            await blamed(client, failures + 1)
        await client.turns("failed")

        assert failure(lost)["kind"] == "ServerLost"
        assert [round(pause, 3) for pause in clock.slept] == [
            pytest.approx(pause, rel=0.34) for pause in (0.075, 0.15, 0.3, 0.6)
        ]
        await settle()
        assert client.upstream.condition.state == "failed"

        broken.unlink()
        call = client.call("write", say="again")
        await client.turns("starting")
        await settle()
        clock.advance(1.0)
        assert text((await within(call))["result"]) == "again"


async def test_a_call_whose_time_is_up_before_there_is_a_server_to_send_it_to_was_not_made(
    journal: Path, tmp_path: Path, clock: ManualClock
) -> None:
    broken = tmp_path / "broken"
    async with Stage(journal, f"refuses-with={broken}", clock=clock) as client:
        await client.initialize()
        await client.result("write", do="kill")
        broken.touch()
        call = client.call("write", say="late")
        await paused(clock, 1)

        clock.advance(50.1)
        result = (await within(call))["result"]

        assert failure(result)["kind"] == "ToolTimeout"
        assert failure(result)["called"] is False
        assert "could not be sent within 50 s. The tool was not called." in text(result)
        assert client.effects("write") == 1


async def test_a_server_that_dies_five_times_in_a_row_is_started_only_when_asked(
    journal: Path, clock: ManualClock
) -> None:
    async with Stage(journal, clock=clock) as client:
        await client.initialize()
        for deaths in range(1, 5):
            await client.result("write", do="kill", n=deaths)
            await paused(clock, deaths)
            clock.advance(clock.slept[-1])
            await client.turns("ready")

        await client.result("write", do="kill", n=5)
        await client.turns("failed")
        await settle()
        assert len(clock.slept) == 4

        call = client.call("write", say="again")
        await paused(clock, 5)
        clock.advance(1.0)
        assert text((await within(call))["result"]) == "again"


async def test_a_server_that_has_lived_for_long_begins_with_the_first_pause_again(
    journal: Path, clock: ManualClock
) -> None:
    async with Stage(journal, clock=clock) as client:
        await client.initialize()
        for _ in range(7):
            clock.advance(11.0)
            await client.result("write", do="kill", n=len(clock.slept))
            await client.turns("restarting")
            await settle()
            clock.advance(0.1)
            await client.turns("ready")

        assert max(clock.slept) <= 0.1


async def test_a_server_that_cannot_live_is_quoted_and_may_be_mended(journal: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.touch()
    async with Stage(journal, f"dies-with={broken}") as client:
        answer = await client.ask("initialize", INITIALIZE)

        assert answer["error"]["code"] == -32000
        assert "exited with code 3; its last words: scripted: I cannot live like this" in answer["error"]["message"]
        broken.unlink()
        assert "result" in await client.initialize()


async def test_a_command_that_is_not_there_is_an_error_at_once_and_may_be_installed(
    journal: Path, tmp_path: Path
) -> None:
    program = tmp_path / ("long" * 25 + "-not-there-yet")
    async with Stage(journal, words=[str(program), *command(journal)[1:]]) as client:
        answer = await client.ask("initialize", INITIALIZE)
        call = await client.result("read")

        assert f"{program} cannot be started: [Errno 2] No such file" in answer["error"]["message"]
        assert failure(call) == {"kind": "ServerLost", "category": "network", "called": False}
        assert "The tool was not called" in text(call)
        program.symlink_to(command(journal)[0])
        assert "result" in await client.initialize()


@pytest.mark.parametrize("words", [["/"], ["/dev/null"], ["a\0b"], ["x" * 300]])
async def test_a_command_that_cannot_be_run_is_an_error(words: list[str], journal: Path) -> None:
    async with Stage(journal, words=words) as client:
        answer = await client.ask("initialize", INITIALIZE)

        assert "cannot be started" in answer["error"]["message"]


async def test_what_waits_for_a_server_that_is_given_up_is_answered_even_beside_garbage(
    journal: Path, tmp_path: Path, clock: ManualClock
) -> None:
    broken = tmp_path / "broken"
    async with Stage(journal, f"dies-with={broken}", clock=clock) as client:
        await client.initialize()
        broken.touch()
        await client.result("write", do="kill")
        await client.turns("restarting")

        client.say(b"garbage")
        client.say(b'{"id":null,"method":"x"}')
        client.say(b"[1]")
        ping = client.begin("ping")
        batch = client.begin("resources/read", {"uri": "x"}, id="b")
        client.say([{"jsonrpc": "2.0", "id": "c", "method": "ping"}, {"jsonrpc": "2.0", "method": "x"}])
        for failures in range(1, 5):
            await paused(clock, failures)
            clock.advance(clock.slept[-1])
            await blamed(client, failures + 1)

        assert "exited with code 3" in (await within(ping))["error"]["message"]
        assert "error" in await within(batch)
        assert "error" in client.answered("c")[0]


# --- in between ---


async def test_a_server_that_dies_during_the_handshake_is_started_again(journal: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    async with Stage(journal, f"refuses-with={broken}") as client:
        await client.initialize()
        broken.touch()
        await client.result("write", do="kill")
        await until(lambda: client.upstream.condition.restarts >= 3)
        broken.unlink()

        assert text(await client.result("read")) == "read"
        assert client.upstream.condition.last_error is not None
        assert "refused the handshake: no handshake today" in client.upstream.condition.last_error


async def test_a_new_server_that_does_not_take_the_handshake_is_killed(
    journal: Path, tmp_path: Path, clock: ManualClock
) -> None:
    async with Stage(journal, clock=clock) as client:
        await client.initialize()
        silent = ["sh", "-c", f"read line; echo heard >&2; sleep 1000 # {journal}"]
        real, client.upstream.command.words = client.upstream.command.words, silent
        await client.result("write", do="kill")
        await client.turns("restarting")
        await settle()
        clock.advance(0.1)
        await until(lambda: "heard" in client.upstream.command.said)

        client.upstream.command.words = real
        clock.advance(REPLAY_PATIENCE)
        await paused(clock, 2)
        clock.advance(0.2)

        assert text(await client.result("read")) == "read"


async def test_a_new_server_may_take_as_long_to_begin_as_clients_wait_for_one(
    journal: Path, tmp_path: Path, clock: ManualClock
) -> None:
    gate = tmp_path / "gate"
    async with Stage(journal, clock=clock) as client:
        await client.initialize()
        slow = f"echo loading >&2; until test -e {gate}; do sleep 0.02; done; exec {shlex.join(command(journal))}"
        client.upstream.command.words = ["sh", "-c", slow]
        await client.result("write", do="kill")
        await client.turns("restarting")
        await settle()
        clock.advance(0.1)
        await until(lambda: "loading" in client.upstream.command.said)

        clock.advance(55.0)
        await settle()
        gate.touch()

        assert text(await client.result("read")) == "read"
        assert client.upstream.condition.restarts == 1


async def test_two_deaths_in_a_row_are_two_restarts(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()

        assert text(await client.result("read", do=["kill", "kill", "answer"])) == "read"

        assert client.effects("read") == 3
        assert client.upstream.condition.restarts == 2


async def test_a_client_that_says_too_much_to_a_server_that_is_away_is_held(journal: Path) -> None:
    holds: list[bool] = []
    async with Stage(journal) as client:
        client.session.hold = holds.append
        await client.initialize()
        await client.result("write", do="kill")
        await client.turns("restarting")

        client.tell("notifications/large", {"x": "y" * MOST_QUEUED})
        assert holds == [True]
        await client.ask("ping")

        assert holds[-1] is False


@pytest.mark.parametrize("state", ["starting", "ready", "restarting", "failed"])
async def test_it_can_be_closed_in_any_state(state: str, journal: Path, tmp_path: Path, clock: ManualClock) -> None:
    broken = tmp_path / "broken"
    async with Stage(journal, f"dies-with={broken}", clock=clock) as client:
        if state == "starting":
            return
        await client.initialize()
        if state == "ready":
            return
        if state == "failed":
            client.upstream.command.words = ["/not/there"]
        client.call("write", do="kill")
        await client.turns("restarting")
        if state == "failed":
            await settle()
            clock.advance(0.1)
            await client.turns("failed")


async def test_it_can_be_closed_at_every_turn_of_its_start(journal: Path) -> None:
    for turns in range(12):
        async with Stage(journal) as client:
            for _ in range(turns):
                await asyncio.sleep(0)

        assert client.upstream.condition.state == "stopped"
        assert client.session.facts()["pid"] is None


async def test_a_call_that_comes_while_the_server_ends_is_answered(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        ending = asyncio.ensure_future(client.upstream.close())
        await asyncio.sleep(0)

        result = await client.result("write")
        await ending

        assert (failure(result)["kind"], failure(result)["called"]) == ("ServerLost", False)


async def test_calls_that_wait_for_a_server_end_with_the_session(
    journal: Path, tmp_path: Path, clock: ManualClock
) -> None:
    async with Stage(journal, clock=clock) as client:
        await client.initialize()
        await client.result("write", do="kill")
        await client.turns("restarting")
        client.call("write")

    assert client.effects("write") == 1


async def paused(clock: ManualClock, times: int) -> None:
    """Wait until it sleeps before it starts the server for the *times*-th time."""
    await until(lambda: len(clock.slept) >= times)
    await settle()


async def blamed(client: Stage, times: int) -> None:
    """Wait until a start has failed for the *times*-th time."""
    await until(lambda: client.upstream.condition.restarts >= times)
