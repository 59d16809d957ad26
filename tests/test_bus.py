"""The bus: every sink hears every event in order, and nothing that a sink does reaches the call that is told of."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast import Bus, ConfigError, Event, LoggingSink, events
from holdfast.testing import ManualClock, Recorder


@pytest.fixture
def bus(clock: ManualClock) -> Bus:
    return Bus(clock)


@pytest.fixture
def recorder(bus: Bus) -> Recorder:
    recorder = Recorder()
    bus.add(recorder)
    return recorder


class Unshowable:
    def __str__(self) -> str:
        raise RuntimeError("no text for you")

    __repr__ = __str__


# --- handing on ---


def test_an_event_says_what_when_which_tool_which_run_and_the_rest(bus: Bus, recorder: Recorder) -> None:
    bus.emit("tool_ended", "search", "run-1", status="success", attempts=2)

    assert recorder.events == [Event("tool_ended", 0, "search", "run-1", {"status": "success", "attempts": 2})]


def test_the_time_of_an_event_is_wall_time(bus: Bus, recorder: Recorder, clock: ManualClock) -> None:
    clock.advance(5.0)
    clock.set_time(1_000_000.25)

    bus.emit("note")

    assert recorder.events[0].timestamp_ms == 1_000_000_250


def test_events_come_in_the_order_in_which_they_were_emitted(bus: Bus, recorder: Recorder) -> None:
    for number in range(100):
        bus.emit(f"note-{number}")

    assert recorder.types() == [f"note-{number}" for number in range(100)]


def test_sinks_are_told_in_the_order_in_which_they_were_added(bus: Bus) -> None:
    told: list[str] = []
    bus.add(lambda event: told.append("first"))
    bus.add(lambda event: told.append("second"))
    bus.add(lambda event: told.append("third"))

    bus.emit("note")

    assert told == ["first", "second", "third"]


def test_an_event_that_nobody_listens_to_is_harmless(bus: Bus) -> None:
    bus.emit("note", None, None, payload=Unshowable())

    assert bus.sinks == ()


def test_a_payload_may_have_facts_that_are_called_type_tool_and_run(bus: Bus, recorder: Recorder) -> None:
    bus.emit("note", "search", "run-1", type="t", tool="u", run="v", self="w")

    assert recorder.events[0].payload == {"type": "t", "tool": "u", "run": "v", "self": "w"}


def test_what_is_no_sink_is_a_config_error_at_once(bus: Bus) -> None:
    with pytest.raises(ConfigError, match="sink = 'not me': must be callable"):
        bus.add("not me")  # type: ignore[arg-type]

    assert bus.sinks == ()


# --- sinks that come and go ---


def test_a_removed_sink_hears_no_more(bus: Bus, recorder: Recorder) -> None:
    bus.emit("before")

    bus.remove(recorder)
    bus.emit("after")

    assert recorder.types() == ["before"]


def test_a_bound_method_can_be_removed_by_naming_it_again(bus: Bus) -> None:
    told: list[Event] = []
    bus.add(told.append)

    bus.remove(told.append)
    bus.emit("note")

    assert told == []


def test_removing_a_sink_that_is_not_there_is_harmless(bus: Bus, recorder: Recorder) -> None:
    bus.remove(print)

    bus.emit("note")

    assert recorder.types() == ["note"]


def test_a_sink_that_removes_itself_hears_that_event_only_and_the_others_hear_all(bus: Bus) -> None:
    once: list[str] = []

    def leave(event: Event) -> None:
        once.append(event.type)
        bus.remove(leave)

    bus.add(leave)
    always = Recorder()
    bus.add(always)

    bus.emit("one")
    bus.emit("two")

    assert once == ["one"]
    assert always.types() == ["one", "two"]


def test_a_sink_that_is_added_while_an_event_is_told_starts_with_the_next(bus: Bus) -> None:
    late = Recorder()

    def invite(event: Event) -> None:
        if late not in bus.sinks:
            bus.add(late)

    bus.add(invite)

    bus.emit("one")
    bus.emit("two")

    assert late.types() == ["two"]


def test_a_sink_that_is_removed_while_an_event_is_told_still_hears_that_one(bus: Bus) -> None:
    last = Recorder()
    bus.add(lambda event: bus.remove(last))
    bus.add(last)

    bus.emit("one")
    bus.emit("two")

    assert last.types() == ["one"]


def test_a_sink_may_emit(bus: Bus) -> None:
    heard = Recorder()

    def answer(event: Event) -> None:
        if event.type == "question":
            bus.emit("answer")

    bus.add(answer)
    bus.add(heard)

    bus.emit("question")

    assert sorted(heard.types()) == ["answer", "question"]


def test_no_event_is_lost_or_doubled_while_threads_emit_and_sinks_come_and_go(bus: Bus, recorder: Recorder) -> None:
    def work(number: int) -> None:
        guest = Recorder()
        for turn in range(200):
            bus.add(guest)
            bus.emit(f"{number}-{turn}")
            bus.remove(guest)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert bus.sinks == (recorder,)
    assert sorted(recorder.types()) == sorted(f"{number}-{turn}" for number in range(6) for turn in range(200))


# --- sinks that fail ---


def broken(error: BaseException) -> Callable[[Event], None]:
    def sink(event: Event) -> None:
        raise error

    return sink


def test_a_sink_that_fails_is_logged_and_dropped_and_the_others_hear_on(
    bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    before, after = Recorder(), Recorder()
    for sink in (before, broken(RuntimeError("disk full")), after):
        bus.add(sink)

    bus.emit("one")
    bus.emit("two")

    assert before.types() == after.types() == ["one", "two"]
    assert bus.sinks == (before, after)
    [record] = caplog.records
    assert (record.name, record.levelname) == ("holdfast", "ERROR")
    assert "an event sink failed at one and was dropped" in record.getMessage()
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "disk full"


def test_a_sink_that_looks_at_a_cancelled_task_is_dropped_and_cancels_nobody(
    bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    bus.add(broken(asyncio.CancelledError()))

    bus.emit("note")

    assert bus.sinks == ()
    assert len(caplog.records) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_sink_does_not_swallow_the_wish_to_end_the_process(bus: Bus, error: type[BaseException]) -> None:
    bus.add(broken(error()))

    with pytest.raises(error):
        bus.emit("note")

    assert len(bus.sinks) == 1


def test_a_failing_sink_that_cannot_even_be_shown_is_dropped_all_the_same(
    bus: Bus, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    class Sink(Unshowable):
        def __call__(self, event: Event) -> None:
            raise RuntimeError

    bus.add(Sink())

    bus.emit("note")

    assert bus.sinks == (recorder,)
    assert "<Sink>" in caplog.records[0].getMessage()


def test_the_log_of_a_failing_sink_is_one_line_whatever_the_event_is_called(
    bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    bus.add(broken(RuntimeError()))

    bus.emit("note\nERROR forged line\x1b[2J")

    assert caplog.records[0].getMessage().isprintable()


def test_a_guarded_call_does_not_notice_a_failing_sink(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    hf = holdfast.open(policies={}, clock=clock)
    hf.bus.add(broken(RuntimeError()))

    answer = hf.call(lambda: 42)

    assert answer == 42
    assert hf.bus.sinks == ()
    assert len(caplog.records) == 1


def test_tools_in_use_are_heard_from_the_moment_a_sink_is_added_until_it_is_removed(clock: ManualClock) -> None:
    hf = holdfast.open(policies={}, clock=clock)
    recorder = Recorder()

    @hf.tool()
    def search() -> None:
        pass

    search()
    hf.bus.add(recorder)
    search()
    hf.bus.remove(recorder)
    search()

    assert recorder.types() == ["tool_started", "tool_ended"]
    assert hf.tracker.stats("search").total == 3


# --- the logging sink ---


@pytest.fixture
def log(bus: Bus, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "holdfast")
    bus.add(LoggingSink())
    return caplog


def test_a_line_tells_which_run_it_is_of(bus: Bus, log: pytest.LogCaptureFixture) -> None:
    bus.emit(events.RUN_STARTED, None, "nightly-7", prompt="report")
    bus.emit(events.TOOL_DENIED, "fetch", "two\nlines", reason="circuit_open")
    bus.emit(events.CIRCUIT_OPENED, "fetch", failures=7)

    assert log.messages == [
        "run_started - run=nightly-7 prompt=report",
        r"tool_denied fetch run=two\nlines reason=circuit_open",
        "circuit_opened fetch failures=7",
    ]


LEVELS = {
    events.TOOL_STARTED: "DEBUG",
    events.TOOL_ENDED: "DEBUG",
    events.TOOL_ATTEMPT_FAILED: "INFO",
    events.CIRCUIT_HALF_OPENED: "INFO",
    events.CIRCUIT_CLOSED: "INFO",
    events.POLICY_RELOADED: "INFO",
    events.TOOL_DENIED: "WARNING",
    events.CIRCUIT_OPENED: "WARNING",
    events.LOOP_DETECTED: "WARNING",
    events.BUDGET_WARNING: "WARNING",
    events.RUN_STARTED: "INFO",
    events.RUN_RESUMED: "INFO",
    events.RUN_COMPLETED: "INFO",
    events.RUN_CANCELLED: "INFO",
    events.RUN_INTERRUPTED: "WARNING",
    events.RUN_DIVERGED: "WARNING",
    events.RUN_FAILED: "ERROR",
    events.POLICY_REJECTED: "ERROR",
    "an event of the caller's own": "INFO",
}


def test_every_event_of_ours_has_a_level() -> None:
    ours = {value for name, value in vars(events).items() if name.isupper()}

    assert ours == set(LoggingSink.levels)


@pytest.mark.parametrize(("event", "level"), LEVELS.items())
def test_an_event_is_logged_at_the_level_of_what_it_means(
    bus: Bus, log: pytest.LogCaptureFixture, event: str, level: str
) -> None:
    bus.emit(event)

    assert [record.levelname for record in log.records] == [level]


def test_a_log_line_has_the_type_the_tool_the_run_and_the_facts(bus: Bus, log: pytest.LogCaptureFixture) -> None:
    bus.emit("tool_denied", "search", "run-1", reason="its rate limit is used up", retry_after_ms=500)

    assert log.messages == ["tool_denied search run=run-1 reason=its rate limit is used up retry_after_ms=500"]


def test_an_event_without_a_tool_has_a_dash_for_one(bus: Bus, log: pytest.LogCaptureFixture) -> None:
    bus.emit("policy_reloaded", file="holdfast.toml")

    assert log.messages == ["policy_reloaded - file=holdfast.toml"]


def test_events_go_to_the_logger_that_was_given(
    bus: Bus, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    logger = logging.getLogger(request.node.name)
    bus.add(LoggingSink(logger))

    bus.emit("circuit_opened", "search")

    assert [record.name for record in caplog.records] == [logger.name]


@pytest.mark.parametrize("logger", ["holdfast", "", 5, print])
def test_what_is_no_logger_is_a_config_error_at_once(logger: Any) -> None:
    with pytest.raises(ConfigError, match=r"logger = .*: must be a logger, such as logging.getLogger\(NAME\)"):
        LoggingSink(logger)


def test_what_is_below_the_level_of_the_logger_is_not_even_put_into_words(
    bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []

    class Asked:
        def __str__(self) -> str:
            asked.append("text")
            return ""

    caplog.set_level(logging.WARNING, "holdfast")
    bus.add(LoggingSink())

    bus.emit("tool_ended", "search", None, fact=Asked())

    assert caplog.records == []
    assert asked == []


HOSTILE = "a\nWARNING forged\r\x00\x1b[31m\x07\u2028\u202e\ud800b"


@pytest.mark.parametrize("place", ["type", "tool", "key", "value"])
def test_control_characters_are_escaped_wherever_they_stand(
    bus: Bus, log: pytest.LogCaptureFixture, place: str
) -> None:
    words = {"type": "note", "tool": "search", "key": "fact", "value": "good"} | {place: HOSTILE}

    bus.emit(words["type"], words["tool"], None, **{words["key"]: words["value"]})

    [message] = log.messages
    assert message.isprintable()
    assert r"a\nWARNING forged\r\x00\x1b[31m\x07\u2028\u202e\ud800b" in message


def test_a_megabyte_of_text_is_cut(bus: Bus, log: pytest.LogCaptureFixture) -> None:
    bus.emit("x" * 1_000_000, "y" * 1_000_000, None, **{"z" * 1_000_000: "v" * 1_000_000})

    [message] = log.messages
    assert len(message) < 500
    assert message.count("(1000000 characters)") == 4


def test_a_fact_that_cannot_be_shown_costs_neither_the_line_nor_the_sink(
    bus: Bus, log: pytest.LogCaptureFixture
) -> None:
    bus.emit("note", "search", None, good=1, bad=Unshowable(), also_good=2)
    bus.emit("note", "search")

    assert log.messages == ["note search good=1 bad=<Unshowable> also_good=2", "note search"]
