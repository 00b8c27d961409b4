"""Where headrace keeps what it has fetched or computed once."""

import os
from pathlib import Path


def cache_home() -> Path:
    """The cache's root: $HEADRACE_CACHE, else $XDG_CACHE_HOME/headrace, else ~/.cache/headrace.

    The folder is not made: whoever writes there first makes it.
    """
    own = os.environ.get("HEADRACE_CACHE")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    root = Path(shared).expanduser() if shared else Path.home() / ".cache"
    return root / "headrace"
