"""The real command between a raw client and the scripted server: how each of the three may end, and what it bears."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.mcp.stdio.client import INITIALIZE, Proxy, command, failure, text, until, within
from tests.mcp.stdio.conftest import Wrap, processes

from holdfast import RunSnapshot, open_store
from holdfast.mcp.stdio.child import HURRIED, HURRIED_STUBBORN, Child, Command

SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

# --- the client ends ---


async def test_a_client_that_hangs_up_ends_the_server_and_the_run(wrap: Wrap, tmp_path: Path) -> None:
    client = await wrap(options=["--store", str(tmp_path / "runs.db")])
    await client.initialize()
    await client.result("write", say="x")

    client.hang_up()

    assert await client.ended() == 0
    assert client.journal("end")
    run = the_run(tmp_path / "runs.db")
    assert (run.session_id, run.status, run.tool_calls) == ("srv", "completed", 1)


async def test_what_was_asked_before_hanging_up_is_answered(wrap: Wrap) -> None:
    client = await wrap()
    calls = [client.begin("initialize", INITIALIZE), *(client.call("write", n=n, do="big 100000") for n in range(50))]
    assert client.process.stdin is not None
    client.process.stdin.write(b'{"jsonrpc":"2.0","id":"last","method":"ping"}')  # and no end of line
    client.hang_up()

    answers = [await within(call) for call in calls]

    assert await client.ended() == 0
    assert all(len(text(answer["result"])) == 100_000 for answer in answers[1:])
    assert client.answered("last")


async def test_a_client_that_hangs_up_may_take_its_time_to_read(wrap: Wrap) -> None:
    client = await wrap()
    await client.initialize()
    client.listen(False)
    call = client.call("write", do="big 2000000")

    client.hang_up()
    await until(lambda: client.journal("end"))  # all that is left is in the proxy
    client.listen(True)

    assert len(text((await within(call))["result"])) == 2_000_000
    assert await client.ended() == 0


async def test_a_client_that_goes_away_in_the_middle_of_a_call_leaves_nothing_behind(
    wrap: Wrap, tmp_path: Path
) -> None:
    client = await wrap("stays", options=["--store", str(tmp_path / "runs.db")])
    await client.initialize()
    client.call("write", do="hang")
    await client.next("notifications/hangs")

    client.process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]
    client.hang_up()

    assert await within(client.process.wait()) == 0
    assert the_run(tmp_path / "runs.db").status.is_terminal


async def test_a_client_that_is_killed_leaves_nothing_behind(journal: Path, tmp_path: Path) -> None:
    script = f"""
