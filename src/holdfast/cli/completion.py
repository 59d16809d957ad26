"""`holdfast completion`: the lines that make a shell complete our commands and options."""

from __future__ import annotations

import click

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print what makes a shell complete commands and options.

    \b
    bash:  holdfast completion bash > ~/.local/share/bash-completion/completions/holdfast
    zsh:   holdfast completion zsh > "${fpath[1]}/_holdfast"
    fish:  holdfast completion fish > ~/.config/fish/completions/holdfast.fish
    """  # noqa: D301 - click wants the character, not the two letters
    from click.shell_completion import get_completion_class

    from holdfast.cli import holdfast

    found = get_completion_class(shell)
    assert found is not None, shell
    click.echo(found(holdfast, {}, "holdfast", "_HOLDFAST_COMPLETE").source())
