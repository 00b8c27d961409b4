"""The nearest known name to one that was mistyped."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """`: did you mean X?` for the closest known name, whatever its dashes and underscores, or nothing."""
    by_plain = {_plain(candidate): candidate for candidate in known}
    close = difflib.get_close_matches(_plain(name), by_plain, n=1, cutoff=0.7)
    return f": did you mean {by_plain[close[0]]}?" if close else ""


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").strip("-")
