"""JSON with comments and trailing commas, read with the place of every value.

A file that belongs to another program is rewritten by edits of single places: all other bytes stay as they were.
Strict JSON is read just as well. If a key is there twice, the last one counts, as in the clients.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from holdfast.errors import ConfigError, printable

DEEPEST: Final = 200  # levels of nesting; each takes some frames of Python's stack
BOM: Final = "\ufeff"

_SPACE: Final = re.compile(r"(?:[ \t\r\n]+|//[^\r\n]*|/\*.*?\*/)*", re.DOTALL)
_BLANK: Final = re.compile(r"[ \t\r\n]*")
_PLAIN: Final = re.compile(r'[^"\\\x00-\x1f]*+')
_ESCAPE: Final = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_STRING: Final = re.compile(rf'"{_PLAIN.pattern}(?:{_ESCAPE.pattern}{_PLAIN.pattern})*+"')
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?(?![\w.])")
_WORD: Final = re.compile(r"\w+")
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_WORDS: Final = {"true": True, "false": False, "null": None}


class Scalar(NamedTuple):
    """A text, a number, true, false or null, and where it stands."""

    start: int
    end: int
    value: str | int | float | bool | None


class Array(NamedTuple):
    """An array and where it stands, brackets included."""

    start: int
    end: int
    items: tuple[Value, ...]


class Member(NamedTuple):
    """A key of an object and its value; *end* is where the value ends."""

    start: int
    end: int
    key: Scalar
    value: Value

    @property
    def name(self) -> str:
        """The key as a text."""
        return str(self.key.value)


class Object(NamedTuple):
    """An object and where it stands, braces included; *members* in their order, overridden ones included."""

    start: int
    end: int
    members: tuple[Member, ...]

    def member(self, name: str) -> Member | None:
        """The member of that name that counts: the last one."""
        return next((member for member in reversed(self.members) if member.name == name), None)

    def get(self, name: str) -> Value | None:
        """The value of the member of that name, if there is one."""
        member = self.member(name)
        return None if member is None else member.value


Value: TypeAlias = "Scalar | Array | Object"


class Edit(NamedTuple):
    """Replaces the characters from *start* to *end* by *text*."""

    start: int
    end: int
    text: str


def parse(text: str, name: str) -> Value:
    """The one value in *text*; bad syntax raises a `ConfigError` with the file's *name*, line and column."""
    reader = _Reader(text, name)
    at = reader.skip(len(BOM) if text.startswith(BOM) else 0)
    value = reader.value(at, 0)
    end = reader.skip(value.end)
    if end < len(text):
        raise reader.wrong(end, "the end of the file")
    return value


def plain(value: Value) -> object:
    """*value* as dicts, lists and scalars."""
    if isinstance(value, Object):
        return {member.name: plain(member.value) for member in value.members}
    if isinstance(value, Array):
        return [plain(item) for item in value.items]
    return value.value


def apply(text: str, edits: Iterable[Edit]) -> str:
    """*text* after all *edits*, whose places refer to *text* as it is and do not overlap."""
    parts, done = [], 0
    for edit in sorted(edits):
        if edit.start < done:
            raise ValueError(f"two edits overlap at {edit.start}")
        parts += [text[done : edit.start], edit.text]
        done = edit.end
    return "".join([*parts, text[done:]])


def instead(value: Value, text: str) -> Edit:
    """The edit that puts *text* in the place of *value*."""
    return Edit(value.start, value.end, text)


def removal(text: str, items: Sequence[Value | Member], unwanted: Iterable[int]) -> list[Edit]:
    """The edits that remove the *unwanted* ones, by index, of the items of one array or object, with their commas."""
    gone = set(unwanted)
    kept = [index for index in range(len(items)) if index not in gone]
    if not gone:
        return []
    if not kept:
        behind = _behind(_SPACE, text, items[-1].end)
        return [Edit(items[0].start, behind + 1 if text[behind] == "," else items[-1].end, "")]
    edits = []
    for index in sorted(gone):
        if index < kept[-1]:  # with the comma and the spaces behind it, but not with a comment
            comma = _behind(_SPACE, text, items[index].end) + 1
            edits.append(Edit(items[index].start, _behind(_BLANK, text, comma), ""))
    edits.append(Edit(items[kept[-1]].end, items[-1].end, ""))
    return edits


def quoted(text: str) -> str:
    """*text* as a JSON string, with the letters of all scripts unescaped if all of it is printable."""
    return json.dumps(text, ensure_ascii=not text.isprintable())


