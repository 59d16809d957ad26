"""Nothing here may disturb a call, so what fails is logged, once for as long as it lasts."""

from __future__ import annotations

import logging

from holdfast.errors import in_words

_log = logging.getLogger("holdfast")


class Complaint:
    """Says why nothing can be shown, until `over`."""

    def __init__(self) -> None:
        self._said = False

    def __call__(self, error: Exception) -> None:
        if not self._said:
            self._said = True
            _log.warning("the state of tools cannot be shown to other processes: %s", in_words(error))

    def over(self) -> None:
        """Something could be shown again."""
        self._said = False
