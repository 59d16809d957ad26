"""What the tests of the page's server have other processes do: `python children.py COMMAND PATH …`."""

from __future__ import annotations

import asyncio
import sys

import holdfast


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def waits(path: str, run_id: str) -> None:
    """Be in a run that goes on until it is cancelled; says how it ended."""
    async with holdfast.open(path, policies={}) as hf:

        @hf.tool("hang")
        async def hang() -> None:
            say("hanging")
            await asyncio.Event().wait()

        try:
            async with hf.run(run_id=run_id, session="waiting", prompt="wait"):
                await hang()
        except holdfast.RunCancelled as error:
            say("cancelled", error.reason)


if __name__ == "__main__":
    asyncio.run(waits(*sys.argv[2:]))
