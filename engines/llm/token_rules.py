"""What the params of a request say about single tokens, put in terms of the model's vocabulary."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from llguidance import LLMatcher

from headrace.engines.errors import RequestError
from headrace.engines.llm.guided import GuideMaker
from headrace.engines.llm.processors import LogitsProcessor, load_processor
from headrace.engines.llm.sampling_params import SamplingParams

MAX_BAD_WORD_TOKENS = 16
"""Tokens of the longest bad word that the device can watch for."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TokenRules:
    """Rules of one request; the defaults change nothing."""

    presence: float = 0.0
    """Presence penalty."""
    frequency: float = 0.0
    """Frequency penalty."""
    repetition: float = 1.0
    """Repetition penalty."""
    bias_tokens: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    """Distinct tokens that have a bias, in order."""
    biases: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    """The bias of each of them; -inf suppresses."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Runs of two or more tokens that may not be made."""
    allowed: np.ndarray | None = None
    """One bit a token of the vocabulary, in uint32 words, the lowest first; None: all may be made."""

    guide: LLMatcher | None = None
    """A guide in its first state, never fed; None: no guide."""
    processors: tuple[LogitsProcessor, ...] = ()
    """The user's functions over the logits."""

    @property
    def has_penalties(self) -> bool:
        return (self.presence, self.frequency, self.repetition) != (0.0, 0.0, 1.0)

    @property
    def has_edits(self) -> bool:
        """Whether anything but the mask of allowed tokens changes a logit."""
        return self.has_penalties or len(self.bias_tokens) > 0 or len(self.bad_words) > 0


NO_RULES = TokenRules()


class RuleMaker:
    """Makes the rules of requests for one model."""

    def __init__(
        self, encode: Callable[[str], list[int]], vocab_size: int, guides: GuideMaker | None = None
    ) -> None:
        self._encode = encode
        self._vocab_size = vocab_size
        self._guides = guides

    def make(self, params: SamplingParams) -> TokenRules:
        """The rules of such a request.

        Raises:
          RequestError: a token is none of the model's, a bad word has too many, a guide cannot be compiled,
            or a logits processor cannot be imported.
        """
        for name in ("logit_bias", "suppress_tokens", "allowed_token_ids"):
            self._check_ids(name, tuple(getattr(params, name) or ()))
        words = [run for word in params.bad_words for run in self._runs(word)]
        biases = {
            **(params.logit_bias or {}),
            **dict.fromkeys((*params.suppress_tokens, *(run[0] for run in words if len(run) == 1)), -np.inf),
        }
        tokens = sorted(biases)
        return TokenRules(
            presence=float(params.presence_penalty),
            frequency=float(params.frequency_penalty),
            repetition=float(params.repetition_penalty),
            bias_tokens=np.asarray(tokens, np.int32),
            biases=np.asarray([biases[token] for token in tokens], np.float32),
            bad_words=tuple(dict.fromkeys(run for run in words if len(run) > 1)),
            allowed=None if params.allowed_token_ids is None else self._mask(params.allowed_token_ids),
            guide=self._guides.make(params) if self._guides is not None and params.is_guided else None,
            processors=tuple(map(load_processor, params.logits_processors)),
        )

    def _runs(self, word: str) -> list[tuple[int, ...]]:
        """The tokens of a bad word at the beginning of a text and after a space."""
        bare = word.lstrip()
        runs = [tuple(self._encode(text)) for text in dict.fromkeys((bare, f" {bare}")) if text]
        for run in runs:
            if len(run) > MAX_BAD_WORD_TOKENS:
                raise RequestError(
                    f"bad word {word!r} has {len(run)} tokens, the engine takes {MAX_BAD_WORD_TOKENS}: "
                    "give a shorter part of it",
                    kind="params",
                )
        return [run for run in runs if run]

    def _mask(self, tokens: Sequence[int]) -> np.ndarray:
        bits = np.zeros(-(-self._vocab_size // 32) * 32, bool)
        bits[list(tokens)] = True
        return np.packbits(bits, bitorder="little").view(np.uint32)

    def _check_ids(self, name: str, tokens: Sequence[int]) -> None:
        largest = max(tokens, default=0)
        if largest >= self._vocab_size:
            raise RequestError(
                f"token id {largest} of {name} is none of the model's, which end at {self._vocab_size - 1}",
                kind="token_ids",
            )
