"""Memos: what a finished call gave, exactly, or not at all."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import functools
import ipaddress
import math
import pathlib
import subprocess
import sys
import threading
import types
import typing
import uuid
import zoneinfo
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, NamedTuple, NewType, TypedDict, TypeVar

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.category import ErrorCategory
from holdfast.errors import ConfigError, RecordedError, ToolTimeout
from holdfast.values.failures import dump_error, is_error, load_error
from holdfast.values.memo import Memo


def named(value: object) -> str:
    """The name of an example, the same in every process: no addresses, no order of a set."""
    return getattr(value, "__qualname__", None) or type(value).__name__


if TYPE_CHECKING:
    from somewhere import Unknown  # type: ignore[import-not-found]

T = TypeVar("T")
CEST = dt.timezone(dt.timedelta(hours=2), "CEST")
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")


@dataclasses.dataclass
class Order:
    id: int
    at: dt.datetime = dt.datetime(2024, 5, 1, tzinfo=CEST)
    lines: tuple[str, ...] = ()
    parts: list[Order] = dataclasses.field(default_factory=list)
    extra: object = None


@dataclasses.dataclass(frozen=True)
class Refund:
    id: int


class Row(msgspec.Struct):
    id: int
    tags: set[str] = set()
    data: bytes = b""


class Box(msgspec.Struct, Generic[T]):
    inner: T


class Pair(NamedTuple):
    left: int
    right: Refund


class Info(TypedDict):
    order: Order
    count: int


@attrs.define
class Made:
    path: pathlib.Path


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")

    at: dt.datetime
    tags: set[str] = set()
    parts: list[Model] = []
    key: int = pydantic.Field(1, alias="theKey")


class Colour(enum.Enum):
    RED = (1, 2)
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


class Mode(enum.Flag):
    READ = 1
    WRITE = 2


class Word(str):
    __slots__ = ()


class Registry(dict[str, int]):
    pass


class Series(list[int]):
    pass


class Same:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


@dataclasses.dataclass
class Special(Order):
    pass


OrderId = NewType("OrderId", Row)
NOON = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)
MODEL = Model(at=dt.datetime(2024, 5, 1, tzinfo=CEST), tags={"a", "b"}, theKey=3, other=[1])  # type: ignore[call-arg]
ORDER = Order(
    1, lines=("a", "b"), parts=[Order(2, dt.datetime(2024, 5, 1, 2, tzinfo=dt.UTC, fold=1))], extra=[1.5, None]
)


def returns(annotation: object) -> Callable[..., object]:
    def fn() -> None: ...

    fn.__annotations__["return"] = annotation
    return fn


def exact(value: object, back: object) -> bool:
    """Equal, of the same types all the way down; written without the code under test."""
    if type(value) is not type(back):
        return False
    if isinstance(value, float) and math.isnan(value):
        return math.isnan(typing.cast("float", back))
    if isinstance(value, complex | decimal.Decimal):
        return repr(value) == repr(back)
    if isinstance(value, list | tuple):
        return len(value) == len(back) and all(map(exact, value, back))  # type: ignore[arg-type]
    if isinstance(value, dict):
        return exact([*value.items()], [*back.items()])  # type: ignore[attr-defined]
    if isinstance(value, set | frozenset):
        return exact(sorted(value, key=repr), sorted(back, key=repr))  # type: ignore[call-overload]
    if isinstance(value, dt.datetime | dt.time):
        return repr(value) == repr(back)
    return value == back


def again(value: object, fn: Callable[..., object] | None = None) -> object:
    data = Memo(fn).dump(value)
    assert data is not None, "no memo"
    assert not is_error(data)
    return Memo(fn).load(data)


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=8)
hashable = (
    scalars
    | st.decimals(allow_nan=False)
    | st.dates()
    | st.times(timezones=st.sampled_from([None, dt.UTC, CEST]))
    | st.datetimes(timezones=st.sampled_from([None, dt.UTC, CEST, BERLIN]))
    | st.timedeltas()
    | st.uuids()
    | st.complex_numbers()
    | st.fractions()
    | st.integers(min_value=2**60)
    | st.text(st.characters(codec=None, categories=["Cs", "L"]), max_size=4)
    | st.builds(pathlib.PurePosixPath, st.sampled_from(["a", "/b/c", "."]))
)
plain = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=15,
)
builtin = st.recursive(
    hashable | st.binary(max_size=5).map(bytearray),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.just(())
        | st.sets(hashable, max_size=4)
        | st.frozensets(hashable, max_size=4)
        | st.dictionaries(hashable | st.tuples(hashable), inner, max_size=4)
    ),
    max_leaves=15,
)


# --- plain and tagged data ---


@given(plain)
def test_plain_data_comes_back(value: object) -> None:
    assert exact(value, again(value))


@given(builtin)
def test_builtin_data_comes_back_with_its_types(value: object) -> None:
    assert exact(value, again(value))


@given(st.lists(builtin, max_size=4), builtin)
def test_a_stream_comes_back_with_its_items_and_what_it_returned(items: list[object], returned: object) -> None:
    data = Memo(None).dump_items(items, returned)

    assert data is not None
    assert exact((items, returned), Memo(None).load_items(data))


@given(builtin)
def test_a_memo_of_equal_values_is_the_same(value: object) -> None:
    data = Memo(None).dump(value)

    assert data is not None
    assert Memo(None).dump(Memo(None).load(data)) == data


@pytest.mark.parametrize(
    "value",
    [
        *(-0.0, math.inf, math.nan, True, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**5000, "", "\x00", b""),
        *((), set(), {}, [[]], {"a": (1, [2])}, {1: 2, "1": 3}, {True: 1}, {None: 1}, {(1, 2): {3}}, [{1.5: b"x"}]),
        *(bytearray(b"x"), [bytearray(b"x"), b"x"], "ł", ["ł", (1,)], "\ud800", {"\ud800": "\udfff"}),
        *(decimal.Decimal("1.50"), decimal.Decimal("sNaN"), uuid.UUID(int=5), fractions.Fraction(1, 3), 1j),
        *(dt.datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=1), dt.datetime(2024, 1, 1, tzinfo=CEST), CEST, dt.UTC),
        *(dt.time(1, fold=1), dt.timedelta(-1, 1), dt.date(1, 1, 1), pathlib.Path("/a"), BERLIN),
        *(ipaddress.ip_address("::1"), ipaddress.ip_network("10.0.0.0/8")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_edge_of_a_type_comes_back(value: object) -> None:
    assert exact(value, again(value))


def test_a_named_time_zone_keeps_its_name() -> None:
    back = again([dt.datetime(2024, 1, 1, tzinfo=CEST)])

    assert isinstance(back, list)
    assert back[0].tzname() == "CEST"


@pytest.mark.parametrize(
    "value",
    [
        *(Word("w"), Registry(a=1), Series([1]), Colour.BLUE, Level.LOW, Mode.READ, Refund(1), ORDER, Row(1), MODEL),
        *(Pair(1, Refund(1)), Made(pathlib.Path("x")), collections.OrderedDict(a=1), collections.Counter("a"), Same()),
        *(memoryview(b"x"), types.SimpleNamespace(), object(), iter([1]), len, msgspec.Raw(b"\x01"), range(3)),
        msgspec.msgpack.Ext(4, b"\x92\xa1x\x01"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_would_come_back_as_something_else_is_not_kept(value: object) -> None:
    for held in (value, [value], {"a": {"b": value}}, (value,)):
        assert Memo(None).dump(held) is None
        assert Memo(returns(Any)).dump(held) is None
        assert Memo(None).dump_items([held]) is None
        assert Memo(None).dump_items([], held) is None


def test_a_value_that_contains_itself_is_not_kept() -> None:
    cycle: list[object] = []
    cycle.append((cycle,))

    assert Memo(None).dump(cycle) is None


def test_a_value_at_the_limit_is_kept_and_above_it_is_not() -> None:
    memo = Memo(None, limit=100)

    assert memo.dump("x" * 98) is not None
    assert memo.dump("x" * 99) is None
    assert memo.dump(("x" * 90,)) is not None
    assert memo.dump(("x" * 99,)) is None
    assert memo.dump("\ud800" + "x" * 99) is None
    assert memo.dump_items(["x" * 50, "y" * 50]) is None


# --- objects ---


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Order, ORDER),
        (Row, Row(1, {"a"}, b"\xff")),
        (Pair, Pair(1, Refund(2))),
        (Made, Made(pathlib.Path("/x"))),
        (Model, MODEL),
        (Colour, Colour.RED),
        (Level, Level.LOW),
        (Mode, Mode.READ | Mode.WRITE),
        (Word, Word("w")),
        (Registry, Registry(a=1)),
        (Series, Series([1, 2])),
        (collections.OrderedDict[str, int], collections.OrderedDict(a=1)),
        (Info, {"order": ORDER, "count": 1}),
        (Order | Refund | None, Refund(3)),
        (Order | Refund | None, None),
        (list[Order | Refund | Row], [ORDER, Refund(1), Row(1)]),
        (dict[str, tuple[Row, Colour]], {"a": (Row(1), Colour.BLUE)}),
        (tuple[int, str], (1, "a")),
        (Annotated[Refund, "why"], Refund(1)),
        (OrderId, Row(2)),
        (Literal[Colour.RED], Colour.RED),
        (Box[Row], Box(Row(1))),
        (Awaitable[Refund], Refund(1)),
        (object, {"a": (1,)}),
        (Refund, {"not": "what it says"}),
    ],
    ids=named,
)
def test_an_annotated_object_comes_back(annotation: object, value: object) -> None:
    back = again(value, returns(annotation))

    assert exact(value, back)


def test_a_model_knows_what_it_was_not_given() -> None:
    part = Model(at=NOON, tags={"a"})

    back = again(Model(at=NOON, parts=[part]), returns(Model))

    assert isinstance(back, Model)
    assert back.model_fields_set == {"at", "parts"}
    assert back.parts[0].model_fields_set == {"at", "tags"}


class Text(pydantic.BaseModel):
    kind: Literal["text"] = "text"
    text: str


class Image(pydantic.BaseModel):
    kind: Literal["image"] = "image"


class Answer(pydantic.BaseModel):
    blocks: list[Annotated[Text | Image, pydantic.Field(discriminator="kind")]]


def test_a_model_that_needs_what_it_was_not_given_comes_back() -> None:
    answer = Answer(blocks=[Text(text="tea"), Image()])

    assert again(answer, returns(Answer)) == answer


def test_the_fields_of_an_object_keep_their_types() -> None:
    back = again(ORDER, returns(Order))

    assert isinstance(back, Order)
    assert back.at.tzname() == "CEST"
    assert exact(back.lines, ("a", "b"))
    assert back.parts[0].at.fold == 1


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Order, Special(1)),  # a subclass
        (Order, Order(1, extra=(1, {2}))),  # a set in a field that may hold anything
        (Order, Order(1, extra=Refund(1))),
        (Order, Order("1")),  # type: ignore[arg-type]
        (collections.defaultdict, collections.defaultdict(int, a=1)),
        (Refund, Order(1)),
        (Iterator[int], Refund(1)),
    ],
    ids=named,
)
def test_an_object_that_would_come_back_changed_is_not_kept(annotation: object, value: object) -> None:
    assert Memo(returns(annotation)).dump(value) is None


def test_another_class_of_the_same_name_is_not_kept() -> None:
    one, other = (msgspec.defstruct("Answer", [("id", int)]) for _ in range(2))

    assert Memo(returns(one)).dump(other(1)) is None
    assert Memo(returns(one | other)).dump(one(1)) is None


def plain_fn() -> Refund: ...  # type: ignore[empty-body]


async def coroutine_fn() -> Refund: ...  # type: ignore[empty-body]


def with_unknown_argument(one: Unknown) -> Refund: ...  # type: ignore[empty-body]


def with_unknown_answer() -> Unknown: ...


@functools.wraps(plain_fn)
def wrapper(*args: Any) -> Any: ...


@functools.lru_cache
def cached_fn() -> Refund: ...  # type: ignore[empty-body]


class Tool:
    field: int = 1

    def __call__(self) -> Refund: ...  # type: ignore[empty-body]

    def method(self) -> Refund: ...  # type: ignore[empty-body]

    @classmethod
    def built(cls) -> Refund: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    "fn",
    [
        *(plain_fn, coroutine_fn, with_unknown_argument, wrapper, cached_fn, functools.partial(plain_fn)),
        *(Tool(), Tool().method, Tool.built, Refund),
    ],
    ids=named,
)
def test_the_annotation_is_found_however_the_tool_is_made(fn: Callable[..., object]) -> None:
    assert again(Refund(1), fn) == Refund(1)


@pytest.mark.parametrize("fn", [None, len, with_unknown_answer, int, lambda: None, typing.cast("Any", 3)], ids=named)
def test_a_tool_without_an_annotation_keeps_builtin_data_only(fn: Any) -> None:
    assert again((1, "a"), fn) == (1, "a")
    assert Memo(fn).dump(Refund(1)) is None


def items_fn() -> Iterator[Order | Refund]: ...  # type: ignore[empty-body]


def generator_fn() -> Generator[Refund, None, Row]: ...  # type: ignore[empty-body]


async def agen_fn() -> AsyncIterator[Refund]:
    yield Refund(1)


async def agen2_fn() -> AsyncGenerator[Refund, None]:
    yield Refund(1)


@pytest.mark.parametrize(
    ("fn", "items", "returned"),
    [
        (items_fn, [ORDER, Refund(1)], None),
        (generator_fn, [Refund(1), Refund(2)], Row(1)),
        (agen_fn, [Refund(1)], None),
        (agen2_fn, [], None),
    ],
)
def test_the_items_of_a_stream_come_back_by_its_annotation(fn: Any, items: list[object], returned: object) -> None:
    data = Memo(fn).dump_items(items, returned)

    assert data is not None
    assert exact((items, returned), Memo(fn).load_items(data))


def test_a_memo_is_read_in_another_process() -> None:
    data = Memo(returns(Model)).dump({"model": MODEL, "set": {"a", "b"}, "at": dt.datetime(2024, 1, 1, tzinfo=BERLIN)})
    code = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("tools", {__file__!r})
tools = sys.modules["tools"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tools)
value = tools.Memo(tools.returns(tools.Model)).load({data!r})
print(value == {{"model": tools.MODEL, "set": {{"a", "b"}}, "at": tools.dt.datetime(2024, 1, 1, tzinfo=tools.BERLIN)}})
"""

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=False)

    assert done.stdout.strip() == "True", done.stderr


