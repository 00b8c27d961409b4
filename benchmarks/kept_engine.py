"""An engine that outlives its pipelines, so that each run of a benchmark has the same one."""

from collections.abc import Callable
from typing import Any


class KeptEngine:
    """In place of Beam's `Shared`: the engine of the benchmark, for every pipeline."""

    def __init__(self) -> None:
        self._kept: Any = None

    def acquire(self, load: Callable[[], Any] | None, tag: Any = None) -> Any:
        """The engine; loaded by the first call."""
        if self._kept is None:
            assert load is not None, "nothing was loaded yet"
            self._kept = load()
        return self._kept

    def __reduce__(self):
        return _the_kept, ()


KEPT = KeptEngine()


def _the_kept() -> KeptEngine:
    return KEPT
