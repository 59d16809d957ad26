"""Where the clients that we know by name keep their configuration, and which of their files is meant."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from holdfast.errors import ConfigError

CLIENTS: Final = ("claude-desktop", "cursor", "vscode", "claude-code")


def client_file(client: str, *, folder: str, home: str, platform: str, environment: Mapping[str, str]) -> str:
    """The file of *client* that exists: that of the project in *folder* if there is one, otherwise the user's own."""
    tried = places(client, folder=folder, home=home, platform=platform, environment=environment)
    for path in tried:
        if os.path.exists(path):
            return path
    raise ConfigError(f"{client}: there is no configuration at {' nor at '.join(tried)}; name the file instead")


def places(client: str, *, folder: str, home: str, platform: str, environment: Mapping[str, str]) -> list[str]:
    """The paths where *client* may have its file; the first that exists counts."""
    if platform == "darwin":
        settings = os.path.join(home, "Library", "Application Support")
    else:
        settings = environment.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    if client == "claude-desktop":
        return [os.path.join(settings, "Claude", "claude_desktop_config.json")]
    if client == "cursor":
        return [os.path.join(home, ".cursor", "mcp.json")]
    if client == "vscode":
        return [os.path.join(folder, ".vscode", "mcp.json"), os.path.join(settings, "Code", "User", "mcp.json")]
    if client == "claude-code":
        own = environment.get("CLAUDE_CONFIG_DIR") or home
        return [os.path.join(folder, ".mcp.json"), os.path.join(own, ".claude.json")]
    raise ConfigError(f"{client!r} is not one of {', '.join(CLIENTS)}")