def test_threads_may_meet_a_class_for_the_first_time_together() -> None:
    for n in range(30):
        kind = msgspec.defstruct(f"Fresh{n}", [("a", int), ("b", list[Row])])
        fn = returns(kind)
        value = kind(1, [Row(1)])
        together = threading.Barrier(4)
        backs: list[object] = []

        def work(fn: Any = fn, value: Any = value, together: Any = together, backs: Any = backs) -> None:
            together.wait()
            backs.append(again(value, fn))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert backs == [value] * 4


# --- what cannot be rebuilt ---


def test_a_changed_annotation_is_a_lookup_error() -> None:
    data = Memo(returns(Refund)).dump(Refund(1))

    assert data is not None
    for annotation in (None, Order, int):
        with pytest.raises(LookupError):
            Memo(returns(annotation)).load(data)


def test_a_changed_class_is_a_lookup_error() -> None:
    old = msgspec.defstruct("Answer", [("id", int)])
    new = msgspec.defstruct("Answer", [("id", int), ("more", str)])
    data = Memo(returns(old)).dump(old(1))

    assert data is not None
    with pytest.raises(LookupError, match="more"):
        Memo(returns(new)).load(data)


def test_a_class_that_gained_a_field_with_a_default_is_rebuilt() -> None:
    old = msgspec.defstruct("Answer", [("id", int)])
    new = msgspec.defstruct("Answer", [("id", int), ("more", str, "x")])
    data = Memo(returns(old)).dump(old(1))

    assert data is not None
    assert Memo(returns(new)).load(data) == new(1, "x")


