"""Rows finished in this process whose part is not committed yet, and which runs are to stop."""

import threading
from collections.abc import Callable, Iterator
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
    """The runs of this process, by their output directories."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parts: dict[tuple[str, str], Tally] = {}
        self._stopped: set[str] = set()

    @contextmanager
    def part(self, output: str, name: str) -> Iterator[Callable[[Tally], None]]:
        """What adds to the part's tally, which is kept for as long as the part is worked on."""
        key = (output, name)

        def add(tally: Tally) -> None:
            with self._lock:
                self._parts[key] = self._parts.get(key, Tally()).plus(tally)

        add(Tally())
        try:
            yield add
        finally:
            with self._lock:
                self._parts.pop(key, None)

    def tallies(self, output: str) -> dict[str, Tally]:
        """The tallies of a run's parts, as they are now, by part name."""
        with self._lock:
            return {name: tally for (where, name), tally in self._parts.items() if where == output}

    def begin(self, output: str) -> None:
        """Lets a run go on that was stopped before."""
        with self._lock:
            self._stopped.discard(output)

    def stop(self, output: str) -> None:
        """Has the chunks of a run give up at once; they stay uncommitted."""
        with self._lock:
            self._stopped.add(output)

    def is_stopped(self, output: str) -> bool:
        """Whether a run is to stop."""
        return output in self._stopped


IN_FLIGHT = InFlight()
"""The runs of this process."""
