"""The line before a tool: order by priority and arrival, leaving it, and the signal that wakes a waiter."""

from __future__ import annotations

import sys
import threading

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from holdfast.guards.line import Line, Signal, Ticket
from holdfast.guards.rate import Priority

LOW, NORMAL, HIGH, CRITICAL = (priority.rank for priority in Priority)


def served(line: Line) -> list[Ticket]:
    """The tickets in the order they come to the head."""
    order = []
    while (head := line.head()) is not None:
        order.append(head)
        line.leave(head)
    return order


# --- the order ---


def test_nobody_stands_in_a_new_line() -> None:
    line = Line()

    assert len(line) == 0
    assert line.head() is None
    assert not line.heap


def test_the_head_may_be_read_while_another_thread_empties_the_line() -> None:
    class Emptied(list[tuple[float, int]]):
        """A heap that is emptied as soon as it was looked at."""

        def __bool__(self) -> bool:
            stood = len(self) > 0
            self.clear()
            return stood

    line = Line()
    ticket = line.join(0.0, NORMAL)
    line.heap = Emptied(line.heap)

    assert line.head() in (ticket, None)


def test_equals_are_served_in_the_order_they_came() -> None:
    line = Line()
    tickets = [line.join(0.0, NORMAL) for _ in range(50)]

    assert served(line) == tickets


def test_the_more_urgent_stand_ahead() -> None:
    line = Line()
    low, normal, high, critical = (line.join(0.0, priority.rank) for priority in Priority)

    assert served(line) == [critical, high, normal, low]


def test_a_waiter_rises_one_class_for_each_second_it_has_waited() -> None:
    line = Line()
    low = line.join(0.0, LOW)
    before, after = line.join(0.9, NORMAL), line.join(1.1, NORMAL)

    assert served(line) == [before, low, after]


def test_nobody_starves_behind_a_stream_of_urgent_callers() -> None:
    line = Line()
    low = line.join(0.0, LOW)
    urgent: list[Ticket] = []
    now = 0.0
    while True:
        urgent.append(line.join(now, CRITICAL))
        head = line.head()
        assert head is not None
        if head is low:
            break
        line.leave(head)
        now += 0.01

    assert now == pytest.approx(3.0, abs=0.05)


def test_how_many_tokens_they_want_who_stand_ahead() -> None:
    line = Line()
    first, second, third = (line.join(0.0, NORMAL, cost) for cost in (1.0, 2.0, 4.0))
    urgent = line.join(0.0, HIGH, 0.5)

    assert [line.ahead(ticket) for ticket in (urgent, first, second, third)] == [0, 0.5, 1.5, 3.5]
    assert line.ahead(None) == 7.5


def test_what_all_want_is_known_without_asking_each() -> None:
    line = Line()
    tickets = [line.join(0.0, NORMAL, 0.5) for _ in range(1000)]
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    sys.setprofile(count)
    wanted = line.ahead(None)
    sys.setprofile(None)

    assert wanted == 500
    assert steps < len(tickets) / 10


def test_what_those_wanted_who_are_gone_without_leaving_counts_no_more() -> None:
    line = Line()
    tickets = [line.join(0.0, NORMAL, cost) for cost in (1.0, 2.0, 4.0, 8.0)]

    del tickets[1]
    line.leave(tickets.pop(0))
    before = line.ahead(None)
    tickets.append(line.join(0.0, NORMAL, 16.0))

    assert (before, line.ahead(None)) == (12, 28)


def test_who_left_is_not_counted_and_stands_behind_everybody() -> None:
    line = Line()
    first, second, third = (line.join(0.0, NORMAL) for _ in range(3))

    line.leave(second)

    assert line.ahead(third) == 1
    assert line.ahead(second) == 2
    assert line.ahead(first) == 0


# --- leaving ---


def test_leaving_twice_is_harmless() -> None:
    line = Line()
    ticket, other = line.join(0.0, NORMAL), line.join(0.0, NORMAL)

    line.leave(ticket)
    line.leave(ticket)

    assert len(line) == 1
    assert line.head() is other


def test_the_head_that_leaves_makes_way_for_the_next_who_is_still_there() -> None:
    line = Line()
    tickets = [line.join(0.0, NORMAL) for _ in range(5)]
    for ticket in tickets[1:4]:
        line.leave(ticket)
    assert line.head() is tickets[0]

    line.leave(tickets[0])

    assert line.head() is tickets[4]


def test_a_place_whose_holder_is_gone_without_leaving_is_nobodys() -> None:
    line = Line()
    ticket, other = line.join(0.0, NORMAL), line.join(0.0, NORMAL)

    del ticket

    assert len(line) == 1
    assert line.ahead(other) == 0
    assert line.head() is other
    line.leave(other)
    assert not line.heap


