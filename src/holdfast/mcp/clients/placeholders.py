"""Placeholders in a client's configuration, filled in if a gateway runs the servers in the client's place.

`${env:NAME}` is from Cursor and VS Code, `${NAME}` and `${NAME:-default}` are from Claude Code. A placeholder that only
a client can fill in, such as `${input:token}`, is a mistake; any other text with a dollar is left to the server.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from holdfast.errors import ConfigError, printable

_PLACEHOLDER: Final = re.compile(
    r"\$\{(?:env:([^{}]+)|(input|command|config|workspaceFolder):[^{}]+|([A-Za-z_]\w*)(?::-([^{}]*))?)\}", re.ASCII
)


def filled(text: str, env: Mapping[str, str]) -> str:
    """*text* with its placeholders filled in from *env*; raise a `ConfigError` if a value is missing."""

    def value(found: re.Match[str]) -> str:
        variable, clients, name, default = found.groups()
        if clients is not None:
            raise ConfigError(f"{printable(found[0])} is for its client to fill in; ${{env:NAME}} is a variable")
        held = env.get(variable or name, default)
        if held is None:
            raise ConfigError(f"{printable(found[0])} cannot be filled in: there is no such variable")
        return str(held)

    return _PLACEHOLDER.sub(value, text)
