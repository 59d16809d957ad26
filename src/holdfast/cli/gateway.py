"""`holdfast gateway`: serves several MCP servers behind the guards, on one port."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from holdfast.cli.finding import config_errors_as_usage, opened, warn_if_not_lasting
from holdfast.cli.options import files, hides_option, json_option, policy_option, store_option, text
from holdfast.cli.showing import put_json, say

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.mcp.clients.configs import ServerEntry
    from holdfast.mcp.http.gateway import Address


@click.command()
@click.option(
    "--config",
    required=True,
    metavar="FILE",
    callback=text,
    shell_complete=files,
    help="A client's file with `mcpServers`.",
)
@click.option("--host", default="127.0.0.1", callback=text, show_default=True, help="Where to listen.")
@click.option("--port", default=8643, type=click.IntRange(0, 65535), show_default=True, help="The port; 0 for any.")
@click.option("--token", callback=text, help="What clients must show as a bearer token; else $HOLDFAST_TOKEN.")
@click.option(
    "--allow-host", "names", multiple=True, callback=text, help="Another name by which clients call the HOST."
)
@policy_option
@hides_option
@json_option
@store_option
def gateway(
    config: str,
    host: str,
    port: int,
    token: str | None,
    names: tuple[str, ...],
    policy: str | None,
    hides: bool,
    as_json: bool,
    store: str | None,
) -> int:
    """Serve several MCP servers behind the guards over HTTP.

    All servers of a client's file are there, each at /NAME/mcp. A server with a command is started once for each client
    session. Only this machine can reach them, unless there is a token.
    """
    from holdfast.cli.exporting import exporting
    from holdfast.defaults import TOKEN
    from holdfast.mcp.http.gateway import Address
    from holdfast.mcp.server import DEFAULTS

    with config_errors_as_usage():
        entries = _entries(config)
        address = Address(host, port, token or os.environ.get(TOKEN) or None, names)
        with opened(store, policies=policy, on_store_error="continue", defaults=DEFAULTS) as hf, exporting(hf):
            warn_if_not_lasting(hf)
            return _serve(hf, entries, address, hides=hides, as_json=as_json)


def _serve(hf: Holdfast, entries: list[ServerEntry], address: Address, *, hides: bool, as_json: bool) -> int:
    import asyncio

    from holdfast.cli import DONE
    from holdfast.defaults import for_servers
    from holdfast.mcp.http.front import path_of
    from holdfast.mcp.http.gateway import gateway, problem
    from holdfast.mcp.stdio.pipes import Echo

    def tell(url: str) -> None:
        for entry in entries:
            if problem(entry) is not None:
                continue
            if as_json:
                put_json({"server": entry.name, "url": url + path_of(entry.name)})
            else:
                click.echo(url + path_of(entry.name))

    with Echo(sys.stderr.buffer) as stderr:
        asyncio.run(gateway(hf, entries, address, hides=hides, stderr=stderr, env=for_servers(), on_ready=tell))
    return DONE


def _entries(path: str) -> list[ServerEntry]:
    """The enabled servers of the file, the last of each name; problems are reported, and raised if all have one."""
    from holdfast.errors import ConfigError, printable
    from holdfast.mcp.clients.configs import servers
    from holdfast.mcp.clients.saving import load
    from holdfast.mcp.http.gateway import problem

    found = servers(load(path).text, path, os.environ)
    named = {entry.name: entry for entry in found if not entry.disabled}
    if not named:
        raise ConfigError(f"{path}: lists no server")
    problems = [f"{path}: {printable(name)!r}: {why}" for name, entry in named.items() if (why := problem(entry))]
    if len(problems) == len(named):
        raise ConfigError("\n".join(problems))
    for each in problems:
        say(f"not served: {each}")
    return list(named.values())
