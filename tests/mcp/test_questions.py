"""What a server asks of its client."""

from __future__ import annotations

import pytest

from holdfast.mcp import questions
from holdfast.mcp.questions import Questions


def test_of_too_many_that_nobody_answers_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "MOST_OPEN", 2)
    asked = Questions()
    for id in (1, 2, 3):
        asked.ask(id, "roots/list")

    found = [asked.answered(id) for id in (1, 2, 3)]

    assert found == [None, 2, 3]


def test_of_too_many_whose_server_died_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "MOST_LATE", 2)
    asked = Questions()
    for id in (1, 2, 3):
        asked.ask(id, "roots/list")

    asked.orphan()

    known = [asked.ask(id, "roots/list") for id in (1, 2, 3)]
    assert [each == id for each, id in zip(known, (1, 2, 3), strict=True)] == [True, False, False]


def test_a_question_that_is_answered_may_be_taken_back_all_the_same() -> None:
    asked = Questions()
    asked.ask(1, "roots/list")
    asked.answered(1)

    assert asked.withdraw(1) == 1


@pytest.mark.parametrize("method", ["elicitation/create", "sampling/createMessage", "roots/list"])
def test_whether_somebody_thinks_about_one_is_told_until_all_are_settled(method: str) -> None:
    told: list[bool] = []
    asked = Questions(told.append)

    for id in (1, 2, 3):
        asked.ask(id, method)
    asked.answered(1)
    asked.answered(1)
    asked.withdraw(2)
    asked.orphan()
    asked.orphan()

    assert told == ([] if method == "roots/list" else [True, True, True, True, True, False])