def test_a_holder_that_cannot_ask_is_passed_over_and_called_all_the_same() -> None:
    line = Line()
    asleep, other, last = (line.join(0.0, NORMAL) for _ in range(3))

    asleep.can_ask = lambda: False

    assert line.head() is other
    assert line.called() == [asleep, other]
    assert line.ahead(last) == 2
    asleep.can_ask = lambda: True
    assert line.called() == [line.head()] == [asleep]


def test_the_heap_is_empty_when_the_last_has_left() -> None:
    line = Line()
    tickets = [line.join(0.0, NORMAL) for _ in range(5)]
    heap = line.heap

    for ticket in reversed(tickets):
        line.leave(ticket)

    assert heap == []
    assert line.heap is heap


def test_those_who_leave_behind_a_patient_head_leave_no_trace() -> None:
    line = Line()
    heap = line.heap
    head = line.join(0.0, CRITICAL)
    stays = [line.join(0.0, NORMAL) for _ in range(3)]

    for _ in range(10_000):
        line.leave(line.join(1.0, NORMAL))

    assert len(heap) < 100
    assert line.heap is heap
    assert served(line) == [head, *stays]


class LineMachine(RuleBasedStateMachine):
    """Beside the line a plain list, sorted anew each time by how urgent its waiters are by now."""

    tickets: Bundle[Ticket] = Bundle("tickets")

    def __init__(self) -> None:
        super().__init__()
        self.line = Line()
        self.waiting: list[tuple[float, int, Ticket]] = []
        self.now = 0.0

    @rule(target=tickets, rank=st.integers(0, 3))
    def join(self, rank: int) -> Ticket:
        ticket = self.line.join(self.now, rank)
        self.waiting.append((self.now, rank, ticket))
        return ticket

    @rule(seconds=st.sampled_from([0.25, 1.0, 5.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule(ticket=tickets)
    def leave(self, ticket: Ticket) -> None:
        self.line.leave(ticket)
        self._forget(ticket)

    @rule(ticket=consumes(tickets))
    def leave_for_good(self, ticket: Ticket) -> None:
        self.leave(ticket)

    @rule()
    def serve_the_head(self) -> None:
        head = self.line.head()
        if head is not None:
            self.line.leave(head)
            self._forget(head)

    @invariant()
    def they_agree(self) -> None:
        # Stable, so equals keep the order they came in.
        order = sorted(self.waiting, key=lambda entry: -(entry[1] + (self.now - entry[0])))
        assert len(self.line) == len(order)
        assert bool(self.line.heap) is bool(order)
        assert self.line.head() is (order[0][2] if order else None)
        assert [self.line.ahead(ticket) for *_, ticket in order] == list(range(len(order)))
        assert self.line.ahead(None) == len(order)

    def _forget(self, ticket: Ticket) -> None:
        self.waiting = [entry for entry in self.waiting if entry[2] is not ticket]


LineMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestTheLineDoesWhatAListDoes = LineMachine.TestCase


# --- the signal ---


def test_a_signal_wakes_who_listens() -> None:
    signal, woken = Signal(), []
    signal.listen(lambda: woken.append(1))
    assert woken == []

    signal.fire()

    assert woken == [1]
    assert signal.fired


def test_a_signal_fired_before_anybody_listens_is_not_lost() -> None:
    signal, woken = Signal(), []
    signal.fire()

    signal.listen(lambda: woken.append(1))

    assert woken == [1]


def test_a_signal_can_be_fired_again_once_it_is_rearmed() -> None:
    signal, woken = Signal(), []
    signal.listen(lambda: woken.append("before"))
    signal.fire()

    signal.rearm()
    assert not signal.fired
    signal.fire()
    signal.listen(lambda: woken.append("after"))

    assert woken == ["before", "after"]


def test_a_rearmed_signal_does_not_wake_who_listened_before() -> None:
    signal, woken = Signal(), []
    signal.listen(lambda: woken.append(1))

    signal.rearm()
    signal.fire()

    assert woken == []


def test_a_signal_fired_while_somebody_begins_to_listen_is_never_missed() -> None:
    for _ in range(200):
        signal, woken, barrier = Signal(), threading.Event(), threading.Barrier(2)

        def fire(signal: Signal = signal, barrier: threading.Barrier = barrier) -> None:
            barrier.wait(30.0)
            signal.fire()

        thread = threading.Thread(target=fire)
        thread.start()
        barrier.wait(30.0)
        signal.listen(woken.set)

        assert woken.wait(30.0)
        thread.join()
