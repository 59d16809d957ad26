"""The files of the page, as they are shipped; a request cannot name any other file."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from holdfast.shipped import read_shipped
from holdfast.web.answers import Problem
from holdfast.web.desk import Desk

FOLDER: Final = os.path.join(os.path.dirname(__file__), "static")
KINDS: Final[Mapping[str, str]] = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_NAME: Final = re.compile(r"[a-z]+\.[a-z]+")


class Files:
    """Answers with the files of the page."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def page(self, request: Request) -> Response:
        """The page itself."""
        return await self._file(request, "index.html")

    async def file(self, request: Request) -> Response:
        """One of its files."""
        return await self._file(request, request.path_params["file"])

    async def _file(self, request: Request, name: str) -> Response:
        found = await self._desk.run(_read, name)
        if found is None:
            raise Problem(404, "not_found", "there is no such file", "the page is at /")
        tag = f'"{hashlib.sha256(found).hexdigest()[:32]}"'
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(found, headers=headers, media_type=KINDS[os.path.splitext(name)[1]])


def _read(name: str) -> bytes | None:
    if not _NAME.fullmatch(name) or os.path.splitext(name)[1] not in KINDS:
        return None
    try:
        return read_shipped(os.path.join(FOLDER, name))
    except OSError:  # there is none
        return None
