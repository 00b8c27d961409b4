"""How far a run is, seen from its launcher: committed parts, and rows in flight.

Rows of this process are known as they come back, those of others by their journals: worker processes and most
runners tell Beam's metrics when a bundle is done, and a part is one.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from headrace.pipelines.commit import Footer, input_rows, read_footer
from headrace.pipelines.files import is_local, list_directory
from headrace.pipelines.in_flight import IN_FLIGHT, Tally
from headrace.pipelines.journal import finished_rows
from headrace.pipelines.shards import Chunk
from headrace.pipelines.summary import Progress

_LOCAL_INTERVAL_S = 1.0
_REMOTE_INTERVAL_S = 15.0
_RATE_WINDOW_S = 60.0
_CLOCK_SKEW_S = 60.0


class ProgressPoller:
    """Looks at the output directory again and again."""

    def __init__(self, output: str, chunks: Sequence[Chunk], reused: Mapping[str, Footer]) -> None:
        self._output = output
        self._rows_total = sum(chunk.rows for chunk in chunks)
        self._parts = {chunk.part_name for chunk in chunks}
        self._committed = {name: _tally(footer) for name, footer in reused.items()}
        self._since = time.time() - _CLOCK_SKEW_S
        self._samples: deque[tuple[float, int, float]] = deque()

    def poll(self) -> Progress:
        """The progress now."""
        in_flight = IN_FLIGHT.tallies(self._output)
        for name in list_directory(self._output, "part-"):
            if name in self._parts and name not in self._committed:
                footer = read_footer(self._output, name)
                if footer is not None:
                    self._committed[name] = _tally(footer)
        total = Tally()
        for tally in self._committed.values():
            total = total.plus(tally)
        elsewhere = finished_rows(self._output, since=self._since)
        for name, tally in ({name: Tally(rows) for name, rows in elsewhere.items()} | in_flight).items():
            if name in self._parts and name not in self._committed:
                total = total.plus(tally)
        units_per_s, rows_per_s = self._rates(total)
        rows_left = self._rows_total - total.rows
        return Progress(
            rows_done=total.rows,
            rows_total=self._rows_total,
            rows_failed=total.failed,
            units_done=total.units,
            units_per_s=units_per_s,
            eta_s=rows_left / rows_per_s if rows_per_s > 0 else None,
            parts_done=len(self._committed),
            parts_total=len(self._parts),
        )

    def _rates(self, total: Tally) -> tuple[float, float]:
        """Units and rows a second over the last minute."""
        now = time.monotonic()
        self._samples.append((now, total.rows, total.units))
        while now - self._samples[0][0] > _RATE_WINDOW_S:
            self._samples.popleft()
        then, rows, units = self._samples[0]
        passed_s = now - then
        if passed_s <= 0:
            return 0.0, 0.0
        return max(total.units - units, 0.0) / passed_s, max(total.rows - rows, 0) / passed_s


@contextmanager
def reporting(
    poller: ProgressPoller, output: str, reports: Sequence[Callable[[Progress], None]]
) -> Iterator[None]:
    """Calls `reports` from a thread until the block ends, and once more then."""
    ended = threading.Event()
    interval_s = _LOCAL_INTERVAL_S if is_local(output) else _REMOTE_INTERVAL_S

    def run() -> None:
        while not ended.wait(interval_s):
            tell()

    def tell() -> None:
        progress = poller.poll()
        for report in reports:
            report(progress)

    thread = threading.Thread(target=run, name="headrace-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        tell()


def _tally(footer: Footer) -> Tally:
    return Tally(input_rows(footer), footer.rows_failed, footer.units)
