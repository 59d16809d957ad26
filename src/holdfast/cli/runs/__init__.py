"""`holdfast runs`: see and steer the runs of a store, whichever process they belong to."""

from __future__ import annotations

import click

from holdfast.cli.options import Group
from holdfast.cli.runs.following import tail
from holdfast.cli.runs.listing import ls, show
from holdfast.cli.runs.moving import export, import_, prune
from holdfast.cli.runs.steering import cancel, resume, submit


@click.group(cls=Group)
def runs() -> None:
    """List, follow, submit, cancel, resume and move durable runs.

    Wherever the ID of a run is asked for, its first letters will do if no other run begins so.
    """


for _command in (ls, show, tail, submit, cancel, resume, export, import_, prune):
    runs.add_command(_command)
