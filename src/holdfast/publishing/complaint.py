"""Nothing here may disturb a call, so what fails is logged, once for as long as it lasts."""

from __future__ import annotations

import logging

from holdfast.errors import in_words

_log = logging.getLogger("holdfast")


class Complaint:
    """Says why *what* cannot be shown, until `over`."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._said = False

    def __call__(self, error: Exception) -> None:
        if not self._said:
            self._said = True
            _log.warning("%s cannot be shown to other processes: %s", self._what, in_words(error))

    def over(self) -> None:
        """It could be shown again."""
        self._said = False
