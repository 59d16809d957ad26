"""What a run needs to know from the start: the Holdfast it belongs to, and what it is to be."""

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
    """What runs have of the Holdfast they belong to."""

    store: RunStore
    bus: Bus
    clock: Clock
    keeper: Keeper
    hooks: Hooks | None
    workers: Workers
    goes_on: bool  # a store that fails is no reason to stop


class Plan(msgspec.Struct, frozen=True):
    """What a run is to be: a new one, or one that is *resumed*."""

    session: str = "default"
    prompt: str = ""
    run_id: str | None = None
    budget: Mapping[str, float] | None = None
    entry: Mapping[str, Any] | None = None
    resumed: str | None = None
    repeats: bool = False  # calls in doubt are made again
    is_noted: bool = False  # nobody waits for the disk, and it cannot be resumed
    forks: bool = True  # where the resumed one has ended, and did not complete, its fork is gone on with
    diverges: bool = True  # finished calls that are not asked for are recorded, and no error
    claim: Claim | None = None  # the right to the resumed run, where it was taken before
    is_new: bool = False  # nobody has begun the resumed run before

    @property
    def goes_on(self) -> bool:
        """Whether it was begun before."""
        return self.resumed is not None and not self.is_new
