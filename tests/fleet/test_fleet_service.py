"""The thread that keeps in touch: what it needs of a Redis to call it back, how often it looks, what it passes over."""

from __future__ import annotations

import json
import os
import re
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest
from tests.fleet.members import POLICIES, agree, member, wait_until
from tests.fleet.nonsense import Nonsense
from tests.servers import Cluster, RedisServer

from holdfast import cli
from holdfast.clock import SystemClock
from holdfast.fleet.address import Address
from holdfast.fleet.connections import Connections
from holdfast.fleet.desk import Desk
from holdfast.fleet.fleet import Fleet
from holdfast.fleet.link import Away, Refused
from holdfast.fleet.question import Question
from holdfast.fleet.script import ADMITTED, BACK_US, NO_PROBE, Answer, Form, Outcome, Script, Shared
from holdfast.fleet.service import FIRST_PAUSE
from holdfast.fleet.topology import slot_of
from holdfast.guards.circuit import CircuitState, Seen

PATIENT = "?wait=10"
ALL = ("on", ">pw", "~*", "&*", "+@all")
MANY = 1024  # descriptors, of which `select` can watch no more


def as_user(server: RedisServer, *rights: str) -> str:
    """The address of *server* for somebody with these *rights*."""
    server.command("ACL", "SETUSER", "agents", "reset", *rights)
    return f"redis://agents:pw@127.0.0.1:{server.port}{PATIENT}"


def named_rights() -> list[str]:
    """The rights that the documentation names."""
    text = Path("docs/scale.md").read_text(encoding="utf-8")
    return text.partition("ACL SETUSER agents ")[2].partition("```")[0].replace("SECRET", "pw").split()


def tries(server: RedisServer) -> int:
    """How often a user came to it."""
    stats = server.command("INFO", "commandstats")
    assert isinstance(stats, bytes)
    return int(stats.partition(b"cmdstat_auth:calls=")[2].partition(b",")[0])


# --- its thread -------------------------------------------------------------------------------------------------------


@contextmanager
def no_thread(error: type[BaseException]) -> Iterator[None]:
    """Whoever starts the service gets *error* instead."""
    start = threading.Thread.start

    def fail(self: threading.Thread) -> None:
        if self.name == "holdfast-fleet":
            raise error("can't start new thread")
        start(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        yield


def test_where_no_thread_could_be_had_the_next_call_tries_again(own_redis: RedisServer) -> None:
    with ExitStack() as stack:
        with no_thread(RuntimeError):
            one = stack.enter_context(member(own_redis.url + PATIENT, finds=False))
            went = one.call("plain")
            trouble = one.fleet.trouble
        one.call("plain")
        one.heard.wait_for("fleet_returned")

        assert went == "ok"
        assert "can't start new thread" in trouble


def test_the_service_is_started_although_who_rang_first_was_interrupted(own_redis: RedisServer) -> None:
    with member(own_redis.url + PATIENT) as one:
        one.fleet.service.close()
        with no_thread(KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
            one.fleet.service.ring()

        one.fleet.service.ring()

        assert one.fleet.service._solo.there


# --- rights -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lacks", ["-eval", "-evalsha", "-script", "-subscribe", "-publish", "-hset", "resetchannels", "resetkeys"]
)
def test_a_redis_that_denies_a_right_is_not_there_until_it_is_granted(own_redis: RedisServer, lacks: str) -> None:
    with member(as_user(own_redis, *ALL, lacks), finds=False) as one:
        there = one.fleet.is_available
        went = [one.call("plain"), one.call("seen")]
        tried = tries(own_redis)
        wait_until(lambda: tries(own_redis) >= tried + 2, "for it to be looked for again")
        back = one.heard.of("fleet_returned")

        as_user(own_redis, *ALL)
        one.heard.wait_for("fleet_returned")

        assert not there
        assert re.search("NOPERM|can't|no permissions", one.fleet.trouble, re.IGNORECASE)
        assert went == ["ok", "ok"]
        assert not back


def test_the_rights_that_the_documentation_names_are_all_that_is_needed(own_redis: RedisServer) -> None:
    url = as_user(own_redis, *named_rights())
    rated = {"breaker": {"failure_rate": 0.5, "minimum_calls": 20, "window": 60.0}, "concurrency": 2}
    policies = {**POLICIES, "tool": {**POLICIES["tool"], "rated": rated}}  # type: ignore[dict-item]

    with member(url, policies) as one, member(url, policies) as other:
        known = [other.call(tool) for tool in ("bad", "seen")]
        one.trip("bad")
        one.trip("seen")
        for tool in ("bad", "seen"):
            other.heard.wait_for("circuit_opened", tool)
        for fails in [False, True] * 10:
            one.call("rated", fails=fails)
        other.hf.breaker.reset("bad")
        one.heard.wait_for("circuit_closed", "bad")

        assert known == ["ok", "ok"]
        assert agree(one, other, "three")
        assert one.heard.wait_for("circuit_opened", "rated")
        assert one.fleet.outages == other.fleet.outages == 0


@pytest.fixture
def doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], dict[str, str]]:
    """What the doctor finds about a Redis."""
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("HOLDFAST_STORE", str(tmp_path / "runs.db"))

    def doctor(url: str) -> dict[str, str]:
        monkeypatch.setenv("HOLDFAST_REDIS", url)
        cli.main(["doctor", "--json"])
        found = json.loads(capsys.readouterr().out)["checks"]
        return next(each for each in found if each["check"] == "redis")

    return doctor


