"""The agent that is tortured: forty tool calls of every kind and shape, as plain code and as tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Final

from holdfast.app import Holdfast
from holdfast.torture.desk import Declined, Desk, Receipt, alast, last

ROUNDS: Final = 3
TWINS: Final = 3  # calls with the same arguments
STEP: Final = "think"

POLICIES: Final[Mapping[str, Mapping[str, object]]] = {
    "look_up": {"read_only": True},
    "notify": {"idempotent": True},
    "flaky": {"idempotent": True, "retry": {"attempts": 3, "initial": 0.001, "max": 0.002, "budget": 0}},
    "bundle": {"idempotent": True},  # calls others
    "pages": {"read_only": True},  # a stream
    "charge": {},
    "order": {},  # calls others
    "reject": {},
    "decline": {},
    "publish": {},  # a stream
    "stamp": {},  # a plain function for tasks
}
REPEATABLE: Final = frozenset({STEP, *(name for name, policy in POLICIES.items() if policy)})

Tool = Callable[[str], Receipt]
AsyncTool = Callable[[str], Awaitable[Receipt]]


class Plain:
    """The agent as plain code."""

    def __init__(self, hf: Holdfast, desk: Desk) -> None:
        def make(name: str, fn: Tool) -> Tool:
            return hf.tool(name, breaker=False, **POLICIES[name])(fn)

        def nest(label: str, tool: str) -> Receipt:
            key = desk.begin(tool, label)
            desk.settle(lambda: self.charge(f"{label} {tool}"))
            desk.settle(lambda: self.notify(f"{label} {tool}"))
            return desk.end(tool, label, desk.effect(tool, label, key))

        def order(label: str) -> Receipt:
            return nest(label, "order")

        def bundle(label: str) -> Receipt:
            return nest(label, "bundle")

        self._desk = desk
        self.look_up = make("look_up", _acting(desk, "look_up"))
        self.notify = make("notify", _acting(desk, "notify"))
        self.charge = make("charge", _acting(desk, "charge"))
        self.order = make("order", order)
        self.bundle = make("bundle", bundle)
        self.reject = make("reject", _refusing(desk, "reject", ValueError))
        self.decline = make("decline", _refusing(desk, "decline", Declined))
        self.flaky = make("flaky", _stumbling(desk, "flaky"))
        self.pages = hf.tool("pages", **POLICIES["pages"])(_paging(desk, "pages"))
        self.publish = hf.tool("publish", **POLICIES["publish"])(_paging(desk, "publish"))

    def work(self, rounds: int = ROUNDS) -> str:
        """Do everything *rounds* times; the result depends on nothing else."""
        return "\n".join(value for number in range(rounds) for value in self._round(str(number)))

    def _round(self, n: str) -> Iterator[str]:
        desk, settle = self._desk, self._desk.settle
        yield settle(lambda: self.look_up(n))
        yield settle(lambda: self.charge(n))
        yield settle(lambda: self.notify(n))
        yield settle(lambda: desk.run.step(STEP, _acting(desk, STEP), n))
        for _ in range(TWINS):
            yield settle(lambda: self.charge(f"{n} again"))
        desk.report(int(n))
        yield settle(lambda: self.order(n))
        yield settle(lambda: self.reject(n))
        yield settle(lambda: self.bundle(n))
        yield settle(lambda: self.decline(n))
        yield settle(lambda: self.flaky(n))
        yield settle(lambda: last(self.pages(n)))
        yield settle(lambda: last(self.publish(n)))


class Tasks:
    """The agent as tasks: what it can do at once, it does at once."""

    def __init__(self, hf: Holdfast, desk: Desk) -> None:
        def make(name: str, fn: AsyncTool) -> AsyncTool:
            return hf.tool(name, breaker=False, **POLICIES[name])(fn)

        async def nest(label: str, tool: str) -> Receipt:
            key = desk.begin(tool, label)
            await asyncio.gather(
                desk.asettle(lambda: self.charge(f"{label} {tool}")),
                desk.asettle(lambda: self.notify(f"{label} {tool}")),
            )
            return desk.end(tool, label, desk.effect(tool, label, key))

        async def order(label: str) -> Receipt:
            return await nest(label, "order")

        async def bundle(label: str) -> Receipt:
            return await nest(label, "bundle")

        self._hf = hf
        self._desk = desk
        self.look_up = make("look_up", _aacting(desk, "look_up"))
        self.notify = make("notify", _aacting(desk, "notify"))
        self.charge = make("charge", _aacting(desk, "charge"))
        self.order = make("order", order)
        self.bundle = make("bundle", bundle)
        self.reject = make("reject", _arefusing(desk, "reject", ValueError))
        self.decline = make("decline", _arefusing(desk, "decline", Declined))
        self.flaky = make("flaky", _astumbling(desk, "flaky"))
        self.stamp = hf.tool("stamp", **POLICIES["stamp"])(_acting(desk, "stamp"))
        self.pages = hf.tool("pages", **POLICIES["pages"])(_apaging(desk, "pages"))
        self.publish = hf.tool("publish", **POLICIES["publish"])(_apaging(desk, "publish"))

    async def work(self, rounds: int = ROUNDS) -> str:
        """Do everything *rounds* times; the result depends on nothing else."""
        return "\n".join([value for number in range(rounds) for value in await self._round(str(number))])

    async def _round(self, n: str) -> list[str]:
        desk, settle = self._desk, self._desk.asettle
        values = [await settle(lambda: self.look_up(n)), await settle(lambda: self.charge(n))]
        values += await asyncio.gather(
            settle(lambda: self.notify(n)),
            settle(lambda: desk.run.astep(STEP, _aacting(desk, STEP), n)),
            *(settle(lambda: self.charge(f"{n} again")) for _ in range(TWINS)),
            settle(lambda: self.order(n)),
            settle(lambda: self.bundle(n)),
            settle(lambda: asyncio.to_thread(self.stamp, n)),
            settle(lambda: self._hf.acall(self.stamp, f"{n} again")),
            settle(lambda: alast(self.pages(n))),
        )
        await desk.areport(int(n))
        values += [await settle(lambda: self.reject(n)), await settle(lambda: self.decline(n))]
        values += [await settle(lambda: self.flaky(n)), await settle(lambda: alast(self.publish(n)))]
        return values


# -- what tools are made of --------------------------------------------------------------------------------------------


def _acting(desk: Desk, name: str) -> Tool:
    def tool(label: str) -> Receipt:
        return desk.act(name, label)

    return tool


def _aacting(desk: Desk, name: str) -> AsyncTool:
    async def tool(label: str) -> Receipt:
        key = desk.begin(name, label)
        await asyncio.sleep(0)
        receipt = desk.effect(name, label, key)
        await asyncio.sleep(0)
        return desk.end(name, label, receipt)

    return tool


def _refusing(desk: Desk, name: str, kind: type[Exception]) -> Tool:
    def tool(label: str) -> Receipt:
        raise desk.refusal(name, label, kind)

    return tool


def _arefusing(desk: Desk, name: str, kind: type[Exception]) -> AsyncTool:
    async def tool(label: str) -> Receipt:
        raise desk.refusal(name, label, kind)

    return tool


def _stumbling(desk: Desk, name: str) -> Tool:
    def tool(label: str) -> Receipt:
        desk.stumble(name, label)
        return desk.act(name, label)

    return tool


def _astumbling(desk: Desk, name: str) -> AsyncTool:
    async def tool(label: str) -> Receipt:
        desk.stumble(name, label)
        return desk.act(name, label)

    return tool


def _paging(desk: Desk, name: str) -> Callable[[str], Iterator[Receipt]]:
    def tool(label: str) -> Iterator[Receipt]:
        key = desk.begin(name, label)
        yield {"key": key, "value": "title"}
        receipt = desk.effect(name, label, key)
        yield receipt
        desk.end(name, label, receipt)

    return tool


def _apaging(desk: Desk, name: str) -> Callable[[str], AsyncIterator[Receipt]]:
    async def tool(label: str) -> AsyncIterator[Receipt]:
        key = desk.begin(name, label)
        yield {"key": key, "value": "title"}
        receipt = desk.effect(name, label, key)
        yield receipt
        desk.end(name, label, receipt)

    return tool
