"""Notices that an engine hangs: a device call that never returns can only be ended with its process."""

import logging
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from headrace.pipelines.journal import Journal

logger = logging.getLogger(__name__)

HUNG = "hung"


class Watched:
    """An attempt at a chunk, as the watch sees it; its methods may be called from any thread."""

    def __init__(self, engine: Any, journal: Journal, timeout_s: float | None) -> None:
        self.engine = engine
        self.journal = journal
        self.timeout_s = timeout_s
        self.rows_in = 0
        self.rows_out = 0
        self._lock = threading.Lock()

    def went_in(self) -> None:
        """A row was handed to the engine."""
        with self._lock:
            self.rows_in += 1

    def came_out(self) -> None:
        """A row came back from it."""
        with self._lock:
            self.rows_in -= 1
            self.rows_out += 1


class StallWatch:
    """A thread that ends the process where rows are in an engine and neither they nor its counters move."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: set[Watched] = set()
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()

    @contextmanager
    def watching(self, watched: Watched) -> Iterator[None]:
        """Watches an attempt until the block ends; one without a time limit is not watched."""
        if watched.timeout_s is None:
            yield
            return
        with self._lock:
            self._watched.add(watched)
            self._wake.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="headrace-stall-watch", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._watched.discard(watched)

    def _run(self) -> None:
        seen: weakref.WeakKeyDictionary[Any, tuple[Any, float]] = weakref.WeakKeyDictionary()
        while True:
            self._wake.wait()
            with self._lock:
                watched = list(self._watched)
                if not watched:
                    self._wake.clear()
                    continue
            time.sleep(min(1.0, _limit_s(watched) / 4))
            engines = {id(each.engine): each.engine for each in watched}.values()
            for engine in engines:
                own = [each for each in watched if each.engine is engine]
                self._look(engine, own, seen)

    def _look(self, engine: Any, own: list[Watched], seen: Any) -> None:
        now = time.monotonic()
        state = (sum(each.rows_out for each in own), len(own), tuple(engine.counters().values()))
        if not any(each.rows_in for each in own) or engine not in seen or seen[engine][0] != state:
            seen[engine] = (state, now)
            return
        timeout_s = _limit_s(own)
        if now - seen[engine][1] > timeout_s:
            end_process(own, timeout_s)


def _limit_s(watched: list[Watched]) -> float:
    return min(each.timeout_s for each in watched if each.timeout_s is not None)


def end_process(own: list[Watched], timeout_s: float) -> None:
    """Notes in the journals that their rows hung the engine, and ends the process at once."""
    for each in own:
        with suppress(OSError):
            each.journal.died(HUNG)
    rows = sum(each.rows_in for each in own)
    logger.error("the engine hangs: %d rows did not move for %g s (row_timeout_s)", rows, timeout_s)
    os._exit(1)


STALLS = StallWatch()
"""That of this process."""