def test_the_doctor_says_which_right_is_missing(
    own_redis: RedisServer, doctor: Callable[[str], dict[str, str]]
) -> None:
    found = doctor(as_user(own_redis, *ALL, "-evalsha"))

    assert found["status"] == "FAIL"
    assert "'evalsha'" in found["message"]
    assert "docs/scale.md" in found["fix"]


def test_the_doctor_takes_no_redis_for_well_that_has_not_answered_yet(
    own_redis: RedisServer, doctor: Callable[[str], dict[str, str]]
) -> None:
    own_redis.pause()

    found = doctor(own_redis.url)

    assert found["status"] == "FAIL"
    assert "did not answer in time" in found["message"]


def test_a_cluster_is_there_although_the_node_that_is_tried_lacks_the_key(cluster: Cluster) -> None:
    with ExitStack() as opened:
        for node in cluster.nodes:
            opened.enter_context(member(f"redis+cluster://127.0.0.1:{node.port}?prefix=tried&wait=10"))


# --- looking ----------------------------------------------------------------------------------------------------------


def test_a_redis_that_is_away_is_looked_for_after_longer_and_longer_pauses_whoever_rings(
    own_redis: RedisServer,
) -> None:
    with member(as_user(own_redis, *ALL, "-eval"), finds=False) as one:
        tried = tries(own_redis)
        begun = SystemClock.monotonic()
        while tries(own_redis) < tried + 4:
            one.fleet.service.ring()

        assert SystemClock.monotonic() - begun >= (2 + 4 + 8) * FIRST_PAUSE  # the first may have been due


