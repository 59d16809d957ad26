"""Reads requests strictly: what is misspelt is reported, not ignored."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec
from starlette.requests import Request

from holdfast.stores.searching import STATUSES, Wanted
from holdfast.web.answers import Problem, Reason

MOST_RUNS = 1000  # in one answer
MOST_EVENTS = 1000
USUAL_RUNS = 100
USUAL_CANCELLED = 500
USUAL_EVENTS = 256
LAST = 2**53 - 1  # the largest whole number that JavaScript holds exactly
LONGEST = 1000  # characters of a filter
LONGEST_NAME = 200  # characters of an id or a name
LONGEST_REASON = 2000
MOST_BYTES = 64 * 1024  # of a body
FILTERS = ("status", "session", "tool", "text")

_REASON = msgspec.json.Decoder(Reason)
_NUMBER = re.compile(r"-?[0-9]{1,16}", re.ASCII)


class Question:
    """A request with the parameters that are *known* to its route, each at most once; empty ones are left out."""

    def __init__(self, request: Request, *known: str) -> None:
        self.request = request
        self.given = _parameters(request, known)

    def named(self, part: str) -> str:
        """A part of the path, decoded only here, so that a percent-encoded slash may be in a name."""
        try:
            name = unquote_to_bytes(self.request.path_params[part].encode("latin-1")).decode()
        except UnicodeDecodeError:
            raise bad(f"{part}: must be UTF-8 text, percent-encoded") from None
        if len(name) > LONGEST_NAME:
            raise Problem(404, "not_found", f"{part}: no name is that long", "see /openapi.json")
        return name

    def number(self, name: str, usual: int, *, least: int, most: int) -> int:
        """A whole number among the parameters."""
        return number(name, self.given.get(name), usual, least=least, most=most)

    def wanted(self) -> Wanted:
        """The filters for runs among the parameters."""
        given = self.given
        if given.get("status", STATUSES[0]) not in STATUSES:
            raise bad(f"status: must be one of {', '.join(STATUSES)}")
        return Wanted(given.get("status"), given.get("session"), given.get("tool"), given.get("text"))

    async def reason(self) -> str | None:
        """The reason for an order, if the body gives one."""
        body = await _body(self.request)
        if not body:
            return None
        kind = self.request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Problem(415, "not_json", "the body must be JSON", "send it with Content-Type: application/json")
        try:
            found = _REASON.decode(body).reason
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise bad(f"the body cannot be read: {error}", 'send {"reason": "why"}') from None
        if found is not None and len(found) > LONGEST_REASON:
            raise bad(f"reason: must have at most {LONGEST_REASON} characters")
        return found


def number(name: str, text: str | None, usual: int, *, least: int, most: int) -> int:
    """*text* as a whole number, *usual* if it is None; errors call it *name*."""
    if text is None:
        return usual
    if _NUMBER.fullmatch(text) is None or not least <= int(text) <= most:
        raise bad(f"{name}: must be a whole number from {least} to {most}")
    return int(text)


def bad(message: str, hint: str = "see /openapi.json") -> Problem:
    """A request that makes no sense."""
    return Problem(400, "bad_request", message, hint)


def _parameters(request: Request, known: Sequence[str]) -> dict[str, str]:
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


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_BYTES:
            raise Problem(413, "too_large", f"the body has more than {MOST_BYTES} bytes", "send a shorter reason")
    return bytes(body)
