"""Checks of settings, the errors and their texts, and canonical arguments."""

from __future__ import annotations

import asyncio
import copy
import datetime as dt
import enum
import functools
import inspect
import io
import math
import numbers
import pickle
import re
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from uuid import UUID

import attrs
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import checks, errors
from holdfast.category import ErrorCategory, classify
from holdfast.errors import (
    BudgetExceeded,
    CircuitOpen,
    ConcurrencyFull,
    ConfigError,
    Denied,
    HoldfastError,
    LeaseLost,
    LoopDetected,
    RateLimited,
    RecordedError,
    RunCancelled,
    RunDiverged,
    RunNotFound,
    ToolTimeout,
    in_lines,
    in_words,
    printable,
)
from holdfast.values.canonical import LONG, bind, canonical
from holdfast.values.telling import likeness

HUGE = 10**400
REFUSALS = [CircuitOpen, RateLimited, ConcurrencyFull, LoopDetected, BudgetExceeded]


# --- checks ---


@pytest.mark.parametrize("value", [0, 1, -1, 0.5, 1e308, -1e308, 2**1000])
def test_a_finite_number_is_a_number(value: float) -> None:
    checks.number("x", value)


NO_NUMBERS = [math.nan, math.inf, -math.inf, HUGE, -HUGE, True, False, None, "1", b"1", [1], 1j, Decimal(1)]


@pytest.mark.parametrize("value", NO_NUMBERS)
def test_what_is_no_finite_number_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"^x = .+: must be a number$"):
        checks.number("x", value)


@pytest.mark.parametrize(
    ("bounds", "good", "bad", "text"),
    [
        ({"least": 0}, [0, 0.0, 5], [-0.001, math.nan], "of at least 0"),
        ({"above": 0}, [0.001, 5], [0, -1], "above 0"),
        ({"most": 1}, [-5, 1], [1.001], "at most 1"),
        ({"least": 0, "most": 1}, [0, 0.5, 1], [-0.1, 1.1], "of at least 0 and at most 1"),
        ({"above": 0, "most": 0.5}, [0.1, 0.5], [0, 0.6], "above 0 and at most 0.5"),
    ],
)
def test_a_number_keeps_within_its_bounds(bounds: Any, good: list[float], bad: list[float], text: str) -> None:
    for value in good:
        checks.number("x", value, **bounds)
    for value in bad:
        with pytest.raises(ConfigError) as caught:
            checks.number("x", value, **bounds)
        assert str(caught.value) == f"x = {value!r}: must be a number {text}"


@pytest.mark.parametrize("value", [1.0, math.nan, HUGE, 2**63, True, None, "1", 0])
def test_what_is_no_whole_number_from_one_on_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"^x = .+: must be a whole number of at least 1"):
        checks.whole("x", value)


def test_a_whole_number_keeps_within_its_bounds() -> None:
    for value in (1, 2**63 - 1):
        checks.whole("x", value)
    checks.whole("x", 0, least=0)
    checks.whole("x", 5, least=5, most=5)

    with pytest.raises(ConfigError, match=r"^x = 0: must be a whole number of at least 1$"):
        checks.whole("x", 0)
    with pytest.raises(ConfigError, match=r"^x = 6: must be a whole number of at least 1 and at most 5$"):
        checks.whole("x", 6, most=5)
    with pytest.raises(ConfigError, match=r"^x = 0: must be a whole number of at least 1 and at most 5$"):
        checks.whole("x", 0, most=5)
    with pytest.raises(ConfigError, match=r"at most 9223372036854775807$"):
        checks.whole("x", 2**63)


@pytest.mark.parametrize("value", [0, 1, None, "true", []])
def test_what_is_neither_true_nor_false_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"^x = .+: must be true or false$"):
        checks.flag("x", value)


@pytest.mark.parametrize("value", [True, False])
def test_true_and_false_are_flags(value: bool) -> None:
    checks.flag("x", value)


