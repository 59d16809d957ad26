"""Names of tools and keys as they are kept: a megabyte of name must not cost a megabyte of memory."""

from __future__ import annotations

from hashlib import sha256

from holdfast.checks import shown
from holdfast.errors import ConfigError

_LONGEST = 200
_HEAD = 100


def short_key(name: str) -> str:
    """*name* itself, or, where it is longer than 200 characters, its beginning and a digest of the whole."""
    if not isinstance(name, str):
        raise ConfigError(f"name = {shown(name)}: must be a text")
    if len(name) <= _LONGEST:
        return name
    # A name that came in from outside may hold half a surrogate pair.
    digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{name[:_HEAD]}…{digest[:16]}"
