"""Shows the race: live on a terminal, slowed down to what the eye can follow; as plain lines, at once, elsewhere."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from rich.console import Console
from rich.live import Live

from holdfast.clock import SystemClock
from holdfast.demo.journal import Line, Tone
from holdfast.demo.race import Race, Report
from holdfast.demo.view import frame

FRAMES: Final = 12  # a second
SPEED: Final = 4.0  # seconds of the demo's clock in one of the viewer's
FORWARD: Final = 20.0  # the same, once only the bare agent is at work
BOTH: Final = "the same agent twice, in the same flaky world"
SKIP: Final = 1.0  # seconds of the demo's clock between two frames where nobody wants to wait


async def watch(seed: int, console: Console, *, fast: bool) -> Report:
    """Show the race live on a terminal; *fast* does not slow it down."""
    race = Race(seed)
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        pacing = asyncio.create_task(_pace(race, live, fast))
        try:
            report = await race.run()
        finally:
            pacing.cancel()
            with suppress(asyncio.CancelledError):
                await pacing
        _paint(race, live, "both are done")
    return report


async def tell(seed: int, console: Console) -> Report:
    """Tell what happens in plain lines, as fast as it goes."""

    def say(line: Line) -> None:
        if line.tone is not Tone.MINOR:
            times = f" ({line.times} ×)" if line.times > 1 else ""
            console.out(f"{line.at:6.1f} s  {line.who:<12} {line.text}{times}", highlight=False)

    race = Race(seed, on_line=say)
    trips = len(race.guarded.progress)
    console.out(f"An agent plans {trips} trips with flaky tools, twice: bare, and guarded by Holdfast.")
    return await race.run()


async def _pace(race: Race, live: Live, fast: bool) -> None:
    """Hold the race's clock back while the viewer looks at a frame."""
    eye = SystemClock()
    while True:
        speed = SPEED if race.guarded.finished_at is None else FORWARD
        await race.clock.asleep(SKIP if fast else speed / FRAMES)
        note = BOTH if speed == SPEED else "the bare agent is still at work"
        _paint(race, live, note if fast else f"{note}, {speed:g} × speed")
        if not fast:
            with race.clock.busy():
                await eye.asleep(1 / FRAMES)


def _paint(race: Race, live: Live, note: str) -> None:
    width, height = live.console.size
    live.update(frame(race, width, height, note), refresh=True)