@given(st.binary(max_size=40) | st.tuples(st.sampled_from([b"v", b"V", b"s", b"S", b"e"]), st.binary()).map(b"".join))
def test_broken_data_is_a_lookup_error_or_some_value(data: bytes) -> None:
    for load in (Memo(returns(Order)).load, Memo(None).load_items, load_error):
        try:
            load(data)
        except LookupError:
            continue


def test_a_memo_of_one_kind_is_not_read_as_another() -> None:
    value = Memo(None).dump([[1], 2])
    items = Memo(None).dump_items([1], 2)
    error = dump_error(ValueError(), ErrorCategory.NETWORK)

    assert value is not None
    assert items is not None
    for load, data in [
        (Memo(None).load, items),
        (Memo(None).load, error),
        (Memo(None).load_items, value),
        (Memo(None).load_items, error),
        (load_error, value),
    ]:
        with pytest.raises(LookupError):
            load(data)
    assert [is_error(data) for data in (value, items, error, b"")] == [False, False, True, False]


def test_the_store_cannot_choose_what_is_called() -> None:
    name = b"\x92\xa5Popen\xa2id"
    late = b"\x92\xa6system\xa2id"
    for code, body in ((4, name), (5, late)):
        data = b"V" + msgspec.msgpack.encode(msgspec.msgpack.Ext(code, body))
        with pytest.raises(LookupError):
            Memo(returns(Order)).load(data)


