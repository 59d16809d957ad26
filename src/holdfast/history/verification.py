"""Verification: reports hold checks and make one summary; its status is the worst: failed > needs_review > skipped >
passed.

Reading reports back never fails: users may put anything in an event, and the snapshot must fold all the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from holdfast import checks
from holdfast.errors import ConfigError


class CheckStatus(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    NEEDS_REVIEW = "needs_review"
    SKIPPED = "skipped"


class Check(msgspec.Struct, frozen=True):
    """One thing that was checked; a check that failed but is not *required* asks for a review."""

    name: str
    status: str  # a `CheckStatus` after construction
    required: bool = True
    detail: str = ""
    residual_risk: str = ""  # what may still be wrong, even if the check passed

    def __post_init__(self) -> None:
        _name("name", self.name)
        checks.choice("status", self.status, frozenset(CheckStatus))
        checks.flag("required", self.required)
        checks.text("detail", self.detail)
        checks.text("residual_risk", self.residual_risk)
        msgspec.structs.force_setattr(self, "status", CheckStatus(self.status))


class Report(msgspec.Struct, frozen=True):
    """The checks that one verifier made, under its name."""

    name: str
    checks: tuple[Check, ...] = ()

    def __post_init__(self) -> None:
        _name("name", self.name)
        given: object = self.checks
        made = tuple(given) if isinstance(given, Iterable) else (given,)
        if not all(isinstance(each, Check) for each in made):
            raise ConfigError(f"checks = {checks.shown(given)}: must be checks")
        msgspec.structs.force_setattr(self, "checks", made)


class VerificationSummary(msgspec.Struct, frozen=True):
    """The worst status of all checks, how many checks ended with each status, and what may still be wrong."""

    status: CheckStatus
    passed: int = 0
    failed: int = 0
    needs_review: int = 0
    skipped: int = 0
    residual_risks: tuple[str, ...] = ()


def summarise(reports: Iterable[Report]) -> VerificationSummary | None:
    """The summary of all checks of *reports*; None if there are no checks: what was not checked has not passed.

    A check that failed and is not required counts as failed, but makes the summary needs_review.
    """
    made = [check for report in reports for check in report.checks]
    if not made:
        return None
    ended = [check.status for check in made]
    return VerificationSummary(
        status=max(map(_weight, made), key=_WORST_LAST.index),
        passed=ended.count(CheckStatus.PASSED),
        failed=ended.count(CheckStatus.FAILED),
        needs_review=ended.count(CheckStatus.NEEDS_REVIEW),
        skipped=ended.count(CheckStatus.SKIPPED),
        residual_risks=tuple(dict.fromkeys(check.residual_risk for check in made if check.residual_risk)),
    )


def write_reports(reports: Iterable[Report]) -> list[dict[str, object]]:
    """*reports* as plain data, for the payload of an event."""
    written: list[dict[str, object]] = []
    for report in reports:
        if not isinstance(report, Report):
            raise ConfigError(f"reports: {checks.shown(report)}: must be a Report")
        written.append({"name": report.name, "checks": [msgspec.structs.asdict(check) for check in report.checks]})
    return written


def read_reports(payload: object) -> list[Report]:
    """The reports in the `reports` of an event's payload; malformed parts are left out.

    A check with a readable name and status is kept without the rest: a bad detail must not hide a failure.
    """
    return [report for each in _items(payload) if (report := _read_report(each)) is not None]


def _read_report(data: object) -> Report | None:
    name = data.get("name") if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(name, str) or not name:
        return None
    return Report(name, tuple(check for each in _items(data.get("checks")) if (check := _read_check(each)) is not None))


def _read_check(data: object) -> Check | None:
    if not isinstance(data, dict):
        return None
    name, status, required = data.get("name"), data.get("status"), data.get("required")
    if not isinstance(name, str) or not name or not isinstance(status, str) or status not in _WORST_LAST:
        return None
    detail, risk = (text if isinstance(text, str) else "" for text in (data.get("detail"), data.get("residual_risk")))
    return Check(name, CheckStatus(status), required is not False, detail, risk)


def _items(data: object) -> Iterable[object]:
    return data if isinstance(data, list | tuple) else ()


def _weight(check: Check) -> CheckStatus:
    status = CheckStatus(check.status)
    return CheckStatus.NEEDS_REVIEW if status is CheckStatus.FAILED and not check.required else status


def _name(setting: str, value: object) -> None:
    checks.text(setting, value)
    if not value:
        raise ConfigError(f"{setting} = '': must be a text that is not empty")


_WORST_LAST = (CheckStatus.PASSED, CheckStatus.SKIPPED, CheckStatus.NEEDS_REVIEW, CheckStatus.FAILED)