@pytest.mark.parametrize("allowed", [["b", "a"], {"a", "b"}, {"a": 1, "b": 2}])
def test_a_choice_is_one_of_those_allowed(allowed: Any) -> None:
    checks.choice("x", "a", allowed)

    bad: object
    for bad in ("c", "", None, 5, ["a"], {}):
        with pytest.raises(ConfigError) as caught:
            checks.choice("x", bad, allowed)
        assert str(caught.value) == f"x = {bad!r}: must be one of a, b"


def test_a_value_is_shown_short_and_printable() -> None:
    assert checks.shown("a\x1b[31m\n") == r"'a\x1b[31m\n'"
    assert len(checks.shown("x" * 10_000)) < 100
    assert checks.shown(HUGE).endswith("(401 characters)")


def test_a_value_that_cannot_be_shown_is_named_by_its_type() -> None:
    class Secretive:
        def __repr__(self) -> str:
            raise RuntimeError("I say nothing")

    assert checks.shown(Secretive()) == "a value of type Secretive"
    assert checks.shown(10**10_000) == "a value of type int"
    with pytest.raises(ConfigError, match=r"^x = a value of type int: must be a whole number of at least 1"):
        checks.whole("x", -(10**10_000))


# --- the tree of errors ---


@pytest.mark.parametrize("kind", REFUSALS)
def test_every_refusal_is_a_denied_with_its_facts(kind: type[Denied]) -> None:
    error = kind("search", "because", 1.5)

    assert isinstance(error, Denied)
    assert (error.tool, error.reason, error.retry_after) == ("search", "because", 1.5)


@pytest.mark.parametrize("kind", [Denied, *REFUSALS])
def test_a_refusal_without_a_reason_has_that_of_its_kind(kind: type[Denied]) -> None:
    error = kind("search")

    assert error.reason == kind.reason
    assert error.retry_after is None


def test_errors_of_ours_are_what_callers_may_catch() -> None:
    assert issubclass(ToolTimeout, TimeoutError)
    assert issubclass(ConfigError, ValueError)
    for kind in (Denied, ToolTimeout, ConfigError):
        assert issubclass(kind, HoldfastError)
        assert not issubclass(kind, asyncio.CancelledError)


@pytest.mark.parametrize(
    ("error", "category"),
    [
        (CircuitOpen("t"), ErrorCategory.CIRCUIT_OPEN),
        (RateLimited("t"), ErrorCategory.RATE_LIMIT),
        (ConcurrencyFull("t"), ErrorCategory.RESOURCE_EXHAUSTED),
        (LoopDetected("t"), ErrorCategory.POLICY_VIOLATION),
        (BudgetExceeded("t"), ErrorCategory.RESOURCE_EXHAUSTED),
        (ToolTimeout("t", 1.0), ErrorCategory.TIMEOUT),
        (ConfigError("x"), ErrorCategory.INVALID_PARAMETERS),
    ],
)
def test_errors_of_ours_have_their_category(error: Exception, category: ErrorCategory) -> None:
    assert classify(error) is category


@pytest.mark.parametrize("kind", [Denied, *REFUSALS])
def test_no_refusal_trips_the_breaker(kind: type[Denied]) -> None:
    assert not classify(kind("t")).trips_breaker


class Overspent(Denied):
    """One of the user's own, made in a way of its own."""

    def __init__(self, amount: int) -> None:
        super().__init__("pay", f"{amount} is too much")
        self.amount = amount


@pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy, *[lambda error, p=p: pickle.loads(pickle.dumps(error, p)) for p in (0, 2, 5)]],
    ids=["copy", "deep", "pickle0", "pickle2", "pickle5"],
)
@pytest.mark.parametrize(
    "error",
    [
        *[kind("search", retry_after=2.0) for kind in REFUSALS],
        *[kind(tool="search", reason="because", retry_after=2.0) for kind in (Denied, *REFUSALS)],
        Denied(tool="search"),
        Overspent(5),
        Overspent(amount=5),
        CircuitOpen("search", "because", 2.0),
        ToolTimeout("search", 1.5),
        ToolTimeout(tool="search", seconds=1.5),
        ConfigError("x = 5: must be less"),
        RunNotFound(run_id="r"),
        RunDiverged(calls=("a", "b")),
        LeaseLost(run_id="r", why="is gone"),
        RecordedError(type="T", message="m", category=ErrorCategory.NETWORK),
        RunCancelled(run_id="r", reason="enough"),
    ],
    ids=lambda error: f"{type(error).__name__}{error.args}",
)
def test_errors_travel_between_processes(error: BaseException, again: Callable[[BaseException], BaseException]) -> None:
    error.add_note("seen")

    other = again(error)

    assert type(other) is type(error)
    assert str(other) == str(error)
    assert vars(other) == vars(error)


def test_a_timeout_says_which_tool_and_how_long() -> None:
    error = ToolTimeout("search", 2.5)

    assert str(error) == "search: no answer within 2.5 s"
    assert (error.tool, error.seconds) == ("search", 2.5)


# --- what a refusal says ---


@pytest.mark.parametrize(
    ("wait", "when"),
    [
        (None, ""),
        (math.inf, ""),
        (math.nan, ""),
        (0.0, "; available in about 0 s"),
        (0.01, "; available in about 0.1 s"),
        (4.9999, "; available in about 5 s"),
        (119.04, "; available in about 119.1 s"),
    ],
)
def test_a_refusal_says_how_long_to_wait_rounded_up(wait: float | None, when: str) -> None:
    assert str(CircuitOpen("search", "it is down", wait)) == f"search: it is down{when}"


@pytest.mark.parametrize("kind", REFUSALS)
def test_the_text_for_the_model_says_what_until_when_and_what_to_do_instead(kind: type[Denied]) -> None:
    text = kind("search", retry_after=3.0).for_model()

    assert "'search' was not called" in text
    assert kind.reason in text
    assert "about 3 s" in text
    assert "Do not repeat this call before then." in text
    assert text.endswith(kind.advice)
    assert len(text) < 300


@pytest.mark.parametrize("wait", [None, math.inf])
def test_the_text_for_the_model_names_no_time_where_there_is_none(wait: float | None) -> None:
    text = CircuitOpen("search", retry_after=wait).for_model()

    assert "Do not repeat this call." in text
    assert "available" not in text


def test_a_hostile_name_cannot_write_to_the_terminal_or_fill_the_log() -> None:
    error = CircuitOpen("\x1b[2J" + "x" * 100_000)

    for text in (str(error), error.for_model(), str(ToolTimeout(error.tool, 1.0))):
        assert "\x1b" not in text
        assert len(text) < 400


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("plain", "plain"),
        ("größe · 大", "größe · 大"),
        ("a\nb\t\x00", r"a\nb\t\x00"),
        ("\u202etxt", r"\u202etxt"),
        ("half \ud800", r"half \ud800"),
        ("x" * 120, "x" * 120),
        ("x" * 121, "x" * 60 + "…(121 characters)"),
    ],
)
def test_a_name_is_shown_printable_and_short(name: str, shown: str) -> None:
    assert printable(name) == shown


@given(st.text(max_size=300))
def test_whatever_the_name_what_is_shown_is_printable(name: str) -> None:
    assert errors.printable(name).isprintable()


def test_an_error_in_words_is_its_kind_and_its_text_safe_to_show() -> None:
    assert in_words(ValueError("no such page\x1b")) == r"ValueError: no such page\x1b"
    assert len(in_words(ValueError("x" * 100_000))) < 400
    assert in_words(TimeoutError()) == "TimeoutError"


