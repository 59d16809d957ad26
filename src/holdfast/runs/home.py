"""What a run is made from: the parts of its Holdfast (`Home`) and its own settings (`Plan`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.bus import Bus
from holdfast.clock import Clock
from holdfast.hooks import Hooks
from holdfast.runs.keeper import Keeper
from holdfast.stores import RunStore
from holdfast.stores.ledger import Claim
from holdfast.waiting.threads import Workers


class Home(msgspec.Struct, frozen=True):
    """The parts of a Holdfast that its runs use."""

    store: RunStore
    bus: Bus
    clock: Clock
    keeper: Keeper
    hooks: Hooks | None
    workers: Workers
    survives_store_errors: bool  # runs go on when the store fails: `on_store_error` is "continue"


class Plan(msgspec.Struct, frozen=True):
    """The settings of a run: of a new one, or of one to resume, whose id is *resumed*."""

    session: str = "default"
    prompt: str = ""
    run_id: str | None = None
    budget: Mapping[str, float] | None = None
    entry: Mapping[str, Any] | None = None
    resumed: str | None = None
    repeats: bool = False  # calls in doubt are made again
    is_noted: bool = False  # its calls do not wait for the disk, and it cannot be resumed
    forks: bool = True  # if the resumed run failed or was cancelled, go on with its fork; False: that is a conflict
    diverges: bool = True  # finished calls that the code does not ask for again are recorded; False: they are an error
    claim: Claim | None = None  # the claim to the resumed run, if a worker has taken it before
    is_new: bool = False  # the resumed run never began: it was only submitted

    @property
    def had_begun(self) -> bool:
        """True if the run had begun before."""
        return self.resumed is not None and not self.is_new
