"""What a server asks of its client."""

from __future__ import annotations

import pytest

from holdfast.mcp import questions
from holdfast.mcp.questions import Questions


def test_of_too_many_that_nobody_answers_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "MOST_OPEN", 2)
    asked = Questions()
    for id in (1, 2, 3):
        asked.ask(id)

    found = [asked.answered(id) for id in (1, 2, 3)]

    assert found == [None, 2, 3]