def test_an_error_of_several_lines_is_said_on_one_and_kept_with_them() -> None:
    error = ValueError("two flaws:\r\n\tno page\n\tno title\x1b[31m\r")

    assert in_words(error) == r"ValueError: two flaws: no page no title\x1b[31m\r"
    assert in_lines(error) == "ValueError: two flaws:\n\tno page\n\tno title\\x1b[31m\\r"


def test_a_group_of_errors_in_words_names_the_first_that_is_none() -> None:
    inner = ExceptionGroup("within", [ConnectionError("the line is dead"), ValueError("too late")])

    said = in_words(ExceptionGroup("unhandled errors in a TaskGroup", [inner]))

    assert said.startswith("ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)")
    assert said.endswith("; the first: ConnectionError: the line is dead")


def test_an_error_that_cannot_say_its_text_is_its_kind() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even that")

    assert in_words(Silent()) == "Silent"


# --- canonical arguments ---


def find(query: str, limit: int = 10, *, deep: bool = False) -> None: ...


def everything(*args: Any, **kwargs: Any) -> None: ...


def key(*args: Any, **kwargs: Any) -> bytes | None:
    return canonical(everything, args, kwargs)


class Red(enum.Enum):
    FIRST = 1


class Blue(enum.Enum):
    FIRST = 1


@dataclass
class ById:
    value: Any


@dataclass
class ByName:
    value: Any


class Pair(NamedTuple):
    one: int
    other: int


@attrs.define
class Hidden:
    _value: int


class Kept(pydantic.BaseModel):
    value: Any = pydantic.Field(exclude=True)


UTC = dt.UTC
NOON = dt.datetime.fromisoformat("2024-01-01T12:00")
NOON_ELSEWHERE = dt.datetime(2024, 1, 1, 14, tzinfo=dt.timezone(dt.timedelta(hours=2)))


def test_the_same_call_is_the_same_however_it_is_spelt() -> None:
    spellings = [
        canonical(find, ("x",), {}),
        canonical(find, ("x", 10), {}),
        canonical(find, (), {"query": "x"}),
        canonical(find, ("x",), {"deep": False, "limit": 10}),
        canonical(find, (), {"limit": 10, "query": "x", "deep": False}),
    ]

    assert spellings[0] is not None
    assert set(spellings) == {spellings[0]}


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [(("y",), {}), (("x", 11), {}), (("x",), {"deep": True}), (("x", 10.0), {}), ((b"x",), {}), ((["x"],), {})],
)
def test_other_arguments_are_another_call(args: Any, kwargs: Any) -> None:
    assert canonical(find, args, kwargs) != canonical(find, ("x",), {})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *[(1, 1.0), (1, True), (0, None), ("1", 1), ("1", b"1"), ([], {}), ([1, 2], [2, 1]), ([1, [2]], [[1], 2])],
        *[(0, ""), (0.0, -0.0), (2**70, 2**70 + 1), (2**64, float(2**64)), ("\ud800", "\\ud800"), ("é", "e\u0301")],
        *[((1, 2), [1, 2]), ({1, 2}, [1, 2]), ({1, 2}, frozenset({1, 2})), ({1, "a"}, {1, "b"}), (deque([1]), [1])],
        *[({1: 2}, {"1": 2}), ({1: 2}, {True: 2}), ({None: 2}, {"None": 2}), ({(1, 2): 3}, {(1, 3): 3})],
        *[(b"a", bytearray(b"a")), (b"a", memoryview(b"a")), (array("I", [97]), array("i", [97])), (1j, 2j)],
        *[(Decimal(1), "1"), (Decimal("1.0"), Decimal(1)), (Fraction(1, 2), 0.5), (Fraction(1, 3), Fraction(2, 3))],
        *[(UUID(int=1), str(UUID(int=1))), (Path("a"), "a"), (range(3), range(4)), (re.compile("a"), re.compile("b"))],
        *[(dt.date(2024, 1, 1), "2024-01-01"), (dt.time(12), "12:00:00"), (dt.timedelta(seconds=1), "PT1S")],
        *[(NOON, NOON.replace(fold=1)), (NOON, NOON.replace(tzinfo=UTC)), (NOON.replace(tzinfo=UTC), NOON_ELSEWHERE)],
        *[(Red.FIRST, Blue.FIRST), (Red.FIRST, 1), (ById(1), ByName(1)), (ById(1), {"value": 1}), (ById(1), ById("1"))],
        *[
            (Pair(1, 2), (1, 2)),
            (Hidden(1), Hidden(2)),
            (Kept(value=1), Kept(value=2)),
            (Kept(value=ById(1)), Kept(value=1)),
        ],
        *[(OrderedDict(a=1, b=2), OrderedDict(b=2, a=1)), (SimpleNamespace(a=1), SimpleNamespace(a=2))],
        *[(pydantic.SecretStr("a"), pydantic.SecretStr("b")), (pydantic.AnyUrl("a://b"), pydantic.AnyUrl("a://c"))],
    ],
)
@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: [[[v]]], ById, lambda v: Kept(value=v), lambda v: {2**70: v}])
def test_values_that_differ_are_different_arguments(one: Any, other: Any, wrap: Callable[[Any], object]) -> None:
    assert None is not key(wrap(one)) != key(wrap(other)) is not None
    assert key(a=wrap(one)) != key(a=wrap(other))
    assert key(wrap(copy.deepcopy(one) if not isinstance(one, memoryview) else one)) == key(wrap(one))


