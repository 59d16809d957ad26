"""What an address of Redis says, and that its password is never said again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import ConfigError
from holdfast.fleet.address import Address

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("url", "meaning"),
    [
        ("redis://localhost", {"places": (("localhost", 6379),), "kind": "one", "prefix": "holdfast"}),
        ("redis://10.0.0.1:7000/3", {"places": (("10.0.0.1", 7000),), "db": 3}),
        ("redis://[::1]:7000", {"places": (("::1", 7000),)}),
        ("redis://h/", {"db": 0, "user": None, "password": None}),
        ("redis://:p%40s%2Fs@h", {"user": None, "password": "p@s/s"}),
        ("redis://ann:p:q@h", {"user": "ann", "password": "p:q"}),
        ("redis://ann@h", {"user": "ann", "password": ""}),
        ("redis://h?prefix=team-1:x", {"prefix": "team-1:x"}),
        ("rediss://h", {"tls": True, "ca": None}),
        ("unix:///run/redis.sock?db=2", {"path": "/run/redis.sock", "db": 2, "places": ()}),
        ("unix://ann:pw@/run/a%20b", {"path": "/run/a b", "user": "ann", "password": "pw"}),
        (
            "redis+sentinel://a:1,b/mine/4",
            {"kind": "sentinel", "places": (("a", 1), ("b", 26379)), "master": "mine", "db": 4},
        ),
        ("redis+cluster://a:1,b", {"kind": "cluster", "places": (("a", 1), ("b", 6379)), "tls": False}),
        ("rediss+cluster://a", {"kind": "cluster", "tls": True}),
    ],
)
def test_an_address_says_where_and_as_whom(url: str, meaning: dict[str, object]) -> None:
    address = Address.parse(url)

    assert {name: getattr(address, name) for name in meaning} == meaning


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("", "must be an address such as redis://host:6379"),
        ("localhost:6379", "must be an address such as redis://host:6379"),
        ("http://h", "http://…: the scheme must be one of redis://, rediss://, unix://"),
        ("redis://", "each host must be a name or an IP address"),
        ("redis://a..b", "each host must be a name or an IP address"),
        (f"redis://{'x' * 64}.example", "each host must be a name or an IP address"),
        ("redis://a b", "percent-encoded"),
        ("redis://h\n", "percent-encoded"),
        ("redis://h#1", "percent-encoded"),
        ("redis://h:0", "a port must be a whole number from 1 to 65535"),
        ("redis://h:65536", "a port must be a whole number"),
        ("redis://h:٣", "a port must be a whole number"),
        ("redis://[h]", "an IPv6 address"),
        ("redis://h/x", "the database, after the host, must be a whole number"),
        ("redis://h/-1", "the database"),
        ("redis://@h", "before the @ must stand user"),
        ("redis://a,b", "redis+sentinel:// or redis+cluster://"),
        ("redis://h?db=1", "after the ? may stand, once each and with a value: prefix"),
        ("redis://h?ca=x", "after the ? may stand"),
        ("redis://h?prefix=a&prefix=b", "once each"),
        ("redis://h?prefix", "with a value"),
        ("redis://h?prefix=", "prefix must be 1 to 60 of"),
        ("redis://h?prefix={x}", "prefix must be 1 to 60 of"),
        (f"redis://h?prefix={'x' * 61}", "prefix must be 1 to 60 of"),
        ("redis://:%ff@h", "UTF-8"),
        ("redis://:%00@h", "%00"),
        ("rediss://h?ca=/nowhere/ca.pem", "ca must name a file"),
        ("unix://run/redis.sock", "unix:///run/redis.sock"),
        ("unix:///", "whole path"),
        (f"unix:///{'x' * 103}", "at most 103 bytes"),
        ("redis+sentinel://a,b", "the name of the master must follow"),
        ("redis+sentinel://a/mine/x", "the database, after the master's name,"),
        ("redis+cluster://a/1", "a cluster has no databases"),
        (f"redis+cluster://{','.join(['a'] * 101)}", "at most 100 hosts"),
    ],
)
def test_a_wrong_address_is_told_what_is_allowed(url: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Address.parse(url)

    assert complaint in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("url", [None, 6379, b"redis://h"])
def test_what_is_no_text_is_no_address(url: Any) -> None:
    with pytest.raises(ConfigError, match="must be an address"):
        Address.parse(url)


def test_certificates_are_taken_from_a_file_that_is_there(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("certificates")

    address = Address.parse(f"rediss://h?ca={file}")

    assert address.ca == str(file)


@pytest.mark.parametrize(
    "url",
    [
        f"redis://ann:{SECRET}@h/2",
        f"redis://:{SECRET}@h",
        f"unix://:{SECRET}@/run/redis.sock?db=1",
        f"redis+sentinel://ann:{SECRET}@a,b/mine",
        f"redis+cluster://:{SECRET}@a",
    ],
)
def test_a_password_is_never_shown(url: str) -> None:
    address = Address.parse(url)

    shown = f"{address} {address!r} {address.shown} {list(address.__rich_repr__())}"

    assert address.password == SECRET
    assert SECRET not in shown


@pytest.mark.parametrize(
    "url",
    [
        f"redis:{SECRET}@h",
        f"redis://:{SECRET}@h:port",
        f"redis://ann:{SECRET}",
        f"redis://h:6379:{SECRET}",
        f"redis://ann:x/{SECRET}@h",
        f"redis://ann:{SECRET}/x@h",
        f"redis://ann:{SECRET}?x@h",
        f"redis://ann:x?{SECRET}@h",
        f"redis://ann:x/{SECRET}?x@h",
        f"redis://ann:x?{SECRET}=x@h",
        f"redis:ann:{SECRET}://x@h",
        f"redis://ann:{SECRET}#x@h",
        f"redis://h?password={SECRET}",
        f"redis+cluster://ann:{SECRET}@a,b,c:x",
    ],
)
def test_the_error_about_a_wrong_address_does_not_show_its_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Address.parse(url)

    assert SECRET not in str(caught.value)


@given(
    user=st.text(min_size=1, max_size=10).filter(lambda text: "\0" not in text),
    password=st.text(max_size=10).filter(lambda text: "\0" not in text),
    db=st.integers(0, 99_999),
)
def test_whatever_is_percent_encoded_arrives_as_it_was(user: str, password: str, db: int) -> None:
    address = Address.parse(f"redis://{_encoded(user)}:{_encoded(password)}@h:1/{db}")

    assert (address.user, address.password, address.db) == (user, password, db)


@given(
    scheme=st.sampled_from(["redis", "unix", "redis+sentinel", "redis+cluster"]),
    rest=st.text("ab0:@/?&=,[].%#… \n", max_size=30) | st.text(max_size=30),
)
def test_any_text_is_an_address_that_can_be_shown_or_a_config_error(scheme: str, rest: str) -> None:
    try:
        address = Address.parse(f"{scheme}://{rest}")
    except ConfigError:
        return

    again = Address.parse(address.shown)

    assert address.shown.isprintable()
    for name in ("kind", "places", "path", "user", "db", "master", "prefix"):
        assert getattr(again, name) == getattr(address, name)


def _encoded(text: str) -> str:
    return "".join(f"%{byte:02x}" for byte in text.encode())