class _Reader:
    """Reads values from one text; every method takes the place to read at."""

    __slots__ = ("text", "name")

    def __init__(self, text: str, name: str) -> None:
        self.text = text
        self.name = name

    def skip(self, at: int) -> int:
        """Where the next token begins: behind spaces and comments."""
        end = _behind(_SPACE, self.text, at)
        if self.text.startswith("/*", end):
            raise self.wrong(end, "*/ at the end of the comment that begins here", "none")
        return end

    def value(self, at: int, depth: int) -> Value:
        """The value at *at*, where a token begins."""
        first = self.text[at : at + 1]
        if first in {"{", "["} and depth >= DEEPEST:
            raise self.wrong(at, f"at most {DEEPEST} levels of nesting", "more")
        if first == "{":
            return self.object(at, depth + 1)
        if first == "[":
            return self.array(at, depth + 1)
        if first == '"':
            return self.string(at, "")
        return self.number_or_word(at)

    def object(self, start: int, depth: int) -> Object:
        members = []
        at = self.skip(start + 1)
        while not self.text.startswith("}", at):
            key = self.string(at, "a key in double quotes, or }")
            at = self.skip(key.end)
            if not self.text.startswith(":", at):
                raise self.wrong(at, f": after the key {printable(str(key.value), 40)!r}")
            value = self.value(self.skip(at + 1), depth)
            members.append(Member(key.start, value.end, key, value))
            at = self.next(value.end, "}")
        return Object(start, at + 1, tuple(members))

    def array(self, start: int, depth: int) -> Array:
        items = []
        at = self.skip(start + 1)
        while not self.text.startswith("]", at):
            items.append(self.value(at, depth))
            at = self.next(items[-1].end, "]")
        return Array(start, at + 1, tuple(items))

    def next(self, at: int, closing: str) -> int:
        """Where the next item, or *closing*, begins behind an item that ended at *at*."""
        at = self.skip(at)
        if self.text.startswith(",", at):
            return self.skip(at + 1)
        if not self.text.startswith(closing, at):
            raise self.wrong(at, f", or {closing}")
        return at

    def string(self, at: int, expected: str) -> Scalar:
        found = _STRING.match(self.text, at)
        if found is not None:
            raw = found[0]
            return Scalar(at, found.end(), json.loads(raw) if "\\" in raw else raw[1:-1])
        if not self.text.startswith('"', at):
            raise self.wrong(at, expected)
        raise self._bad_string(at)

    def number_or_word(self, at: int) -> Scalar:
        if (number := _NUMBER.match(self.text, at)) is not None:
            return Scalar(at, number.end(), _number(number))
        word = _WORD.match(self.text, at)
        if word is not None and word[0] in _WORDS:
            return Scalar(at, word.end(), _WORDS[word[0]])
        raise self.wrong(at, "a value")

    def wrong(self, at: int, expected: str, found: str | None = None) -> ConfigError:
        """The error for what stands at *at* instead of what was *expected*."""
        if found is None:
            word = _WORD.match(self.text, at)
            here = word[0] if word is not None else self.text[at : at + 1]
            found = _shown(here) if here else "the end of the file"
        ends = list(_LINE_END.finditer(self.text, 0, at))
        column = at - (ends[-1].end() if ends else len(BOM) if self.text.startswith(BOM) else 0) + 1
        return ConfigError(f"{self.name}:{len(ends) + 1}:{column}: expected {expected}, found {found}")

    def _bad_string(self, start: int) -> ConfigError:
        """What is wrong with the string that begins at *start*, and where."""
        at = _behind(_PLAIN, self.text, start + 1)
        while (escape := _ESCAPE.match(self.text, at)) is not None:
            at = _behind(_PLAIN, self.text, escape.end())
        if self.text.startswith("\\", at):
            return self.wrong(at, 'an escape such as \\" or \\u00e9', _shown(self.text[at : at + 2]))
        if at >= len(self.text) or self.text[at] in "\r\n":
            return self.wrong(start, 'a closing " on the same line', "none")
        return self.wrong(at, "a character that JSON allows in a text, or its escape")


def _shown(text: str) -> str:
    return repr(printable(text, 40)).replace("\\\\", "\\")  # undo the second escape: `printable` has escaped it


def _behind(what: re.Pattern[str], text: str, at: int) -> int:
    """Where *what* ends if it matches at *at*; otherwise *at*."""
    found = what.match(text, at)
    return at if found is None else found.end()


def _number(found: re.Match[str]) -> int | float:
    if found[1] is None and found[2] is None and len(found[0]) < 1000:
        return int(found[0])
    return float(found[0])