import json, signal, subprocess, sys
proxy = subprocess.Popen({[sys.executable, "-m", "holdfast", "wrap", "--name", "srv", "--", *command(journal)]!r},
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
for frame in ({{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {INITIALIZE!r}}},
              {{"jsonrpc": "2.0", "id": 2, "method": "tools/call",
                "params": {{"name": "write", "arguments": {{"do": "hang"}}}}}}):
    proxy.stdin.write(json.dumps(frame).encode() + b"\\n")
    proxy.stdin.flush()
    print(proxy.stdout.readline().decode(), end="", flush=True)
signal.pause()
"""
    client = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=subprocess.PIPE)
    assert client.stdout is not None
    await within(client.stdout.readline())
    assert b"hangs" in await within(client.stdout.readline())

    client.kill()
    await client.wait()

    await until(lambda: not processes(str(journal)))


# --- the proxy ends ---


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_proxy_that_is_told_to_stop_ends_the_server_and_the_run(
    number: signal.Signals, wrap: Wrap, tmp_path: Path
) -> None:
    client = await wrap(options=["--store", str(tmp_path / "runs.db")])
    await client.initialize()
    client.call("write", do="hang")
    await client.next("notifications/hangs")

    client.process.send_signal(number)

    assert await client.ended() == 0
    assert client.journal("end")
    assert the_run(tmp_path / "runs.db").status.is_terminal


# The command, but a server that is asked to end has an hour to do so: only who is in a hurry kills it before.
UNHURRIED = """
import runpy, sys
from holdfast.mcp.stdio import child
child.STUBBORN = 3600.0
del sys.argv[1:3]
runpy.run_module("holdfast", run_name="__main__", alter_sys=True)
"""


async def test_a_server_that_will_not_end_is_killed_before_the_client_kills_the_proxy(wrap: Wrap) -> None:
    client = await wrap("stays", "ignores-term", python=["-c", UNHURRIED])
    await client.initialize()
    await client.result("write", do="spawn")
    client.hang_up()
    await until(lambda: client.journal("end"))

    client.process.terminate()

    assert await client.ended() == 0
    assert HURRIED + HURRIED_STUBBORN < 2.0  # seconds for which clients wait


async def test_a_server_that_ignores_the_end_of_its_input_is_told_by_a_signal(wrap: Wrap) -> None:
    client = await wrap("stays")
    await client.initialize()

    client.hang_up()

    assert await client.ended() == 0


async def test_a_server_that_is_told_to_end_by_a_signal_has_time_to_do_so() -> None:
    ends = "signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b'bye\\n'), sys.exit(7)))"
    code = f"import os, signal, sys; {ends}; os.write(1, b'here\\n'); signal.pause()"
    said: list[bytes] = []
    child = Child(Command([sys.executable, "-IS", "-c", code]), said.append, lambda: None, lambda held: None, grace=0.0)
    await child.start()
    await until(lambda: said)

    await child.close()

    assert (child.code, said) == (7, [b"here", b"bye"])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux hands orphans to whoever asks for them")
async def test_the_first_process_of_a_container_reaps_what_a_server_leaves_behind() -> None:
    said: list[bytes] = []
    server = Command(["sh", "-c", "(true & echo $!); (sleep 100 & echo $!); read _"])
    child = Child(server, said.append, lambda: None, lambda held: None)
    prctl(SUBREAPER, 1)  # orphans come to us, as they do to the first process

    try:
        await child.start()
        await until(lambda: len(said) == 2)
        ended, killed = (Path("/proc", line.decode()) for line in said)
        await until(lambda: not ended.exists())
        assert killed.exists()
        await child.close()
        await until(lambda: not killed.exists())
    finally:
        prctl(SUBREAPER, 0)

    assert child.code == 1  # of `read`, at the end of its input


async def test_a_proxy_that_is_killed_takes_its_server_along(wrap: Wrap, journal: Path) -> None:
    client = await wrap()
    await client.initialize()
    client.call("write", do="hang")
    await client.next("notifications/hangs")

    client.process.kill()

    assert await client.ended() == -signal.SIGKILL
    await until(lambda: not processes(str(journal)))


async def test_the_run_of_a_proxy_that_was_killed_is_interrupted(wrap: Wrap, tmp_path: Path) -> None:
    client = await wrap(options=["--store", str(tmp_path / "runs.db")])
    await client.initialize()
    await until(lambda: the_runs(tmp_path / "runs.db"))  # it is written by and by

    client.process.kill()
    await client.ended()

    assert the_run(tmp_path / "runs.db").interrupted


@pytest.mark.parametrize("when", ["starting", "restarting"])
async def test_a_stop_while_the_server_is_started_is_heeded(when: str, wrap: Wrap, journal: Path) -> None:
    client = await wrap()
    if when == "restarting":
        await client.initialize()
        await client.result("write", do="kill")
    else:
        await until(lambda: any("wrap" not in words for words in processes(str(journal)).values()))

    client.process.terminate()

    assert await client.ended() in {0, -signal.SIGTERM}


async def test_a_session_that_is_cancelled_from_elsewhere_ends(wrap: Wrap, tmp_path: Path) -> None:
    store = str(tmp_path / "runs.db")
    client = await wrap(options=["--store", store])
    await client.initialize()
    client.call("write", do="hang")
    await client.next("notifications/hangs")
    await until(lambda: the_runs(tmp_path / "runs.db"))  # it is written by and by
    run = the_run(tmp_path / "runs.db")

    cancel = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "holdfast", "runs", "cancel", run.id, "--store", store, stdout=subprocess.DEVNULL
    )

    assert await within(cancel.wait()) == 0
    assert await client.ended() == 3
    assert the_run(tmp_path / "runs.db").status == "cancelled"


# --- what it bears ---


async def test_the_server_is_not_told_what_opens_the_doors_of_the_proxy(wrap: Wrap, tmp_path: Path) -> None:
    told = {"HOLDFAST_STORE": str(tmp_path / "runs.db"), "HOLDFAST_TOKEN": "open-sesame", "OTHER": "fine"}
    script = 'env > "$1.part"; mv "$1.part" "$1"; cat > /dev/null'
    client = await wrap(words=["sh", "-c", script, "sh", str(tmp_path / "env")], env=told)
    client.begin("initialize", INITIALIZE)

    await until((tmp_path / "env").exists)

    lines = (tmp_path / "env").read_text().splitlines()
    assert "OTHER=fine" in lines
    assert not [line for line in lines if line.startswith(("HOLDFAST_STORE", "HOLDFAST_TOKEN"))]


async def test_a_thousand_calls_in_flight_are_each_answered_once_and_right(wrap: Wrap) -> None:
    client = await wrap()
    await client.initialize()
    calls = {f"id-{n}": client.call("write", id=f"id-{n}", say=f"answer {n}") for n in range(1000)}

    answers = {id: await within(call) for id, call in calls.items()}

    assert {id: text(answer["result"]) for id, answer in answers.items()} == {
        f"id-{n}": f"answer {n}" for n in range(1000)
    }
    assert len(client.answers) == 1002
    assert client.effects("write") == 1000


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="memory is read from /proc")
async def test_a_client_that_does_not_read_holds_the_server_and_not_the_proxys_memory(wrap: Wrap) -> None:
    client = await wrap()
    await client.initialize()
    client.listen(False)
    before = peak(client)

    calls = [client.call("write", n=n, do="big 1000000") for n in range(60)]
    await asyncio.sleep(0.7)  # the longer, the more there would be in memory
    client.listen(True)
    answers = [await within(call) for call in calls]

    assert all(len(text(answer["result"])) == 1_000_000 for answer in answers)
    assert peak(client) - before < 30_000  # of 60,000 kB


async def test_ten_megabytes_pass_through_the_command(wrap: Wrap) -> None:
    client = await wrap()
    await client.initialize()

    sent = client.call("write", do="digest", x="ü€😀" * 10**6)
    big = await client.result("read", do="big 10000000")

    assert len(text((await within(sent))["result"])) == 64
    assert text(big) == "0123456789" * 10**6


async def test_a_client_that_does_not_read_stderr_stops_nothing(wrap: Wrap, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    try:
        client = await wrap(stderr=writing)
        await client.initialize()

        assert text(await client.result("write", do="shout 2000")) == "write"
        assert failure(await client.result("write", do="kill"))["kind"] == "ServerLost"
        assert text(await client.result("read")) == "read"
        client.hang_up()
        assert await client.ended() == 0
    finally:
        os.close(reading)
        os.close(writing)


async def test_what_the_server_says_on_stderr_is_passed_on(wrap: Wrap) -> None:
    client = await wrap()
    await client.initialize()

    await client.result("write", do="log look here")
    client.hang_up()
    await client.ended()

    assert "look here\n" in client.errors


@pytest.mark.parametrize("store", ["file/below/a/file.db", "folder.db"])
async def test_a_store_that_cannot_be_written_never_stops_a_tool(store: str, wrap: Wrap, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.db").mkdir()
    client = await wrap(options=["--store", str(tmp_path / store)])
    await client.initialize()

    assert text(await client.result("write")) == "write"
    client.hang_up()
    assert await client.ended() in {0, 4}, client.errors


async def test_where_there_is_no_home_for_a_store_tools_are_called_all_the_same(wrap: Wrap) -> None:
    client = await wrap(env={"HOLDFAST_STORE": "", "XDG_DATA_HOME": "", "HOME": "nowhere"})
    await client.initialize()

    assert text(await client.result("write")) == "write"
    client.hang_up()
    assert await client.ended() == 0
    assert "till then sessions are kept in memory" in "".join(client.errors)


async def test_a_full_disk_never_stops_a_tool(wrap: Wrap, journal: Path, tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    client = await limited(journal, store)
    try:
        await client.initialize()

        results = [await client.result("write", n=n, x="y" * 10_000) for n in range(60)]

        assert [text(result) for result in results] == ["write"] * 60
        client.hang_up()
        await client.ended()
        assert all(run.tool_calls < 60 for run in the_runs(store))  # it was full indeed
    finally:
        await client.close()


async def limited(journal: Path, store: Path) -> Proxy:
    """The command, where no file may grow above 300 kB."""
    words = [sys.executable, "-m", "holdfast", "wrap", "--name", "srv", "--store", str(store), "--", *command(journal)]
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", 'ulimit -f 300; exec "$@"', "bash", *words,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    return Proxy(process, journal)


# --- standard streams of other kinds ---


def test_a_file_may_be_its_input_and_another_its_output(journal: Path, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    asked.write_bytes(lines(INITIALIZE_FRAME, {"jsonrpc": "2.0", "id": 2, "method": "ping"}).rstrip(b"\n"))

    with asked.open("rb") as stdin, (tmp_path / "answered").open("wb") as stdout:
        subprocess.run(wrapped(journal), stdin=stdin, stdout=stdout, stderr=subprocess.DEVNULL, timeout=30, check=True)

    answers = [json.loads(line) for line in (tmp_path / "answered").read_bytes().splitlines()]
    assert [answer["id"] for answer in answers] == [1, 2]


def test_no_input_at_all_ends_it_at_once(journal: Path) -> None:
    done = subprocess.run(
        wrapped(journal), stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=True
    )  # fmt: skip

    assert done.stdout == b""


def test_one_socket_may_be_both(journal: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        proxy = subprocess.Popen(
            wrapped(journal), stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=subprocess.DEVNULL
        )
        theirs.close()
        ours.settimeout(30)

        ours.sendall(lines(INITIALIZE_FRAME))
        with ours.makefile("rb") as answers:
            assert json.loads(answers.readline())["id"] == 1
            ours.sendall(lines({"jsonrpc": "2.0", "id": 2, "method": "ping"}))
            assert json.loads(answers.readline())["id"] == 2
            ours.shutdown(socket.SHUT_WR)
            assert answers.read() == b""
        assert proxy.wait(30) == 0


# --- nothing left undone ---


async def test_nothing_is_left_undone_in_a_life_full_of_faults(wrap: Wrap, tmp_path: Path) -> None:
    python = ["-X", "dev", "-W", "always::ResourceWarning"]
    client = await wrap(python=python, options=["--store", str(tmp_path / "runs.db")])
    await client.initialize()
    await client.result("read", do=["kill", "answer"])
    client.call("write", do="hang", id="x")
    await client.next("notifications/hangs")
    client.cancel("x")
    await client.result("write", do="garbage")
    client.call("write", do="hang")
    await client.next("notifications/hangs")
    client.call("write", do="ask roots/list")
    await client.next("roots/list")
    client.call("put", do="kill")
    client.process.terminate()

    assert await client.ended() == 0
    wrong = ("never retrieved", "was destroyed", "ResourceWarning", "Traceback", "Exception ignored", "never awaited")
    assert not [line for line in client.errors if any(word in line for word in wrong)], client.errors


INITIALIZE_FRAME = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE}


def wrapped(journal: Path) -> list[str]:
    return [sys.executable, "-m", "holdfast", "wrap", "--name", "srv", "--", *command(journal)]


def lines(*frames: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(frame).encode() + b"\n" for frame in frames)


def the_run(store: Path) -> RunSnapshot:
    [run] = the_runs(store)
    return run


def the_runs(store: Path) -> list[RunSnapshot]:
    with open_store(str(store)) as runs:
        return runs.list_runs()


def peak(client: Proxy) -> int:
    """The most memory that the proxy has had, in kB."""
    status = Path(f"/proc/{client.process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
