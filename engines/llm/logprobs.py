"""Log-probabilities that are returned: how many the device reports, and what becomes of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from headrace.engines.buckets import pick_bucket
from headrace.engines.llm.sampling_checks import MAX_TOP_LOGPROBS

TOP_BUCKETS = (8, 32, MAX_TOP_LOGPROBS)


class Logprob(NamedTuple):
    """One token's log-probability (natural log) under the model, at one place."""

    logprob: float
    rank: int
    """1: the most likely."""
    decoded_token: str
    """Its text alone."""


TokenLogprobs = Mapping[int, Logprob]
"""At one place, by token id: the token that is there first, then the most likely ones in order."""


def count_top(sequences: Sequence[Any]) -> int:
    """Most likely tokens a step that a dispatch of these rows reports; 0 where none asks."""
    return top_bucket(max((sequence.request.params.num_top for sequence in sequences), default=0))


def top_bucket(wanted: int) -> int:
    """Most likely tokens that are reported where so many are wanted."""
    return pick_bucket(TOP_BUCKETS, wanted) if wanted else 0


class LogprobTrace:
    """What was reported at each token of a row."""

    def __init__(self, num_top: int) -> None:
        self._num_top = num_top
        self._tokens: list[np.ndarray] = []
        self._logprobs: list[np.ndarray] = []
        self._ranks: list[int] = []

    def copy(self) -> "LogprobTrace":
        """A trace that goes its own way from here."""
        made = LogprobTrace(self._num_top)
        made._tokens, made._logprobs, made._ranks = self._tokens[:], self._logprobs[:], self._ranks[:]
        return made

    def __len__(self) -> int:
        return len(self._ranks)

    def add(self, token: int, logprob: float, rank: int, top: tuple[Any, Any]) -> None:
        """Adds one place: its token, and the most likely tokens there with their log-probabilities."""
        tokens, logprobs = (array[: self._num_top] for array in top)
        self._tokens.append(np.concatenate([np.asarray([token], np.int32), tokens]))
        self._logprobs.append(np.concatenate([np.asarray([logprob], np.float32), logprobs]))
        self._ranks.append(rank)

    def read(self, start: int, stop: int, decode: Callable[[list[int]], str]) -> tuple[TokenLogprobs, ...]:
        """What was reported at the tokens from `start` up to `stop`."""
        return tuple(dict(self._place(index, decode)) for index in range(start, min(stop, len(self))))

    def _place(self, index: int, decode: Callable[[list[int]], str]) -> Iterator[tuple[int, Logprob]]:
        places = zip(self._tokens[index].tolist(), self._logprobs[index].tolist(), strict=True)
        chosen, logprob = next(places)
        yield chosen, Logprob(logprob, self._ranks[index], decode([chosen]))
        for rank, (token, logprob) in enumerate(places, 1):
            if token != chosen and logprob > -np.inf:
                yield token, Logprob(logprob, rank, decode([token]))


class PromptTrace(LogprobTrace):
    """What was reported at each token of a prompt but the first; all rows of a request share it."""

    def __init__(self, num_top: int, num_prompt: int) -> None:
        super().__init__(num_top)
        self.num_top = max(num_top, 1)  # the rank of the token itself comes along
        self.num_requested = 0
        """Places that are scored, or will be by a dispatch in flight."""
        self._num_places = num_prompt - 1
        self._places: tuple[TokenLogprobs | None, ...] | None = None

    @property
    def is_requested(self) -> bool:
        """Whether nothing is left to be asked for."""
        return self.num_requested == self._num_places

    def read_all(self, decode: Callable[[list[int]], str]) -> tuple[TokenLogprobs | None, ...]:
        """What was reported at every token of the prompt; None at the first, before which nothing stands."""
        if self._places is None:
            self._places = (None, *self.read(0, self._num_places, decode))
        return self._places
