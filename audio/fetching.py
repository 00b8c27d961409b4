"""Fetches recordings over http(s) within limits."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchLimits:
    """What a recording that is fetched may cost at most."""

    timeout_s: float = 30.0
    """seconds without a byte before a fetch is given up"""
    max_bytes: int = 2 * 1024**3
    """bytes of one file"""
    max_redirects: int = 5
    """redirects that are followed"""


DEFAULT_LIMITS = FetchLimits()