# --- errors ---


def told_again(error: Exception, category: ErrorCategory = ErrorCategory.NETWORK) -> Exception:
    data = dump_error(error, category)
    assert is_error(data)
    return load_error(data)


def test_an_error_that_cannot_be_asked_for_its_notes_is_told_again_without_any() -> None:
    class Hostile(Exception):
        def __getattr__(self, name: str) -> object:
            raise RuntimeError(name)

    assert str(told_again(Hostile("no page"))) == "no page"


@pytest.mark.parametrize(
    "error",
    [
        *(ValueError("a", 1), ValueError(), KeyError("k"), KeyError(("a", 1)), IndexError(b"x"), StopIteration(3)),
        *(ZeroDivisionError("x"), TimeoutError("late"), RuntimeError({"code": (1, 2)}), NotImplementedError("\ud800")),
        *(OSError(2, "no", "file"), FileNotFoundError(2, "no", "a", None, "b"), ConnectionResetError(104, "reset")),
        *(OSError("only text"), PermissionError(13, "denied"), BlockingIOError(11, "busy", 3), OSError()),
        *(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), UnicodeEncodeError("ascii", "\ud800", 0, 1, "bad")),
        *(ImportError("no", name="n", path="p"), SyntaxError("bad", ("f", 1, 2, "text", 1, 3)), RecursionError("deep")),
        *(ToolTimeout("search", 1.5), Warning("w"), UserWarning("w"), AssertionError()),
        *(RecordedError("app.Error", "text", ErrorCategory.TIMEOUT), MemoryError("x")),
    ],
    ids=named,
)
def test_a_builtin_error_is_raised_again_as_itself(error: Exception) -> None:
    back = told_again(error)

    assert type(back) is type(error)
    assert back.args == error.args
    assert str(back) == str(error)
    for name in ("errno", "strerror", "filename", "filename2", "characters_written", "name", "path", "lineno", "tool"):
        assert getattr(back, name, None) == getattr(error, name, None)


