"""What an event shows of arguments, results and payloads: JSON, without secrets, of bounded length.

A secret must not get through because something failed: a redactor that raises leaves nothing of the value. The
redactor is handed exactly what would be shown, and is asked before anything is cut, so that it sees whole texts.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, Final

import msgspec

from holdfast import checks
from holdfast.errors import ConfigError, printable
from holdfast.values.said import gives_back
from holdfast.values.tagged import fields_of

Redactor = Callable[[object], object]  # gets plain data (dict, list, str, number, bool, None), gives plain data

MASK: Final = "[redacted]"
DEEPEST = 100  # levels; whoever reads an event has a stack of his own, and not all of it is free
_MOST_NODES = 1_000_000  # of a value that has to be taken apart piece by piece
_NAMELESS = frozenset({type(None), bool, int, float, str, bytes})
_MOST_COPIED = 2**22  # bytes of JSON, that are read again to see whether they say all
_LONGEST_KEY = 100  # characters; what is longer is no name

_WORDS = (
    r"passw|passphrase|passcode|secret(?!ar)|token(?!i[sz])|authorization|cookie|credential"
    r"|(?:api|private|access|ssh|signing|encryption)[-_ .]?key"
)
_SECRET = re.compile(_WORDS)
_SECRET_ALONE = re.compile(r"(?:\b|_)(?:auth$|jwt(?:\b|_))", re.ASCII)  # a word of its own: an author is no secret
_SUSPECT = re.compile(rf"""{_WORDS}|auth[\\"']|jwt""".encode())
_STEMS = b"passw passphrase passcode secret token authorization cookie credential auth\" auth' auth\\ jwt".split()
_KEYS = re.compile(rb"key(?:(?<=(?:api|ate|ess|ssh|ing|ion)key)|(?<=(?:api|ate|ess|ssh|ing|ion)[-_ .]key))")
_HARMLESS = re.compile(
    r"(?:^|_)(?:page|next|prev|previous|continuation|cursor|sync|eos|bos|pad|stop|unk)_?token$"
    r"|_(?:counts?|limits?|types?|names?|ids?|url|uri|endpoint|usage|budget|length|policy|ttl|expir\w*)$"
)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[-. ]")