def test_nothing_is_used_up_by_being_looked_at() -> None:
    numbers = iter([1, 2])

    assert key(numbers) is None is key([{"deep": numbers}])
    assert likeness({"a": numbers})
    assert list(numbers) == [1, 2]


def test_the_order_of_keys_and_of_sets_does_not_matter() -> None:
    assert key({"a": 1, "b": {"c": 2, "d": 3}}) == key({"b": {"d": 3, "c": 2}, "a": 1})
    assert key({f"item-{n}" for n in range(50)}) == key({f"item-{n}" for n in reversed(range(50))})
    assert key({1: "a", None: "b"}) == key({None: "b", 1: "a"})
    assert key({1, "a", None}) == key({None, "a", 1})


def test_a_function_without_a_signature_is_known_by_what_it_is_given() -> None:
    class Odd:
        __signature__ = "none"

        def __call__(self, query: str) -> None: ...

    for fn in (None, Odd()):
        assert canonical(fn, ("x",), {}) == canonical(fn, ("x",), {})
        assert canonical(fn, ("x",), {}) != canonical(fn, (), {"query": "x"})


def test_a_wrong_call_still_has_arguments() -> None:
    assert canonical(find, (), {"bogus": 1}) == canonical(find, (), {"bogus": 1})
    assert canonical(find, (), {"bogus": 1}) != canonical(find, (), {"bogus": 2})


def test_a_wrong_call_is_not_the_same_as_a_right_one() -> None:
    def positional(a: int, /) -> None: ...

    assert canonical(positional, (), {"a": 1}) != canonical(positional, (1,), {})


@given(
    st.sampled_from(
        [
            lambda: None,
            lambda a: None,
            lambda a, b=2: None,
            lambda a=1, b=2, c=3: None,
            lambda a, /, b: None,
            lambda a, b=2, *, c=3: None,
            lambda *a, **b: None,
        ]
    ),
    st.lists(st.integers(), max_size=4),
    st.dictionaries(st.sampled_from("abcd"), st.integers()),
)
def test_arguments_get_their_names_as_python_gives_them(
    fn: Callable[..., None], args: list[int], kwargs: dict[str, int]
) -> None:
    try:
        expected = inspect.signature(fn).bind(*args, **kwargs)
        expected.apply_defaults()
        named: object = list(expected.arguments.items())
    except TypeError:
        named = (tuple(args), kwargs)

    found = bind(fn, tuple(args), kwargs)

    assert (list(found.items()) if isinstance(found, dict) else found) == named


