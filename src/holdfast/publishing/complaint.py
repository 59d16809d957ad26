"""Logs what fails in publishing, once for as long as it lasts: nothing here may disturb a call."""

from __future__ import annotations

import logging

from holdfast.errors import in_words

_log = logging.getLogger("holdfast")


class Complaint:
    """Logs why *what* cannot be shown, once until `over` is called."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._said = False

    def __call__(self, error: Exception) -> None:
        if not self._said:
            self._said = True
            _log.warning("%s cannot be shown to other processes: %s", self._what, in_words(error))

    def over(self) -> None:
        """Note that it can be shown again; the next failure is logged."""
        self._said = False
