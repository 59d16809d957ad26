"""Verification: checks, reports, one summary; and reading back whatever an event says."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigError
from holdfast.history.verification import (
    Check,
    CheckStatus,
    Report,
    VerificationSummary,
    read_reports,
    summarise,
    write_reports,
)

PASSED, FAILED, NEEDS_REVIEW, SKIPPED = (
    CheckStatus.PASSED,
    CheckStatus.FAILED,
    CheckStatus.NEEDS_REVIEW,
    CheckStatus.SKIPPED,
)

texts = st.text(max_size=10)
names = st.text(min_size=1, max_size=10)
checks = st.builds(
    Check,
    name=names,
    status=st.sampled_from(CheckStatus),
    required=st.booleans(),
    detail=texts,
    residual_risk=texts,
)
reports = st.lists(st.builds(Report, name=names, checks=st.lists(checks, max_size=4).map(tuple)), max_size=4)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts | st.sampled_from([*CheckStatus, "name", "checks"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["name", "status", "required", "detail", "checks"]) | texts, inner, max_size=5
        )
    ),
    max_leaves=20,
)


def status_of(*made: Check) -> CheckStatus:
    summary = summarise([Report("r", made)])
    assert summary is not None
    return summary.status


# --- the summary ---


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        ([PASSED, PASSED], PASSED),
        ([PASSED, SKIPPED], SKIPPED),
        ([SKIPPED, NEEDS_REVIEW, PASSED], NEEDS_REVIEW),
        ([FAILED, NEEDS_REVIEW, SKIPPED, PASSED], FAILED),
    ],
)
def test_the_worst_check_decides(ended: list[CheckStatus], expected: CheckStatus) -> None:
    assert status_of(*(Check("c", status) for status in ended)) is expected


def test_a_failed_check_that_is_not_required_asks_for_review() -> None:
    assert status_of(Check("c", FAILED, required=False), Check("d", PASSED)) is NEEDS_REVIEW


def test_a_failed_check_that_is_required_decides_over_one_that_is_not() -> None:
    assert status_of(Check("c", FAILED, required=False), Check("d", FAILED)) is FAILED


def test_checks_are_counted_as_they_ended() -> None:
    made = [Check("a", PASSED), Check("b", FAILED, required=False), Check("c", FAILED), Check("d", SKIPPED)]

    summary = summarise([Report("one", tuple(made[:2])), Report("two", tuple(made[2:]))])

    assert summary == VerificationSummary(FAILED, passed=1, failed=2, needs_review=0, skipped=1)


def test_residual_risks_are_listed_once_in_their_order() -> None:
    made = (
        Check("a", PASSED, residual_risk="flaky"),
        Check("b", PASSED),
        Check("c", FAILED, residual_risk="data may be stale"),
        Check("d", PASSED, residual_risk="flaky"),
    )

    summary = summarise([Report("r", made)])

    assert summary is not None
    assert summary.residual_risks == ("flaky", "data may be stale")


@pytest.mark.parametrize("empty", [[], [Report("r")]])
def test_what_was_not_checked_has_no_summary(empty: list[Report]) -> None:
    assert summarise(empty) is None


@given(reports)
def test_every_check_is_counted_once(given_reports: list[Report]) -> None:
    summary = summarise(given_reports)

    made = sum(len(report.checks) for report in given_reports)
    counted = summary and summary.passed + summary.failed + summary.needs_review + summary.skipped
    assert (counted or 0) == made


def test_a_summary_is_read_back_from_json() -> None:
    summary = summarise([Report("r", (Check("a", FAILED, residual_risk="x"),))])

    assert msgspec.json.decode(msgspec.json.encode(summary), type=VerificationSummary) == summary


# --- checks and reports ---


@pytest.mark.parametrize(
    ("arguments", "setting"),
    [
        ({"name": ""}, "name"),
        ({"name": 3}, "name"),
        ({"status": "perhaps"}, "status"),
        ({"status": None}, "status"),
        ({"required": "yes"}, "required"),
        ({"detail": None}, "detail"),
        ({"residual_risk": 0.5}, "residual_risk"),
    ],
)
def test_a_wrong_check_is_a_config_error(arguments: dict[str, Any], setting: str) -> None:
    with pytest.raises(ConfigError, match=f"^{setting} = "):
        Check(**({"name": "c", "status": PASSED} | arguments))


@pytest.mark.parametrize(
    ("arguments", "setting"), [(("",), "name"), ((None,), "name"), (("r", 3), "checks"), (("r", ["passed"]), "checks")]
)
def test_a_wrong_report_is_a_config_error(arguments: tuple[Any, ...], setting: str) -> None:
    with pytest.raises(ConfigError, match=f"^{setting} = "):
        Report(*arguments)


def test_a_status_may_be_given_by_its_value() -> None:
    check = Check("c", "needs_review")  # type: ignore[arg-type]

    assert check.status is NEEDS_REVIEW


def test_the_checks_of_a_report_may_come_from_anywhere() -> None:
    report = Report("r", [Check("c", PASSED)])  # type: ignore[arg-type]

    assert report == Report("r", (Check("c", PASSED),))


# --- events ---


@given(reports)
def test_reports_come_back_from_the_json_of_an_event(given_reports: list[Report]) -> None:
    payload = msgspec.json.encode(write_reports(given_reports))

    assert read_reports(msgspec.json.decode(payload)) == given_reports


@given(anything)
def test_reading_never_fails(payload: object) -> None:
    summarise(read_reports(payload))


def test_what_is_malformed_is_left_out() -> None:
    payload = [
        "report",
        {"checks": []},
        {"name": ""},
        {"name": "empty", "checks": None},
        {"name": "some", "checks": [{"name": "c"}, {"name": "c", "status": "?"}, {"name": "c", "status": "passed"}, 7]},
    ]

    assert read_reports(payload) == [Report("empty"), Report("some", (Check("c", PASSED),))]


def test_a_failure_is_not_lost_for_a_malformed_detail() -> None:
    check = {"name": "c", "status": "failed", "required": "no", "detail": 3, "residual_risk": None, "more": 1}

    assert read_reports([{"name": "r", "checks": [check]}]) == [Report("r", (Check("c", FAILED),))]
