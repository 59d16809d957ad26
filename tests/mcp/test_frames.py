"""Frames are read by their heads, and stay the bytes they were unless something has to be changed."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from holdfast.category import ErrorCategory
from holdfast.mcp import frames
from holdfast.mcp.answers import ToolFailed, judge
from holdfast.mcp.odd import TooOdd


def frame(**parts: object) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", **parts})


# --- heads ---


def test_a_request_has_a_method_and_an_id() -> None:
    head = frames.head(frame(id=0, method="ping"))

    assert head.is_request
    assert not head.is_answer


def test_a_notification_is_neither_a_request_nor_an_answer() -> None:
    head = frames.head(frame(method="notifications/initialized"))

    assert not head.is_request
    assert not head.is_answer


def test_an_answer_may_be_to_nobody() -> None:
    head = frames.head(frame(id=None, error={"code": -32700, "message": "bad"}))

    assert head.is_answer
    assert head.id is None


def test_a_number_and_a_text_are_two_ids() -> None:
    assert frames.head(frame(id=1, method="x")).id != frames.head(frame(id="1", method="x")).id


@pytest.mark.parametrize(
    "data", [b"", b"nonsense", b"{", b'"text"', b'{"method": 5}', b'\xff{"id":1}', b'{"method":"\xff"}', b"[]"]
)
def test_what_is_no_frame_is_told(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        frames.head(data)


@pytest.mark.parametrize(
    ("data", "batch"), [(b"[]", True), (b" \n[", True), (b'{"id":[]}', False), (b' {"id":[]}', False), (b"", False)]
)
def test_a_batch_is_known_by_its_first_sign(data: bytes, batch: bool) -> None:
    assert frames.is_batch(data) is batch


def test_parameters_of_any_kind_can_be_asked_for() -> None:
    for params in (None, [], "text", {"requestId": {"odd": 1}}):
        assert frames.params(frames.head(frame(method="x", params=params))).requestId is None


def test_half_a_character_is_read_as_the_sign_for_a_missing_one() -> None:
    data = rb'{"id":1,"result":{"content":[{"type":"text","text":"a\ud83c b\udf89 \ud83c\udf89"}],"isError":true}}'

    head = frames.head(data)

    assert head.is_answer
    assert frames.texts(frames.tool_result(head).content) == "a\ufffd b\ufffd \U0001f389"


def test_numbers_that_are_none_are_read_as_texts() -> None:
    data = rb'{"id":1,"method":"x","params":{"arguments":[NaN,-Infinity,"NaN, \"NaN"]},"result":Infinity}'

    head = frames.head(data)

    assert json.loads(bytes(head.params)) == {"arguments": ["NaN", "-Infinity", 'NaN, "NaN']}
    assert json.loads(bytes(head.result)) == "Infinity"


def test_a_frame_that_is_nested_too_deep_is_read_as_far_as_it_goes() -> None:
    nested = b'[{"]}":"]}"},%b,{}]' % (b"[" * 5000 + b"]" * 5000)

    head = frames.head(b'{"jsonrpc":"2.0","result":{"content":[],"structuredContent":%b},"id":7}' % nested)

    assert (head.id, head.is_answer) == (7, True)
    assert json.loads(bytes(frames.tool_result(head).content)) == []


@pytest.mark.parametrize(
    ("value", "mended"),
    [
        (b"1", False),
        (rb'"\ud83c\udf89"', False),
        (rb'"\ud83c"', True),
        (b"NaN", True),
        (b"[" * 1_000_000 + b"]" * 1_000_000, True),
    ],
    ids=["number", "whole", "half", "NaN", "deep"],
)
def test_a_frame_that_is_read_otherwise_than_it_stands_says_so(value: bytes, mended: bool) -> None:
    head = frames.head(b'{"id":1,"method":"tools/call","params":{"name":"t","arguments":{"x":%b}}}' % value)

    assert head.mended is mended


def test_a_text_without_an_end_is_looked_at_once() -> None:
    with pytest.raises(msgspec.DecodeError):
        frames.head(b'{"id":1,"result":"' + rb"\"" * 2**20)


LEVELS = 1_600_000
TOO_ODD = {
    "too many numbers that are none": b'{"id":1,"result":[' + b"NaN," * 150_000 + b"1]}",
    "too many halves": b'{"id":1,"result":"' + b"\\ud800" * 150_000 + b'"}',
    "too many texts with halves": b'{"id":1,"result":[' + b'"\\ud800",' * 150_000 + b"1]}",
    "too long": b'{"id":1,"result":[NaN,"' + b"x" * 2**24 + b'"]}',
    "too deep": b'{"id":1,"result":' + b"[" * LEVELS + b"]" * LEVELS + b"}",
}


@pytest.mark.parametrize("odd", TOO_ODD.values(), ids=TOO_ODD)
def test_a_frame_that_would_hold_up_all_others_is_not_read(odd: bytes) -> None:
    with pytest.raises(TooOdd):
        frames.head(odd)


@pytest.mark.parametrize("batch", [b"[" + b"{}," * 10_000 + b"{}]", b'["' + b"x" * 2**24 + b'"]'])
def test_a_batch_that_would_hold_up_all_others_is_not_read(batch: bytes) -> None:
    with pytest.raises(TooOdd):
        frames.batch(batch)


def test_what_is_not_odd_does_not_count() -> None:
    data = b'{"id":1,"result":[NaN,' + b'"a","\\u00e9",-1,{"N":"\\\\ud800"},' * 50_000 + b"Infinity]}"

    result = json.loads(bytes(frames.head(data).result))

    assert result[:3] == ["NaN", "a", "\u00e9"]
    assert result[-2:] == [{"N": "\\ud800"}, "Infinity"]


def test_long_content_is_not_taken_apart() -> None:
    content = msgspec.Raw(json.dumps([{"type": "text", "text": "connection refused"}, *([{}] * 400_000)]).encode())

    assert "connection refused" in frames.texts(content)
    assert len(frames.texts(content)) == frames.MOST_TEXT


def test_an_answer_may_have_a_method_that_is_null() -> None:
    assert frames.head(b'{"id":1,"method":null,"result":{}}').is_answer


@pytest.mark.parametrize("data", [b'{"id":1,"method":""}', b'{"id":1}', b'{"id":1,"method":"x","result":{}}'])
def test_what_is_no_answer_and_has_an_id_is_a_request(data: bytes) -> None:
    assert frames.head(data).is_request


# --- changing ---


def test_another_id_leaves_all_else_as_it_was() -> None:
    data = b'{ "id" : 1, "method":"tools/call", "params":{"name":"x", "big": 1e400}, "new": [1,  2] }'

    assert frames.with_id(data, "a") == (
        b'{"id":"a","method":"tools/call","params":{"name":"x", "big": 1e400},"new":[1,  2]}'
    )


ODD = rb'{ "x":[NaN, -Infinity,Infinity] ,"t\ud83c": "\udf89 \\ud83c" }'


def test_what_is_not_plain_json_stays_as_it_was_when_a_frame_is_changed() -> None:
    data = b'{"jsonrpc":"2.0", "id" :1,"method":"tools/call","params":{"name":"a","_meta":%b,"arguments":%b}}' % (
        ODD,
        ODD,
    )

    changed = frames.with_params(frames.with_id(data, "new"), name="b")
    traced = frames.with_meta(data, {"trace": "t"})

    assert changed.count(ODD) == 2
    assert (frames.head(changed).id, frames.call_params(frames.head(changed)).name) == ("new", "b")
    assert traced.count(ODD) == 1
    assert b'"x":[NaN, -Infinity,Infinity]' in traced.partition(b'"arguments"')[0]
    assert frames.carried(frames.head(traced))["trace"] == "t"


def test_the_parts_of_a_batch_stay_as_they_were() -> None:
    parts = [b'{"id":1,"params":%b}' % ODD, b"-1", b'"a"', b"NaN", b'{"method":"x" }']

    assert frames.batch(b"[ %b ]" % b" ,".join(parts)) == parts


def test_a_frame_with_a_name_twice_that_is_not_plain_json_can_be_changed() -> None:
    data = b'{"id":1,"method":"a","params":{"x":1},"method":"b","params":{"x":NaN}}'

    assert frames.with_id(data, 2) == b'{"id":2,"method":"b","params":{"x":"NaN"}}'


def test_a_frame_that_is_nested_too_deep_cannot_be_changed() -> None:
    with pytest.raises(msgspec.DecodeError):
        frames.with_id(b'{"id":1,"params":%b}' % (b"[" * 1_000_000 + b"]" * 1_000_000), 2)


def test_other_parameters_leave_all_else_as_it_was() -> None:
    changed = frames.with_params(frame(id=1, method="x", params={"a": 1, "requestId": 2}, more=3), requestId="z")

    assert msgspec.json.decode(changed) == {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "x",
        "params": {"a": 1, "requestId": "z"},
        "more": 3,
    }


# --- what an answer says ---


def answered(**parts: object) -> Any:
    return frames.head(frame(id=1, **parts))


def test_a_result_is_given_as_it_is() -> None:
    result = judge(answered(result={"content": [], "structuredContent": {"a": 1}}))

    assert bytes(result) == b'{"content":[],"structuredContent":{"a":1}}'


@pytest.mark.parametrize(
    ("text", "category"),
    [
        ("429 Too Many Requests, retry after 2 seconds", ErrorCategory.RATE_LIMIT),
        ("connection refused", ErrorCategory.NETWORK),
        ("boom", ErrorCategory.EXECUTION_ERROR),
    ],
)
def test_a_result_that_is_an_error_has_the_category_of_its_text(text: str, category: ErrorCategory) -> None:
    with pytest.raises(ToolFailed) as caught:
        judge(answered(result={"content": [{"type": "text", "text": text}], "isError": True}))

    assert caught.value.category is category


@pytest.mark.parametrize(
    ("code", "message", "category"),
    [
        (-32602, "count must be a number", ErrorCategory.INVALID_PARAMETERS),
        (-32602, "Unknown tool", ErrorCategory.TOOL_NOT_FOUND),
        (-32601, "Method not found", ErrorCategory.TOOL_NOT_FOUND),
        (-32603, "request timed out", ErrorCategory.TIMEOUT),
        (-32042, "visit a page", ErrorCategory.CANCELLED),
    ],
)
def test_an_error_has_the_category_of_its_code_or_its_text(code: int, message: str, category: ErrorCategory) -> None:
    with pytest.raises(ToolFailed) as caught:
        judge(answered(error={"code": code, "message": message}))

    assert caught.value.category is category


def test_a_result_that_asks_for_something_first_says_nothing_about_the_tool() -> None:
    with pytest.raises(ToolFailed) as caught:
        judge(answered(result={"resultType": "input_required", "inputRequests": {}}))

    assert caught.value.category is ErrorCategory.CANCELLED


@pytest.mark.parametrize("result", ["text", 5, {"isError": "yes"}, {"content": 5, "isError": True}])
def test_an_odd_result_is_a_failure_of_the_tool(result: object) -> None:
    with pytest.raises(ToolFailed) as caught:
        judge(answered(result=result))

    assert caught.value.category is ErrorCategory.EXECUTION_ERROR
