"""What an event shows of arguments, results and payloads: JSON, without secrets, of bounded length.

A secret must not get through because something failed: if a redactor raises, nothing of the value is shown. The
redactor gets exactly what would be shown, and is called before anything is cut, so that it sees whole texts.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

import msgspec

from holdfast import checks
from holdfast.errors import ConfigError
from holdfast.values.as_json import EXACT, PLAIN, READ, check_depth, is_flat, lenient, members
from holdfast.values.said import gives_back

Redactor = Callable[[object], object]  # gets plain data (dict, list, str, number, bool, None), gives plain data

MASK: Final = "[redacted]"
_LONGEST_KEY = 100  # characters; a longer key is not taken for a name

_KINDS = ("api", "private", "access", "ssh", "signing", "encryption")  # of keys that are secret
_WORDS = (  # each begins with a letter, so that a search skips other places quickly
    r"pass(?:w|phrase|code)|secret(?!ar)|token(?!i[sz])|bearer|authorization|cookie|credential|"
    + "|".join(f"{kind}[-_ .]?key" for kind in _KINDS)
)
_SECRET = re.compile(_WORDS)
_SECRET_ALONE = re.compile(r"(?:\b|_)(?:(?:auth|pass)$|jwt(?:\b|_))", re.ASCII)  # only as a word: an author is not
_HINT = re.compile(b"pass|key|token|secret|auth|cookie|credential|bearer|jwt")
_STEMS = (
    "passw", "passphrase", "passcode", "secret", "token", "bearer", "authorization", "cookie", "credential", "jwt",
    *(word + end for word in ("auth", "pass") for end in ('"', "'", "\\")),
)  # fmt: skip
_KEYS = re.compile("key(?:(?<=(?:api|ate|ess|ssh|ing|ion)key)|(?<=(?:api|ate|ess|ssh|ing|ion)[-_ .]key))")
_COLON = ord(":")  # a number: to search for a text of one letter takes four times as long
_HARMLESS = re.compile(
    r"(?:^|_)(?:page|next|prev|previous|continuation|cursor|sync|eos|bos|pad|stop|unk)_?token$"
    r"|_(?:counts?|limits?|types?|names?|ids?|url|uri|endpoint|usage|budget|length|policy|ttl|expir\w*)$"
)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[-. ]")


def redact(value: object) -> object:
    """Return *value* with the values of keys that look like secrets masked, at any depth and in JSON inside texts.

    Headers and variables often come in two other forms, in which keys count as well: a list of pairs,
    `[["Cookie", …]]`, and an object of a name and a value, `{"name": "api_key", "value": …}`.

    A text that begins like JSON but is not (it was cut, or is the `str` of a dict) is searched for quoted keys; if the
    value of a secret key cannot be read, the rest of the text is masked.

    Secret are passwords, secrets, tokens, bearers, cookies, credentials, authorization and API, private or access keys,
    however spelt. Not masked are: true, false and null; numbers under plural tokens (`max_tokens`,
    `tokens: {"input": 3}`) and under `pass`; cursors (`next_page_token`); and facts about a secret (`token_count`,
    `secret_name`, `token_url`).
    """
    if isinstance(value, dict):
        keys = _keys(value)
        return {key: MASK if _is_secret(keys.get(key, key), inner) else redact(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_redact_item(inner) for inner in value]
    if isinstance(value, str):
        return _redact_text(value)
    return value


def names_secret(name: str) -> bool:
    """True if a text under the key *name* looks like a secret."""
    return _is_secret(name, MASK)


def _keys(value: dict[object, object]) -> dict[object, object]:
    """In an object of a name and a value: the name that counts as the key of the value."""
    names = {key.lower(): key for key in value if isinstance(key, str) and len(key) <= len("value")}
    name = names.get("name", names.get("key"))
    return {names["value"]: value[name]} if name is not None and "value" in names else {}


def _redact_item(item: object) -> object:
    if isinstance(item, list) and len(item) == 2 and _is_secret(item[0], item[1]):
        return [item[0], MASK]
    return redact(item)


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
        data = members(payload)
        if self._always or _suspect(data):
            data = self._redacted(data)
            if not data.startswith(b"{"):
                data = PLAIN.encode({"redacted": "the redactor gave no object"})
        if len(data) <= self.limit:
            return data
        parts = _PARTS.decode(data)
        if any(len(key) > self.limit for key in parts):
            raise ConfigError(f"payload: a name is longer than {self.limit} characters")
        return PLAIN.encode({key: msgspec.Raw(self._cut(bytes(part))) for key, part in parts.items()})

    def shown(self, value: object) -> msgspec.Raw:
        """The JSON of a tool's arguments or result; what JSON does not know is shown as a short text."""
        data = lenient(value)
        if self._always or _suspect(data):
            data = self._redacted(data)
        return msgspec.Raw(data if len(data) <= self.limit else self._cut(data))

    def said(self, value: object) -> tuple[msgspec.Raw, bool]:
        """The JSON of a tool's result, and True if that is all of it: exactly the same value can be read from it."""
        try:
            data = _AS_IT_IS.encode(value)
            if len(data) <= self.limit and (is_flat(value, EXACT) or _is_all(data, value)):
                if not (self._always or _suspect(data)):
                    return msgspec.Raw(data), True
        except Exception:  # not plain data: a part of it can be shown
            return self.shown(value), False
        return self.shown(value), False

    def _redacted(self, data: bytes) -> bytes:
        try:
            return lenient(self._redactor(msgspec.json.decode(data)))
        except Exception as error:  # in the user's redactor: nothing of the value may be shown
            return PLAIN.encode({"redacted": f"the redactor failed: {type(error).__name__}"})

    def _cut(self, data: bytes) -> bytes:
        if len(data) <= self.limit:
            return data
        text: str = msgspec.json.decode(data) if data.startswith(b'"') else data[: self.limit].decode(errors="ignore")
        text = text[: self.limit]
        while (size := len(PLAIN.encode(text)) - 2) > self.limit:  # quotes and control characters grow when encoded
            text = text[: len(text) * self.limit // size]
        return PLAIN.encode({"cut": text, "bytes": len(data)})


def _is_all(data: bytes, value: object) -> bool:
    """True if the JSON *data* gives back exactly *value*."""
    if type(value) in EXACT:
        return True
    check_depth(data)
    return gives_back(READ, data, value)


# --- what is secret ---


def _suspect(data: bytes) -> bool:
    """True if *data* may have the key of a secret in it; finds all keys, but also some words in texts."""
    if _COLON not in data and data.count(b"[") < 2:  # there is no key, and no list of pairs
        return False
    lowered = data.lower()
    if _HINT.search(lowered) is None:  # as for most
        return False
    text = lowered.decode("latin-1")  # a text, as `in` makes an error for bytes before it looks, and drops it
    return any(stem in text for stem in _STEMS) or _KEYS.search(text) is not None


class _Secrecy(Enum):
    NONE = 0
    TEXTS = 1  # under plural tokens and passes, where numbers are counts
    ALL = 2


def _is_secret(key: object, value: object) -> bool:
    if value is None or value is True or value is False or not isinstance(key, str):
        return False
    secrecy = _secrecy(key) if len(key) <= _LONGEST_KEY else _Secrecy.NONE
    return secrecy is _Secrecy.ALL or (secrecy is _Secrecy.TEXTS and not _only_numbers(value))


@functools.lru_cache(maxsize=1024)
def _secrecy(key: str) -> _Secrecy:
    if not key.isascii():
        key = "".join(char if char.isascii() else "?" for char in key)  # `_suspect` lowers only ASCII letters
    name = _HUMP.sub("_", key).lower()
    if not (_SECRET.search(key.lower()) or _SECRET_ALONE.search(name)) or _HARMLESS.search(name):
        return _Secrecy.NONE
    return _Secrecy.TEXTS if "tokens" in name or name.endswith("pass") else _Secrecy.ALL


def _only_numbers(value: object) -> bool:
    todo = [value]
    for each in todo:  # the list grows meanwhile; a call for each level could be too deep
        if isinstance(each, dict | list):
            todo += each.values() if isinstance(each, dict) else each
        elif not isinstance(each, int | float):
            return False
    return True


def _redact_text(text: str) -> str:
    if text.lstrip()[:1] not in {"{", "["}:
        return text
    try:
        inner = msgspec.json.decode(text)
        masked = redact(inner)
        if masked == inner:
            _EACH_KEY_ONCE.decode(text)  # raises if a key is there twice: its first value was not looked at
            return text
    except (ValueError, RecursionError):
        return _redact_pairs(text)
    return PLAIN.encode(masked).decode()


def _redact_pairs(text: str) -> str:
    """*text* with the values of secret quoted keys masked, one pair after the other, whatever is around them."""
    pieces: list[str] = []
    shown = 0
    pair = _PAIR.search(text)
    while pair is not None:
        key, quote = pair.groups()
        begin = end = pair.end()
        if names_secret(key):
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
    """The value at *begin*, and its end; all the rest of *text* if it cannot be read."""
    if (nothing := _NOTHING.match(text, begin)) is not None:
        return None, nothing.end()
    try:
        if (quoted := _QUOTED.match(text, begin)) is not None:
            value, end = quoted[0], quoted.end()
        else:
            value, end = _BEGINNING.raw_decode(text, begin)
    except (ValueError, RecursionError):
        return text[begin:], len(text)
    # In a text inside a text, backslashes are doubled: what looks like the end of a value there is a quote inside it.
    doubtful = _TWICE.search(text, end - 3 if quoted is not None else begin, end) or not _BORDER.match(text, end)
    return (text[begin:], len(text)) if doubtful else (value, end)


_AS_IT_IS = msgspec.json.Encoder()  # keeps the value's own order, so that the same value comes back
_PARTS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_PAIR = re.compile(r"""["']((?:\\*+[^"'\\]){1,100}+)(\\*+["'])\s*+:\s*+""")
_QUOTED = re.compile(r""""[^"\\]*+(?:\\.[^"\\]*+)*+"|'[^'\\]*+(?:\\.[^'\\]*+)*+'""", re.DOTALL)
_TWICE = re.compile(r"""\\\\["']""")
_NOTHING = re.compile(r"(?:None|True|False)(?=[\s,}\]]|\Z)")  # as Python writes them
_BORDER = re.compile(r"[\s,}\]]|\Z")
_BEGINNING = json.JSONDecoder()
_EACH_KEY_ONCE = json.JSONDecoder(object_pairs_hook=_once)
