"""JSON with comments: read as JSON is, with the place of every value, so that one is changed and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.mcp.clients.documents import Json, values, written

from holdfast.errors import ConfigError
from holdfast.mcp.clients.jsonc import DEEPEST, Array, Edit, Object, Value, apply, parse, plain, quoted, removal

randoms = st.randoms(use_true_random=False)


def places(value: Value) -> Iterator[Value]:
    """*value* and all values in it."""
    yield value
    if isinstance(value, Object):
        for member in value.members:
            yield from places(member.value)
    if isinstance(value, Array):
        for item in value.items:
            yield from places(item)


# --- reading ---


@given(values, randoms)
def test_comments_spaces_and_trailing_commas_change_nothing_of_what_is_read(value: Json, random: Random) -> None:
    text = written(value, random)

    assert plain(parse(text, "file")) == value


@given(values, randoms)
def test_strict_json_is_read_as_the_standard_library_reads_it(value: Json, random: Random) -> None:
    text = written(value, random, strict=True)

    assert plain(parse(text, "file")) == json.loads(text)


@given(values, randoms)
def test_the_place_of_a_value_is_where_it_stands(value: Json, random: Random) -> None:
    text = written(value, random)

    for place in places(parse(text, "file")):
        assert plain(parse(text[place.start : place.end], "part")) == plain(place)


def test_a_byte_order_mark_is_no_part_of_the_document() -> None:
    assert plain(parse('\ufeff{"a": 1}', "file")) == {"a": 1}


def test_of_a_key_that_is_there_twice_the_last_counts() -> None:
    document = parse('{"a": 1, "b": 2, "a": 3}', "file")

    assert isinstance(document, Object)
    assert plain(document) == {"a": 3, "b": 2}
    assert document.get("a") == (24 - 2, 24 - 1, 3)


def test_half_a_surrogate_pair_is_read_as_javascript_reads_it() -> None:
    assert plain(parse('"\\ud800"', "file")) == "\ud800"


@pytest.mark.parametrize("digits", [5, 5000])
def test_a_number_may_have_any_number_of_digits(digits: int) -> None:
    value = plain(parse("9" * digits, "file"))

    assert value == (99999 if digits == 5 else float("inf"))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "file:1:1: expected a value, found the end of the file"),
        ("{", "file:1:2: expected a key in double quotes, or }, found the end of the file"),
        ('{"a" 1}', "file:1:6: expected : after the key 'a', found '1'"),
        ('{"a":}', "file:1:6: expected a value, found '}'"),
        ("{'a': 1}", 'file:1:2: expected a key in double quotes, or }, found "\'"'),
        ("{name: 1}", "file:1:2: expected a key in double quotes, or }, found 'name'"),
        ('{"a": 1\n "b": 2}', "file:2:2: expected , or }, found '\"'"),
        ('{"a": 1\r\n "b": 2}', "file:2:2: expected , or }, found '\"'"),
        ('{"a": 1\r "b": 2}', "file:2:2: expected , or }, found '\"'"),
        ("[1 2]", "file:1:4: expected , or ], found '2'"),
        ("[,]", "file:1:2: expected a value, found ','"),
        ("[1,,2]", "file:1:4: expected a value, found ','"),
        ("[1}", "file:1:3: expected , or ], found '}'"),
        ("[tru]", "file:1:2: expected a value, found 'tru'"),
        ("[NaN]", "file:1:2: expected a value, found 'NaN'"),
        ("[01]", "file:1:2: expected a value, found '01'"),
        ("[1.]", "file:1:2: expected a value, found '1'"),
        ("{} {}", "file:1:4: expected the end of the file, found '{'"),
        ('\ufeff{} "', "file:1:4: expected the end of the file, found '\"'"),
        ('["a]\n', 'file:1:2: expected a closing " on the same line, found none'),
        ('["a', 'file:1:2: expected a closing " on the same line, found none'),
        ('["\\x"]', r"""file:1:3: expected an escape such as \" or \u00e9, found '\x'"""),
        ('["\\u12"]', r"""file:1:3: expected an escape such as \" or \u00e9, found '\u'"""),
        ('["a\tb"]', r"file:1:4: expected a character that JSON allows in a text, or its escape, found '\t'"),
        ("[1 /* x ]", "file:1:4: expected */ at the end of the comment that begins here, found none"),
        ("# no", "file:1:1: expected a value, found '#'"),
        ("[" * (DEEPEST + 1), f"file:1:{DEEPEST + 1}: expected at most {DEEPEST} levels of nesting, found more"),
    ],
)
def test_bad_syntax_is_told_with_its_place_and_what_was_expected(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(text, "file")

    assert str(error.value) == complaint


@given(st.text(st.sampled_from('{}[]",:/*\\ \n\t\rantrue0.e-1'), max_size=30))
def test_any_text_is_read_or_told_to_be_wrong(text: str) -> None:
    try:
        value = plain(parse(text, "file"))
    except ConfigError:
        with pytest.raises(json.JSONDecodeError):
            json.loads(text)  # what is wrong as JSON with comments is wrong as JSON
    else:
        json.dumps(value)


# --- changing ---


@given(values, randoms, values, st.data())
def test_replacing_one_value_changes_nothing_else(value: Json, random: Random, new: Json, data: st.DataObject) -> None:
    text = written(value, random)
    place = data.draw(st.sampled_from(list(places(parse(text, "file")))))

    changed = apply(text, [Edit(place.start, place.end, json.dumps(new))])

    assert changed.startswith(text[: place.start])
    assert changed.endswith(text[place.end :])
    assert plain(parse(changed[place.start : len(changed) - len(text) + place.end], "part")) == new
    assert len(list(places(parse(changed, "file")))) == len(list(places(parse(text, "file")))) - len(
        list(places(place))
    ) + len(list(places(parse(json.dumps(new), "new"))))


@given(st.lists(values, min_size=1, max_size=5), randoms, st.data())
def test_items_are_removed_with_their_commas(items: list[Json], random: Random, data: st.DataObject) -> None:
    text = written(items, random)
    array = parse(text, "file")
    assert isinstance(array, Array)
    unwanted = data.draw(st.sets(st.integers(0, len(items) - 1)))

    changed = apply(text, removal(text, array.items, unwanted))

    assert plain(parse(changed, "file")) == [item for index, item in enumerate(items) if index not in unwanted]


def test_a_comment_behind_a_removed_item_stays() -> None:
    text = "[1, // one\n 2, /* two */ 3]"
    array = parse(text, "file")
    assert isinstance(array, Array)

    assert apply(text, removal(text, array.items, [0])) == "[// one\n 2, /* two */ 3]"


def test_edits_may_come_in_any_order() -> None:
    assert apply("abcdef", [Edit(4, 5, "E"), Edit(0, 1, "A"), Edit(2, 2, "-")]) == "Ab-cdEf"


def test_edits_that_overlap_are_a_mistake_of_ours() -> None:
    with pytest.raises(ValueError, match="two edits overlap at 1"):
        apply("abc", [Edit(0, 2, ""), Edit(1, 3, "")])


@given(st.text())
def test_a_text_is_quoted_so_that_it_is_read_again(text: str) -> None:
    assert plain(parse(quoted(text), "file")) == text


def test_letters_of_all_scripts_are_quoted_as_they_are() -> None:
    assert quoted("/Users/Zoë/ホーム") == '"/Users/Zoë/ホーム"'
