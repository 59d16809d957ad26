"""Errors that lie, raise or never end when they are looked at: each leaves the tool as it is, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, RunStatus


def _raises(*_: object) -> Any:
    raise RuntimeError("do not look at me")


class Classless(Exception):
    __class__ = property(_raises)  # type: ignore[assignment]


class Shy(Exception):
    args = __cause__ = __context__ = __notes__ = response = property(_raises)


class Empty(Exception):
    def __len__(self) -> int:
        return 0


class Undecided(Exception):
    __bool__ = __eq__ = __hash__ = _raises


class Endless(ExceptionGroup[Exception]):
    @property
    def exceptions(self) -> Any:
        return (self,)


class Note(str):
    __slots__ = ()
    isascii = _raises


class Noted(Exception):
    __notes__ = [Note("a note")]  # noqa: RUF012 - shared by all, as somebody may have it


class Number(int):
    __le__ = __ge__ = __lt__ = __gt__ = __float__ = _raises


class Numbered(Exception):
    status_code = Number(429)
    retry_after = Number(5)


def deep() -> Exception:
    error: Exception = ValueError("at the bottom")
    for _ in range(2000):
        error = ExceptionGroup("group", [error])
    return error


def woven() -> Exception:
    """One error, in a group a trillion times."""
    error: Exception = ValueError("everywhere")
    for _ in range(40):
        error = ExceptionGroup("group", [error, error])
    return error


MAKERS = [Classless, Shy, Empty, Undecided, Noted, Numbered, lambda: Endless("group", [ValueError()]), deep, woven]


@pytest.fixture
def hf() -> Holdfast:
    return holdfast.open(":memory:")


@pytest.mark.parametrize("make", MAKERS)
def test_an_odd_error_leaves_as_it_is_and_gives_its_slot_back(hf: Holdfast, make: Callable[[], Exception]) -> None:
    @hf.tool(concurrency=1, max_wait=0)
    def tool() -> None:
        raise error

    error = make()
    for _ in range(2):
        assert raised(tool) is error

    assert hf.tracker.stats("tool").failed == 2


@pytest.mark.parametrize("make", MAKERS)
def test_a_run_that_an_odd_error_leaves_has_failed(hf: Holdfast, make: Callable[[], Exception]) -> None:
    @hf.tool
    def tool() -> None:
        raise error

    def agent() -> None:
        with run:
            assert raised(lambda: run.step("step", tool)) is error
            tool()

    error, run = make(), hf.run()

    assert raised(agent) is error
    assert run.status is RunStatus.FAILED
    assert run.snapshot().tool_failures == 2


def raised(fn: Callable[[], object]) -> BaseException | None:
    """What *fn* raised; pytest would look at it."""
    try:
        fn()
    except BaseException as error:
        return error
    return None
