"""What a call asks the guards of a tool, and what they answer: yes with what was reserved, no with how long to wait, or
the plan of the quick path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from holdfast.errors import Denied
from holdfast.fleet.question import Held, Question
from holdfast.guards.circuit import Circuit, Grant
from holdfast.guards.concurrency import Slots
from holdfast.guards.line import Ticket
from holdfast.policy import Policy


class Asker(msgspec.Struct, frozen=True, eq=False):
    """A call that wants to make an attempt: its place in line, if it has one, and how many seconds it can wait."""

    now: float
    policy: Policy
    ticket: Ticket | None
    patience: float


class Pass(msgspec.Struct, frozen=True):
    """A yes: what was reserved, and with which guards; a reload may have replaced them by the time it is settled."""

    circuit: Circuit
    grant: Grant
    slots: Slots | None
    held: Held | None = None  # what the fleet reserved


class Basis(msgspec.Struct, frozen=True):
    """What a call of the quick path begins with; when it ends, the tool may have another policy and circuit."""

    policy: Policy
    circuit: Circuit
    grant: Grant


# The plan of the quick path, valid as long as the tool still has this very tuple: what calls begin with; the gate, None
# if there is no limit to ask; the time limit; the seconds from which a call is slow; the time at which periodic work is
# due. A slow call, and one that begins after that time, leaves the quick path.
# A bare tuple, because it is unpacked at each call.
Gate = Callable[[float], Slots | Question | bool]
Plan = tuple[Basis, Gate | None, float | None, float, float]


class Refusal(msgspec.Struct, frozen=True):
    """A no: the error to raise, the seconds until it is worth asking again, and the place in line if the caller waits.

    *wakes* says that the wait may end sooner: the ticket's signal fires then.
    """

    kind: type[Denied]
    wait: float
    ticket: Ticket | None = None
    wakes: bool = False
    why: str | None = None


class Limits(NamedTuple):
    """The limits of a tool at one instant; None where it has none."""

    rate: float | None
    full_rate: float | None
    in_flight: int | None
    limit: int | None
    waiting: int
