"""Scenes with what only smolagents has."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from typing import Any

from smolagents import ActionStep, ChatMessage, CodeAgent, LogLevel, Model, Tool, ToolCallingAgent, tool
from smolagents.models import MessageRole
from tests.frameworks.agents.smolagents import Scripted
from tests.frameworks.play import Ask
from tests.frameworks.scenes import play

import holdfast
from holdfast.frameworks.smolagents import guard

ONCE = {"tool": {"pay": {"rate": {"per_second": 0.001, "burst": 1}, "max_wait": 0.0}}}


class Writer(Model):
    """A model that writes one piece of code after the other, and runs a test's before each."""

    def __init__(self, *codes: str, before: Callable[[], object] = lambda: None) -> None:
        super().__init__(model_id="writer")
        self._codes = iter(codes)
        self._before = before

    def generate(self, messages: list[ChatMessage], **_: Any) -> ChatMessage:
        self._before()
        return ChatMessage(MessageRole.ASSISTANT, f"<code>\n{next(self._codes)}\n</code>")


@tool
def pay(amount: int, to: str = "shop") -> str:
    """Pay an amount.

    Args:
        amount: how much
        to: whom
    """
    return f"paid {amount} to {to}"


class Whose(Tool):
    """Says which run it is called in."""

    name, description, inputs, output_type = "whose", "The run.", dict[str, Any](), "string"

    def __init__(self, hf: holdfast.Holdfast) -> None:
        super().__init__()
        self._hf = hf

    def forward(self) -> str:
        run = self._hf.current_run
        return "nobody's" if run is None else f"{run.id}'s"


def coder(tools: list[Tool], *codes: str, **settings: Any) -> CodeAgent:
    return CodeAgent(tools, Writer(*codes, **settings), verbosity_level=LogLevel.OFF)


def unlimited(tools: list[Tool], *codes: str) -> CodeAgent:
    """One whose code runs in no thread of its own."""
    return CodeAgent(tools, Writer(*codes), executor_kwargs={"timeout_seconds": None}, verbosity_level=LogLevel.OFF)


def started(hf: holdfast.Holdfast, run: str) -> list[Any]:
    return [each.payload["arguments"] for each in hf.runs.events(run) if each.type == "tool_started"]


# -- scenes ------------------------------------------------------------------------------------------------------------


def code(store: str) -> Any:
    with holdfast.open(store, policies={}) as hf:
        agent = coder(guard(hf, [Whose(hf), pay]), "pay(5, to='us')\npay(amount=6)\nfinal_answer(whose())")
        with hf.run(run_id="code"):
            said = agent.run("go")
        return said, started(hf, "code"), hf.runs.snapshot("code").tool_calls


def refused_code(store: str) -> Any:
    with holdfast.open(store, policies=ONCE) as hf:
        agent = coder(guard(hf, [pay]), "pay(1)", "bill = pay(2)\nprint(bill + ' and so on')", "final_answer('done')")
        agent.run("go")
        return [str(each.error) for each in agent.memory.steps if isinstance(each, ActionStep) and each.error]


def refused_call(store: str) -> Any:
    with holdfast.open(store, policies=ONCE) as hf:
        turns = [[Ask("pay", {"amount": 1})], [Ask("pay", {"amount": 2}), Ask("whose")]]
        agent = ToolCallingAgent(guard(hf, [pay, Whose(hf)]), Scripted(turns), verbosity_level=LogLevel.OFF)
        agent.run("go")
        return [each.observations for each in agent.memory.steps if isinstance(each, ActionStep)][1]


def shared(store: str) -> Any:
    """Agents with the same tools: in a run, in runs and in none while that goes on."""
    ask = "try:\n    said = whose()\nexcept Exception as error:\n    said = str(error)\nfinal_answer(said)"
    said: list[Any] = []
    with holdfast.open(store, policies={}) as hf:
        tools = guard(hf, [Whose(hf)])

        def others() -> None:
            with hf.run(run_id="limited"):
                said.append(coder(tools, ask).run("go"))
            with hf.run(run_id="unlimited"):
                said.append(unlimited(tools, ask).run("go"))
            said.append(Context().run(unlimited(tools, ask).run, "go"))

        with hf.run(run_id="outer"):
            said.append(coder(tools, ask, before=others).run("go"))
    return said


@dataclass
class Bill:
    amount: int


class Billing(Tool):
    """Gives an object."""

    name, description, output_type = "bill", "A bill.", "object"
    inputs = {"amount": {"type": "integer", "description": "how much"}}  # noqa: RUF012 - as smolagents has it

    def forward(self, amount: int) -> Bill:
        return Bill(amount)


def resumed(store: str) -> Any:
    """The object that a tool gave, in code that is run again after a crash."""

    def life(resume: bool) -> Any:
        with holdfast.open(store, policies={}) as hf:
            agent = coder(guard(hf, [Billing()]), "print(bill(5).amount)", "final_answer(bill(6).amount)")
            with hf.resume("resumed") if resume else hf.run(run_id="resumed"):
                said = agent.run("go")
                if not resume:
                    os._exit(9)
            return said, hf.runs.snapshot("resumed").tool_calls, len(started(hf, "resumed"))

    if not (child := os.fork()):
        life(resume=False)
    os.waitpid(child, 0)
    return life(resume=True)


def decorated(store: str) -> Any:
    with holdfast.open(store, policies={}) as hf:

        @tool
        @hf.tool("payment", rate={"per_second": 0.001, "burst": 1}, max_wait=0.0)
        def spend(amount: int) -> str:
            """Spend an amount.

            Args:
                amount: how much
            """
            return f"spent {amount}"

        turns = [[Ask("spend", {"amount": 1})], [Ask("spend", {"amount": 2})]]
        agent = ToolCallingAgent(guard(hf, [spend]), Scripted(turns), verbosity_level=LogLevel.OFF)
        agent.run("go")
        said = [each.observations for each in agent.memory.steps if isinstance(each, ActionStep)]
        stats = hf.tracker.stats("payment")
        return said, (stats.successful, stats.failed), list(hf.tracker.tools())


def bad(store: str) -> Any:
    with holdfast.open(store, policies={}) as hf:
        try:
            guard(hf, [print])
        except holdfast.ConfigError as error:
            return str(error)


SCENES = (
    resumed,  # first: it forks
    bad,
    code,
    decorated,
    refused_call,
    refused_code,
    shared,
)


if __name__ == "__main__":
    play(SCENES)
