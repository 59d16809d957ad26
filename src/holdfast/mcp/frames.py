"""JSON-RPC frames as bytes. Only the head of a frame is read; what needs no change stays the bytes that came in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar

import msgspec

from holdfast.mcp import odd
from holdfast.mcp.odd import TooOdd

T = TypeVar("T")

Id = str | int | float  # as JSON-RPC has it; 1 and "1" are two ids

MOST_TEXT: Final = 4000  # characters that are read of a tool's texts
LONGEST_CONTENT: Final = 2**20  # bytes of content in which texts are looked for
MOST_IN_BATCH: Final = 10_000  # frames of a batch; it may be as long as a frame that is repaired

# Codes of errors: those of JSON-RPC, and some of MCP.
PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
LOST: Final = -32000  # ours: the server gave no answer
NO_SESSION: Final = -32001
HEADER_MISMATCH: Final = -32020


class Head(msgspec.Struct, frozen=True, gc=False):
    """What a frame is: a request has a method and an id, a notification a method, an answer an id."""

    id: Id | msgspec.UnsetType | None = msgspec.UNSET
    method: str | None = ""
    params: msgspec.Raw = msgspec.Raw()
    result: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()
    # True if the frame had to be repaired to be read. Only we set it, so its JSON name is one that no peer sends.
    mended: Any = msgspec.field(default=False, name="holdfast/mended")

    @property
    def is_request(self) -> bool:
        """True if its sender waits for an answer."""
        return self.id is not msgspec.UNSET and not self.is_answer

    @property
    def is_answer(self) -> bool:
        """Whether it answers a request."""
        return not self.method and self.id is not msgspec.UNSET and bool(self.result or self.error)

    @property
    def is_refusal(self) -> bool:
        """True if it has an error; many answers have a null error beside the result."""
        return bool(self.error) and bytes(self.error) != b"null"


class Meta(msgspec.Struct, frozen=True, gc=False):
    """The part of a request's metadata that is read."""

    progressToken: Id | None = None  # noqa: N815 - the protocol's name
    protocol: Any = msgspec.field(default=None, name="io.modelcontextprotocol/protocolVersion")
    client: Any = msgspec.field(default=None, name="io.modelcontextprotocol/clientInfo")


class CallParams(msgspec.Struct, frozen=True, gc=False):
    """The part of a `tools/call` that is read."""

    name: str
    arguments: dict[str, Any] | None = None
    meta: Meta | None = msgspec.field(default=None, name="_meta")
    task: msgspec.Raw = msgspec.Raw()
    inputResponses: msgspec.Raw = msgspec.Raw()  # noqa: N815
    requestState: msgspec.Raw = msgspec.Raw()  # noqa: N815

    @property
    def is_plain(self) -> bool:
        """True if the arguments are the whole call: it makes no task, and continues no call that asked for input."""
        return not (self.task or self.inputResponses or self.requestState)


class AnyParams(msgspec.Struct, frozen=True, gc=False):
    """The part of the parameters of other requests and notifications that is read."""

    meta: Meta | None = msgspec.field(default=None, name="_meta")
    requestId: Id | None = None  # noqa: N815
    progressToken: Id | None = None  # noqa: N815
    progress: float | None = None
    uri: str | None = None
    name: str | None = None

    @property
    def protocol(self) -> str | None:
        """The protocol version, if the request names it."""
        said = self.meta.protocol if self.meta is not None else None
        return said if isinstance(said, str) else None


class ToolResult(msgspec.Struct, frozen=True, gc=False):
    """The part of the result of a `tools/call` that is read."""

    isError: bool | None = False  # noqa: N815
    content: msgspec.Raw = msgspec.Raw()
    resultType: str = "complete"  # noqa: N815


class RpcError(msgspec.Struct, frozen=True, gc=False):
    """The error of an answer."""

    code: int = 0
    message: str = ""


class _WithMeta(msgspec.Struct, frozen=True, gc=False):
    meta: Any = msgspec.field(default=None, name="_meta")


_HEAD = msgspec.json.Decoder(Head)
_CALL = msgspec.json.Decoder(CallParams)
_ANY = msgspec.json.Decoder(AnyParams)
_RESULT = msgspec.json.Decoder(ToolResult)
_ERROR = msgspec.json.Decoder(RpcError)
_PARTS = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)
_WITH_META = msgspec.json.Decoder(_WithMeta)
_BATCH = msgspec.json.Decoder(Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MOST_IN_BATCH)])
_ANYTHING = msgspec.json.Decoder()
_JSON = msgspec.json.Encoder()
NO_PARAMS = AnyParams()
_NO_META = _WithMeta()
_NULL = msgspec.Raw(b"null")
_NO_ERROR = RpcError()

