"""The agent that is tortured: forty tool calls of every kind and shape."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import partial
from typing import Any, Final

from holdfast.app import Holdfast
from holdfast.torture.desk import STREAMS, Declined, Desk, Receipt
from holdfast.torture.shapes import Shape

ROUNDS: Final = 3
TWINS: Final = 3  # parallel calls with the same arguments
STEP: Final = "think"

POLICIES: Final[Mapping[str, Mapping[str, object]]] = {
    "look_up": {"read_only": True},
    "notify": {"idempotent": True},
    "flaky": {"idempotent": True, "retry": {"attempts": 3, "initial": 0.001, "max": 0.002, "budget": 0}},
    "bundle": {"idempotent": True},  # calls other tools
    "pages": {"read_only": True},  # a stream
    "charge": {},
    "order": {},  # calls other tools
    "reject": {},
    "decline": {},
    "publish": {},  # a stream
    "stamp": {},  # a plain function, even if the agent runs as tasks
}
REPEATABLE: Final = frozenset({STEP, *(name for name, policy in POLICIES.items() if policy)})


class Agent:
    """Works at *desk*, as plain code or as tasks, as *shape* says."""

    def __init__(self, hf: Holdfast, desk: Desk, shape: Shape) -> None:
        self._hf = hf
        self._desk = desk
        self._shape = shape
        bodies: Mapping[str, Callable[[str, str], Coroutine[Any, Any, Receipt]]] = {
            "order": self._nest,
            "bundle": self._nest,
            "reject": partial(self._refuse, ValueError),
            "decline": partial(self._refuse, Declined),
            "flaky": self._stumble,
        }
        made = {name: shape.tool(partial(bodies.get(name, self._act), name)) for name in POLICIES}
        made |= {name: shape.stream(partial(self._page, name)) for name in STREAMS}
        made["stamp"] = lambda label: desk.act("stamp", label)
        self._think = shape.tool(partial(self._act, STEP))
        self._tools = {name: hf.tool(name, breaker=False, **POLICIES[name])(fn) for name, fn in made.items()}

    async def work(self, rounds: int = ROUNDS) -> str:
        """Do everything *rounds* times; the result depends on *rounds* alone."""
        return "\n".join([value for number in range(rounds) for value in await self._round(str(number))])

    async def _round(self, n: str) -> list[str]:
        desk, shape, call, stamp = self._desk, self._shape, self._call, self._tools["stamp"]
        values = [await call("look_up", n), await call("charge", n)]
        values += await shape.together(
            call("notify", n),
            desk.settle(lambda: shape.do(desk.run, "step", STEP, self._think, n)),
            *(call("charge", f"{n} again") for _ in range(TWINS)),
            call("order", n),
            call("bundle", n),
            desk.settle(lambda: shape.in_thread(stamp, n)),
            desk.settle(lambda: shape.do(self._hf, "call", stamp, f"{n} again")),
            call("pages", n),
        )
        await desk.report(int(n))
        return values + [await call(name, n) for name in ("reject", "decline", "flaky", "publish")]

    async def _call(self, tool: str, label: str) -> str:
        return await self._desk.settle(lambda: self._tools[tool](label))

    # -- bodies of the tools -------------------------------------------------------------------------------------------

    async def _act(self, tool: str, label: str) -> Receipt:
        key = self._desk.begin(tool, label)
        await self._shape.pause()
        receipt = self._desk.effect(tool, label, key)
        await self._shape.pause()
        return self._desk.end(tool, label, receipt)

    async def _nest(self, tool: str, label: str) -> Receipt:
        key = self._desk.begin(tool, label)
        await self._shape.together(*(self._call(each, f"{label} {tool}") for each in ("charge", "notify")))
        return self._desk.end(tool, label, self._desk.effect(tool, label, key))

    async def _refuse(self, kind: type[Exception], tool: str, label: str) -> Receipt:
        raise self._desk.refusal(tool, label, kind)

    async def _stumble(self, tool: str, label: str) -> Receipt:
        self._desk.stumble(tool, label)
        return self._desk.act(tool, label)

    def _page(self, tool: str, label: str) -> Iterator[Receipt]:
        key = self._desk.begin(tool, label)
        yield {"key": key, "value": "title"}
        receipt = self._desk.effect(tool, label, key)
        yield receipt
        self._desk.end(tool, label, receipt)
