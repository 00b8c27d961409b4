"""How one request is decoded."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from headrace.engines.errors import RequestError
from headrace.engines.sampling import MIN_TEMPERATURE
from headrace.engines.serialization import Serializable

MAX_STOP_IDS = 16
"""Stop token ids of one row, end-of-text tokens included, that the device can watch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParams(Serializable):
    """Decoding parameters of one request; the defaults are greedy."""

    max_tokens: int = 256
    """Most new tokens; the context length may end a row before."""
    min_tokens: int = 0
    """New tokens before which no end-of-text or stop token is taken."""
    temperature: float = 0.0
    """0: the most likely token. Above: divides the logits before a draw."""
    top_k: int = 0
    """Draw from the k most likely tokens; 0 and -1: off."""
    top_p: float = 1.0
    """Draw from the fewest tokens whose probabilities reach this sum; 1: off."""
    min_p: float = 0.0
    """Draw from tokens with at least this share of the most likely one's probability; 0: off."""
    seed: int | None = None
    """Seed of the row's draws; where None, derived from the job seed and the row's id."""
    stop: str | Sequence[str] = ()
    """The text ends before the first of these strings."""
    include_stop_str_in_output: bool = False
    """The text keeps the stop string, or the stop token's text, that ended it."""
    stop_token_ids: Sequence[int] = ()
    """Tokens that end the text, beside the model's own."""
    ignore_eos: bool = False
    """The model's end-of-text tokens do not end the text."""
    skip_special_tokens: bool = True
    """Special tokens are left out of the text."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        self._check_types()
        if self.max_tokens < 1:
            raise RequestError(f"max_tokens is {self.max_tokens}, wanted at least 1", kind="params")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise RequestError(
                f"min_tokens is {self.min_tokens}, wanted 0 to max_tokens ({self.max_tokens})", kind="params"
            )
        if not 0.0 <= self.temperature < math.inf:
            raise RequestError(
                f"temperature is {self.temperature}, wanted a finite number, 0 or more", kind="params"
            )
        if not 0.0 < self.top_p <= 1.0:
            raise RequestError(f"top_p is {self.top_p}, wanted a share in (0, 1]", kind="params")
        if not 0.0 <= self.min_p <= 1.0:
            raise RequestError(f"min_p is {self.min_p}, wanted a share in [0, 1]", kind="params")
        if self.top_k < -1:
            raise RequestError(f"top_k is {self.top_k}, wanted -1 or 0 (off) or a count", kind="params")
        if any(not text for text in self.stop):
            raise RequestError("a stop string is empty: it would end every text at once", kind="params")
        if any(token < 0 for token in self.stop_token_ids):
            raise RequestError("a stop token id is negative: token ids begin at 0", kind="params")

    def _check_types(self) -> None:
        """What is not a number or a text must not reach the engine's thread, which serves other rows too."""
        for name in ("max_tokens", "min_tokens", "top_k"):
            _require_type(name, getattr(self, name), Integral, "an integer")
        for name in ("temperature", "top_p", "min_p"):
            _require_type(name, getattr(self, name), Real, "a number")
        if self.seed is not None:
            _require_type("seed", self.seed, Integral, "an integer")
        for text in self.stop:
            _require_type("a stop", text, str, "a text")
        for token in self.stop_token_ids:
            _require_type("a stop token id", token, Integral, "an integer")

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken at every step."""
        return self.temperature < MIN_TEMPERATURE


def _require_type(name: str, value: Any, kind: type, wanted: str) -> None:
    if not isinstance(value, kind):
        raise RequestError(f"{name} is {type(value).__name__}, wanted {wanted}", kind="params")
