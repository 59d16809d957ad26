"""Policies: the frozen settings of a tool, from code or from a TOML file, merged in one fixed order.

`settings` says what a policy is, `tables` which of its settings are tables. `parsing` reads the settings given in one
place and notes their `mistakes`, `layers` merges those of several places. `rules` knows which tables of a document
apply to which tool, `file` reads the document, `book` holds it all for a process, and `explaining` shows it.
"""

from __future__ import annotations

from holdfast.policy.book import PolicyBook, Reload
from holdfast.policy.rules import OUTAGES
from holdfast.policy.settings import CacheConfig, Fallback, Policy

__all__ = ["OUTAGES", "CacheConfig", "Fallback", "Policy", "PolicyBook", "Reload"]
