"""Policies from code: what the defaults are, how layers lie over each other, and what a mistake says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.category import ErrorCategory
from holdfast.errors import ConfigError
from holdfast.guards.breaking import BreakerConfig
from holdfast.guards.concurrency import ConcurrencyConfig
from holdfast.guards.loop import LoopConfig
from holdfast.guards.rate import Priority, RateConfig
from holdfast.guards.retry import RetryConfig
from holdfast.policy import CacheConfig, Fallback, Policy, PolicyBook
from holdfast.policy.layers import merge

KEYS = Policy.__struct_fields__


def resolve(
    document: Mapping[str, object] | None = None,
    tool: str = "search",
    decorator: Mapping[str, object] | None = None,
    call: Mapping[str, object] | None = None,
) -> Policy:
    return PolicyBook.load(document).resolve(tool, decorator, call)


def mistake(document: Mapping[str, object] | None = None, **arguments: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(document, **arguments)
    return str(caught.value)


class Unspeakable:
    """A value that cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


class Incomparable:
    """A value that cannot even be compared."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no")

    def __repr__(self) -> str:
        return "Incomparable()"


# --- defaults ---


def test_a_bare_tool_has_a_breaker_and_a_loop_guard_and_waits_five_seconds() -> None:
    policy = resolve()

    assert policy == Policy(breaker=BreakerConfig(), loop=LoopConfig(repeats=3, window=8), max_wait=5.0)


@pytest.mark.parametrize("key", ["timeout", "deadline", "concurrency", "rate", "retry", "cache", "fallback"])
def test_a_bare_tool_has_no(key: str) -> None:
    assert getattr(resolve(), key) is None


def test_a_bare_tool_has_no_budget() -> None:
    assert resolve().budget == {}


@pytest.mark.parametrize("mark", ["read_only", "idempotent"])
def test_a_tool_that_may_be_repeated_is_tried_three_times(mark: str) -> None:
    policy = resolve(decorator={mark: True})

    assert policy.retry == RetryConfig(attempts=3, initial=0.2, max=3.0, factor=2.0, budget=0.2)


def test_an_explicit_retry_applies_to_a_tool_that_is_not_marked() -> None:
    assert resolve(decorator={"retry": 5}).retry == RetryConfig(attempts=5)


def test_retry_false_stops_a_read_only_tool_from_being_repeated() -> None:
    assert resolve(decorator={"read_only": True, "retry": False}).retry is None


def test_defaults_of_the_process_lie_below_everything() -> None:
    book = PolicyBook.load({"policy": {"max_wait": 1.0}}, defaults={"deadline": 50.0, "max_wait": 9.0})

    policy = book.resolve("github.search")

    assert (policy.deadline, policy.max_wait) == (50.0, 1.0)


def test_a_mistake_in_the_defaults_of_the_process_is_told() -> None:
    with pytest.raises(ConfigError, match=r"defaults: deadline = -1: must be a number above 0, or false"):
        PolicyBook.load(None, defaults={"deadline": -1})


def test_whole_seconds_become_floats() -> None:
    policy = resolve(decorator={"timeout": 30, "deadline": 60, "max_wait": 2})

    assert [type(seconds) for seconds in (policy.timeout, policy.deadline, policy.max_wait)] == [float] * 3


def test_a_deadline_may_be_shorter_than_the_timeout() -> None:
    policy = resolve(decorator={"timeout": 30.0, "deadline": 10.0})

    assert (policy.timeout, policy.deadline) == (30.0, 10.0)


# --- shorthands ---


@pytest.mark.parametrize(
    ("key", "short", "meant"),
    [
        ("rate", "10/s", RateConfig(per_second=10.0)),
        ("rate", "90/m", RateConfig(per_second=1.5)),
        ("rate", " 1800 / h ", RateConfig(per_second=0.5)),
        ("rate", "2.5/s", RateConfig(per_second=2.5)),
        ("rate", {"per_second": 2.0, "burst": 4.0}, RateConfig(per_second=2.0, burst=4.0)),
        ("concurrency", 4, ConcurrencyConfig(limit=4)),
        ("concurrency", {"limit": 4, "adaptive": True}, ConcurrencyConfig(limit=4, adaptive=True)),
        ("retry", 5, RetryConfig(attempts=5)),
        ("retry", True, RetryConfig()),
        ("breaker", True, BreakerConfig()),
        ("breaker", {"trips": ["timeout"]}, BreakerConfig(trips=frozenset({ErrorCategory.TIMEOUT}))),
        ("breaker", BreakerConfig(failure_threshold=2), BreakerConfig(failure_threshold=2)),
        ("loop", True, LoopConfig()),
        ("loop", {"repeats": 2}, LoopConfig(repeats=2)),
        ("priority", "high", Priority.HIGH),
        ("priority", Priority.LOW, Priority.LOW),
        ("fallback", {"tool": "other"}, Fallback(tool="other")),
        ("fallback", {"value": None}, Fallback(value=None)),
        ("fallback", {"value": False}, Fallback(value=False)),
        ("fallback", Fallback(tool="other"), Fallback(tool="other")),
        ("fallback", Fallback(value=[]), Fallback(value=[])),
        ("budget", {"calls": 5, "usd": 0.5}, {"calls": 5, "usd": 0.5}),
        ("mode", "leased", "leased"),
        ("remember", False, False),
    ],
)
def test_a_setting_may_be_written_short_or_as_a_table_or_as_its_record(key: str, short: object, meant: object) -> None:
    assert getattr(resolve(decorator={key: short}), key) == meant


def test_a_number_is_a_cache_that_keeps_answers_for_so_many_seconds() -> None:
    assert resolve(decorator={"read_only": True, "cache": 60}).cache == CacheConfig(ttl=60, max_entries=1024)


# --- removing ---


@pytest.mark.parametrize("removal", [False, None])
@pytest.mark.parametrize(
    ("key", "given"),
    [
        ("timeout", 3.0),
        ("deadline", 3.0),
        ("concurrency", 3),
        ("rate", "3/s"),
        ("breaker", {"jitter": 0.0}),
        ("retry", 3),
        ("cache", 3),
        ("loop", {"repeats": 2}),
        ("fallback", {"value": 3}),
    ],
)
def test_false_removes_what_a_lower_layer_gave(key: str, given: object, removal: object) -> None:
    document = {"policy": {"read_only": True, key: given}}
    assert getattr(resolve(document), key) is not None

    policy = resolve(document, decorator={key: removal})

    assert getattr(policy, key) is None


@pytest.mark.parametrize("removal", [False, None])
def test_false_removes_a_budget(removal: object) -> None:
    policy = resolve({"policy": {"budget": {"calls": 3}}}, decorator={"budget": removal})

    assert policy.budget == {}


def test_false_removes_one_limit_of_a_budget() -> None:
    policy = resolve({"policy": {"budget": {"calls": 3, "usd": 1.0}}}, decorator={"budget": {"calls": False}})

    assert policy.budget == {"usd": 1.0}


def test_false_removes_a_field_that_a_table_can_do_without() -> None:
    policy = resolve({"policy": {"breaker": {"failure_rate": 0.5}}}, decorator={"breaker": {"failure_rate": False}})

    assert policy.breaker == BreakerConfig(failure_rate=None)


def test_a_higher_layer_brings_back_what_was_removed_with_its_defaults() -> None:
    policy = resolve(
        {"policy": {"breaker": {"failure_threshold": 2}}, "tool": {"search": {"breaker": True}}},
        decorator={"breaker": False},
    )

    assert policy.breaker == BreakerConfig()


def test_true_keeps_the_fields_that_a_lower_layer_gave() -> None:
    policy = resolve({"policy": {"breaker": {"failure_threshold": 2}}}, decorator={"breaker": True})

    assert policy.breaker == BreakerConfig(failure_threshold=2)


# --- the order of layers ---

LADDER: list[tuple[str, dict[str, Any]]] = [
    ("policies [policy]", {"policy": {"max_wait": 1.0}}),
    ("decorator", {}),
    ("policies [server.github]", {"server": {"github": {"max_wait": 3.0}}}),
    ('policies [server."github.eu"]', {"server": {"github.eu": {"max_wait": 4.0}}}),
    ('policies [tool."*"]', {"tool": {"*": {"max_wait": 5.0}}}),
    ('policies [tool."github.*"]', {"tool": {"github.*": {"max_wait": 6.0}}}),
    (
        'policies [server.github.tool."eu.s*"]',
        {"server": {"github": {"tool": {"eu.s*": {"max_wait": 7.0}}}}},
    ),
    ('policies [tool."github.eu.[a-z]earc?"]', {"tool": {"github.eu.[a-z]earc?": {"max_wait": 8.0}}}),
    ('policies [tool."github.eu.search"]', {"tool": {"github.eu.search": {"max_wait": 9.0}}}),
    ("call", {}),
]


def put_together(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """One document of all *parts*, the last one first, so that the order in it cannot be what decides."""
    document: dict[str, Any] = {}
    for part in reversed(parts):
        for section, table in part.items():
            for name, inner in table.items():
                into = document.setdefault(section, {}).setdefault(name, {} if isinstance(inner, dict) else inner)
                if isinstance(inner, dict):
                    into.update(inner)
    return document


@pytest.mark.parametrize("steps", range(len(LADDER) + 1))
def test_the_highest_layer_that_gives_a_setting_decides_it(steps: int) -> None:
    used = LADDER[:steps]
    names = [name for name, _ in used]
    book = PolicyBook.load(put_together([part for _, part in used]))
    decorator = {"max_wait": 2.0} if "decorator" in names else None
    call = {"max_wait": 10.0} if "call" in names else None

    policy = book.resolve("github.eu.search", decorator, call)
    origins = book.origins("github.eu.search", decorator, call)

    assert policy.max_wait == (float(steps) if steps else 5.0)
    assert origins["max_wait"] == (names[-1] if names else "default")


def test_of_patterns_that_say_as_much_the_later_one_decides() -> None:
    document = {"tool": {"s*": {"max_wait": 1.0}, "*h": {"max_wait": 2.0}}}

    assert resolve(document).max_wait == 2.0


def test_patterns_are_merged_key_by_key() -> None:
    document = {"tool": {"search": {"timeout": 1.0}, "s*": {"timeout": 2.0, "deadline": 3.0}, "*": {"max_wait": 4.0}}}

    policy = resolve(document)

    assert (policy.timeout, policy.deadline, policy.max_wait) == (1.0, 3.0, 4.0)


def test_a_table_named_exactly_like_a_tool_with_wild_characters_is_exact() -> None:
    document = {"tool": {"s[1]": {"max_wait": 1.0}, "s[[]1?": {"max_wait": 2.0}}}

    assert resolve(document, "s[1]").max_wait == 1.0
    assert resolve(document, "s1").max_wait == 1.0


def test_a_name_with_a_lone_bracket_is_that_of_a_tool() -> None:
    book = PolicyBook.load({"tool": {"all[": {"timeout": 1.0}, "all[ab]": {"timeout": 2.0}}})

    assert book.tools == ["all["]
    assert [book.resolve(tool).timeout for tool in ("all[", "alla")] == [1.0, 2.0]


def test_patterns_mind_the_case() -> None:
    assert resolve({"tool": {"S*": {"max_wait": 1.0}}}).max_wait == 5.0


def test_a_server_is_not_a_pattern() -> None:
    document = {"server": {"g*": {"max_wait": 1.0, "tool": {"*": {"max_wait": 2.0}}}}}

    assert resolve(document, "github.search").max_wait == 5.0
    assert resolve(document, "g*.search").max_wait == 2.0


def test_a_server_is_not_about_a_tool_of_the_same_name() -> None:
    document = {"server": {"search": {"max_wait": 1.0, "tool": {"*": {"max_wait": 2.0}}}}}

    assert resolve(document, "search").max_wait == 5.0


def test_tables_are_merged_field_by_field_through_their_shorthands() -> None:
    document = {
        "policy": {"rate": {"per_second": 1.0, "adaptive": True}},
        "tool": {"search": {"rate": {"burst": 50}}},
    }

    policy = resolve(document, decorator={"rate": "10/s"})

    assert policy.rate == RateConfig(per_second=10.0, burst=50, adaptive=True)


def test_what_was_given_is_not_changed_by_merging() -> None:
    document: dict[str, Any] = {"policy": {"retry": {"attempts": 2}}, "tool": {"*": {"retry": {"factor": 3.0}}}}
    book = PolicyBook.load(document)

    book.resolve("search", {"retry": {"max": 9.0}})

    assert book.resolve("search").retry == RetryConfig(attempts=2, factor=3.0)
    assert document == {"policy": {"retry": {"attempts": 2}}, "tool": {"*": {"retry": {"factor": 3.0}}}}


def test_fields_that_only_go_together_may_come_from_two_layers() -> None:
    policy = resolve({"tool": {"search": {"retry": {"max": 0.1}}}}, decorator={"retry": {"initial": 0.05}})

    assert policy.retry == RetryConfig(initial=0.05, max=0.1)


leaves = st.integers(0, 3) | st.just(False)
tables = st.dictionaries(st.sampled_from("ab"), leaves)
keys = st.sampled_from(["rate", "retry"])
layers = st.dictionaries(keys, leaves | tables)


@given(st.lists(leaves | tables), leaves, st.lists(tables))
def test_a_value_that_is_no_table_hides_all_that_lies_below_it(
    below: list[object], value: object, above: list[dict[str, object]]
) -> None:
    merged = merge({"rate": given} for given in (*below, value, *above))

    assert merged == merge({"rate": given} for given in (value, *above))


@given(layers, st.dictionaries(keys, tables), layers)
def test_layers_of_tables_can_be_merged_in_any_grouping(
    low: dict[str, object], middle: dict[str, object], high: dict[str, object]
) -> None:
    assert merge([merge([low, middle]), high]) == merge([low, merge([middle, high])]) == merge([low, middle, high])


# --- cache ---


def test_a_cache_asked_for_in_code_needs_the_tool_to_be_marked_read_only() -> None:
    text = mistake(decorator={"cache": 60})

    assert text.startswith("policy of 'search': cache = {'ttl': 60}: needs read_only=True")


def test_a_cache_in_the_decorator_needs_the_mark_there_and_not_in_a_file() -> None:
    assert "needs read_only=True" in mistake({"policy": {"read_only": True}}, decorator={"cache": 60})


def test_a_cache_in_a_file_is_passed_over_unless_the_tool_is_read_only() -> None:
    document = {"policy": {"cache": 60}}

    assert resolve(document).cache is None
    assert resolve(document, decorator={"read_only": True}).cache == CacheConfig(ttl=60)


def test_a_file_that_takes_the_mark_away_takes_the_cache_away() -> None:
    document = {"tool": {"search": {"read_only": False}}}

    policy = resolve(document, decorator={"read_only": True, "cache": 60}, call={"cache": 30})

    assert policy.cache is None


def test_a_cache_asked_for_by_one_call_needs_a_tool_that_is_read_only_in_the_end() -> None:
    assert "needs read_only=True" in mistake(call={"cache": 60})
    assert resolve({"policy": {"read_only": True}}, call={"cache": 60}).cache == CacheConfig(ttl=60)


# --- fallback ---


def test_a_fallback_is_replaced_as_a_whole() -> None:
    policy = resolve({"policy": {"fallback": {"tool": "other"}}}, decorator={"fallback": {"value": 0}})

    assert policy.fallback == Fallback(value=0)


@pytest.mark.parametrize("layer", ["decorator", "call"])
def test_a_tool_cannot_fall_back_to_itself(layer: str) -> None:
    text = mistake(**{layer: {"fallback": {"tool": "search"}}})

    assert text.startswith("policy of 'search': fallback.tool = \"search\": must be another tool")


def test_a_table_of_one_tool_cannot_fall_back_to_that_tool() -> None:
    text = mistake({"server": {"github": {"tool": {"search": {"fallback": {"tool": "github.search"}}}}}})

    assert text.startswith(
        'policies: [server.github.tool.search] fallback.tool = "github.search": must be another tool'
    )


def test_the_tool_that_a_pattern_falls_back_to_keeps_the_fallback_below() -> None:
    document = {"policy": {"fallback": {"value": 0}}, "tool": {"search*": {"fallback": {"tool": "search_local"}}}}

    assert resolve(document, "search_web").fallback == Fallback(tool="search_local")
    assert resolve(document, "search_local").fallback == Fallback(value=0)


# --- where a value comes from ---


def test_origins_name_every_value_of_the_policy() -> None:
    book = PolicyBook.load({"policy": {"budget": {"calls": 3}, "fallback": {"tool": "other"}, "rate": "1/s"}})

    origins = book.origins("search")

    plain = {key for key in KEYS if key not in {"rate", "breaker", "loop", "budget", "fallback"}}
    tables = {
        *(f"rate.{name}" for name in RateConfig.__struct_fields__),
        *(f"breaker.{name}" for name in BreakerConfig.__struct_fields__),
        *(f"loop.{name}" for name in LoopConfig.__struct_fields__),
        "budget.calls",
        "fallback.tool",
    }
    assert origins.keys() == plain | tables


def test_origins_tell_the_fields_of_a_table_apart() -> None:
    book = PolicyBook.load({"policy": {"retry": {"factor": 3.0}}, "tool": {"s*": {"retry": {"attempts": 2}}}})

    origins = book.origins("search", {"retry": {"attempts": 9, "max": 5.0}}, {"retry": {"budget": 0.5}})

    assert {key: origin for key, origin in origins.items() if key.startswith("retry")} == {
        "retry.attempts": 'policies [tool."s*"]',
        "retry.initial": "default",
        "retry.max": "decorator",
        "retry.factor": "policies [policy]",
        "retry.budget": "call",
    }


def test_origins_say_who_removed_something() -> None:
    book = PolicyBook.load({"tool": {"search": {"breaker": False, "timeout": False, "budget": {"calls": False}}}})

    origins = book.origins("search", {"timeout": 3.0, "budget": {"calls": 2}, "fallback": {"value": 1}})

    for key in ("breaker", "timeout", "budget"):
        assert origins[key] == "policies [tool.search]"
    assert origins["fallback.value"] == "decorator"


def test_origins_say_that_a_cache_is_ignored() -> None:
    origins = PolicyBook.load({"policy": {"cache": 60}}).origins("search")

    assert origins["cache"] == "policies [policy]; ignored, as the tool is not read_only"


def test_an_empty_budget_counts_as_not_given() -> None:
    assert PolicyBook.load(None).origins("search", {"budget": {}})["budget"] == "default"


# --- mistakes ---


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("timeout", 0, "timeout = 0: must be a number above 0, or false"),
        ("timeout", True, "timeout = true: must be a number above 0, or false"),
        ("timeout", math.nan, "timeout = nan: must be a number above 0, or false"),
        ("timeout", "3", 'timeout = "3": must be a number above 0, or false'),
        ("deadline", -1.0, "deadline = -1.0: must be a number above 0, or false"),
        ("deadline", math.inf, "deadline = inf: must be a number above 0, or false"),
        ("max_wait", -1, "max_wait = -1: must be a number of at least 0"),
        ("max_wait", False, "max_wait = false: must be a number of at least 0"),
        ("priority", "urgent", 'priority = "urgent": must be one of critical, high, low, normal'),
        ("priority", [], "priority = []: must be one of critical, high, low, normal"),
        ("read_only", 1, "read_only = 1: must be true or false"),
        ("idempotent", "yes", 'idempotent = "yes": must be true or false'),
        ("remember", None, "remember = None: must be true or false"),
        ("mode", "fast", 'mode = "fast": must be one of exact, leased, view'),
        ("concurrency", 0, "concurrency = 0: must be a whole number of at least 1"),
        ("concurrency", 1.5, "concurrency = 1.5: must be a whole number of at least 1"),
        ("concurrency", True, "concurrency = true: must be a whole number, false, or a table of limit, adaptive"),
        ("concurrency", {"limit": "4"}, 'concurrency.limit = "4": must be a whole number of at least 1'),
        ("concurrency", {"limit": None}, "concurrency.limit = None: must be a whole number of at least 1"),
        ("rate", "10/x", 'rate = "10/x": must be like "10/s", "100/m" or "1000/h", false, or a table of per_second,'),
        ("rate", "0/s", 'rate = "0/s": must be like "10/s"'),
        ("rate", "-1/s", 'rate = "-1/s": must be like "10/s"'),
        ("rate", "٣/s", 'rate = "٣/s": must be like "10/s"'),
        ("rate", 10, 'rate = 10: must be like "10/s"'),
        ("rate", True, 'rate = true: must be like "10/s"'),
        ("rate", "9" * 400 + "/s", "must be a number"),
        ("rate", {"per_second": -1}, "rate.per_second = -1: must be a number"),
        (
            "rate",
            {"burts": 1},
            "rate.burts = 1: unknown key, did you mean burst? allowed: adaptive, burst, floor, per_",
        ),
        ("breaker", 7, "breaker = 7: must be true, false, or a table of failure_threshold, min_backoff,"),
        ("breaker", {"jitter": 2}, "breaker.jitter = 2: must be a number of at least 0 and at most 1"),
        ("breaker", {"min_backoff": 9, "max_backoff": 3}, "breaker.max_backoff = 3: must be a number of at least 9"),
        ("breaker", {"trips": "timeout"}, 'breaker.trips = "timeout": must be a list of authentication, circuit_open,'),
        ("breaker", {"trips": ["cancelled"]}, "breaker.trips = ['cancelled']: must be a list of authentication,"),
        ("breaker", {"trips": [["x"]]}, "breaker.trips = [['x']]: must be a list of authentication,"),
        ("retry", 0, "retry = 0: must be a whole number of at least 1"),
        ("retry", "3", 'retry = "3": must be a number of attempts, true, false, or a table of attempts, initial, max,'),
        ("retry", {"initial": 5.0, "max": 1.0}, "retry.max = 1.0: must be a number of at least 5"),
        ("retry", {1: 2}, "retry.1 = 2: unknown key; allowed: attempts, budget, factor, initial, max"),
        ("cache", 0, "cache = 0: must be a number above 0"),
        ("cache", True, "cache = true: must be a number of seconds, false, or a table of ttl, max_entries"),
        ("cache", {"max_entries": 0}, "cache.max_entries = 0: must be a whole number of at least 1"),
        ("loop", 3, "loop = 3: must be true, false, or a table of repeats, window, stop"),
        ("loop", {"repeats": 5, "window": 2}, "loop.window = 2: must be a whole number of at least 5"),
        ("loop", {"repeats": 2000}, "loop.repeats = 2000: must be a whole number of at least 1 and at most 1000"),
        ("budget", 100, "budget = 100: must be false or a table of limits, such as { calls = 100, seconds = 60.0 }"),
        ("budget", {"calls": 1.5}, "budget.calls = 1.5: must be a whole number of at least 1"),
        ("budget", {"usd": math.nan}, "budget.usd = nan: must be a number above 0"),
        ("budget", {"a b": 1}, 'budget."a b" = 1: must have a plain word for a name, like calls or usd'),
        ("budget", {1: 1}, "budget.1 = 1: must have a plain word for a name"),
        ("fallback", "other", 'fallback = "other": must be { tool = "name" }, { value = … }, or false'),
        ("fallback", {}, "fallback = {}: must have either tool or value"),
        ("fallback", {"tool": "a", "value": 1}, "fallback = {'tool': 'a', 'value': 1}: must have either tool or value"),
        ("fallback", {"tool": ""}, 'fallback.tool = "": must be the name of a tool'),
        ("fallback", {"tool": None}, "fallback.tool = None: must be given, or else value"),
        ("fallback", {"tol": "a"}, 'fallback.tol = "a": unknown key, did you mean tool? allowed: tool, value'),
        ("timout", 3, "timout = 3: unknown key, did you mean timeout? allowed: breaker, budget, cache, concurrency,"),
        ("zzz", 3, "zzz = 3: unknown key; allowed: breaker, budget, cache, concurrency,"),
        ("a\nb", 3, r'"a\nb" = 3: unknown key; allowed: breaker, budget,'),
        ("timeout", 10**400, "timeout = 1000000000"),
        ("mode", Incomparable(), "mode = Incomparable(): must be one of exact, leased, view"),
        ("timeout", Unspeakable(), "timeout = a value of type Unspeakable: must be a number above 0, or false"),
        ("retry", {"max": Unspeakable()}, "retry.max = a value of type Unspeakable: must be a number of at least 0"),
    ],
)
def test_a_mistake_in_code_names_the_tool_the_key_the_value_and_what_is_allowed(
    key: str, value: object, text: str
) -> None:
    told = mistake(decorator={"read_only": True, key: value})

    assert told.startswith("policy of 'search': ")
    assert text in told
    assert "\n" not in told


def test_every_mistake_is_told_each_on_a_line_and_as_a_problem() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(decorator={"timeout": 0, "retry": {"atempts": 3, "max": -1}}, call={"mode": "x"})

    problems: tuple[str, ...] = vars(caught.value)["problems"]
    assert str(caught.value).splitlines() == list(problems)
    assert [problem.split(":")[1].split()[0] for problem in problems] == [
        "timeout",
        "retry.atempts",
        "retry.max",
        "mode",
    ]


def test_settings_that_are_no_mapping_are_a_mistake() -> None:
    assert mistake(call="fast") == "policy of 'search': \"fast\": must be a mapping of settings"


def test_fields_of_different_layers_that_do_not_go_together_name_their_origins() -> None:
    text = mistake({"tool": {"search": {"retry": {"max": 0.1}}}}, decorator={"retry": {"initial": 5.0}})

    assert text == (
        "policy of 'search': retry = {'initial': 5.0, 'max': 0.1}: max must be a number of at least 5 "
        "(initial: decorator, max: policies [tool.search])"
    )


def test_a_field_that_does_not_go_with_a_default_says_what_the_default_would_have_to_be() -> None:
    text = mistake(decorator={"retry": {"initial": 5.0}})

    assert (
        text == "policy of 'search': retry = {'initial': 5.0}: max must be a number of at least 5 (initial: decorator)"
    )


def test_a_servers_table_about_a_tool_decides_over_one_that_says_as_much_wherever_they_stand() -> None:
    document = {"server": {"git": {"tool": {"s*": {"max_wait": 2.0}}}}, "tool": {"git.s*": {"max_wait": 3.0}}}

    assert resolve(document, "git.search").max_wait == 2.0


@pytest.mark.parametrize(
    ("key", "table", "missing"),
    [("rate", {"burst": 5}, "per_second"), ("concurrency", {"adaptive": True}, "limit"), ("rate", {}, "per_second")],
)
def test_a_table_that_lacks_its_main_field_in_the_end_is_a_mistake(
    key: str, table: dict[str, object], missing: str
) -> None:
    text = mistake({"tool": {"search": {key: table}}})

    assert f"{missing} is missing" in text
    assert "policies [tool.search]" in text


def test_a_priority_that_costs_more_than_the_burst_is_a_mistake_and_not_an_endless_wait() -> None:
    text = mistake({"policy": {"rate": {"per_second": 9.0, "burst": 1}}}, call={"priority": "low"})

    assert text == (
        "policy of 'search': priority = 'low': costs 2, more than rate.burst, which is 1; it could never be called "
        "(rate.per_second: policies [policy], rate.burst: policies [policy], priority: call)"
    )


def test_a_name_that_is_not_fit_to_print_is_shown_escaped() -> None:
    text = mistake(tool="a\x1b[31m", decorator={"timeout": 0})

    assert "\x1b" not in text


# --- the records by themselves ---


@pytest.mark.parametrize(
    "wrong",
    [{"timeout": 0}, {"deadline": -1}, {"max_wait": -1}, {"mode": "x"}, {"budget": {"calls": 0}}, {"priority": "x"}],
)
def test_a_policy_is_checked_when_it_is_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Policy(**wrong)


def test_a_policy_is_frozen() -> None:
    with pytest.raises(AttributeError):
        Policy().timeout = 3.0  # type: ignore[misc]


@pytest.mark.parametrize("wrong", [{}, {"tool": "a", "value": 1}, {"tool": ""}, {"tool": 3}])
def test_a_fallback_has_either_a_tool_or_a_value(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="tool = "):
        Fallback(**wrong)


@pytest.mark.parametrize("wrong", [{"ttl": 0}, {"ttl": 1, "max_entries": 0}])
def test_a_cache_is_bounded_in_time_and_number(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        CacheConfig(**wrong)


# --- anything at all ---

plain = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["10/s", "high", "leased", "other", 10**400])
)
words = st.sampled_from([*KEYS, *BreakerConfig.__struct_fields__, "attempts", "limit", "ttl", "calls", "tool", "value"])
junk = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words | st.text(max_size=3) | st.integers(), inner),
    max_leaves=6,
)
settings_of_sorts = st.dictionaries(words | st.text(max_size=3), junk, max_size=4)
documents = st.fixed_dictionaries(
    {},
    optional={
        "policy": settings_of_sorts | junk,
        "tool": st.dictionaries(st.sampled_from(["search", "s*", "*"]), settings_of_sorts | junk, max_size=2) | junk,
        "server": st.dictionaries(st.sampled_from(["a", "search"]), settings_of_sorts | junk, max_size=2) | junk,
        "store": junk,
    },
)


@given(documents | junk, settings_of_sorts, settings_of_sorts)
def test_whatever_is_given_makes_a_policy_or_a_config_error(document: Any, given: Any, call: Any) -> None:
    try:
        book = PolicyBook.load(document)
        policy = book.resolve("search", given, call)
    except ConfigError:
        return

    assert isinstance(policy, Policy)
    assert all(book.origins("search", given, call).values())
