"""Reading requests: strictly, so that what is misspelt is said and not ignored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec
from starlette.requests import Request

from holdfast.stores.searching import STATUSES, Wanted
from holdfast.web.answers import Problem, Reason

MOST_RUNS = 1000  # in one answer
MOST_EVENTS = 1000
USUAL_RUNS = 100
USUAL_EVENTS = 256
LAST = 2**53 - 1  # the largest number that a page can hold
LONGEST = 1000  # characters of a filter
LONGEST_NAME = 200  # characters of an id or a name
LONGEST_REASON = 2000
MOST_BYTES = 64 * 1024  # of a body
FILTERS = ("status", "session", "tool", "text")

_REASON = msgspec.json.Decoder(Reason)
_NUMBER = re.compile(r"-?[0-9]{1,16}", re.ASCII)


def named(request: Request, part: str) -> str:
    """A part of the path; the path comes as it was sent, so a slash in a name is no other path."""
    try:
        name = unquote_to_bytes(request.path_params[part].encode("latin-1")).decode()
    except UnicodeDecodeError:
        raise bad(f"{part}: must be UTF-8 text, percent-encoded") from None
    if len(name) > LONGEST_NAME:
        raise Problem(404, "not_found", f"{part}: nothing has a name of so many characters", "see /openapi.json")
    return name


def asked(request: Request, *known: str) -> dict[str, str]:
    """The parameters, each at most once; empty ones are left out."""
    try:
        pairs = parse_qsl(
            request.scope["query_string"].decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=50
        )
    except ValueError:
        raise bad("the query must be UTF-8 text, percent-encoded") from None
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in known:
            raise bad("a parameter is not known", f"known are: {', '.join(known) or 'none'}")
        if name in found:
            raise bad(f"{name}: is given twice")
        if len(value) > LONGEST:
            raise bad(f"{name}: must have at most {LONGEST} characters")
        found[name] = value
    return {name: value for name, value in found.items() if value}


def number(given: Mapping[str, str], name: str, usual: int, *, least: int, most: int) -> int:
    """A whole number among the parameters."""
    text = given.get(name)
    if text is None:
        return usual
    if _NUMBER.fullmatch(text) is None or not least <= int(text) <= most:
        raise bad(f"{name}: must be a whole number from {least} to {most}")
    return int(text)


def wanted(given: Mapping[str, str]) -> Wanted:
    """The runs that the filters mean."""
    if given.get("status", STATUSES[0]) not in STATUSES:
        raise bad(f"status: must be one of {', '.join(STATUSES)}")
    return Wanted(given.get("status"), given.get("session"), given.get("tool"), given.get("text"))


async def reason(request: Request) -> str | None:
    """Why something is to be done, if the body says so."""
    body = await _body(request)
    if not body:
        return None
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem(415, "not_json", "the body must be JSON", "send it with Content-Type: application/json")
    try:
        found = _REASON.decode(body).reason
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise bad(f"the body cannot be read: {error}", 'send {"reason": "why"}') from None
    if found is not None and len(found) > LONGEST_REASON:
        raise bad(f"reason: must have at most {LONGEST_REASON} characters")
    return found


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_BYTES:
            raise Problem(413, "too_large", f"the body has more than {MOST_BYTES} bytes", "send a shorter reason")
    return bytes(body)


def bad(message: str, hint: str = "see /openapi.json") -> Problem:
    """A request that makes no sense."""
    return Problem(400, "bad_request", message, hint)