def test_a_callable_that_cannot_be_hashed_is_known_by_what_it_is_given() -> None:
    @dataclass
    class Tool:
        name: str

        def __call__(self, query: str) -> None: ...

    assert canonical(Tool("t"), ("x",), {}) == canonical(Tool("t"), ("x",), {})
    assert canonical(Tool("t"), ("x",), {}) != canonical(Tool("t"), ("y",), {})


def test_methods_are_known_by_their_own_arguments() -> None:
    class Search:
        def find(self, query: str, limit: int = 10) -> None: ...

    assert canonical(Search().find, ("x",), {}) == canonical(Search().find, (), {"limit": 10, "query": "x"})


@pytest.mark.parametrize(
    ("partial", "args", "kwargs"),
    [
        (functools.partial(find, "x"), (5,), {}),
        (functools.partial(find, "x"), (), {"limit": 5}),
        (functools.partial(find, limit=5), ("x",), {}),
        (functools.partial(find, limit=4), ("x",), {"limit": 5}),
        (functools.partial(functools.partial(find, "x"), 5), (), {}),
    ],
)
def test_what_a_partial_was_given_are_arguments_like_the_others(partial: Any, args: Any, kwargs: Any) -> None:
    assert canonical(partial, args, kwargs) == canonical(find, ("x", 5), {})


def test_paths_and_models_have_values_to_compare() -> None:
    class Model:
        def __init__(self, x: int) -> None:
            self.x = x

        def model_dump(self) -> dict[str, int]:
            return {"x": self.x}

    assert key(Path("a/b")) == key(Path("a/b")) != key(Path("a/c"))
    assert key(Model(1)) == key(Model(1)) != key(Model(2))
    assert key(Model(1)) != key({"x": 1})


class Title(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "a title"


class Blob(bytes):
    pass


class Weight(float):
    pass


class Count(int):
    pass


@numbers.Integral.register
class Int64:
    """Like the numbers of numpy, which are no `int`."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __int__(self) -> int:
        return self.value


@pytest.mark.parametrize(
    ("kind", "one", "other"), [(Title, "a", "b"), (Blob, b"a", b"b"), (Weight, 0.5, 1.5), (Count, 1, 2), (Int64, 1, 2)]
)
def test_texts_and_numbers_of_a_class_of_their_own_have_values_to_compare(kind: Any, one: Any, other: Any) -> None:
    assert key(one) != key(kind(one)) == key(kind(one)) != key(kind(other))
    assert key([{"deep": kind(one)}]) == key([{"deep": kind(one)}]) != key([{"deep": kind(other)}])


class Broken:
    """Raises what nobody expects when it is asked for its value."""

    def __fspath__(self) -> str:
        raise RuntimeError("no value today")


def endless() -> list[Any]:
    inner: list[Any] = []
    inner.append(inner)
    return inner


@pytest.mark.parametrize(
    "value",
    [io.StringIO(), object(), Broken(), endless(), int, lambda: None],
    ids=lambda value: type(value).__name__,
)
def test_a_call_whose_arguments_cannot_be_compared_is_the_same_as_no_other(value: object) -> None:
    assert key(value) is None
    assert key("good", deep=[{"bad": value}]) is None


def test_a_long_call_is_known_by_a_short_digest() -> None:
    long, longer = "x" * 1_000_000, "x" * 1_000_001

    digest = key(long)

    assert digest is not None
    assert len(digest) <= 2 * LONG
    assert digest == key(long) != key(longer)
    assert digest.startswith(b"\xc1")  # which no encoding does: it is not the key of any short call


@given(st.binary(max_size=80), st.binary(max_size=80))
def test_calls_are_the_same_just_when_their_arguments_are(one: bytes, other: bytes) -> None:
    assert (key(one) == key(other)) is (one == other)
