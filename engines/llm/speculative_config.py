"""What is told about speculative decoding."""

from dataclasses import dataclass
from typing import Literal

from headrace.engines.errors import ConfigError
from headrace.engines.serialization import Serializable

SpeculativeMethod = Literal["ngram", "draft_model", "eagle"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeculativeConfig(Serializable):
    """How tokens are proposed that the model then checks together; no text changes by it."""

    method: SpeculativeMethod | None = None
    """ngram (what followed the last tokens before), draft_model or eagle (default: nothing is proposed)."""
    num_speculative_tokens: int = 4
    """Tokens that are proposed and checked at once."""
    speculative_model: str | None = None
    """The draft model, a small one with the same tokens, or the EAGLE head that was trained for the model."""
    prompt_lookup_max: int = 4
    """Most last tokens that are looked for in the prompt and the text, with ngram."""
    prompt_lookup_min: int = 1
    """Fewest last tokens that have to be found for a proposal, with ngram."""
    disable_by_batch_size: int = 8
    """Rows above which a step does without speculation: products of many rows gain nothing by more."""
    measure_every: int = 128
    """Of dispatches of as many rows, each so-many-th goes without speculation, to time its gain; 0: none."""

    def __post_init__(self) -> None:
        for name in ("num_speculative_tokens", "prompt_lookup_min", "disable_by_batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, wanted at least 1")
        if self.measure_every < 0 or self.measure_every == 1:
            raise ConfigError(f"measure_every is {self.measure_every}, wanted at least 2, or 0 for never")
        if self.prompt_lookup_max < self.prompt_lookup_min:
            raise ConfigError(
                f"prompt_lookup_max is {self.prompt_lookup_max}, less than prompt_lookup_min: raise it"
            )
        if self.speculative_model is not None and not self.use_model():
            raise ConfigError("speculative_model is given: set method to draft_model or eagle, which use it")

    def use_eagle(self) -> bool:
        """Whether proposals are made from the model's hidden states, which are kept for them."""
        return self.method == "eagle"

    def use_model(self) -> bool:
        """Whether weights beside the model's propose: a draft model or a head."""
        return self.method in ("draft_model", "eagle")

    def require_model(self) -> None:
        """Raises ConfigError where a draft model or a head is wanted and not named."""
        if self.use_model() and self.speculative_model is None:
            wanted = "EAGLE head" if self.use_eagle() else "draft model"
            raise ConfigError(f"method {self.method} has no {wanted}: give speculative_model")
