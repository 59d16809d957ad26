"""What events show: JSON of anything, without secrets, cut at the limit."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import json
import os
import pathlib
import subprocess
import sys
import tracemalloc
import types
import uuid
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigError
from holdfast.values.as_json import DEEPEST
from holdfast.values.redaction import MASK, Payloads, redact


@dataclass
class Point:
    x: object
    token: object = None


class Record(msgspec.Struct):
    x: object
    password: object = None


class Model(pydantic.BaseModel):
    x: Any
    api_key: Any = None


@attrs.define
class Made:
    x: object


class Colour(enum.Enum):
    RED = "red"


class Word(str):
    __slots__ = ()


class Count(int):
    pass


class Mute:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


class Nameless(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("no name")


class Broken(pydantic.BaseModel):
    def model_dump(self, **options: Any) -> dict[str, Any]:
        raise RuntimeError("no dump")


def shown(value: object, payloads: Payloads | None = None) -> Any:
    return msgspec.json.decode((payloads or Payloads()).shown(value))


def encoded(payload: Any, payloads: Payloads | None = None) -> Any:
    return msgspec.json.decode((payloads or Payloads()).encode(payload))


odd_names = ["Token", "max_tokens", "apiKey", "ssh key", "authKey", "x-auth", "JWT", "myAuth", "auth_url", "auth.x"]
odd_names += ["tokenIser", "auth\n", "éauth", "passWord", "api..key", "secret\x00", "accessKEY", "a jwt", "tokens"]
odd_names += ["pass", "DB_PASS", "bypass", "http_auth", "basicAuth", "user_jwt", "userJwt", "jwt_value"]
named = st.sampled_from(odd_names)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10) | named, inner, max_size=4),
    max_leaves=15,
)
keys = (
    st.text(max_size=4) | st.integers() | st.floats() | st.booleans() | st.none() | st.binary(max_size=3) | st.dates()
)
surrogates = st.text(st.characters(codec=None, categories=["Cs", "L", "Cc"]), max_size=5)
wild = st.recursive(
    plain
    | surrogates
    | st.binary(max_size=10)
    | st.complex_numbers()
    | st.decimals()
    | st.datetimes()
    | st.timedeltas()
    | st.uuids()
    | st.builds(object)
    | st.builds(lambda: 10**5000)
    | st.builds(Mute)
    | st.builds(msgspec.Raw, st.binary(max_size=10))
    | st.sampled_from([Colour.RED, Word("w"), Count(3), Point, len, iter([]), pathlib.Path("p")]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(keys | surrogates, inner, max_size=4)
        | st.sets(keys, max_size=4)
        | st.builds(Point, inner)
        | st.builds(Record, inner)
        | st.builds(Model, x=inner)
        | st.builds(Made, inner)
        | st.builds(deque, st.lists(inner, max_size=2))
    ),
    max_leaves=12,
)


# --- what is secret ---


@pytest.mark.parametrize(
    "key",
    [
        *("password", "PASSWORD", "db_password", "passwd", "userPassword", "passphrase", "secret", "client_secret"),
        *("clientSecret", "token", "access_token", "accessToken", "refresh-token", "X-Auth-Token", "bearer"),
        *("api_key", "apikey", "api-key", "apiKey", "X-API-Key", "Authorization", "proxy-authorization", "cookie"),
        *("Set-Cookie", "cookies", "credential", "credentials", "private_key", "privateKey", "access_key", "auth"),
        *("oauth2Bearer", "secret_access_key", "ssh_key", "jwt", "encryption_key", "signing-key", "tokens", "secrets"),
        *("basic-auth", "basic_auth", "basicAuth", "http_auth", "user-jwt", "user_jwt", "userJwt", "jwt_value"),
        *("pass", "SMTP_PASS", "db-pass", "userPass"),
    ],
)
def test_what_stands_under_a_secret_key_is_masked(key: str) -> None:
    assert redact({key: "s3cret"}) == {key: MASK}
    assert shown({"a": [{key: "s3cret"}]}) == {"a": [{key: MASK}]}
    assert encoded({key: {"deep": ["s3cret"]}, "pad": "x" * 300}) == {key: MASK, "pad": "x" * 300}
    assert shown([(key, "s3cret"), ("Accept", "*/*")]) == [[key, MASK], ["Accept", "*/*"]]
    assert shown({"env": [{"name": key, "value": "s3cret"}]}) == {"env": [{"name": key, "value": MASK}]}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("max_tokens", 4096), ("maxTokens", 4096), ("prompt_tokens", 12), ("tokens_used", 7), ("token_count", 9)),
        *(("tokens", {"input": 3, "output": [1, 2.5]}), ("token_limit", "8k"), ("token_type", "Bearer")),
        *(("next_page_token", "CAUQAA"), ("nextPageToken", "CAUQAA"), ("page_token", "x"), ("NextToken", "x")),
        *(("continuation_token", "x"), ("tokenizer", "bpe"), ("tokenization", "x"), ("secretary", "Ann")),
        *(("secret_name", "prod/db"), ("token_url", "https://x"), ("access_key_id", "AKIA"), ("tokenExpiresIn", 60)),
        *(("author", "Ann"), ("authority", "x"), ("session_id", "x"), ("monkey", "x"), ("key", "x"), ("pwd", "/tmp")),
        *(("password", None), ("has_password", True), ("use_cookies", False), ("compass", "n"), ("eos_token", "</s>")),
        *(("pass", 12), ("passed", "all"), ("bypass", "x"), ("pass_rate", "90 %"), ("passenger", "Ann")),
    ],
)
def test_a_false_friend_is_shown(key: str, value: object) -> None:
    assert shown({key: value}) == {key: value}
    assert shown([[key, value]]) == [[key, value]]
    assert shown({"name": key, "value": value}) == {"name": key, "value": value}


@pytest.mark.parametrize(
    ("value", "masked"),
    [
        ({"Key": "DB_PASSWORD", "Value": "s3cret", "note": "x"}, {"Key": "DB_PASSWORD", "Value": MASK, "note": "x"}),
        ('[["Cookie", "s3cret"]]', f'[["Cookie","{MASK}"]]'),
        (
            [["Cookie", ["s3cret", "s3cret"]], ["token", "s3cret", "three"]],
            [["Cookie", MASK], ["token", "s3cret", "three"]],
        ),
        (["password", "token"], ["password", "token"]),
        ({"fields": ["password", "token"]}, {"fields": ["password", "token"]}),
        ({"name": ["token"], "value": "x"}, {"name": ["token"], "value": "x"}),
    ],
)
def test_beside_a_key_stands_its_value_in_pairs_and_in_named_values_alone(value: object, masked: object) -> None:
    assert shown(value) == masked


@pytest.mark.parametrize("value", [123456, 1.5, "", ["a"], {"k": "v"}])
def test_a_secret_is_masked_whatever_its_type(value: object) -> None:
    assert shown({"password": value}) == {"password": MASK}


def test_texts_among_tokens_are_masked() -> None:
    assert shown({"tokens": ["tok_1"], "refresh_tokens": {"a": "x", "n": 1}}) == {
        "tokens": MASK,
        "refresh_tokens": MASK,
    }


def test_a_secret_in_json_within_a_text_is_masked() -> None:
    inner = msgspec.json.encode({"user": "ann", "password": "s3cret"}).decode()
    outer = msgspec.json.encode([{"text": inner}]).decode()

    result = shown({"content": [{"text": inner}], "again": outer})

    assert "s3cret" not in str(result)
    assert msgspec.json.decode(result["content"][0]["text"]) == {"user": "ann", "password": MASK}


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ('{"password": "s3cret", "score": NaN}', '{"password": "[redacted]", "score": NaN}'),
        ('{"token": "s3cret"}\n{"token": "s3cret"}', '{"token": "[redacted]"}\n{"token": "[redacted]"}'),
        ('{"token": "s3cret"} and more', '{"token": "[redacted]"} and more'),
        ('{"token": "s3cret", "token": null}', '{"token": "[redacted]", "token": null}'),
        ('{"a": {"token": "s3cret"}, "a": 1}', '{"a": {"token": "[redacted]"}, "a": 1}'),
        ('{"password": "a \\" s3cret", "n": 1', '{"password": "[redacted]", "n": 1'),
        ('[{"credentials": {"user": "s3cret"}, "n": 1}, ', '[{"credentials": "[redacted]", "n": 1}, '),
        ('{"tokens": ["s3cret"], "n": 1', '{"tokens": "[redacted]", "n": 1'),
        ("{'basicAuth': 's3cret', 'n': 1}", "{'basicAuth': '[redacted]', 'n': 1}"),
        ('{"body": "{\\"token\\": \\"s3cret\\"}", "n": NaN}', '{"body": "{\\"token\\": \\"[redacted]\\"'),
        ('{"cl\\u00e9_token": "s3cret", "n": 1', '{"cl\\u00e9_token": "[redacted]", "n": 1'),
        ('{"db\\/password": "s3cret", "n": 1', '{"db\\/password": "[redacted]", "n": 1'),
    ],
)
@pytest.mark.parametrize("padding", [0, 300])
def test_a_secret_in_a_text_that_is_only_like_json_is_masked(text: str, masked: str, padding: int) -> None:
    pad = "x" * padding

    assert shown({"text": text, "pad": pad}) == {"text": masked, "pad": pad}


@pytest.mark.parametrize(
    "text",
    [
        '{"password": "s3cret',
        '{"password": {"first": "s3cret", "second": ',
        "{'password': ['s3cret']}",
        '{"password": 123s3cret}',
        '{"password": null-s3cret}',
        '[{"token":' * 50_000 + '"s3cret"',
    ],
    ids=lambda text: text[:30],
)
def test_of_a_secret_that_cannot_be_read_nothing_is_shown(text: str) -> None:
    result = shown(text)

    assert "s3cret" not in result
    assert result.endswith(MASK + text[text.index(":") - 1])


@pytest.mark.parametrize(
    "secret",
    [
        {"password": 'ab"s3cret'},
        {"password": 'ab", "s3cret'},
        {"credentials": json.dumps({"user": "ann", "pin": "s3cret"})},
        {"credentials": {"user": 'ann"},', "pin": "s3cret"}},
    ],
    ids=str,
)
def test_a_secret_with_quotes_in_json_within_the_str_of_a_dict_is_masked(secret: dict[str, object]) -> None:
    text = str({"status": 200, "body": json.dumps(secret)})

    assert "s3cret" not in shown(text)


@pytest.mark.parametrize(
    "text",
    [
        *('{ "a" : 1, "token_count": 2 }', "[token", "the token is here", '{"password": ', '["password", NaN, "x"]'),
        *("{'password': None, 'token': True}", '{"max_tokens": 5, "tokens": {"input": 3}, "n": NaN}'),
        """{"note": "say 'password': 'open sesame'"}""",
        pytest.param('{"tokens": ' + "[" * 700 + "]" * 700 + ", NaN}", id="deep"),
    ],
)
def test_a_text_without_a_secret_stays_as_it_is(text: str) -> None:
    assert shown({"text": text}) == {"text": text}


@pytest.mark.parametrize("make", [Point, Record, Model], ids=str)
def test_the_fields_of_objects_are_keys_too(make: Any) -> None:
    secret = {Point: "token", Record: "password", Model: "api_key"}[make]

    assert shown([make(x=1, **{secret: "s3cret"})]) == [{"x": 1, secret: MASK}]


class Login(NamedTuple):
    user: str
    password: str


class Short(msgspec.Struct, array_like=True):
    user: str
    password: str


class Renamed(msgspec.Struct, rename={"password": "pw"}):
    user: str
    password: str


@dataclass
class Holder:
    held: object


@pytest.mark.parametrize("login", [Login("u", "s3cret"), Short("u", "s3cret"), Renamed("u", "s3cret")], ids=repr)
@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: {"a": [(v,)]}, Holder, lambda v: {1: v}])
def test_a_field_is_known_by_its_name_where_it_would_be_shown_without(login: object, wrap: Any) -> None:
    masked = json.dumps({"password": MASK, "user": "u"})

    assert masked in json.dumps(shown(wrap(login)))
    assert masked in json.dumps(encoded({"login": wrap(login)}))


def test_a_key_of_bytes_is_a_name() -> None:
    assert shown({b"token": "s3cret", b"x": 1}) == {"token": MASK, "x": 1}
    assert shown([{"a": {b"token": b"s3cret"}}]) == [{"a": {"token": MASK}}]


@given(
    plain, st.sampled_from(["password", "Api-Key", 'a"token', "\ntoken\n", "sEcReT é", "token\\"]), st.integers(0, 300)
)
def test_no_secret_gets_through_wherever_it_stands(value: object, key: str, padding: int) -> None:
    result = Payloads().shown({"pad": "x" * padding, "value": [value, {key: "s3cret"}]})

    assert b"s3cret" not in bytes(result)


# --- redactors ---


def test_a_redactor_is_handed_plain_data_and_its_answer_is_shown() -> None:
    asked: list[object] = []

    def redactor(value: object) -> object:
        asked.append(value)
        return {"gone": (1, 2)}

    assert shown({"at": dt.date(2024, 1, 2), 3: Colour.RED}, Payloads(redactor)) == {"gone": [1, 2]}
    assert asked == [{"at": "2024-01-02", "3": "red"}]


def test_a_redactor_sees_a_text_before_it_is_cut() -> None:
    payloads = Payloads(lambda value: str(value).replace("4111-1111", "#"), limit=12)

    assert shown("12345678 4111-1111", payloads) == "12345678 #"


def boom(value: object) -> object:
    raise ValueError(f"could not redact {value}")


def test_nothing_is_shown_when_the_redactor_fails() -> None:
    failed = {"redacted": "the redactor failed: ValueError"}

    assert shown({"q": "s3cret"}, Payloads(boom)) == failed
    assert encoded({"q": "s3cret"}, Payloads(boom)) == failed


def test_an_event_stays_an_object_when_the_redactor_gives_none() -> None:
    assert encoded({"q": "s3cret"}, Payloads(lambda value: [value])) == {"redacted": "the redactor gave no object"}


@pytest.mark.parametrize("arguments", [{"redactor": 3}, {"limit": 0}, {"limit": "1"}])
def test_wrong_settings_are_a_config_error(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        Payloads(**arguments)


# --- anything as JSON ---


class Foo:
    pass


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"query": "x", "limit": 3}, {"query": "x", "limit": 3}),
        (Foo(), "<Foo>"),
        ([1, Mute()], [1, "<Mute>"]),
        (Foo, "<type>"),
        (b"\x00\x01", "AAE="),
        (
            {1: "a", None: "b", False: "c", (1, 2): "d", 2.5: "e"},
            {"1": "a", "null": "b", "false": "c", "[1,2]": "d", "2.5": "e"},
        ),
        ({Foo(): 1}, {"<Foo>": 1}),
        ("a\ud800b", "a\\ud800b"),
        ({"\ud800": ["é\udfff"]}, {"\\ud800": ["é\\udfff"]}),
        (float("nan"), None),
        (2**64, 2**64),
        (10**5000, "<int>"),
        ({1, "a", None}, ["a", 1, None]),
        ({"b", "a"}, ["a", "b"]),
        (pathlib.Path("/a/b"), "/a/b"),
        (Point(Foo()), {"x": "<Foo>", "token": None}),
        (Record({1: "\ud800"}), {"x": {"1": "\\ud800"}, "password": None}),
        (Model(x=("\ud800",)), {"x": ["\\ud800"], "api_key": None}),
        (Made(pathlib.Path("p")), {"x": "p"}),
        ([Colour.RED, Word("w"), Count(3)], ["red", "w", 3]),
        (types.MappingProxyType({"a": 1}), {"a": 1}),
        (OrderedDict(b=deque([1])), {"b": [1]}),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (decimal.Decimal("1.50"), "1.50"),
        (msgspec.Raw(b'{"a":1}'), {"a": 1}),
        ([msgspec.Raw(b"nonsense")], ["<Raw>"]),
        (msgspec.Raw(b'"\xff"'), "<Raw>"),
        ([Broken()], ["<Broken>"]),
        (1j, "<complex>"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_anything_is_shown(value: object, expected: object) -> None:
    assert shown(value) == expected


def test_an_object_whose_class_has_no_name_is_shown() -> None:
    value = Nameless("X", (), {})()

    assert shown([value]) == ["<object>"]


def test_a_value_that_contains_itself_is_shown_as_far_as_it_goes() -> None:
    cycle: list[object] = [1]
    cycle.append({"again": cycle, "x": 2})

    assert shown(cycle) == [1, {"again": "<list>", "x": 2}]


def test_a_value_that_stands_in_two_places_is_shown_in_both() -> None:
    shared = ["\ud800"]

    assert shown([shared, shared]) == [["\\ud800"]] * 2


@pytest.mark.parametrize("depth", [DEEPEST, DEEPEST + 1, 500, 100_000])
def test_a_deep_value_is_shown_down_to_where_it_can_be_read_again(depth: int) -> None:
    value: object = "end"
    for _ in range(depth):
        value = ["]", value, "["]

    result = bytes(Payloads(limit=10**6).shown(value))

    assert (b"end" in result) == (depth <= DEEPEST)
    assert result.count(b'["]",') <= DEEPEST
    while isinstance(value, list):  # so that freeing it does not recurse
        value = value[1]


@given(wild)
def test_whatever_the_value_what_is_shown_is_json_and_the_same_again(value: object) -> None:
    payloads = Payloads(limit=60)

    first = payloads.shown(value)

    msgspec.json.decode(first)
    assert bytes(payloads.shown(value)) == bytes(first)


@pytest.mark.parametrize("padding", [0, 300])
def test_the_quick_look_misses_no_key_that_is_secret(padding: int) -> None:
    for name in odd_names:
        value = {name: "v", "pad": "x" * padding}
        assert shown(value) == redact(value)


@given(plain)
def test_plain_data_is_shown_as_the_redactor_gives_it(value: object) -> None:
    assert shown(value) == redact(msgspec.json.decode(msgspec.json.encode(value)))


def test_a_set_is_shown_alike_in_every_process() -> None:
    code = """
