"""An agent whose run is interrupted under one version of Holdfast and resumed under another.

Run by itself, with that version on the path, it leaves three such runs in a new file: `upgraded.py FILE`. The files
that tests resume are in `tests/data`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import date
from decimal import Decimal
from typing import Any

import holdfast

RUN_ID, HIDDEN_ID, SPARED_ID = "shown", "hidden", "spared"
TEXT = "a text that is longer than what a key is made of as it is, by far"
DAY = date(2026, 11, 16)


class Desk:
    """The tools, and what was asked of them."""

    def __init__(self, hf: holdfast.Holdfast, cut_off: str | None = None) -> None:
        self.hf = hf
        self.made: list[object] = []
        self._cut_off = cut_off
        self.pay, self.bill, self.refuse, self.parts, self.ship = (
            hf.tool(fn.__name__.removeprefix("_"))(fn)
            for fn in (self._pay, self._bill, self._refuse, self._parts, self._ship)
        )

    def work(self, run: holdfast.Run) -> list[object]:
        """All that the agent does; the last payment is the one that is cut off."""
        got: list[object] = [self.pay(amount) for amount in (1, 1, 1.0, "1", DAY, (1, 2), [1, 2], TEXT)]
        got += [self.pay(Decimal("1.10")), self.bill(7), list(self.parts(3))]
        try:
            self.refuse("x")
        except ValueError as error:
            got.append(str(error))
        got.append(run.step("think", self.think, 5))
        run.spend("usd", 0.25)
        return [*got, self.pay("the last")]

    def hide(self) -> list[object]:
        """The same with arguments that no event shows."""
        return [self.pay({"password": "swordfish", "on": DAY}), self.pay("the last")]

    def send(self) -> list[object]:
        """Calls that leave out what has a default, or say it."""
        parcels: list[object] = [self.ship("tea"), self.ship("tea", True), self.ship("cup", express=False)]
        return [*parcels, self.pay("the last")]

    def think(self, about: int) -> tuple[int, int]:
        """A step."""
        self.made.append(("think", about))
        return (about, about)

    def _pay(self, amount: Any) -> dict[str, str]:
        self.made.append(amount)
        if amount == self._cut_off:
            raise KeyboardInterrupt
        return {"paid": repr(amount)}

    def _bill(self, number: int) -> list[Any]:
        self.made.append(("bill", number))
        return [number, self.pay(number)]

    def _refuse(self, what: str) -> None:
        self.made.append(("refuse", what))
        raise ValueError(f"no {what}")

    def _ship(self, item: str, express: bool = False) -> str:
        self.made.append((item, express))
        return f"{item}, {express}"

    def _parts(self, count: int) -> Iterator[int]:
        self.made.append(("parts", count))
        yield from range(count)


def leave(path: str) -> None:
    """Leave interrupted runs in a new file."""
    with holdfast.open(path) as hf:
        desk = Desk(hf, "the last")
        with suppress(KeyboardInterrupt), hf.run(run_id=RUN_ID) as run:
            desk.work(run)
        with suppress(KeyboardInterrupt), hf.run(run_id=HIDDEN_ID):
            desk.hide()
        with suppress(KeyboardInterrupt), hf.run(run_id=SPARED_ID):
            desk.send()


if __name__ == "__main__":
    leave(sys.argv[1])
