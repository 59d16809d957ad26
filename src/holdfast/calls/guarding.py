"""Guards around a block of code instead of a function: one attempt, in a `with` or an `async with`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from types import TracebackType

from holdfast.calls.attempt import Attempt
from holdfast.calls.execution import Execution
from holdfast.calls.making import limiting
from holdfast.calls.subject import Subject
from holdfast.errors import ConfigError
from holdfast.runs import running
from holdfast.tools.kit import Kit
from holdfast.tools.tool import Tool
from holdfast.waiting.waits import apause, pause


class Guard:
    """A guarded block of code, entered by one caller at a time. It gives the attempt: call its `fail` if the block
    raises nothing although the tool failed.

    There is no retry, cache or fallback. Time limits hold only in `async with`: a plain block cannot be interrupted.
    """

    def __init__(self, kit: Kit, tool: Tool, policy: Mapping[str, object]) -> None:
        self._kit = kit
        self._tool = tool
        self._given = policy
        tool.override(policy)  # raises now if a setting is wrong
        self._free = [True]  # one item to pop: of two threads, only one gets it
        self._plain: AbstractContextManager[Attempt] | None = None
        self._async: AbstractAsyncContextManager[Attempt] | None = None

    def __enter__(self) -> Attempt:
        block = self._block()
        attempt = block.__enter__()
        self._plain = block
        return attempt

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._plain is not None:
            self._plain.__exit__(kind, error, traceback)

    async def __aenter__(self) -> Attempt:
        block = self._ablock()
        attempt = await block.__aenter__()
        self._async = block
        return attempt

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._async is not None:
            await self._async.__aexit__(kind, error, traceback)

    @contextmanager
    def _block(self) -> Iterator[Attempt]:
        with self._alone():
            execution = self._execution()
            try:
                with execution:
                    for wait in execution.lookup():
                        pause(self._kit.clock, wait)
                    for attempt in execution:
                        with attempt:
                            for wait in attempt.waits():
                                pause(self._kit.clock, wait)
                            with execution.inside():
                                yield attempt
            finally:
                for wait in execution.after():
                    pause(self._kit.clock, wait)

    @asynccontextmanager
    async def _ablock(self) -> AsyncIterator[Attempt]:
        with self._alone():
            execution = self._execution(as_task=True)
            try:
                with execution:
                    for wait in execution.lookup():
                        await apause(self._kit.clock, wait)
                    for attempt in execution:
                        with attempt:
                            for wait in attempt.waits():
                                await apause(self._kit.clock, wait)
                            with limiting(execution, attempt), execution.inside():
                                yield attempt
            finally:
                for wait in execution.after():
                    await apause(self._kit.clock, wait)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        try:
            self._free.pop()
        except IndexError:
            raise ConfigError(f"the guarded block of {self._tool.name!r} is in use: call hf.guard again") from None
        try:
            yield
        finally:
            self._free.append(True)

    def _execution(self, *, as_task: bool = False) -> Execution:
        policy = self._tool.override(self._given)  # read at each entry: it may have changed since the last one
        execution = Execution(self._kit, self._tool, policy, running(), Subject())
        execution.as_task = as_task
        return execution
