"""What people read of a tool."""

from __future__ import annotations

import pytest

from holdfast.wording.tools import pace


@pytest.mark.parametrize(
    ("rate", "full", "said"),
    [
        (None, None, ""),
        (10.0, 10.0, "10/s"),
        (1 / 3, None, "0.333/s"),
        (99.95, None, "100/s"),
        (1000.0, 1000.0, "1000/s"),
        (12345.6, 50000.0, "12346/s of 50000/s"),
    ],
)
def test_calls_a_second_are_plain_numbers(rate: float | None, full: float | None, said: str) -> None:
    assert pace(rate, full) == said
