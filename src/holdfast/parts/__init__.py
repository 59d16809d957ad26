"""Holdfast in parts, each for use by itself: breaker, limiters, the facade over both, a retry."""