def redact(value: object) -> object:
    """*value* with what stands under keys that look like secrets masked, at any depth and in JSON within texts.

    A text that begins like JSON and is none (cut, a `str` of a dict) is searched for quoted keys; where the value of a
    secret one cannot be read, the rest of the text is masked.

    Secret are passwords, secrets, tokens, cookies, credentials, authorization and API, private or access keys, however
    spelt. Shown are: true, false and null; numbers under plural tokens (`max_tokens`, `tokens: {"input": 3}`); cursors
    (`next_page_token`) and what only describes a secret (`token_count`, `token_type`, `secret_name`, `token_url`).
    """
    if isinstance(value, dict):
        return {key: MASK if _is_secret(key, inner) else redact(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [redact(inner) for inner in value]
    if isinstance(value, str):
        return _redact_text(value)
    return value


class Payloads:
    """Turns values into the JSON of events: redacted, and cut where longer than *limit* bytes."""

    def __init__(self, redactor: Redactor = redact, *, limit: int = 16_384) -> None:
        if not callable(redactor):
            raise ConfigError(f"redactor = {checks.shown(redactor)}: must be a function")
        checks.whole("limit", limit)
        self.limit = limit
        self._redactor = redactor
        self._always = redactor is not redact

    def encode(self, payload: Mapping[str, object]) -> bytes:
        """The JSON object of a user's event; a `ConfigError` names the key that cannot be encoded."""
        if not isinstance(payload, Mapping):
            raise ConfigError(f"payload = {checks.shown(payload)}: must be a mapping of names to values")
        try:
            data = _encoded(_STRICT, payload if type(payload) is dict else dict(payload))
        except Exception:  # one of them is odd, or wrong: then it is named
            data = _by_parts(payload.items())
        if self._always or _suspect(data):
            data = self._redacted(data)
            if not data.startswith(b"{"):
                data = _JSON.encode({"redacted": "the redactor gave no object"})
        if len(data) <= self.limit:
            return data
        parts = _PARTS.decode(data)
        if any(len(key) > self.limit for key in parts):
            raise ConfigError(f"payload: a name is longer than {self.limit} characters")
        return _JSON.encode({key: msgspec.Raw(self._cut(bytes(part))) for key, part in parts.items()})

    def shown(self, value: object) -> msgspec.Raw:
        """The JSON of a tool's arguments or result; what JSON does not know is shown as a short text."""
        data = _lenient(value)
        if self._always or _suspect(data):
            data = self._redacted(data)
        return msgspec.Raw(data if len(data) <= self.limit else self._cut(data))

    def said(self, value: object) -> tuple[msgspec.Raw, bool]:
        """The JSON of a tool's result, and whether that is all of it: the very same value can be read from it."""
        try:
            data = _PLAIN.encode(value)
            if len(data) > 2 * DEEPEST:
                _check_depth(data)
            if len(data) <= self.limit and gives_back(_READ, data, value) and not (self._always or _suspect(data)):
                return msgspec.Raw(data), True
        except Exception:  # no plain data: something of it can be shown
            return self.shown(value), False
        return self.shown(value), False

    def _redacted(self, data: bytes) -> bytes:
        try:
            return _lenient(self._redactor(msgspec.json.decode(data)))
        except Exception as error:  # the user's code; what it was asked about must not be shown
            return _JSON.encode({"redacted": f"the redactor failed: {type(error).__name__}"})

    def _cut(self, data: bytes) -> bytes:
        if len(data) <= self.limit:
            return data
        text: str = msgspec.json.decode(data) if data.startswith(b'"') else data[: self.limit].decode(errors="ignore")
        text = text[: self.limit]
        while (size := len(_JSON.encode(text)) - 2) > self.limit:  # quotes and control characters grow
            text = text[: len(text) * self.limit // size]
        return _JSON.encode({"cut": text, "bytes": len(data)})


# --- what is secret ---


def _suspect(data: bytes) -> bool:
    """Whether there may be a secret's key in *data*; finds them all, and some words in texts."""
    data = data.lower()
    if len(data) < 256:
        return _SUSPECT.search(data) is not None
    return any(stem in data for stem in _STEMS) or _KEYS.search(data) is not None  # faster from here on


class _Secrecy(Enum):
    NONE = 0
    TEXTS = 1  # plural tokens: numbers are counts
    ALL = 2


def _is_secret(key: object, value: object) -> bool:
    if value is None or value is True or value is False or not isinstance(key, str):
        return False
    secrecy = _secrecy(key) if len(key) <= _LONGEST_KEY else _Secrecy.NONE
    return secrecy is _Secrecy.ALL or (secrecy is _Secrecy.TEXTS and not _only_numbers(value))


@functools.lru_cache(maxsize=1024)
def _secrecy(key: str) -> _Secrecy:
    if not key.isascii():
        key = "".join(char if char.isascii() else "?" for char in key)  # only ASCII has the same small letters in JSON
    name = _HUMP.sub("_", key).lower()
    if not (_SECRET.search(key.lower()) or _SECRET_ALONE.search(name)) or _HARMLESS.search(name):
        return _Secrecy.NONE
    return _Secrecy.TEXTS if "tokens" in name else _Secrecy.ALL


def _only_numbers(value: object) -> bool:
    if isinstance(value, dict | list):
        return all(map(_only_numbers, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int | float)


def _redact_text(text: str) -> str:
    if text.lstrip()[:1] not in {"{", "["}:
        return text
    try:
        inner = msgspec.json.decode(text)
        masked = redact(inner)
        if masked == inner:
            _EACH_KEY_ONCE.decode(text)  # the value that came first is in the text, and was not looked at
            return text
    except (ValueError, RecursionError):
        return _redact_pairs(text)
    return _JSON.encode(masked).decode()


def _redact_pairs(text: str) -> str:
    """*text* with the values of quoted keys masked, one pair after the other, whatever stands around them."""
    pieces: list[str] = []
    shown = 0
    pair = _PAIR.search(text)
    while pair is not None:
        key, quote = pair.groups()
        begin = end = pair.end()
        if _is_secret(key, MASK):
            value, end = _value_at(text, begin)
            if end > begin and _is_secret(key, value):
                pieces += text[shown:begin], quote, MASK, quote
                shown = end
        pair = _PAIR.search(text, end)
    return "".join(pieces) + text[shown:] if pieces else text


def _once(pairs: list[tuple[str, object]]) -> None:
    if len(pairs) > 1 and len(dict(pairs)) < len(pairs):
        raise ValueError("a key stands there twice")


def _value_at(text: str, begin: int) -> tuple[object, int]:
    """The value that stands there, and its end; all of the rest if it cannot be read."""
    if (nothing := _NOTHING.match(text, begin)) is not None:
        return None, nothing.end()
    try:
        if (quoted := _QUOTED.match(text, begin)) is not None:
            value, end = quoted[0], quoted.end()
        else:
            value, end = _BEGINNING.raw_decode(text, begin)
    except (ValueError, RecursionError):
        return text[begin:], len(text)
    # A text within a text has its backslashes twice: there, what looks like the end of a value is a quote within it.
    doubtful = _TWICE.search(text, end - 3 if quoted is not None else begin, end) or not _BORDER.match(text, end)
    return (text[begin:], len(text)) if doubtful else (value, end)


# --- any value as JSON ---


def _lenient(value: object) -> bytes:
    try:
        return _encoded(_LENIENT, value)
    except Exception:  # surrogates, cycles, odd keys, an object's own code: piece by piece something can be shown
        return _JSON.encode(_Pieces(strict=False).plain(value))


def _strict(value: object) -> bytes:
    try:
        return _encoded(_STRICT, value)
    except Exception:  # a set of mixed kinds and numbers as keys are good enough for JSON, taken piece by piece
        return _JSON.encode(_Pieces(strict=True).plain(value))


def _encoded(encoder: msgspec.json.Encoder, value: object) -> bytes:
    data = encoder.encode(value)
    is_plain = len(data) <= _MOST_COPIED and gives_back(_READ, data, value)  # which is seen sooner, and hides no names
    if not is_plain and _hides_names(value):
        raise ValueError("names that may say what is secret would be left out")
    return _checked(data)


def _hides_names(value: object) -> bool:
    """Whether msgspec would show something in *value* without its name, or not by the name that it has in Python."""
    todo, seen = [value], set[int]()
    for each in todo:  # which grows meanwhile
        kind: Any = type(each)
        if kind in _NAMELESS or id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, dict):
            if any(isinstance(key, bytes) for key in each):
                return True
            todo += each.values()
        elif isinstance(each, list | tuple | set | frozenset | deque):
            if hasattr(kind, "_fields"):
                return True
            todo += each
        elif isinstance(each, msgspec.Struct) and (
            kind.__struct_config__.array_like or kind.__struct_encode_fields__ != kind.__struct_fields__
        ):
            return True
        elif not isinstance(each, type | Enum) and (fields := fields_of(each)) is not None:
            todo += fields.values()
    return False


def _checked(data: bytes) -> bytes:
    """*data* if it is JSON that can be read again: a user's `msgspec.Raw` may be none, and a deep value may not."""
    _SKIP.decode(data)
    if not data.isascii():
        data.decode()
    if len(data) > 2 * DEEPEST:
        _check_depth(data)
    return data


def _check_depth(data: bytes) -> None:
    if data.count(b"[") + data.count(b"{") > DEEPEST:
        brackets = _TEXTS.sub(b"", data).translate(None, _NO_BRACKETS)
        for _ in range(DEEPEST):  # each round takes off the innermost level
            if not brackets:
                break
            brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if brackets:
            raise ValueError(f"nested deeper than {DEEPEST} levels")


class _Pieces:
    """Takes a value apart into plain data; what has no place in JSON raises if *strict*, else it is named."""

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self._path: set[int] = set()  # what encloses the value in hand
        self._left = _MOST_NODES

    def plain(self, value: object) -> object:
        self._left -= 1
        try:
            if self._left < 0:
                raise ValueError(f"more than {_MOST_NODES} values")
            if isinstance(value, str):
                return self._text(value)
            inner = _inner(value)
            return self._leaf(value) if inner is None else self._within(value, inner)
        except Exception:
            if self._strict:
                raise
            return f"<{_kind(value)}>"

    def _within(self, value: object, inner: Mapping[object, object] | Iterable[object]) -> object:
        if id(value) in self._path:
            raise ValueError("it contains itself")
        if len(self._path) >= DEEPEST:
            raise ValueError(f"nested deeper than {DEEPEST} levels")
        self._path.add(id(value))
        try:
            if isinstance(inner, Mapping):
                return {self._key(key): self.plain(item) for key, item in inner.items()}
            items = [self.plain(item) for item in inner]
            return sorted(items, key=_JSON.encode) if isinstance(value, set | frozenset) else items
        finally:
            self._path.discard(id(value))

    def _key(self, key: object) -> str:
        if isinstance(key, str) and not isinstance(key, Enum):
            return self._text(key)
        if isinstance(key, bytes) and key.isascii():
            return key.decode()
        text = self.plain(key)
        return text if isinstance(text, str) else _JSON.encode(text).decode()

    def _text(self, value: str) -> str:
        text = str.__str__(value.value if isinstance(value, Enum) else value)
        if not text.isascii() and not self._strict:
            return text.encode(errors="backslashreplace").decode()
        text.encode()
        return text

    def _leaf(self, value: object) -> object:
        return msgspec.json.decode(_checked((_STRICT if self._strict else _LENIENT).encode(value)))


def _inner(value: object) -> Mapping[object, object] | Iterable[object] | None:
    """What is inside *value*, by name or one after the other; None if it is one piece."""
    if isinstance(value, tuple) and (names := getattr(type(value), "_fields", None)) is not None:
        return dict(zip(names, value, strict=True))
    if isinstance(value, Mapping | list | tuple | set | frozenset | deque):
        return value
    if isinstance(value, type | Enum):
        return None
    if (fields := fields_of(value)) is not None:
        return fields
    dump = getattr(type(value), "model_dump", None)  # pydantic's way, without importing it
    return dict(dump(value)) if callable(dump) else None


def _known(value: object) -> object:
    """What stands for a value that msgspec does not know."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__index__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, os.PathLike):
        path = os.fspath(value)
        return base64.b64encode(path).decode() if isinstance(path, bytes) else path
    inner = _inner(value)
    if inner is None:
        raise TypeError(f"a value of type {printable(_kind(value))} has no form in JSON")
    return inner if isinstance(inner, dict | list) else dict(inner) if isinstance(inner, Mapping) else list(inner)


def _known_or_named(value: object) -> object:
    try:
        return _known(value)
    except Exception:  # what an object's own code raises is no reason to show nothing of the rest
        return f"<{_kind(value)}>"


def _kind(value: object) -> str:
    try:
        return str(type(value).__name__)
    except Exception:  # a metaclass may answer for the name
        return "object"


def _by_parts(items: Iterable[tuple[object, object]]) -> bytes:
    parts: dict[str, msgspec.Raw] = {}
    for key, value in items:
        if not isinstance(key, str):
            raise ConfigError(f"payload: the name {checks.shown(key)} must be a text")
        try:
            parts[msgspec.json.decode(_strict(key))] = msgspec.Raw(_strict(value))
        except Exception as error:
            raise ConfigError(
                f"payload: {printable(key)!r} cannot be encoded: {printable(str(error), 300)}; "
                "allowed are texts, numbers, true, false, null, and lists and mappings of them"
            ) from error
    return _JSON.encode(parts)


_JSON = msgspec.json.Encoder(order="deterministic")
_STRICT = msgspec.json.Encoder(order="deterministic", enc_hook=_known)
_LENIENT = msgspec.json.Encoder(order="deterministic", enc_hook=_known_or_named)
_PLAIN = msgspec.json.Encoder()  # in the value's own order, so that it can be given back
_READ = msgspec.json.Decoder().decode
_SKIP = msgspec.json.Decoder(msgspec.Raw)
_PARTS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXTS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_PAIR = re.compile(r"""["']([^"'\\]{1,100}+)(\\*+["'])\s*+:\s*+""")
_QUOTED = re.compile(r""""[^"\\]*+(?:\\.[^"\\]*+)*+"|'[^'\\]*+(?:\\.[^'\\]*+)*+'""", re.DOTALL)
_TWICE = re.compile(r"""\\\\["']""")
_NOTHING = re.compile(r"(?:None|True|False)(?=[\s,}\]]|\Z)")  # as Python writes it
_BORDER = re.compile(r"[\s,}\]]|\Z")
_BEGINNING = json.JSONDecoder()
_EACH_KEY_ONCE = json.JSONDecoder(object_pairs_hook=_once)
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
