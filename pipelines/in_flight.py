"""What this process knows of its runs: rows without a part yet, which are to stop, what has failed."""

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
        self._totals: dict[str, Tally] = {}
        self._stopped: set[str] = set()
        self._halted: dict[str, str] = {}
        self._missing: dict[str, dict[str, str]] = {}
        self._unwritable: set[str] = set()

    @contextmanager
    def part(self, output: str, name: str) -> Iterator[Callable[[Tally], None]]:
        """What adds to the part's tally, which is kept for as long as the part is worked on."""
        key = (output, name)

        def add(tally: Tally) -> None:
            with self._lock:
                self._parts[key] = self._parts.get(key, Tally()).plus(tally)
                self._totals[output] = self._totals.get(output, Tally()).plus(tally)

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

    def total(self, output: str) -> Tally:
        """All that this process has done for the run since it began."""
        with self._lock:
            return self._totals.get(output, Tally())

    def begin(self, output: str) -> None:
        """Forgets an earlier run into the directory, so that one that was stopped may go on."""
        with self._lock:
            self._stopped.discard(output)
            self._unwritable.discard(output)
            for each in (self._totals, self._halted, self._missing):
                each.pop(output, None)

    def stop(self, output: str) -> None:
        """Has the chunks of a run give up at once; they stay uncommitted."""
        with self._lock:
            self._stopped.add(output)

    def is_stopped(self, output: str) -> bool:
        """Whether a run is to stop."""
        return output in self._stopped

    def halt(self, output: str, reason: str) -> None:
        """Has the run begin no further chunk, for a reason that its launcher will tell."""
        with self._lock:
            self._halted.setdefault(output, reason)

    def halted(self, output: str) -> str | None:
        """Why the run is to begin no further chunk, None where it may."""
        return self._halted.get(output)

    def miss(self, output: str, part: str, reason: str) -> None:
        """Notes why a part could not be committed."""
        with self._lock:
            self._missing.setdefault(output, {})[part] = reason

    def missing(self, output: str) -> dict[str, str]:
        """Why parts could not be committed by this process, by part name."""
        with self._lock:
            return dict(self._missing.get(output, {}))

    def note_writing(self, output: str, *, failed: bool) -> None:
        """Notes how the last writing of a part went."""
        with self._lock:
            (self._unwritable.add if failed else self._unwritable.discard)(output)

    def writing_failed(self, output: str) -> bool:
        """Whether the last writing of a part failed."""
        return output in self._unwritable


IN_FLIGHT = InFlight()
"""The runs of this process."""
