"""A travel office as an MCP server on standard input and output, in plain Python. It crashes, hangs, is down for a
while and answers 429; it knows nothing of guards.

It writes what it is asked to a file, one line each, so that calls can be counted. What it does next follows from these
lines, so that a restarted office goes on where the last one crashed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from random import Random
from typing import Any, Final, NoReturn

from holdfast.clock import SystemClock
from holdfast.parts.limiters import RateLimiter

HANG: Final = 60.0  # seconds for which a question about the night train hangs
CRASHES: Final = "Reykjavik"  # asking for its weather crashes the office every other time
NIGHT: Final = "the night train"
DOWN: Final = 3  # of every OF questions, visa_rules cannot answer the first DOWN
OF: Final = 12

TOOLS: Final = ("weather", "trains", "visa_rules", "exchange_rate", "pay_invoice", "find_payment")


class Failed(Exception):
    """A tool's failure; its text is told in place of an answer."""


class Office:
    """The tools, each a method of its name; *ledger* is the file in which they write."""

    def __init__(self, ledger: str) -> None:
        self._ledger = ledger
        self._rates = RateLimiter(per_second=4, burst=4)
        self.note("started")

    def note(self, line: str) -> int:
        """Write a line; gives how many there are now that say the same."""
        with open(self._ledger, "a+", encoding="utf-8") as file:
            file.write(f"{line}\n")
            file.flush()
            file.seek(0)
            return file.read().splitlines().count(line)

    def call(self, tool: str, subject: str) -> str:
        """The answer of *tool*."""
        times = self.note(f"{tool} {subject}")
        SystemClock.sleep(Random(f"{tool} {subject} {times}").uniform(0.01, 0.12))
        answer: str = getattr(self, tool)(subject, times)
        return answer

    def weather(self, city: str, times: int) -> str:
        """The weather in a city."""
        if city == CRASHES and times % 2:
            _crash("out of memory")
        return f"{Random(city).randrange(-5, 30)} °C in {city}"

    def trains(self, train: str, times: int) -> str:
        """When a train leaves."""
        if train == NIGHT:
            SystemClock.sleep(HANG)
        return f"{train} leaves at {Random(train).randrange(5, 23)}:40"

    def visa_rules(self, country: str, times: int) -> str:
        """Who may enter a country."""
        if (self.note("asked for visa rules") - 1) % OF < DOWN:
            raise Failed("503 Service Unavailable")
        return f"nobody needs a visa for {country}"

    def exchange_rate(self, currency: str, times: int) -> str:
        """What a currency is worth."""
        if self._rates.try_acquire("all"):
            self.note("429")
            raise Failed("429 Too Many Requests, retry after 0.5 s")
        return f"1 USD is {Random(currency).uniform(0.5, 20):.2f} {currency}"

    def pay_invoice(self, number: str, times: int) -> str:
        """Pay an invoice."""
        self.note(f"paid {number}")
        if number.endswith("7"):
            _crash("the connection to the bank is gone")
        return f"invoice {number} is paid"

    def find_payment(self, number: str, times: int) -> str:
        """Whether an invoice is paid."""
        with open(self._ledger, encoding="utf-8") as file:
            return "paid" if f"paid {number}" in file.read().splitlines() else "not paid"


def _crash(why: str) -> NoReturn:
    sys.stderr.write(f"fatal: {why}\n")
    sys.stderr.flush()
    os._exit(1)


# -- MCP ---------------------------------------------------------------------------------------------------------------


def serve(office: Office) -> None:
    """Answer requests, one JSON object per line, until there are no more."""
    for line in sys.stdin.buffer:
        frame = json.loads(line)
        method, id, params = frame.get("method"), frame.get("id"), frame.get("params") or {}
        if method == "tools/call":  # in a thread: a call that hangs does not block the others
            threading.Thread(target=_call, args=(office, id, params), daemon=True).start()
        elif id is not None:
            _answer(id, _about(method, params))


def _about(method: str, params: Mapping[str, Any]) -> dict[str, object]:
    if method == "initialize":
        info = {"name": "travel office", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        schema = {"type": "object", "properties": {"subject": {"type": "string"}}, "required": ["subject"]}
        return {
            "tools": [
                {
                    "name": name,
                    "description": getattr(Office, name).__doc__,
                    "inputSchema": schema,
                    "annotations": {"readOnlyHint": name != "pay_invoice"},
                }
                for name in TOOLS
            ]
        }
    return {}


def _call(office: Office, id: object, params: Mapping[str, Any]) -> None:
    try:
        text, failed = office.call(params["name"], params["arguments"]["subject"]), False
    except Failed as error:
        text, failed = str(error), True
    _answer(id, {"content": [{"type": "text", "text": text}], "isError": failed})


def _answer(id: object, result: Mapping[str, object]) -> None:
    # One write, short enough for a pipe to keep it together, so that threads do not mix their lines.
    os.write(1, json.dumps({"jsonrpc": "2.0", "id": id, "result": result}).encode() + b"\n")


if __name__ == "__main__":
    serve(Office(sys.argv[1]))
