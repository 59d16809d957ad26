"""Names for proxied servers, and their commands and addresses as texts with the secrets masked."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from holdfast.values.redaction import MASK, redact

# Words of a command that name the program that runs a server, not the server.
RUNNERS: Final = {
    "npx", "bunx", "uvx", "pipx", "bun", "deno", "node", "npm", "pnpm", "yarn", "dlx", "uv", "docker", "podman", "env",
    "python", "sh", "bash", "run", "exec", "x", "tsx", "ts-node", "java", "dotnet", "go",
}  # fmt: skip
VAGUE: Final = {"index", "main", "cli", "mcp", "mcp-server"}  # names of half of all servers; folder or scope says more
INNER: Final = {"dist", "build", "src", "lib", "out", "bin"}  # folders whose names say as little
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})  # names and addresses of this machine
_VERSION: Final = re.compile(r"(?<=.)(?:@[\w.^~-]+|[=~<>]=.*)$")
_VARIABLE: Final = re.compile(r"\w+=(?!=)")
# The name of an option, a variable, a header or a key within one word, up to its value, if that is not masked yet. The
# value follows `=` or `:`; in a command line for a shell, the value of an option may also follow a space.
_NAME: Final = re.compile(
    r"(?:(?<![\w.-])([\w.-]++)\\*+[\"']?+\s*+[=:]|(?<!\S)(--?[\w-]++)(?=\s))\s*+(?![\"']?" + re.escape(MASK) + ")"
)
_BEGINNING: Final = re.compile(r"(?<![\w+.-])(?=[\w+.-]++://)")  # of an address
_ADDRESS: Final = re.compile(r"[\w+.-]++://\S*+")
_SCRIPT: Final = re.compile(r"\.(?:py|js|mjs|cjs|ts|sh|exe|jar)$")


def name_of(command: Sequence[str]) -> str:
    """A name for the server that *command* starts: the package or the script, not the program that runs it."""
    for word in command:
        *folders, last = word.rstrip("/").split("/")
        plain = _SCRIPT.sub("", _VERSION.sub("", last))
        if not plain or word.startswith("-") or _VARIABLE.match(word) or re.sub(r"[\d.]+$", "", plain) in RUNNERS:
            continue
        if plain in VAGUE:
            plain = next((folder for folder in reversed(folders) if folder.strip(".") and folder not in INNER), plain)
        return _tidy(plain)
    return _tidy(os.path.basename(command[0]))


def name_of_url(url: str) -> str:
    """A name for the server at *url*."""
    return _tidy(urlsplit(url).hostname or "")


def _tidy(name: str) -> str:
    """*name* as one word without dots, since a proxied tool is SERVER.TOOL."""
    return re.sub(r"[^\w-]+", "-", name).strip("-")[:100] or "server"


def shown(command: Sequence[str]) -> str:
    """*command* in one line, with the values of names that look like secrets masked."""
    words, hides = [], False
    for word in command:
        words.append(MASK if hides and not word.startswith("-") else _shown_word(word))
        hides = word.startswith("-") and "=" not in word and _is_secret(word)
    return " ".join(words)


def _shown_word(word: str) -> str:
    """*word* quoted for a shell, with secrets masked: in options, variables, headers, JSON and addresses."""
    parts = []
    for piece in _BEGINNING.split(str(redact(word))):
        address = _ADDRESS.match(piece)
        end = 0 if address is None else address.end()
        parts.append(shown_url(piece[:end]) if end else "")
        for name in _NAME.finditer(piece, end):
            if _is_secret(name[1] or name[2]):
                return "".join((*parts, shlex.quote(piece[end : name.end()]), MASK))
        parts.append(shlex.quote(piece[end:]) if piece[end:] else "")
    return "".join(parts) or shlex.quote(word)


def shown_url(url: str) -> str:
    """*url* without user and password, and with secrets in its query masked."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError: what looks like one is a password, if a slash or the like stands in that
        host = parts.netloc.rpartition("@")[2]
        query = [(key, _masked(key, value)) for key, value in parse_qsl(parts.query)]
    except ValueError:  # not a valid address
        return MASK
    return urlunsplit(parts._replace(netloc=host, query=urlencode(query, safe="[]") if query else parts.query))


def _is_secret(name: str) -> bool:
    return _masked(name.lstrip("-"), "x") == MASK


def _masked(name: str, value: str) -> str:
    """*value* without secrets: masked if *name* says that it is one, or in part if it is JSON."""
    masked = redact({name: value})
    assert isinstance(masked, dict)
    return str(masked[name])
