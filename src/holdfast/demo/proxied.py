"""The third scene: an MCP server that crashes, hangs, is down and answers 429, behind `holdfast wrap`.

All of it is real. The client sees answers only; what really reached the server is counted in the server's own file.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from rich.padding import Padding
from rich.text import Text

from holdfast.clock import SystemClock
from holdfast.demo.client import Client, Reply, asked, wrapped
from holdfast.demo.office import CRASHES, DOWN, HANG, NIGHT
from holdfast.demo.stage import INDENT, Played, Saving, Stage

INVOICE: Final = "17"
CURRENCIES: Final = ("EUR", "JPY", "SEK", "BRL", "INR", "CHF", "NOK", "MXN", "PLN", "ZAR", "THB", "NZD")
COUNTRIES: Final = ("Japan", "Georgia", "Peru", "Norway", "Estonia", "Mexico", "Portugal", "Chile", "Kenya")
CITIES: Final = ("Bergen", "Lisbon", "Kyoto")
AGAIN: Final = 0.5  # seconds between two calls while the circuit does not let a probe through


async def scene(stage: Stage, folder: Path) -> Played:
    """Have a client call tools that do not work, and tell what happens."""
    async with wrapped(folder) as client:
        reply = await client.call("weather", CRASHES)
        _say(stage, "weather", f"crashes the server: restarted, asked again, {_outcome(reply)}", reply)
        in_doubt = await _pay(stage, client)
        reply = await client.call("trains", NIGHT)
        _say(stage, "trains", f"hangs for {HANG:g} s: the model is told at the deadline", reply)
        refused = await _wear_out(stage, client)
        paced = await _hurry(stage, client, folder)
        await _recover(stage, client)
    lines = asked(folder)
    paid = [line for line in lines if line.startswith("paid ")]
    proxied = {
        "crashes": lines.count("started") - 1,  # crashes of the server, which was restarted after each
        "repeated": lines.count(f"weather {CRASHES}") - 1,  # calls that could be repeated, since they only read
        "in_doubt": in_doubt,  # payments whose outcome was unknown
        "paid": len(set(paid)),
        "paid_twice": len(paid) - len(set(paid)),
        "refused": refused,  # calls to a tool that was down, which were refused instead of made
        "paced": paced,  # calls that were answered although there were too many at once
        "too_many": lines.count("429"),  # 429 answers meanwhile
    }
    twice = in_doubt - proxied["paid_twice"]
    saved = {Saving.CALLS: refused, Saving.TWICE: twice, Saving.CRASHES: proxied["crashes"]}
    return Played({"proxied": proxied}, saved)


async def _pay(stage: Stage, client: Client) -> int:
    """Pay an invoice like a careful agent, which looks before it pays again; return how many were in doubt."""
    payment = await client.call("pay_invoice", INVOICE)
    if not payment.unknown:
        _say(stage, "pay_invoice", _outcome(payment), payment)
        return 0
    _say(stage, "pay_invoice", "crashes the server: not repeated, it may have been paid", payment)
    found = await client.call("find_payment", INVOICE)
    _say(stage, "find_payment", f"{found.text}: the agent does not pay again", found)
    return 1


async def _wear_out(stage: Stage, client: Client) -> int:
    """Call a tool that is down until its circuit opens, and go on calling; return how many calls were refused."""
    for country in COUNTRIES[:DOWN]:
        broken = await client.call("visa_rules", country)
    _say(stage, "visa_rules", f"fails {DOWN} times ({broken.text}): its circuit opens")
    replies = [await client.call("visa_rules", country) for country in COUNTRIES[DOWN:-1]]
    refused = sum(reply.refused for reply in replies)
    _say(stage, "visa_rules", f"{refused} calls are refused, not made; the model reads:", replies[-1])
    stage.out.print(Padding(Text(replies[-1].text, style="italic"), (0, 6, 0, INDENT + 17)))
    others = await asyncio.gather(*(client.call("weather", city) for city in CITIES))
    answered = sum(not reply.failed for reply in others)
    _say(stage, "weather", f"{answered} calls are answered meanwhile", *others)
    return refused


async def _hurry(stage: Stage, client: Client, folder: Path) -> int:
    """Call more often than is allowed; return how many calls were answered."""
    replies = await asyncio.gather(*(client.call("exchange_rate", currency) for currency in CURRENCIES))
    paced = sum(not reply.failed for reply in replies)
    too_many = asked(folder).count("429")
    text = f"{len(replies)} at once, {too_many} × 429: slowed down, {paced} answered"
    _say(stage, "exchange_rate", text, *replies)
    return paced


async def _recover(stage: Stage, client: Client) -> None:
    """Call the tool that was down until its circuit lets a probe through."""
    while (reply := await client.call("visa_rules", COUNTRIES[-1])).refused:
        await SystemClock().asleep(AGAIN)
    _say(stage, "visa_rules", f"rested; one call is let through as a probe: {_outcome(reply)}", reply)


def _outcome(reply: Reply) -> str:
    return "no answer" if reply.failed else "answered"


def _say(stage: Stage, tool: str, what: str, *replies: Reply) -> None:
    """Tell what happened to *tool*, and how long the slowest of *replies* took."""
    line = Text(f"{'':{INDENT}}{tool:<15}", style="bold", no_wrap=True, overflow="ellipsis")
    line.append(f"{what:<55}" if replies else what, style="not bold")
    if replies:
        line.append(f"{max(reply.seconds for reply in replies):5.1f} s", style="not bold dim")
    stage.out.print(line)
