"""A server that answers slowly, too much, or with what nobody should see: no call waits longer, or shows it."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest
from tests.fleet.members import Member, member
from tests.fleet.nonsense import Nonsense

from holdfast.clock import SystemClock
from holdfast.fleet.address import Address
from holdfast.fleet.link import LONGEST_ERROR, Away, Link, packed
from holdfast.fleet.multiplexed import Multiplexed
from holdfast.fleet.pool import Pool
from holdfast.fleet.script import ADMITTED
from holdfast.fleet.topology import Node

BOUND = 0.1
MUCH = 5.0  # seconds: fifty times the bound, because machines are busy, and less than the answers take
PING = packed(("PING",))
YES = b"*8\r\n:0\r\n:0\r\n:1\r\n:-1\r\n:1\r\n:1\r\n$-1\r\n$-1\r\n"  # as the script says it
NO = b"*8\r\n:2\r\n:9000000\r\n:1\r\n:-1\r\n:0\r\n:1\r\n$-1\r\n$-1\r\n"
POLICIES = {"policy": {"max_wait": 0.0}, "tool": {"few": {"rate": "100/s"}}}

Answering = Callable[[socket.socket, threading.Event], None]


def drips(connection: socket.socket, gone: threading.Event) -> None:
    for number in range(1000):
        if gone.wait(BOUND / 5):
            return
        connection.sendall(b"$1000\r\n"[number : number + 1] or b"x")


def says_nothing(connection: socket.socket, gone: threading.Event) -> None:
    gone.wait(3 * MUCH)


@contextmanager
def link_to(answering: Answering) -> Iterator[Link]:
    """A connection to a server that answers one question like that, and hangs up."""
    gone = threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(b"+PONG\r\n")
            connection.recv(1000)
            answering(connection, gone)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve)
        server.start()
        port = listener.getsockname()[1]
        link = Link(Node("127.0.0.1", port), Address.parse(f"redis://127.0.0.1:{port}"), bound=30.0)
        try:
            link.bound = BOUND
            yield link
        finally:
            gone.set()
            server.join()
            link.close()


@contextmanager
def signals() -> Iterator[None]:
    """Many a second, which nobody minds."""

    def ignored(number: int, frame: FrameType | None) -> None:
        return

    handler = signal.signal(signal.SIGALRM, ignored)
    signal.setitimer(signal.ITIMER_REAL, BOUND / 5, BOUND / 5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


def test_a_question_ends_in_time_though_its_answer_drips_in() -> None:
    with link_to(drips) as link:
        begun = SystemClock.monotonic()
        with pytest.raises(Away, match="did not answer in time"):
            link.ask(PING)

        assert SystemClock.monotonic() - begun < MUCH


def test_a_question_ends_in_time_though_signals_keep_coming() -> None:
    with link_to(says_nothing) as link, signals():
        begun = SystemClock.monotonic()
        with pytest.raises(Away, match="did not answer in time"):
            link.ask(PING)

        assert SystemClock.monotonic() - begun < MUCH


def test_a_thread_that_opens_a_connection_in_vain_does_not_wait_for_another_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def note(pool: Pool, seconds: float) -> Link | None:
        waits.append(seconds)
        return wait(pool, seconds)

    waits, wait = list[float](), Pool.wait
    monkeypatch.setattr(Pool, "wait", note)
    with link_to(says_nothing) as link:  # its server accepts no other connection
        pool = Pool(link.node, Address.parse(f"redis://127.0.0.1:{link.node.port}?wait=0.3"), lambda: None)
        link.send(PING)
        pool.add(link)
        pool.take()

        assert pool.lend() is None

    assert all(seconds < 0.1 for seconds in waits)  # opening it has taken the time there was


def test_a_node_whose_name_cannot_be_one_counts_as_away() -> None:
    with pytest.raises(Away, match=r"a\.\.b:1: "):
        Link(Node("a..b", 1), Address.parse("redis+cluster://h"), bound=BOUND)


# --- too much ---------------------------------------------------------------------------------------------------------


def as_threads(one: Member) -> list[str]:
    return [one.call("few") for _ in range(4)]


def as_tasks(one: Member) -> list[str]:
    """The same in an event loop, whose own handler must hear of nothing."""
    errors: list[str] = []

    async def several() -> list[str]:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(str(context)))
        return [await one.acall("few") for _ in range(4)]

    went = asyncio.run(several())
    return went + errors


Calls = Callable[[Member], list[str]]


@pytest.mark.parametrize("calls", [as_threads, as_tasks])
def test_an_answer_that_nobody_asked_for_is_taken_for_no_other(calls: Calls) -> None:
    with Nonsense(YES + NO) as server, member(f"{server.url}?wait=10", POLICIES) as one:
        went = calls(one)

        assert went == ["ok"] * 4
        assert one.fleet.fallbacks == 0


def test_where_tasks_may_have_got_the_answers_of_others_the_process_goes_on_under_another_name() -> None:
    with Nonsense(YES + NO) as server, member(f"{server.url}?wait=10", POLICIES) as one:
        before = one.fleet.holder

        as_tasks(one)

        assert one.fleet.holder != before


async def test_questions_that_the_system_takes_in_pieces_are_all_answered() -> None:
    class Asker:
        def forsaken(self, reply: object) -> None:
            raise AssertionError("nobody has gone")

    with Nonsense(YES) as server:
        port = int(server.url.rpartition(":")[2])
        link = Link(Node("127.0.0.1", port), Address.parse(server.url), bound=30.0)
        link.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        many = Multiplexed(asyncio.get_running_loop(), link, 30.0, lambda: None)

        found = await asyncio.gather(*(many.ask(packed(("EVALSHA", "x" * 2**20)), Asker()) for _ in range(3)))

        assert [reply[0] for reply in found] == [ADMITTED] * 3
        many.close()


@pytest.mark.parametrize("calls", [as_threads, as_tasks])
@pytest.mark.parametrize(
    ("says", "error"), [(b"*100000000\r\n", "no answer has so many parts"), (b"*-1\r\n", "answered with nothing")]
)
def test_an_answer_of_no_size_that_answers_have_is_an_outage_at_once(says: bytes, error: str, calls: Calls) -> None:
    with Nonsense(says) as server, member(f"{server.url}?wait=10", POLICIES) as one:
        went = calls(one)
        lost = one.heard.wait_for("fleet_lost")

        assert went == ["ok"] * 4
        assert error in str(lost.payload["error"])


@pytest.mark.parametrize("calls", [as_threads, as_tasks])
def test_of_a_long_error_a_part_is_shown_without_control_characters(calls: Calls) -> None:
    error = b"-ERR \x1b[31mred\x07 " + b"A" * 100_000 + b"\r\n"
    with Nonsense(error) as server, member(f"{server.url}?wait=10", POLICIES) as one:
        went = calls(one)
        shown = str(one.heard.wait_for("fleet_lost").payload["error"])

        assert went == ["ok"] * 4
        assert "red" in shown
        assert shown.isprintable()
        assert len(shown) < 2 * LONGEST_ERROR
