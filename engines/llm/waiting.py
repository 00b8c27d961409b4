"""Rows that wait for a slot, in the order in which they are to be admitted.

Rows are looked at a window at a time. Inside a window those whose prompts begin alike stand side by side, so
that the pages of their beginning are computed once and still there for the last of them; the rest goes by
length, the longest first, so that no long row is left for the end. A window is used up before the next is
filled: no row waits for more than a window of later ones.
"""

import heapq
from collections import Counter
from collections.abc import Iterator

from headrace.engines.llm.engine_config import SchedulerConfig
from headrace.engines.llm.request import Sequence


class WaitingQueue:
    """Waiting rows: preempted ones, a sorted window, and those that came later."""

    def __init__(self, config: SchedulerConfig, page_size: int) -> None:
        self._by_priority = config.policy == "priority"
        self._look_ahead = config.look_ahead
        self._page_size = page_size
        self._window: list[Sequence] = []
        self._later: list[tuple[int, int, Sequence]] = []

    def __len__(self) -> int:
        return len(self._window) + len(self._later)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._window
        yield from (entry[2] for entry in self._later)

    def add(self, sequence: Sequence) -> None:
        """Takes a row that comes for the first time."""
        self._push(sequence)
        if any(self._rank(waiting) > self._rank(sequence) for waiting in self._window):
            self._dissolve()

    def put_back(self, sequence: Sequence) -> None:
        """Takes a preempted row, which goes before all others of its priority that came later."""
        place = (self._rank(sequence), sequence.arrival)
        index = 0
        for waiting in self._window:
            is_before = waiting.num_preemptions > 0 and (self._rank(waiting), waiting.arrival) < place
            if not (is_before or self._rank(waiting) < place[0]):
                break
            index += 1
        self._window.insert(index, sequence)

    def remove(self, sequence: Sequence) -> None:
        """Takes a row out."""
        if sequence in self._window:
            self._window.remove(sequence)
        else:
            self._later = [entry for entry in self._later if entry[2] is not sequence]
            heapq.heapify(self._later)

    def candidates(self) -> Iterator[Sequence]:
        """The rows of the window in the order of admission; the one that came last may be removed."""
        if not self._window:
            self._fill()
        yield from list(self._window)

    def _rank(self, sequence: Sequence) -> int:
        return sequence.request.priority if self._by_priority else 0

    def _push(self, sequence: Sequence) -> None:
        heapq.heappush(self._later, (self._rank(sequence), sequence.arrival, sequence))

    def _dissolve(self) -> None:
        """Gives the window up for a row of higher priority; preempted rows keep their places."""
        kept = [sequence for sequence in self._window if sequence.num_preemptions > 0]
        for sequence in self._window:
            if sequence.num_preemptions == 0:
                self._push(sequence)
        self._window = []
        self._fill()
        for sequence in kept:
            self.put_back(sequence)

    def _fill(self) -> None:
        """Sorts the next window.

        e.g. two prompts that begin with the same page and two others, of 9 and 30 tokens: the two alike, the
        long one, the short one.
        """
        count = min(self._look_ahead, len(self._later))
        window = [heapq.heappop(self._later)[2] for _ in range(count)]
        num_alike = Counter(self._first_page(sequence) for sequence in window)

        def place(sequence: Sequence) -> tuple:
            if len(sequence.tokens) > self._page_size and num_alike[self._first_page(sequence)] > 1:
                return (self._rank(sequence), 0, sequence.request.prompt_token_ids, 0, sequence.arrival)
            return (self._rank(sequence), 1, (), -sequence.max_total, sequence.arrival)

        self._window = sorted(window, key=place)

    def _first_page(self, sequence: Sequence) -> tuple[int, ...]:
        return sequence.request.prompt_token_ids[: self._page_size]
