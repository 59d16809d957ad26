"""`holdfast wrap`: an MCP server behind the guards."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from holdfast.cli.finding import opened, warn_if_not_lasting
from holdfast.cli.options import hides_option, policy_option, store_option, text
from holdfast.cli.showing import say

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.mcp.stdio.pipes import Echo
    from holdfast.mcp.wire import Upstream


@click.command(context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@click.argument("command", metavar="[-- COMMAND...]", nargs=-1, callback=text)
@click.option("--url", metavar="URL", callback=text, help="A server that is reached by HTTP, instead of a COMMAND.")
@click.option("--header", "headers", metavar="NAME: VALUE", multiple=True, callback=text, help="Sent to the URL.")
@click.option(
    "--header-env",
    "header_envs",
    metavar="NAME=VARIABLE",
    multiple=True,
    callback=text,
    help="A header whose value is in the environment, where others do not see it.",
)
@click.option("--type", "kind", metavar="TYPE", callback=text, help="How the URL is spoken to: http, the default.")
@click.option("--name", callback=text, help="What policies and statistics call the server; made up otherwise.")
@policy_option
@hides_option
@store_option
def wrap(
    command: tuple[str, ...],
    url: str | None,
    headers: tuple[str, ...],
    header_envs: tuple[str, ...],
    kind: str | None,
    name: str | None,
    policy: str | None,
    hides: bool,
    store: str | None,
) -> int:
    """Run an MCP server behind the guards.

    Put `holdfast wrap --` before its command in your client's settings, or give the URL that it has. Its tools are
    called SERVER.TOOL in policies, in `holdfast tools` and in `holdfast runs`; the client sees nothing of that. A
    server that dies is started again; a tool that hangs, fails or is rate-limited is answered for.
    """
    if bool(command) == bool(url):
        raise click.UsageError("give either -- COMMAND... or --url URL")
    from holdfast.cli.exporting import exporting
    from holdfast.errors import ConfigError
    from holdfast.mcp.naming import name_of, name_of_url
    from holdfast.mcp.server import DEFAULTS
    from holdfast.mcp.stdio.pipes import Echo

    with (
        opened(store, policies=policy, on_store_error="continue", defaults=DEFAULTS) as hf,
        exporting(hf),
        Echo(sys.stderr.buffer) as stderr,
    ):
        warn_if_not_lasting(hf)
        try:
            upstream = _http(hf, url, kind, _headers(headers, header_envs)) if url else _child(hf, command, stderr)
        except ConfigError as error:
            raise click.UsageError(f"{'--url: ' if url else ''}{error}") from error
        return _serve(hf, name or (name_of_url(url) if url else name_of(command)), upstream, hides=hides)


def _serve(hf: Holdfast, name: str, upstream: Upstream, *, hides: bool) -> int:
    import asyncio

    from holdfast.cli import CANCELLED, DONE
    from holdfast.errors import RunCancelled
    from holdfast.mcp.proxy import wrap

    try:
        asyncio.run(wrap(hf, name, upstream, sys.stdin.buffer, sys.stdout.buffer, hides=hides))
    except RunCancelled as error:
        say(str(error))
        return CANCELLED
    return DONE


def _child(hf: Holdfast, command: tuple[str, ...], stderr: Echo) -> Upstream:
    from holdfast.defaults import for_servers
    from holdfast.mcp.stdio.child import Command
    from holdfast.mcp.stdio.upstream import ChildUpstream

    return ChildUpstream(Command(command, env=for_servers(), stderr=stderr), hf.clock)


def _http(hf: Holdfast, url: str, kind: str | None, headers: dict[str, str]) -> Upstream:
    from holdfast.mcp.clients.configs import HTTP, TRANSPORTS
    from holdfast.mcp.http.endpoint import Endpoint
    from holdfast.mcp.http.upstream import HttpUpstream

    if kind is not None and TRANSPORTS.get(kind) != HTTP:
        raise click.UsageError(
            f"--type {kind}: only servers over streamable HTTP can be wrapped; most have an address for it"
        )
    return HttpUpstream(Endpoint(url, headers), hf.clock)


def _headers(given: tuple[str, ...], variables: tuple[str, ...]) -> dict[str, str]:
    headers = {}
    for words in given:
        name, colon, value = words.partition(":")
        if not colon:
            raise click.UsageError("--header: must be a name and a value, such as 'X-Team: blue'")
        headers[name.strip()] = value.strip()
    for words in variables:
        name, _, variable = words.partition("=")
        if variable not in os.environ:
            raise click.UsageError(f"--header-env {words}: must be NAME=VARIABLE, and the variable must be set")
        headers[name] = os.environ[variable]
    return headers
