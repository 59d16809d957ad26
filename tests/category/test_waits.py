"""What `retry_after` reads, and what it refuses."""

from __future__ import annotations

import math
from email.message import Message
from email.utils import formatdate
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.category import retry_after
from holdfast.clock import SystemClock
from holdfast.errors import CircuitOpen

NOON = 1_700_000_000.0  # a whole second, as HTTP dates are
DAY = 86_400


def http_date(seconds: float) -> str:
    return formatdate(NOON + seconds, usegmt=True)


class ApiError(Exception):
    """A client's exception with whatever attributes a test gives it."""

    def __init__(self, text: str = "boom", **attributes: object) -> None:
        super().__init__(text)
        vars(self).update(attributes)


# --- where it is found ---

HEADERS = {"Retry-After": "7"}
PLACES: dict[str, object] = {
    "headers": HEADERS,
    "a response": SimpleNamespace(headers=HEADERS),
    "an exception's headers": ApiError(headers=HEADERS),
    "an exception's response": ApiError(response=SimpleNamespace(headers=HEADERS)),
    "a botocore response": ApiError(response={"ResponseMetadata": {"HTTPHeaders": {"retry-after": "7"}}}),
    "an attribute": ApiError(retry_after=7),
    "an attribute that is the header as it came": ApiError(retry_after=" 7"),
    "our own refusal": CircuitOpen("search", retry_after=7.0),
    "an argument": RuntimeError(ApiError(headers=HEADERS)),
    "a group": ExceptionGroup("several", [ApiError(retry_after=3), ApiError(headers=HEADERS), ValueError()]),
    "a text": "HTTP 429, Retry-After: 7",
    "an exception's text": RuntimeError("rate limited, try again in 7s"),
}


@pytest.mark.parametrize("error", PLACES.values(), ids=PLACES)
def test_the_wait_is_found_wherever_it_is(error: object) -> None:
    assert retry_after(error) == 7.0


def test_the_wait_of_a_cause_is_found() -> None:
    error = RuntimeError("boom")
    error.__cause__ = ApiError(headers=HEADERS)

    assert retry_after(error) == 7.0


def test_the_wait_of_what_an_exception_replaced_is_found() -> None:
    replaced, error = RuntimeError("boom"), RuntimeError("no price")
    replaced.__cause__ = ApiError(headers=HEADERS)
    error.__context__ = replaced

    assert retry_after(error) == 7.0


def test_the_wait_of_what_an_exception_replaced_counts_after_its_text() -> None:
    error = RuntimeError("try again in 30s")
    error.__context__ = ApiError(headers=HEADERS)

    assert retry_after(error) == 30.0


def test_the_wait_of_what_an_exception_hides_with_from_none_stays_hidden() -> None:
    error = RuntimeError("no price")
    error.__context__ = ApiError(headers=HEADERS)
    error.__suppress_context__ = True

    assert retry_after(error) is None


def test_the_outermost_wait_counts() -> None:
    error = ApiError(retry_after=2.5)
    error.__cause__ = ApiError(headers=HEADERS)

    assert retry_after(error) == 2.5


def test_a_header_counts_before_a_text() -> None:
    error = RuntimeError("try again in 30s")
    error.__cause__ = ApiError(headers=HEADERS)

    assert retry_after(error) == 7.0


@pytest.mark.parametrize("error", [None, 429, "boom", {}, object(), ValueError(), ApiError(headers={"Date": "now"})])
def test_where_there_is_none_there_is_no_wait(error: object) -> None:
    assert retry_after(error) is None


@pytest.mark.parametrize("name", ["retry-after", "Retry-After", "RETRY-AFTER", "reTRY-after"])
def test_the_case_of_a_header_does_not_matter(name: str) -> None:
    message = Message()
    message[name] = "7"

    assert retry_after({name: "7"}) == 7.0
    assert retry_after(ApiError(headers=message)) == 7.0


# --- seconds ---

SECONDS: dict[Any, float] = {"0": 0.0, "7": 7.0, " 7 ": 7.0, "1.5": 1.5, 7: 7.0, 0.25: 0.25, str(DAY): DAY, "007": 7.0}


@pytest.mark.parametrize(("value", "seconds"), SECONDS.items())
def test_seconds_are_read_as_they_are(value: object, seconds: float) -> None:
    assert retry_after({"Retry-After": value}) == seconds


REFUSED = ["-1", "nan", "inf", "-inf", "1e3", "1_000", "٣", "", "soon", "7 s", str(DAY + 1), "9" * 400, None, b"7", [7]]


@pytest.mark.parametrize("value", REFUSED)
def test_a_header_that_is_no_sane_number_is_refused(value: object) -> None:
    assert retry_after({"Retry-After": value}) is None


@pytest.mark.parametrize("value", [-1, -0.001, math.nan, math.inf, -math.inf, DAY + 0.1, 10**400, "soon", None, [7]])
def test_an_attribute_that_is_no_sane_number_is_refused(value: object) -> None:
    assert retry_after(ApiError(retry_after=value)) is None


def test_an_attribute_that_is_refused_leaves_the_header() -> None:
    assert retry_after(ApiError(retry_after=math.inf, headers=HEADERS)) == 7.0


def test_a_header_in_milliseconds_is_more_precise() -> None:
    assert retry_after({"retry-after-ms": "250", "retry-after": "1"}) == 0.25


@pytest.mark.parametrize("milliseconds", ["-1", "nan", "soon", "999999999999"])
def test_a_header_in_milliseconds_that_is_refused_leaves_the_other(milliseconds: str) -> None:
    assert retry_after({"Retry-After-Ms": milliseconds, "Retry-After": "1"}) == 1.0


