"""Values as PostgreSQL takes and returns them. Results are binary; parameters are text, except bytes and lists."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

_HEAD, _LENGTH, _WHOLE, _FLOAT = struct.Struct(">5i"), struct.Struct(">i"), struct.Struct(">iq"), struct.Struct(">d")
_BYTEA, _BIGINT, _TEXT = 17, 20, 25  # ids in pg_type
_NULL = b"\xff\xff\xff\xff"


def whole(values: Sequence[int]) -> bytes:
    """A list of whole numbers as one parameter, a binary array."""
    return _HEAD.pack(1, 0, _BIGINT, len(values), 1) + b"".join([_WHOLE.pack(8, value) for value in values])


def texts(values: Sequence[str | None]) -> bytes:
    """A list of texts as one parameter."""
    return _array(_TEXT, [None if value is None else text(value) for value in values])


def encoded(values: Sequence[bytes]) -> bytes:
    """A list of texts as one parameter; they are UTF-8 already, and have no null character."""
    return _array(_TEXT, values)


def blobs(values: Sequence[bytes]) -> bytes:
    """A list of bytes as one parameter."""
    return _array(_BYTEA, values)


def text(value: str) -> bytes:
    """A text as a parameter; the null character, which PostgreSQL cannot store, is replaced."""
    return (value if "\0" not in value else value.replace("\0", "\x01")).encode()


def _array(kind: int, values: Sequence[bytes | None]) -> bytes:
    parts = [_NULL if value is None else _LENGTH.pack(len(value)) + value for value in values]
    return _HEAD.pack(1, 1, kind, len(values), 1) + b"".join(parts)


def encode(parameters: Sequence[Any]) -> tuple[list[bytes | None], list[int]]:
    """The values of a statement's placeholders, and which of them are binary."""
    values: list[bytes | None] = []
    formats = []
    for value in parameters:
        is_bytes = isinstance(value, bytes)
        formats.append(int(is_bytes))
        if is_bytes or value is None:
            values.append(value)
        elif isinstance(value, str):
            values.append(text(value))
        else:
            values.append(b"%d" % value)
    return values, formats


def decode(result: PGresult) -> list[tuple[Any, ...]]:
    """The rows of a result."""
    decoders = [_DECODERS.get(result.ftype(column), bytes.decode) for column in range(result.nfields)]
    rows = []
    for row in range(result.ntuples):
        values = (result.get_value(row, column) for column in range(len(decoders)))
        rows.append(tuple(None if v is None else decode(v) for v, decode in zip(values, decoders, strict=True)))
    return rows


def _number(value: bytes) -> int:
    return int.from_bytes(value, "big", signed=True)


_DECODERS: dict[int, Callable[[bytes], Any]] = {
    16: lambda value: value != b"\0",
    _BYTEA: bytes,
    _BIGINT: _number,
    21: _number,
    23: _number,
    701: lambda value: _FLOAT.unpack(value)[0],
}
