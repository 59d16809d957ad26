"""`holdfast ui`: serves the dashboard from this machine."""

from __future__ import annotations

import os
import secrets
import sys
from typing import TYPE_CHECKING

import click

from holdfast.cli.finding import needing, opened_leniently
from holdfast.cli.options import json_option, store_option, text
from holdfast.cli.showing import put_json, say

if TYPE_CHECKING:
    from holdfast.web.security import Rules

PORT = 8642
SHORTEST = 16  # characters a token must have if other machines can connect


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, callback=text, help="The address to listen on.")
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(0, 65535), help="The port; 0 for any.")
@click.option("--allow-host", "names", metavar="NAME", multiple=True, callback=text, help="Another name of the server.")
@click.option("--no-token", is_flag=True, help="Answer everybody on this machine; only where nobody else can ask.")
@click.option("--read-only", is_flag=True, help="Show everything, change nothing.")
@click.option("--no-open", is_flag=True, help="Do not open a browser.")
@json_option
@store_option
def ui(
    host: str,
    port: int,
    names: tuple[str, ...],
    no_token: bool,
    read_only: bool,
    no_open: bool,
    as_json: bool,
    store: str | None,
) -> None:
    """Show and steer tools and runs in a browser.

    Those of all processes on the store. The address that is printed holds a token; whoever has it may see everything
    and, unless --read-only, stop it.
    $HOLDFAST_TOKEN sets the token, for programs that ask as well.
    """
    with needing("server"):
        from holdfast.web.app import App
        from holdfast.web.security import is_local, rules
        from holdfast.web.serving import Server, bind
    if no_token and not is_local(host):
        raise click.UsageError(f"--no-token with --host {host}: other machines could connect; leave one of them out")
    token = None if no_token else _token(least=1 if is_local(host) else SHORTEST)
    opens = not (no_open or as_json) and sys.stdout.isatty() and has_display()
    once = secrets.token_urlsafe(32) if opens and token is not None else None
    with opened_leniently(store) as hf:
        listening = bind(host, port)
        allowed = rules(host, listening.getsockname()[1], token=token, read_only=read_only, names=names, once=once)
        app = App(hf.runs, allowed, book=hf.policies, named=None if store is None else hf.runs.file.path)
        name = hf.runs.file.name
        server = Server(app, on_ready=lambda: _announce(host, allowed, name, opens=opens, as_json=as_json))
        server.answer(listening)


def _token(*, least: int) -> str:
    given = os.environ.get("HOLDFAST_TOKEN")
    if not given:
        return secrets.token_urlsafe(32)
    if not given.isascii() or not given.isprintable() or " " in given:
        raise click.UsageError("$HOLDFAST_TOKEN must be ASCII characters without spaces")
    if len(given) < least:
        raise click.UsageError(
            f"$HOLDFAST_TOKEN must be at least {least} characters: other machines can connect, and guess"
        )
    return given


def _announce(host: str, rules: Rules, store: str, *, opens: bool, as_json: bool) -> None:
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host.strip("[]"), host.strip("[]"))
    address = f"http://{f'[{name}]' if ':' in name else name}:{rules.port}/"
    if as_json:
        put_json({"url": address, "token": rules.token, "store": store, "read_only": rules.read_only})
    else:
        click.echo(_with(rules.token, address))
    say(f"showing {store}{', read-only' if rules.read_only else ''}; Ctrl-C ends it")
    if opens:
        import threading
        import webbrowser

        # Every user of the machine can see a browser's command line: it gets a token that works only once.
        address = _with(rules.once, address)
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()  # some block until it ends


def _with(token: str | None, address: str) -> str:
    from urllib.parse import quote

    return address if token is None else f"{address}?token={quote(token, safe='')}"


def has_display() -> bool:
    """True if a browser would have a display to appear on."""
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
