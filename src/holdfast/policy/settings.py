"""What a policy is. Each record is checked when it is made, so that code that holds one need not check again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from holdfast import checks
from holdfast.errors import ConfigError
from holdfast.guards.breaking import BreakerConfig
from holdfast.guards.budget import check_budget
from holdfast.guards.concurrency import ConcurrencyConfig
from holdfast.guards.loop import LoopConfig
from holdfast.guards.rate import Priority, RateConfig
from holdfast.guards.retry import RetryConfig

MODES: Final = ("exact", "leased", "view")


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Answers are kept for *ttl* seconds, at most *max_entries* of them."""

    ttl: float
    max_entries: int = 1024

    def __post_init__(self) -> None:
        checks.number("ttl", self.ttl, above=0)
        checks.whole("max_entries", self.max_entries)


class Fallback(msgspec.Struct, frozen=True, kw_only=True):
    """What answers instead of a tool that cannot answer: another *tool*, or a fixed *value*; exactly one of them."""

    tool: str | None = None
    value: object = msgspec.UNSET

    def __post_init__(self) -> None:
        tool: object = self.tool
        if (tool is None) == (self.value is msgspec.UNSET):
            raise ConfigError(f"tool = {checks.shown(tool)}: must be given, or else value; exactly one of them")
        if tool is not None and (not isinstance(tool, str) or not tool):
            raise ConfigError(f"tool = {checks.shown(tool)}: must be the name of a tool")


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of one tool, as they apply: None means that there is no such guard."""

    timeout: float | None = None
    deadline: float | None = None
    max_wait: float = 5.0
    priority: Priority = Priority.NORMAL
    read_only: bool = False
    idempotent: bool = False
    concurrency: ConcurrencyConfig | None = None
    rate: RateConfig | None = None
    breaker: BreakerConfig | None = BreakerConfig()
    retry: RetryConfig | None = None
    cache: CacheConfig | None = None
    loop: LoopConfig | None = LoopConfig()
    budget: Mapping[str, float] = {}
    fallback: Fallback | None = None
    remember: bool = True
    mode: str = "exact"

    def __post_init__(self) -> None:
        if self.timeout is not None:
            checks.number("timeout", self.timeout, above=0)
        if self.deadline is not None:
            checks.number("deadline", self.deadline, above=0)
        checks.number("max_wait", self.max_wait, least=0)
        checks.choice("priority", self.priority, [*Priority])
        checks.flag("read_only", self.read_only)
        checks.flag("idempotent", self.idempotent)
        checks.flag("remember", self.remember)
        checks.choice("mode", self.mode, MODES)
        check_budget(self.budget)
        if self.rate is not None and self.priority.cost > self.rate.capacity:
            raise ConfigError(
                f"priority = {checks.shown(self.priority.value)}: costs {self.priority.cost:g}, "
                f"more than rate.burst, which is {self.rate.capacity:g}; it could never be called"
            )