def test_an_error_of_ones_own_is_told_as_recorded() -> None:
    class Declined(ValueError):
        pass

    back = told_again(Declined("card", 3), ErrorCategory.POLICY_VIOLATION)

    assert isinstance(back, RecordedError)
    assert back.type == f"{__name__}.{Declined.__qualname__}"
    assert back.message == "('card', 3)"
    assert back.category is ErrorCategory.POLICY_VIOLATION


@pytest.mark.parametrize(
    ("error", "arguments"),
    [(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), ("bad",)), (OSError("gone"), (2, "gone"))],
    ids=["not made at all", "made as another"],
)
def test_a_builtin_error_that_its_arguments_do_not_make_again_is_told_as_recorded(
    error: Exception, arguments: tuple[object, ...]
) -> None:
    error.args = arguments

    back = told_again(error)

    assert isinstance(back, RecordedError)
    assert back.type == type(error).__name__


def test_an_error_of_ours_is_told_as_recorded() -> None:
    back = told_again(ConfigError("wrong"))

    assert isinstance(back, RecordedError)
    assert back.type == "holdfast.errors.ConfigError"


def test_a_group_comes_back_with_its_members() -> None:
    class Own(Exception):
        pass

    group = ExceptionGroup("g", [ValueError(1), ExceptionGroup("h", [OSError(2, "no"), Own("x")])])

    back = told_again(group, ErrorCategory.TIMEOUT)

    assert isinstance(back, ExceptionGroup)
    first, inner = back.exceptions
    assert repr(first) == "ValueError(1)"
    assert isinstance(inner, ExceptionGroup)
    assert repr(inner.exceptions[0]) == "FileNotFoundError(2, 'no')"
    assert isinstance(inner.exceptions[1], RecordedError)
    assert inner.exceptions[1].category is ErrorCategory.TIMEOUT


