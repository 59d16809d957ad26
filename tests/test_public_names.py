"""What users may import: the names of the contract are all there, listed in order, and say what they are for."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from types import FunctionType, ModuleType

import pytest

import holdfast

CONTRACT = {
    "holdfast": {
        # time
        "Clock", "SystemClock",
        # errors
        "BudgetExceeded", "CircuitOpen", "ConcurrencyFull", "ConfigError", "Denied", "ErrorCategory", "HoldfastError",
        "LoopDetected", "RateLimited", "ToolTimeout", "classify", "retry_after",
        # circuit breaker
        "BreakerConfig", "BreakerSnapshot", "CircuitBreaker", "CircuitDiagnostics", "CircuitState", "Permit",
        # limiters
        "AdaptiveRateLimiter", "Priority", "RateLimiter",
        # tracker
        "ExecutionRecord", "ExecutionStats", "ExecutionStatus", "ExecutionTracker",
        # facade
        "CallOutcome", "ToolResilience", "default_resilience",
        # everything together
        "Holdfast", "open",
    },
    "holdfast.testing": {"ManualClock"},
}  # fmt: skip
NAMES = [(module, name) for module, names in CONTRACT.items() for name in sorted(names)]


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_a_name_of_the_contract_can_be_imported(module: str, name: str) -> None:
    assert hasattr(importlib.import_module(module), name)


def test_all_lists_every_name_of_the_contract() -> None:
    assert CONTRACT["holdfast"] - set(holdfast.__all__) == set()


def test_all_is_sorted_and_names_nothing_twice() -> None:
    assert list(holdfast.__all__) == sorted(set(holdfast.__all__))


def test_all_lists_nothing_that_is_not_there() -> None:
    missing = [name for name in holdfast.__all__ if not hasattr(holdfast, name)]

    assert missing == []


def test_all_lists_every_public_name_of_the_package() -> None:
    public = {
        name
        for name, value in vars(holdfast).items()
        if not name.startswith("_")
        and not isinstance(value, ModuleType)
        and name not in {"annotations", "TYPE_CHECKING"}
    }

    assert public - set(holdfast.__all__) == set()


def test_a_name_that_does_not_exist_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        getattr(holdfast, "no_such_name")  # noqa: B009 (a plain attribute is what mypy would refuse)


def test_dir_shows_every_public_name() -> None:
    assert set(holdfast.__all__) <= set(dir(holdfast))


def test_every_public_class_and_function_says_what_it_is_for() -> None:
    silent = [f"{module}.{name}" for module, name in NAMES if not documented(module, name)]

    assert silent == []


def test_every_public_method_says_what_it_is_for() -> None:
    silent = [f"{owner}.{method}" for owner, method, text in methods() if not text]

    assert silent == []


def documented(module: str, name: str) -> bool:
    text = getattr(importlib.import_module(module), name).__doc__
    return bool(text) and not text.startswith(f"{name}(")  # what records generate for themselves says nothing


def methods() -> Iterator[tuple[str, str, str | None]]:
    for module, name in NAMES:
        owner = getattr(importlib.import_module(module), name)
        if not inspect.isclass(owner):
            continue
        for method, value in vars(owner).items():
            function = getattr(value, "__func__", value)  # behind classmethod and staticmethod
            if not method.startswith("_") and isinstance(function, FunctionType | property):
                yield f"{module}.{name}", method, function.__doc__