# -- reading -----------------------------------------------------------------------------------------------------------


def read(decoder: msgspec.json.Decoder[T], data: bytes | msgspec.Raw) -> T:
    """Decode *data*; NaN, Infinity and lone surrogates, which other programs write, are replaced by texts if needed.

    Raise a `DecodeError` if *data* cannot be decoded even then.
    """
    try:
        return _read_plain(decoder, data)
    except msgspec.ValidationError:  # valid JSON of another shape: there is nothing to repair
        raise
    except msgspec.DecodeError:
        whole = bytes(data)
        mended = odd.repaired(whole)
        if mended == whole:
            raise
    return _read_plain(decoder, mended)


def _read_plain(decoder: msgspec.json.Decoder[T], data: bytes | msgspec.Raw) -> T:
    try:
        return decoder.decode(data)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None


def _read_or(default: T, decoder: msgspec.json.Decoder[T], data: msgspec.Raw) -> T:
    try:
        return read(decoder, data)
    except msgspec.DecodeError:
        return default


def head(data: bytes) -> Head:
    """The head of a frame; raise a `DecodeError` if *data* is not a frame."""
    try:
        return _HEAD.decode(data)
    except ValueError:
        mended = read(_HEAD, data)
    except RecursionError:
        mended = read(_HEAD, odd.shallow(data))
    return msgspec.structs.replace(mended, mended=True)


def is_plain(data: bytes) -> bool:
    """True if *data* is a frame that can be read without repair."""
    try:
        _HEAD.decode(data)
    except (ValueError, RecursionError):
        return False
    return True


def peek(data: bytes) -> Head | None:
    """The head of a frame; None if *data* is not a frame."""
    try:
        return head(data)
    except msgspec.DecodeError:
        return None


def as_number(id: object) -> int | None:
    """The number that the text *id* spells, or None: many servers answer 1 under the id "1", and clients accept it."""
    return int(id) if isinstance(id, str) and id.isdecimal() and id.isascii() and len(id) < 20 else None


def is_batch(data: bytes) -> bool:
    """True if *data* is a batch of frames, which older protocol versions allow."""
    return not data.startswith(b"{") and data.lstrip()[:1] == b"["


def batch(data: bytes) -> list[bytes]:
    """The frames of a batch; raise a `DecodeError` if it cannot be read, or is too large."""
    if len(data) > odd.LONGEST_REPAIRED:
        raise TooOdd(f"a batch may have {odd.LONGEST_REPAIRED} bytes at most")
    try:
        return [bytes(part) for part in _read_plain(_BATCH, data)]
    except msgspec.ValidationError:
        raise TooOdd(f"a batch may have {MOST_IN_BATCH} frames at most") from None
    except msgspec.DecodeError:
        plain = odd.repaired_in_place(data)
        mended = _read_plain(_BATCH, plain)
    return odd.as_they_stand(data, plain, mended) or [bytes(part) for part in mended]


def parts(data: bytes) -> list[bytes]:
    """The frames of a batch, or *data* itself as the only frame."""
    return batch(data) if is_batch(data) else [data]


def asked(data: bytes, head: Head | None) -> set[Any]:
    """The ids of the requests in a frame or a batch; *head* is the frame's, if known. An unreadable one has none."""
    if head is not None:
        return {head.id} if head.is_request else set()
    try:
        heads = map(peek, parts(data))
        return {head.id for head in heads if head is not None and head.is_request}
    except msgspec.DecodeError:
        return set()


def answered(data: bytes) -> list[Any]:
    """The ids of the answers in a frame or a batch; a `DecodeError` if it is neither."""
    frames = parts(data)
    if not frames:
        raise msgspec.ValidationError("a batch without frames")
    return [each.id for each in map(head, frames) if each.is_answer]


def call_params(head: Head) -> CallParams:
    """The parameters of a `tools/call`; raise a `DecodeError` if they cannot be read."""
    return read(_CALL, head.params)


