"""What a proxied server is called, and how its command or address may be shown: without the secrets in it."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from holdfast.values.redaction import MASK, redact

# Words of a command that say who runs a server, not which one it is.
RUNNERS: Final = {
    "npx", "bunx", "uvx", "pipx", "bun", "deno", "node", "npm", "pnpm", "yarn", "dlx", "uv", "docker", "podman", "env",
    "python", "sh", "bash", "run", "exec", "x",
}  # fmt: skip
_VERSION: Final = re.compile(r"(?<=.)@[\w.^~-]+$")
_SCRIPT: Final = re.compile(r"\.(?:py|js|mjs|cjs|ts|sh|exe)$")


def name_of(command: Sequence[str]) -> str:
    """A name for the server that *command* starts: the package or the script, not who runs it."""
    for word in command:
        plain = _SCRIPT.sub("", _VERSION.sub("", os.path.basename(word.rstrip("/"))))
        if plain and not word.startswith("-") and "=" not in word and re.sub(r"[\d.]+$", "", plain) not in RUNNERS:
            return _tidy(plain)
    return _tidy(os.path.basename(command[0]))


def name_of_url(url: str) -> str:
    """A name for the server at *url*."""
    return _tidy(urlsplit(url).hostname or "")


def _tidy(name: str) -> str:
    """*name* as one word without dots, since a proxied tool is SERVER.TOOL."""
    return re.sub(r"[^\w-]+", "-", name).strip("-")[:100] or "server"


def shown(command: Sequence[str]) -> str:
    """*command* in one line; what stands under names that look like secrets is masked."""
    words, hides = [], False
    for word in command:
        name, equals, value = word.partition("=")
        if hides and not word.startswith("-"):
            words.append(MASK)
        elif "://" in word:
            words.append(shown_url(word))
        elif equals and _is_secret(name, value):
            words.append(f"{name}={MASK}")
        else:
            words.append(shlex.quote(word))
        hides = word.startswith("-") and not equals and _is_secret(word, "x")
    return " ".join(words)


def shown_url(url: str) -> str:
    """*url* without password, and with secrets in its query masked."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        query = [(key, MASK if _is_secret(key, value) else value) for key, value in parse_qsl(parts.query)]
    except ValueError:  # no address at all
        return MASK
    return urlunsplit(parts._replace(netloc=host, query=urlencode(query, safe="[]") if query else parts.query))


def _is_secret(name: str, value: str) -> bool:
    return redact({name.lstrip("-"): value}) == {name.lstrip("-"): MASK}