@given(st.one_of(st.text(), st.floats(), st.integers()))
def test_whatever_is_sent_the_wait_is_sane_or_none(value: object) -> None:
    for error in ({"Retry-After": value}, ApiError(retry_after=value), f"Retry-After: {value}"):
        wait = retry_after(error, now=NOON)

        assert wait is None or 0 <= wait <= DAY


# --- dates ---

DATES = {
    http_date(90): 90.0,
    http_date(0): 0.0,
    http_date(DAY): DAY,
    "Tuesday, 14-Nov-23 22:14:50 GMT": 90.0,  # the older forms that HTTP still allows
    "Tue Nov 14 22:14:50 2023": 90.0,
    "Tue, 14 Nov 2023 23:14:50 +0100": 90.0,
}


@pytest.mark.parametrize(("date", "seconds"), DATES.items())
def test_a_date_is_a_wait_from_now(date: str, seconds: float) -> None:
    assert retry_after({"Retry-After": date}, now=NOON) == seconds
    assert retry_after(ApiError(retry_after=date), now=NOON) == seconds


@pytest.mark.parametrize(
    "date",
    [http_date(-1), http_date(DAY + 1), "Tue, 99 Nov 2023 22:14:50 GMT", "Tue, 14 Nov 0000 22:14:50 GMT", "Nov", ","],
)
def test_a_date_that_is_past_too_far_or_none_is_refused(date: str) -> None:
    assert retry_after({"Retry-After": date}, now=NOON) is None


def test_a_date_is_compared_with_the_date_of_the_response_whatever_the_clock_here_says() -> None:
    headers = {"Retry-After": http_date(90), "Date": http_date(30)}

    assert retry_after(headers) == 60.0
    assert retry_after(headers, now=NOON - 3600) == 60.0
    assert retry_after({**headers, "Date": "unreadable"}, now=NOON) == 90.0


@pytest.mark.parametrize("headers", [{}, {"Date": "unreadable"}])
def test_without_any_other_date_the_wall_clock_counts(headers: dict[str, str]) -> None:
    now = SystemClock().time()

    wait = retry_after({"Retry-After": formatdate(now + 3600, usegmt=True), **headers})

    assert wait == pytest.approx(3600, abs=60)


# --- texts ---

TEXTS = {
    "Retry-After: 30": 30.0,
    "retry after 20 seconds": 20.0,
    "Rate limit reached. Please try again in 1.5s. Visit our page.": 1.5,
    "Please try again in 1m30.5s": 90.5,
    "try again in 1h2m": 3720.0,
    "try again in 250ms": 0.25,
    "retry in about 2 minutes": 120.0,
    "retry after 3 milliseconds": 0.003,
    "Retry-After: 120, 60": 120.0,
    "Retry after 5. 3 attempts left": 5.0,
    '{"retry_after": 4.5}': 4.5,
    '{"retry_after_ms": 500}': 0.5,
    '{"retryAfter":"12"}': 12.0,
    "." * 1_000_000 + "Retry-After: 30": 30.0,
    CircuitOpen("search", retry_after=2.5).for_model(): 2.5,
}


@pytest.mark.parametrize(("text", "seconds"), TEXTS.items(), ids=lambda value: str(value)[:30])
def test_a_text_that_says_when_to_come_back_is_understood(text: str, seconds: float) -> None:
    assert retry_after(text) == pytest.approx(seconds)


NO_WAITS = [
    *("Retry-After: -5", "Retry-After: 99999999", "Retry-After: 1e3", "try again in 30 hours", "try again in 40 days"),
    *("retry after 3 failures", "retry after 30% more", "try again later", "retried 5 times"),
    *("Retry after 2026-01-01T00:00:00Z", "try again after 12:30", "try again after 5/1/2026", "retry after 1.5.2"),
    *("try again in 5-10 minutes", "retry after 10 – 20 seconds", "retry after 2,5 seconds", "try again in 1,000 ms"),
]


@pytest.mark.parametrize("text", NO_WAITS)
def test_a_text_that_names_no_sane_time_gives_no_wait(text: str) -> None:
    assert retry_after(text) is None


@pytest.mark.parametrize("piece", ["retry after ", "1", "1m", "try again in 1", "retry in 1s 1s ", " "])
@pytest.mark.timeout(5)
def test_a_megabyte_of_anything_is_read_in_no_time(piece: str) -> None:
    text = piece * (1_000_000 // len(piece))

    for _ in range(20):
        retry_after(text)


# --- exceptions that resist being looked at ---


def refuse(*_: object) -> NoReturn:
    raise RuntimeError("do not look")


class Headers:
    get = refuse


HOSTILE: dict[str, dict[str, Any]] = {
    "text": {"__str__": refuse},
    "attributes": {"__getattribute__": refuse},
    "properties": {name: property(refuse) for name in ("retry_after", "headers", "response", "args", "reason")},
    "headers": {"headers": Headers(), "response": SimpleNamespace(headers=Headers())},
    "no headers": {"headers": 429, "response": {"ResponseMetadata": {"HTTPHeaders": 429}}},
    "headers that are odd": {"headers": {None: "7", 7: None, "retry-after": object()}},
}


@pytest.mark.parametrize("habits", HOSTILE.values(), ids=HOSTILE)
def test_an_exception_that_resists_gives_no_wait(habits: dict[str, Any]) -> None:
    error = type("Hostile", (Exception,), habits)()

    assert retry_after(error) is None
