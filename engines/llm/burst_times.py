"""What speculation gains in time: bursts with proposals beside the few of as many rows that go without."""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from headrace.engines.llm.batch import DecodeBatch, PrefillBatch

BURSTS_BEFORE = 4
"""Bursts with proposals before the first one that goes without, or before the next where it was not timed."""


@dataclass(slots=True)
class _Width:
    """Bursts of so many rows."""

    num_left: int = BURSTS_BEFORE
    """Bursts with proposals before the next one without."""
    plain_tokens: int = 0
    """Tokens that bursts without proposals made."""
    plain_s: float = 0.0
    """Seconds that they took."""


class BurstTimes:
    """Says which bursts go without proposals for a comparison, and adds up what both kinds take.

    A burst's time is from before its launch to the tokens of all its rows, with what the host does meanwhile.
    It is not counted where another dispatch was launched or a program compiled or read meanwhile. Bursts are
    compared with those of as many rows, all of which could have had proposals. Their contexts differ in
    length, and other work on the machine counts in: the sums of many tell something, those of a few do not.
    """

    def __init__(self, every: int) -> None:
        """Of bursts of the same number of rows each `every`-th goes without proposals; 0: none does."""
        self._every = every
        self._widths: dict[int, _Width] = defaultdict(_Width)
        self._kind: Literal["plain", "speculative"] | None = None
        self._num_rows = 0
        self._num_programs = 0
        self._started_s = 0.0
        self.speculative_s = 0.0
        """Seconds of the bursts with proposals that there was a comparison for."""
        self.without_s = 0.0
        """Seconds that their tokens would have taken in bursts without, at the rate of those until then."""

    def launch(
        self,
        batch: PrefillBatch | DecodeBatch,
        num_programs: int,
        can_go_without: Callable[[DecodeBatch], bool],
    ) -> PrefillBatch | DecodeBatch:
        """The batch to launch now: this one, or the same without proposals where it is that burst's turn.

        `num_programs` were compiled or read so far.
        """
        self._kind, self._num_rows = None, len(batch.sequences)
        if isinstance(batch, DecodeBatch) and batch.is_speculative:
            width = self._widths[self._num_rows]
            is_plain = self._every > 0 and width.num_left <= 0 and can_go_without(batch)
            width.num_left = BURSTS_BEFORE if is_plain else width.num_left - 1
            self._kind = "plain" if is_plain else "speculative"
            batch = replace(batch, is_speculative=not is_plain)
        self._num_programs, self._started_s = num_programs, time.perf_counter()
        return batch

    def land(self, num_tokens: int, num_programs: int) -> None:
        """Notes that a dispatch has made so many tokens, if it is the one that was launched last."""
        kind, self._kind = self._kind, None
        if kind is None or num_programs != self._num_programs:
            return
        seconds, width = time.perf_counter() - self._started_s, self._widths[self._num_rows]
        if kind == "plain":
            width.num_left = self._every - 1
            width.plain_tokens += num_tokens
            width.plain_s += seconds
        elif width.plain_tokens:
            self.speculative_s += seconds
            self.without_s += num_tokens * width.plain_s / width.plain_tokens
