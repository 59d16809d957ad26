"""The sixteen kinds of failure: what each allows, its name for people, and what a model can do about it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class ErrorCategory(StrEnum):
    """The kind of a failure; decides what may be repeated and what counts against a tool."""

    NETWORK = "network"
    TIMEOUT = "timeout"
    SERVICE_UNAVAILABLE = "service_unavailable"
    RATE_LIMIT = "rate_limit"
    EXECUTION_ERROR = "execution_error"
    CIRCUIT_OPEN = "circuit_open"
    AUTHENTICATION = "authentication"
    INVALID_PARAMETERS = "invalid_parameters"
    TOOL_NOT_FOUND = "tool_not_found"
    RESOURCE_NOT_FOUND = "resource_not_found"
    PERMISSION_DENIED = "permission_denied"
    POLICY_VIOLATION = "policy_violation"
    PLANNING_POLICY_VIOLATION = "planning_policy_violation"
    SANDBOX_FAILURE = "sandbox_failure"
    RESOURCE_EXHAUSTED = "resource_exhausted"
    CANCELLED = "cancelled"

    @property
    def retryable(self) -> bool:
        """Whether the same call may well succeed a little later."""
        return self in _RETRYABLE

    @property
    def trips_breaker(self) -> bool:
        """Whether it counts, by default, as a sign that the tool is broken."""
        return self in _TRIPPING

    @property
    def label(self) -> str:
        """A few words for people."""
        return _ADVICE[self][0]

    @property
    def suggestions(self) -> tuple[str, ...]:
        """One to three things a model can do about it."""
        return _ADVICE[self][1:]


_C = ErrorCategory

_TRIPPING: Final = frozenset({_C.NETWORK, _C.TIMEOUT, _C.SERVICE_UNAVAILABLE, _C.EXECUTION_ERROR})
_RETRYABLE: Final = frozenset({_C.NETWORK, _C.TIMEOUT, _C.SERVICE_UNAVAILABLE, _C.RATE_LIMIT, _C.CIRCUIT_OPEN})

# The label, then the suggestions. A model reads them after the error itself, so they say what to do and no more.
_ADVICE: Final[Mapping[ErrorCategory, tuple[str, ...]]] = {
    _C.NETWORK: (
        "Network problem",
        "Try the call again in a few seconds.",
        "If it keeps failing, use another source or tell the user that this one cannot be reached.",
    ),
    _C.TIMEOUT: (
        "No answer in time",
        "Try again with a smaller request, such as fewer items or a narrower query.",
        "If it changes something, find out whether it took effect before you repeat it.",
    ),
    _C.SERVICE_UNAVAILABLE: (
        "Service unavailable",
        "Do other work first and try again in a minute.",
        "Use another tool that gives the same information.",
    ),
    _C.RATE_LIMIT: (
        "Too many requests",
        "Wait before you call this tool again.",
        "Make fewer calls that ask for more each.",
    ),
    _C.EXECUTION_ERROR: (
        "The tool failed",
        "Read the error text and correct what it complains about.",
        "Do not repeat the same call; use another tool or tell the user what failed.",
    ),
    _C.CIRCUIT_OPEN: (
        "Tool resting after repeated failures",
        "Do not call this tool until the time that the message gives.",
        "Use another tool or go on without it.",
    ),
    _C.AUTHENTICATION: (
        "Not signed in",
        "Ask the user to check or renew the credentials of this tool.",
        "Do not repeat the call before that is done.",
    ),
    _C.INVALID_PARAMETERS: (
        "Wrong arguments",
        "Read the tool's description and correct the arguments.",
        "Do not repeat the call with the same arguments.",
    ),
    _C.TOOL_NOT_FOUND: (
        "No such tool",
        "Use the exact name of a tool from the list of tools.",
    ),
    _C.RESOURCE_NOT_FOUND: (
        "Not found",
        "Check the name, path or id for mistakes.",
        "List or search for what exists before you ask for it again.",
    ),
    _C.PERMISSION_DENIED: (
        "Not permitted",
        "Ask the user to grant access, and say to what.",
        "Reach the goal with what you may use.",
    ),
    _C.POLICY_VIOLATION: (
        "Against a policy",
        "Do not repeat the call; choose an action that the policy allows.",
        "Tell the user which rule stands in the way.",
    ),
    _C.PLANNING_POLICY_VIOLATION: (
        "Plan against a policy",
        "Make another plan without the step that is not allowed.",
    ),
    _C.SANDBOX_FAILURE: (
        "The sandbox failed",
        "Do without what the sandbox forbids, such as network access or files outside of it.",
        "Tell the user that the sandbox does not work.",
    ),
    _C.RESOURCE_EXHAUSTED: (
        "Quota or resources used up",
        "Ask for less at once.",
        "Ask the user to raise the limit or to free resources.",
    ),
    _C.CANCELLED: (
        "Cancelled",
        "Do not repeat the call unless the user asks for it.",
    ),
}
