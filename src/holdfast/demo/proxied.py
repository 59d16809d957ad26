"""The third scene: an MCP server that crashes, hangs, is down and answers 429, behind `holdfast wrap`.

All of it is real. The client sees answers only; what really reached the server is counted in the server's own file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from holdfast.clock import Clock, SystemClock
from holdfast.demo.client import Client, Reply, asked
from holdfast.demo.office import CRASHES, DOWN, HANG, NIGHT

INVOICE: Final = "17"
CURRENCIES: Final = ("EUR", "JPY", "SEK", "BRL", "INR", "CHF", "NOK", "MXN", "PLN", "ZAR", "THB", "NZD")
COUNTRIES: Final = ("Japan", "Georgia", "Peru", "Norway", "Estonia", "Mexico", "Portugal", "Chile", "Kenya")
MEANWHILE: Final = ("Bergen", "Lisbon", "Kyoto")
MARGIN: Final = 0.1  # seconds after which a circuit surely lets a probe through

Say = Callable[[str, str, float | None], object]  # a tool, what happened, the seconds that it took


class Proxied(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the calls: by the answers that the client got, and by the server's own file."""

    crashes: int  # of the server; it was started again after each
    repeated: int  # calls that were made again for the client, since they only read
    in_doubt: int  # payments of which nobody knew whether they were made
    paid: int
    paid_twice: int
    hung: int  # calls that were answered at their deadline
    waited: float  # seconds for these
    failed: int  # calls that the broken tool answered with an error
    refused: int  # calls that were not made to it
    meanwhile: int  # calls of other tools that were answered while it was refused
    paced: int  # calls that were answered although there were too many of them
    too_many: int  # 429 answers on the way there
    recovered: int  # calls that the broken tool answered again


async def scene(client: Client, folder: Path, say: Say, clock: Clock | None = None) -> Proxied:
    """Have *client* call what does not work, and tell what comes of it."""
    clock = clock or SystemClock()
    again = await client.call("weather", CRASHES)
    say("weather", f"crashes the server: restarted, asked again, {_outcome(again)}", again.seconds)
    in_doubt = await _pay(client, say)
    hung = await client.call("trains", NIGHT)
    say("trains", f"hangs for {HANG:g} s: the model is told at the deadline", hung.seconds)
    broken = [await client.call("visa_rules", country) for country in COUNTRIES[:DOWN]]
    say("visa_rules", f"fails {len(broken)} times ({broken[-1].text}): its circuit opens", None)
    refused = [await client.call("visa_rules", country) for country in COUNTRIES[DOWN:-1]]
    wait = clock.monotonic() + refused[-1].facts.get("retry_after_ms", 0) / 1000 + MARGIN
    refusals = [reply for reply in refused if reply.refused]
    say("visa_rules", f"{len(refusals)} calls are refused, not made; the model reads:", refused[-1].seconds)
    say("", refused[-1].text, None)
    others = await asyncio.gather(*(client.call("weather", city) for city in MEANWHILE))
    meanwhile = sum(not reply.failed for reply in others)
    say("weather", f"{meanwhile} calls are answered meanwhile", max(reply.seconds for reply in others))
    rates = await asyncio.gather(*(client.call("exchange_rate", currency) for currency in CURRENCIES))
    paced, too_many = sum(not reply.failed for reply in rates), asked(folder).count("429")
    took = max(reply.seconds for reply in rates)
    say("exchange_rate", f"{len(rates)} at once, {too_many} × 429: slowed down, {paced} answered", took)
    await clock.asleep(max(0.0, wait - clock.monotonic()))
    probe = await client.call("visa_rules", COUNTRIES[-1])
    say("visa_rules", f"rested; one call is let through as a probe: {_outcome(probe)}", probe.seconds)
    lines = asked(folder)
    paid = [line for line in lines if line.startswith("paid ")]
    return Proxied(
        crashes=lines.count("started") - 1,
        repeated=lines.count(f"weather {CRASHES}") - 1,
        in_doubt=in_doubt,
        paid=len(set(paid)),
        paid_twice=len(paid) - len(set(paid)),
        hung=int(hung.failed),
        waited=hung.seconds,
        failed=sum(reply.failed and not reply.refused for reply in broken),
        refused=len(refusals),
        meanwhile=meanwhile,
        paced=paced,
        too_many=too_many,
        recovered=int(not probe.failed),
    )


async def _pay(client: Client, say: Say) -> int:
    """Pay an invoice, as a careful agent does: look before it pays again."""
    payment = await client.call("pay_invoice", INVOICE)
    if not payment.unknown:
        say("pay_invoice", _outcome(payment), payment.seconds)
        return 0
    say("pay_invoice", "crashes the server: not repeated, it may have been paid", payment.seconds)
    found = await client.call("find_payment", INVOICE)
    say("find_payment", f"{found.text}: the agent does not pay again", found.seconds)
    if found.text == "not paid":
        await client.call("pay_invoice", INVOICE)
    return 1


def _outcome(reply: Reply) -> str:
    return "no answer" if reply.failed else "answered"
