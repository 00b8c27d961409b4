"""Beam search over the rows of one request: which beams go on, which have ended, which are the best."""

from typing import NamedTuple

import numpy as np

from headrace.engines.llm.logprobs import LogprobTrace
from headrace.engines.llm.request import LLMRequest, Sequence


class Step(NamedTuple):
    """The likely next tokens of one beam, the likeliest first."""

    tokens: np.ndarray  # int32 [top]
    logprobs: np.ndarray  # float32 [top]


class Branch(NamedTuple):
    """A beam that goes on with a token."""

    parent: Sequence
    token: int
    logprob: float
    """Of the whole text so far."""
    rank: int
    """Of the token among its beam's; 1: the most likely."""
    step: Step

    def grow(self, sequence: Sequence) -> None:
        """Gives the token to the parent, or to a copy of it."""
        if self.parent.request.params.logprobs is not None:
            trace = LogprobTrace(self.parent.request.params.logprobs)
            sequence.trace = trace if self.parent.trace is None else self.parent.trace.copy()
            sequence.trace.add(self.token, float(self.step.logprobs[self.rank - 1]), self.rank, self.step)
        sequence.tokens.append(self.token)
        sequence.logprob = self.logprob

    def copied(self, sample: int) -> Sequence:
        """A row of its own that has the token."""
        parent = self.parent
        child = Sequence(
            request=parent.request,
            sample=sample,
            tokens=list(parent.tokens),
            max_total=parent.max_total,
            num_cached=parent.num_cached,
            prompt_trace=parent.prompt_trace,
            first_scheduled_s=parent.first_scheduled_s,
            first_token_s=parent.first_token_s,
        )
        self.grow(child)
        return child


class EndedBeam(NamedTuple):
    """A text that came to its end."""

    sequence: Sequence
    is_stopped: bool
    """By a token that ends a text, and not by its length."""
    score: float


class BeamSearch:
    """The beams of a request.

    At each step the 2 x num_beams best of all beams' next tokens are looked at in order: those that end the
    text leave the beam, where they are among the first num_beams; of the others the first num_beams go on
    (as in Hugging Face's generation). Texts are ranked by log-probability over length ** length_penalty.
    """

    def __init__(self, request: LLMRequest, stop_ids: tuple[int, ...], max_outputs: int) -> None:
        self.request = request
        self.live: list[Sequence] = []
        self.ended: list[EndedBeam] = []
        self.num_rows = 1
        self._stop_ids = frozenset(stop_ids)
        self._max_outputs = max_outputs
        self._steps: dict[int, tuple[Sequence, Step]] = {}

    def report(self, sequence: Sequence, step: Step) -> bool:
        """Takes the likely next tokens of one beam; whether all beams have reported."""
        self._steps[sequence.sample] = (sequence, step)
        return len(self._steps) == len(self.live)

    def advance(self) -> list[Branch]:
        """The beams that go on, the best first; none where the search is over."""
        params = self.request.params
        candidates = [
            Branch(sequence, int(token), sequence.logprob + float(logprob), rank, step)
            for sequence, step in self._steps.values()
            for rank, (token, logprob) in enumerate(zip(*step, strict=True), 1)
            if logprob > -np.inf
            and not (token in self._stop_ids and sequence.num_outputs + 1 < params.min_tokens)
        ]
        num_outputs = next(iter(self._steps.values()))[0].num_outputs + 1
        self._steps = {}
        candidates.sort(key=lambda branch: (-branch.logprob, branch.parent.sample, branch.rank))
        going: list[Branch] = []
        for place, branch in enumerate(candidates[: 2 * params.num_beams]):
            is_last = num_outputs == self._max_outputs
            if branch.token in self._stop_ids or is_last:
                if place < params.num_beams:
                    self._end(branch)
            elif len(going) < params.num_beams:
                going.append(branch)
        return [] if self._is_over(going, num_outputs) else going

    def _end(self, branch: Branch) -> None:
        sequence = branch.copied(self.num_rows)
        is_stopped = branch.token in self._stop_ids
        score = self._score(branch.logprob, sequence.num_outputs)
        self.ended.append(EndedBeam(sequence, is_stopped, score))
        self.ended.sort(key=lambda beam: -beam.score)
        del self.ended[self.request.params.num_beams :]

    def _score(self, logprob: float, num_outputs: int) -> float:
        return logprob / num_outputs**self.request.params.length_penalty

    def _is_over(self, going: list[Branch], num_outputs: int) -> bool:
        params = self.request.params
        if not going:
            return True
        if len(self.ended) < params.num_beams:
            return False
        if params.early_stopping is True:
            return True
        # What the best beam can still reach: at its present length, or at the best one that there is.
        longest = self._max_outputs if params.length_penalty > 0 else num_outputs
        length = longest if params.early_stopping == "never" else num_outputs
        return self._score(going[0].logprob, length) <= self.ended[-1].score
