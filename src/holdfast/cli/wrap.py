"""`holdfast wrap`: an MCP server behind the guards."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from holdfast.cli.options import store_option, text

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.mcp.wire import Upstream


@click.command(context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@click.argument("command", metavar="[-- COMMAND...]", nargs=-1, callback=text)
@click.option("--url", metavar="URL", callback=text, help="A server that is reached by HTTP, instead of a COMMAND.")
@click.option("--name", callback=text, help="What policies and statistics call the server; made up otherwise.")
@click.option(
    "--policy", metavar="FILE", callback=text, help="The policy file; else $HOLDFAST_POLICY or holdfast.toml."
)
@click.option(
    "--hide-open-tools", "hides", is_flag=True, help="Take tools whose circuit is open off the list of tools."
)
@store_option
def wrap(
    command: tuple[str, ...], url: str | None, name: str | None, policy: str | None, hides: bool, store: str | None
) -> int:
    """Run an MCP server behind the guards: put `holdfast wrap --` before its command in your client's settings.

    Its tools are called SERVER.TOOL in policies, in `holdfast tools` and in `holdfast runs`; the client sees nothing
    of that. A server that dies is started again; a tool that hangs, fails or is rate-limited is answered for.
    """
    if bool(command) == bool(url):
        raise click.UsageError("give either -- COMMAND... or --url URL")
    from holdfast.app import open
    from holdfast.errors import ConfigError
    from holdfast.mcp.proxy import name_of, name_of_url
    from holdfast.mcp.server import DEFAULTS

    try:
        hf = open(store, policies=policy, on_store_error="continue", defaults=DEFAULTS)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    named = name or (name_of_url(url) if url else name_of(command))
    with hf:
        return _serve(hf, named, command, url, hides=hides)


def _serve(hf: Holdfast, name: str, command: tuple[str, ...], url: str | None, *, hides: bool) -> int:
    import asyncio

    from holdfast.cli import CANCELLED, DONE
    from holdfast.errors import RunCancelled
    from holdfast.mcp.proxy import wrap

    async def serve() -> None:
        upstream = _upstream(hf, command, url)
        await wrap(hf, name, upstream, sys.stdin.buffer, sys.stdout.buffer, hides=hides)

    try:
        asyncio.run(serve())
    except RunCancelled as error:
        click.echo(f"holdfast: {error}", err=True)
        return CANCELLED
    return DONE


def _upstream(hf: Holdfast, command: tuple[str, ...], url: str | None) -> Upstream:
    if url:
        raise click.UsageError("--url is not there yet")
    from holdfast.mcp.child import Command
    from holdfast.mcp.supervising import ChildUpstream

    return ChildUpstream(Command(command, stderr=sys.stderr.buffer), hf.clock)