@contextmanager
def many_files() -> Iterator[None]:
    """More descriptors than `select` knows are in use."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] != resource.RLIM_INFINITY and limits[1] < 2 * MANY:
        pytest.skip("so many files may not be opened here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * MANY, limits[1]))
    taken = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while taken[-1] < MANY:
            taken.append(os.dup(taken[0]))
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_any_number_of_files_may_be_open(own_redis: RedisServer) -> None:
    with many_files(), member(own_redis.url + PATIENT) as one, member(own_redis.url + PATIENT) as other:
        assert agree(one, other, "three")
        assert one.fleet.fallbacks == other.fleet.fallbacks == 0


# --- hearing ----------------------------------------------------------------------------------------------------------


def test_what_somebody_else_publishes_on_the_channel_is_passed_over_and_said_once(
    own_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    others = [b"hello", b"", b"\xa3\xff\xfe\xfd", b"\x91" * 5000, *map(msgspec.msgpack.encode, ([], ["k", 1, [9] * 8]))]
    with member(own_redis.url + PATIENT) as one, member(own_redis.url + PATIENT) as other:
        known = other.call("bad")
        for said in others:
            own_redis.command("PUBLISH", other.fleet.channel, said)
        one.trip("bad")
        other.heard.wait_for("circuit_opened", "bad")

        assert known == "ok"
        assert one.fleet.outages == other.fleet.outages == 0
        assert [record.levelname for record in caplog.records] == ["WARNING"] * 2  # of each member one


# --- the server's clock -----------------------------------------------------------------------------------------------


NOW = 1_790_000_000_000_000
OPEN = Seen(CircuitState.OPEN, 5.0, 3, 5.0, 1)


def answered(desk: Desk, now_us: int, generation: int, seen: Seen | None) -> None:
    desk.see(Answer(generation, 1, now_us, None, seen))


@pytest.mark.parametrize(
    ("back_us", "generation", "is_followed"),
    [(0, 1, True), (1, 1, False), (BACK_US, 1, False), (BACK_US, 2, True), (BACK_US + 1, 1, True)],
)
def test_an_answer_is_older_than_the_last_by_the_servers_clock_unless_that_went_back(
    back_us: int, generation: int, is_followed: bool
) -> None:
    followed: list[Seen] = []
    fleet = Fleet("redis://127.0.0.1:1")
    desk = fleet.desk("tool", followed.append)
    answered(desk, NOW, 1, None)

    answered(desk, NOW - back_us, generation, OPEN)

    assert followed == ([Seen(), OPEN] if is_followed else [Seen()])


# --- threads that come in between -------------------------------------------------------------------------------------

NOBODY_THERE = "redis://127.0.0.1:1/0"


def test_a_thread_that_ends_quickly_is_not_started_again_by_closing() -> None:
    class Slow(threading.Event):
        def set(self) -> None:
            super().set()
            wait_until(lambda: not service._solo.there, "for the thread to end before its closer goes on")

    service = Fleet(NOBODY_THERE).service
    service._closing = Slow()
    service.ring()
    assert service.settled.wait(30)
    service.close()

    assert not service._solo.there


def test_who_rings_while_the_thread_ends_is_heard() -> None:
    class Leaving(dict[str, object]):
        def pop(self, key: str, default: object = None) -> object:
            self.pop = super().pop  # type: ignore[method-assign]
            service.ring()
            return super().pop(key, default)

    service = Fleet(NOBODY_THERE).service
    service._solo.there = Leaving()
    service.ring()
    assert service.settled.wait(30)
    service.settled.clear()
    service.close()

    assert service.settled.wait(30)
    service.close()
    assert not service._solo.there


def test_what_is_older_does_not_stand_after_what_is_newer() -> None:
    followed: list[CircuitState] = []

    def follow(seen: Seen) -> None:
        if not followed:
            followed.append(seen.state)
            desk.turn(2, Seen(state=CircuitState.OPEN))  # another thread, which is quicker
        followed.append(seen.state)

    desk = Fleet(NOBODY_THERE).desk("t", follow)
    desk.turn(1, Seen())

    assert followed[-1] is CircuitState.OPEN


def test_what_was_published_before_what_is_known_is_passed_over() -> None:
    followed: list[Seen] = []
    desk = Fleet(NOBODY_THERE).desk("t", followed.append)
    desk.turn(2, Seen())

    desk.turn(1, OPEN)

    assert followed == [Seen()]


# --- what is given up -------------------------------------------------------------------------------------------------


def test_a_forked_child_gives_back_no_slots_of_its_parent() -> None:
    fleet = Fleet(NOBODY_THERE)
    desk = fleet.desk("t", lambda _: None)
    desk.return_slot(fleet.holder)
    desk.tell(Outcome(fleet.holder, slots=1, says="timeout"))
    fleet.close()

    desk.after_fork()

    assert not desk.has_news


def test_what_a_question_was_given_that_nobody_wants_is_given_back_once() -> None:
    fleet = Fleet(NOBODY_THERE)
    desk = fleet.desk("t", lambda _: None)
    question = Question(desk, desk.form(Shared(None, None, 3)), (1.0, 1, 0))

    question.forsaken([ADMITTED, 0, 1, NO_PROBE, 1, NOW, None, None])  # by a task that was cancelled …
    question.abandon()  # … and so was its call
    fleet.close()

    assert sum(outcome.slots for outcome in desk.pending()) == 1


def test_where_no_answer_comes_from_a_cluster_the_process_goes_on_under_another_name() -> None:
    fleet = Fleet("redis+cluster://127.0.0.1:1")
    before = fleet.holder

    fleet.miss(fleet.desk("t", lambda _: None), Away("no answer came"))
    after = fleet.holder
    fleet.close()

    assert after != before


def test_what_was_wrong_with_single_tools_is_over_with_an_outage() -> None:
    fleet = Fleet(NOBODY_THERE)
    fleet.miss(fleet.desk("t", lambda _: None), Refused("its key is of another kind"))

    fleet.lose(Away("it is gone"))
    fleet.close()

    assert not fleet.missing
    assert not fleet.doubted


def test_what_was_told_along_with_a_question_that_a_cluster_sends_to_nobody_is_not_taken_for_told() -> None:
    with Nonsense(b"-MOVED %d 127.0.0.1:1\r\n" % slot_of(b"key")) as node:
        port = int(node.url.rpartition(":")[2])
        connections = Connections(
            Address.parse(f"redis+cluster://127.0.0.1:{port}?wait=0.05"), lambda: None, lambda: None
        )
        connections.topology.moved(slot_of(b"key"), "127.0.0.1", port)
        place = connections.topology.peek(b"key")
        assert place is not None
        connections.pool(place).add(connections.open_link(place))
        form = Form(Script(), b"key", "channel", "holder", 10.0, Shared(None, None, 3))

        with pytest.raises(Away, match="moved about"):
            connections.ask(form, lambda: form.telling([Outcome("holder", slots=1)]))

        connections.close()
