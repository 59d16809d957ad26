"""Policies: the frozen settings of a tool, from code or from a TOML file, merged in one fixed order.

`settings` says what a policy is, `tables` which of its settings are tables; `parsing` reads one of them all, and notes
its `mistakes`; `layers` lays them over each other; `rules` knows which tables of a document are about which tool,
`file` reads the document, and `book` holds it all for a process.
"""

from __future__ import annotations

from holdfast.policy.book import PolicyBook, Reload
from holdfast.policy.rules import OUTAGES
from holdfast.policy.settings import CacheConfig, Fallback, Policy

__all__ = ["OUTAGES", "CacheConfig", "Fallback", "Policy", "PolicyBook", "Reload"]
