"""Names of a package that are imported when they are first used."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazily(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """A package's `__getattr__`, which finds names in the modules of `homes`, e.g. {"mel": ("log_mel",)}."""
    home_of = {name: module for module, names in homes.items() for name in names}

    def find(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{home_of[name]}"), name)

    return find