def test_a_group_deeper_than_the_stack_is_told_somehow() -> None:
    group: Exception = ValueError("inner")
    for _ in range(2000):
        group = ExceptionGroup("g", [group])

    assert isinstance(told_again(group), ExceptionGroup | RecordedError)


def test_notes_and_attributes_are_kept() -> None:
    error = ValueError("x")
    error.add_note("tried twice")
    error.add_note("\ud800")
    error.status_code = 503  # type: ignore[attr-defined]
    error.response = object()  # type: ignore[attr-defined]

    back = told_again(error)

    assert back.__notes__ == ["tried twice", "\\ud800"]
    assert vars(back).get("status_code") == 503
    assert "response" not in vars(back)


def test_an_argument_that_cannot_be_kept_becomes_its_text() -> None:
    back = told_again(ValueError("bad", pathlib.PureWindowsPath("c:/x"), types.SimpleNamespace(a=1)))

    assert type(back) is ValueError
    assert back.args == ("bad", str(pathlib.PureWindowsPath("c:/x")), "namespace(a=1)")


class Mute:
    def __str__(self) -> str:
        raise RuntimeError("no words")


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Odd(Exception):
    def __reduce__(self) -> Any:
        raise RuntimeError("no pickle")

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        return ["n"]


@pytest.mark.parametrize(
    "error",
    [MuteError(), ValueError(Mute()), KeyError(Mute()), Odd("x"), ValueError("x" * 5_000_000), Exception(*range(1000))],
    ids=lambda error: type(error).__name__,
)
def test_an_odd_error_never_fails(error: Exception) -> None:
    assert isinstance(told_again(error), RecordedError | type(error))


def test_a_huge_message_is_cut() -> None:
    data = dump_error(ValueError("x" * 5_000_000), ErrorCategory.NETWORK)

    assert len(data) < 20_000


def test_a_category_of_a_later_version_is_an_execution_error() -> None:
    data = b"e" + msgspec.msgpack.encode(["solar_flare", "app.Error", "text", [], b""])

    back = load_error(data)

    assert isinstance(back, RecordedError)
    assert back.category is ErrorCategory.EXECUTION_ERROR


@pytest.mark.parametrize("name", ["eval", "SystemExit", "KeyboardInterrupt", "nothing", "os.system"])
def test_a_memo_makes_no_error_that_is_none(name: str) -> None:
    body = msgspec.msgpack.encode([["x"], {}])
    data = b"e" + msgspec.msgpack.encode(["network", name, "text", [], body])

    with pytest.raises(LookupError):
        load_error(data)
