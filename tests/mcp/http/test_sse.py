"""Server-sent events: what comes out does not depend on how the bytes were cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.mcp.http.sse import Parser, TooLong, encode
from holdfast.mcp.wire import Event


def parsed(*chunks: bytes) -> list[Event]:
    parser = Parser()
    return [event for chunk in chunks for event in parser.feed(chunk)]


def test_an_event_has_data_a_place_and_a_time_to_come_back_after() -> None:
    assert parsed(b"id: 7\nretry: 300\nevent: message\ndata: {}\n\n") == [Event(b"{}", "7", 300)]


def test_lines_of_data_are_joined() -> None:
    assert parsed(b"data: [1,\ndata: 2]\n\n") == [Event(b"[1,\n2]")]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])
def test_lines_may_end_in_three_ways(end: bytes) -> None:
    assert parsed(b"data: a" + end + end + b"data: b" + end + end) == [Event(b"a"), Event(b"b")]


def test_a_comment_and_an_event_of_another_kind_are_signs_of_life() -> None:
    assert parsed(b": ping\n\n", b"event: ping\ndata: x\n\n", b"\n\n") == [Event(b""), Event(b"")]


def test_an_event_without_data_is_a_place_to_resume_from() -> None:
    assert parsed(b"id: 3\ndata:\n\n", b"id: 4\n\n") == [Event(b"", "3"), Event(b"", "4")]


def test_a_line_of_data_may_be_empty() -> None:
    assert parsed(b"data: a\ndata\ndata:\ndata: b\n\n") == [Event(b"a\n\n\nb")]


def test_what_is_not_ended_is_no_event() -> None:
    assert parsed(b"data: half") == []


def test_a_mark_of_byte_order_is_no_part_of_the_first_line() -> None:
    assert parsed(b"\xef\xbb\xbfdata: a\n\n") == [Event(b"a")]


def test_an_event_that_is_too_long_is_given_up() -> None:
    parser = Parser(limit=100)

    with pytest.raises(TooLong):
        [event for _ in range(10) for event in parser.feed(b"data: " + b"x" * 50)]


def test_an_event_of_too_many_empty_lines_is_given_up() -> None:
    parser = Parser(limit=100)

    with pytest.raises(TooLong):
        list(parser.feed(b"data\n" * 100))


def test_an_event_whose_id_fits_into_no_header_is_given_up() -> None:
    parser = Parser()

    with pytest.raises(TooLong, match="id"):
        list(parser.feed(b"id: " + b"x" * 10_000 + b"\n\n"))


EVENTS = st.builds(
    Event,
    st.text(st.characters(codec="utf-8", exclude_characters="\r\n")).map(str.encode),
    st.none() | st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1),
    st.none() | st.integers(0, 99999),
    st.none(),
)


@given(st.lists(EVENTS), st.lists(st.integers(0, 400)))
def test_what_is_encoded_is_parsed_again_wherever_it_is_cut(events: list[Event], cuts: list[int]) -> None:
    stream = b"".join(map(encode, events))
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]

    assert parsed(*(stream[a:b] for a, b in pairwise(places))) == events