from holdfast.values.redaction import Payloads
print(bytes(Payloads().shown({"s": {"a", "b", "c", "d"}, "m": {"a", 1, None, "d"}})))
"""

    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=50,
        ).stdout
        for seed in ("1", "2", "3")
    }

    assert len(outputs) == 1


# --- the limit ---


def test_a_value_at_the_limit_is_whole() -> None:
    payloads = Payloads(limit=10)

    assert shown("x" * 8, payloads) == "x" * 8
    assert shown("x" * 9, payloads) == {"cut": "x" * 9, "bytes": 11}


def test_a_long_text_is_cut_and_says_how_long_it_was() -> None:
    assert shown("é" * 1000, Payloads(limit=10)) == {"cut": "ééééé", "bytes": 2002}


def test_a_long_value_is_cut_as_json() -> None:
    assert shown({"items": list(range(1000))}, Payloads(limit=12)) == {"cut": '{"items":[', "bytes": 3901}


def test_secrets_are_masked_before_the_cut() -> None:
    result = shown({"a": {"password": "s3cret"}, "z": "x" * 1000}, Payloads(limit=100))

    assert MASK in result["cut"]
    assert "s3cret" not in result["cut"]


@given(st.text(max_size=200), st.integers(1, 50))
def test_what_is_cut_is_the_beginning_and_no_longer_than_the_limit(text: str, limit: int) -> None:
    result = Payloads(limit=limit).shown(text)

    value = msgspec.json.decode(result)
    if isinstance(value, dict):
        assert text.startswith(value["cut"])
        assert value["bytes"] == len(msgspec.json.encode(text)) > limit
        assert len(msgspec.json.encode(value["cut"])) <= limit + 2
    else:
        assert value == text


def test_a_huge_value_takes_a_small_multiple_of_its_size() -> None:
    value = {"text": "token " * 2_000_000, "password": "x"}
    tracemalloc.start()

    result = Payloads().shown(value)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert len(bytes(result)) < 40_000
    assert peak < 6 * 12_000_000


# --- payloads of events ---


def test_the_payload_of_an_event_is_an_object() -> None:
    assert Payloads().encode({}) == b"{}"
    assert encoded(types.MappingProxyType({"a": (1, dt.date(2024, 1, 2)), "b": {1: 2}})) == {
        "a": [1, "2024-01-02"],
        "b": {"1": 2},
    }


class Payload(msgspec.Struct):
    x: int


@pytest.mark.parametrize(
    ("payload", "named"),
    [
        ({"good": 1, "bad": Foo()}, "'bad' cannot be encoded: .*Foo"),
        ({"bad": [{"deep": Foo()}]}, "'bad' cannot be encoded"),
        ({"bad": "\ud800"}, "'bad' cannot be encoded"),
        ({"bad": 10**5000}, "'bad' cannot be encoded"),
        ({"bad": msgspec.Raw(b"}")}, "'bad' cannot be encoded"),
        ({"\ud800": 1}, "cannot be encoded"),
        ({3: 1}, "the name 3 must be a text"),
        ({None: Foo()}, "the name None must be a text"),
        (Payload(1), "must be a mapping"),
        ([("a", 1)], "must be a mapping"),
        (None, "must be a mapping"),
        ({"x" * 20_000: 1}, "name is longer than 16384"),
    ],
)
def test_a_payload_that_cannot_be_encoded_is_a_config_error_that_names_the_key(payload: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Payloads().encode(payload)


def test_a_payload_that_contains_itself_is_a_config_error() -> None:
    cycle: dict[str, object] = {}
    cycle["me"] = [cycle]

    with pytest.raises(ConfigError, match=r"'me' cannot be encoded: .*itself"):
        Payloads().encode(cycle)


def test_each_long_value_of_a_payload_is_cut_alone() -> None:
    payload = {"short": [1], "long": "x" * 100, "nested": {"a": "y" * 100}}

    assert encoded(payload, Payloads(limit=20)) == {
        "short": [1],
        "long": {"cut": "x" * 20, "bytes": 102},
        "nested": {"cut": '{"a":"' + "y" * 11, "bytes": 108},
    }


@given(st.dictionaries(st.text(max_size=10) | named, plain, max_size=5))
def test_a_payload_of_plain_data_is_written_as_the_redactor_gives_it(payload: dict[str, object]) -> None:
    assert encoded(payload) == redact(msgspec.json.decode(msgspec.json.encode(payload)))
