"""Encodes and decodes the columns of a store's tables, the same for every database: snapshots, headers and events.

A row may hold anything once a database is damaged: what cannot be read raises a `DecodeError`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.history import RunEventRecord, RunHeader, RunSnapshot, RunStatus
from holdfast.stores.ledger import Live
from holdfast.stores.trouble import reads_rows

_PACK = msgspec.msgpack.Encoder()
_UNPACK = msgspec.msgpack.Decoder(RunSnapshot)
_HEADER = msgspec.json.Decoder(RunHeader)
_JSON = msgspec.json.Encoder()
_PAYLOAD = msgspec.json.Decoder(dict[str, Any])


class _Prompt(msgspec.Struct):
    """The only field of a header that a snapshot needs."""

    prompt: str


_PROMPT = msgspec.json.Decoder(_Prompt)


def pack(snapshot: RunSnapshot) -> bytes:
    """A snapshot as it is stored: without the prompt, which is in the header and may be long."""
    prompt, snapshot.prompt = snapshot.prompt, ""
    try:
        return _PACK.encode(snapshot)
    finally:
        snapshot.prompt = prompt


@reads_rows
def unpack(data: bytes, header: str) -> RunSnapshot:
    """A snapshot as it was before it was stored."""
    snapshot = _UNPACK.decode(data)
    snapshot.prompt = _PROMPT.decode(header).prompt
    return snapshot


def pack_header(header: RunHeader) -> str:
    """A header as it is stored."""
    return _JSON.encode(header).decode()


@reads_rows
def unpack_header(text: str) -> RunHeader:
    """A header as it was before it was stored."""
    return _HEADER.decode(text)


@reads_rows
def live(row: tuple[Any, ...]) -> Live:
    """A run from its row in the statement `load`."""
    key, header, snapshot, touched_at, first, owner, fence, cancel, origin = row
    found = Live(int(key), unpack_header(header), unpack(snapshot, header), int(touched_at))
    found.first, found.fence = int(first), int(fence)
    found.owner, found.cancel, found.origin = owner, cancel, origin
    return found


@reads_rows
def event(row: tuple[Any, ...]) -> RunEventRecord:
    """An event from its row."""
    sequence, at, type, late, payload = row
    return RunEventRecord(int(sequence), int(at), str(type), _PAYLOAD.decode(payload), bool(late))


@reads_rows
def standing(row: tuple[Any, ...]) -> tuple[int, bool]:
    """The first sequence that is kept of a run, and whether the run has ended, from a row that begins with both."""
    return int(row[0]), RunStatus(row[1]).is_terminal
