"""Rows finished in this process whose part is not committed yet, and the signal to stop."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Tally(NamedTuple):
    """Rows, failed rows and units."""

    rows: int = 0
    failed: int = 0
    units: float = 0.0

    def plus(self, other: "Tally") -> "Tally":
        return Tally(self.rows + other.rows, self.failed + other.failed, self.units + other.units)


class InFlight:
    """Tallies of the parts that this process is working on, by part name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parts: dict[str, Tally] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Counts a part for as long as it is worked on."""
        with self._lock:
            self._parts[name] = Tally()
        try:
            yield
        finally:
            with self._lock:
                del self._parts[name]

    def add(self, name: str, tally: Tally) -> None:
        """Adds to a part that is worked on."""
        with self._lock:
            self._parts[name] = self._parts[name].plus(tally)

    def tallies(self) -> dict[str, Tally]:
        """The tallies as they are now."""
        with self._lock:
            return dict(self._parts)


IN_FLIGHT = InFlight()
"""The tallies of this process."""

STOP = threading.Event()
"""Set where the run is to end at once: chunks in flight give up and stay uncommitted."""