def params(head: Head) -> AnyParams:
    """The parameters of any other frame; empty ones if they cannot be read."""
    return _read_or(NO_PARAMS, _ANY, head.params)


def meta(part: msgspec.Raw) -> dict[str, Any]:
    """The metadata in the parameters or the result of a frame; empty if there is none that can be read."""
    found = _read_or(_NO_META, _WITH_META, part).meta
    return found if isinstance(found, dict) else {}


def carried(head: Head) -> dict[str, str]:
    """The texts in a request's metadata, such as its trace context."""
    return {key: value for key, value in meta(head.params).items() if isinstance(value, str)}


def tool_result(head: Head) -> ToolResult:
    """The result of a `tools/call`; raise a `DecodeError` if it cannot be read."""
    return read(_RESULT, head.result)


def rpc_error(head: Head) -> RpcError:
    """The error of an answer; an empty one if it cannot be read."""
    return _read_or(_NO_ERROR, _ERROR, head.error)


def texts(content: msgspec.Raw) -> str:
    """The texts of a result's content, cut after `MOST_TEXT` characters; of long content, its beginning as it is."""
    if len(bytes(content)) > LONGEST_CONTENT:
        return bytes(content)[:MOST_TEXT].decode(errors="replace")
    parts = _read_or(None, _ANYTHING, content)
    found = (part.get("text") for part in parts if isinstance(part, dict)) if isinstance(parts, list) else ()
    return "\n".join(text for text in found if isinstance(text, str))[:MOST_TEXT]


# -- writing -----------------------------------------------------------------------------------------------------------


def with_id(data: bytes, id: Id) -> bytes:
    """The same frame under another id."""
    return _JSON.encode({**_parts(data), "id": id})


def renamed(data: bytes, head: Head, id: Id) -> tuple[bytes, Head]:
    """A frame and its *head* under *id*; unchanged if they have that id already."""
    return (data, head) if head.id == id else (with_id(data, id), msgspec.structs.replace(head, id=id))


def with_params(data: bytes, **changed: object) -> bytes:
    """The same frame with some of its parameters *changed*."""
    return _with(data, "params", changed)


def with_meta(data: bytes, more: Mapping[str, Id]) -> bytes:
    """The same request with *more* in its metadata; unchanged if *more* is empty."""
    if not more:
        return data
    meta = _parts(_parts(_parts(data)["params"]).get("_meta", _NULL))
    return with_params(data, _meta={**meta, **more})


def with_result(data: bytes, **changed: object) -> bytes:
    """The same answer with some of its result *changed*."""
    return _with(data, "result", changed)


def _with(data: bytes, part: str, changed: Mapping[str, object]) -> bytes:
    parts = _parts(data)
    return _JSON.encode({**parts, part: {**_parts(parts[part]), **changed}})


def _parts(data: bytes | msgspec.Raw) -> Mapping[str, msgspec.Raw]:
    """The parts of an object as they stand, even those that are not plain JSON; none of null."""
    try:
        return _read_plain(_PARTS, data) or {}
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        whole = bytes(data)
        plain = odd.repaired_in_place(whole)
        mended = _read_plain(_PARTS, plain) or {}
    parts = odd.as_they_stand(whole, plain, mended.values())
    if parts is None:  # a name comes twice
        return read(_PARTS, whole) or {}
    return {name: msgspec.Raw(part) for name, part in zip(mended, parts, strict=True)}


def result(id: Id | None, value: object) -> bytes:
    """An answer with a result."""
    return _JSON.encode({"jsonrpc": "2.0", "id": id, "result": value})


def error(id: Id | None, code: int, message: str) -> bytes:
    """An answer with an error."""
    return _JSON.encode({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})


def request(id: Id, method: str, params: Mapping[str, object] | None = None) -> bytes:
    """A request of our own."""
    return _JSON.encode({"jsonrpc": "2.0", "id": id, "method": method, **({"params": params} if params else {})})


def notification(method: str, params: Mapping[str, object] | None = None) -> bytes:
    """A notification of our own."""
    return _JSON.encode({"jsonrpc": "2.0", "method": method, **({"params": params} if params else {})})


def cancel(id: Id, reason: str) -> bytes:
    """A notification of our own that a request is no longer wanted."""
    return notification("notifications/cancelled", {"requestId": id, "reason": reason})


def joined(frames: list[bytes]) -> bytes:
    """Several frames as a batch."""
    return b"[" + b",".join(frames) + b"]"
