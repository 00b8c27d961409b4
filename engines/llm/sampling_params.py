"""How one request is decoded."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headrace.engines.llm.sampling_checks import check_combinations, check_ranges, check_types
from headrace.engines.sampling import MIN_TEMPERATURE
from headrace.engines.serialization import Serializable

MAX_STOP_IDS = 16
"""Stop token ids of one row, end-of-text tokens included, that the device can watch."""

_TUPLES = ("stop_token_ids", "suppress_tokens", "allowed_token_ids", "guided_choice")
_TEXTS = ("stop", "bad_words", "logits_processors")
"""Tuples of texts, for which a lone text stands for a tuple of one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParams(Serializable):
    """Decoding parameters of one request; the defaults are greedy.

    Logits pass, in this order: logits_processors; the penalties; logit_bias, suppress_tokens, bad_words;
    allowed_token_ids and the guide; temperature; top_k; top_p; min_p; a draw. Log-probabilities are those of
    the model, before any of these.

    Raises:
      RequestError: a value is out of range or of a wrong type, or two of them cannot work together.
    """

    n: int = 1
    """Texts to make from the prompt."""
    best_of: int | None = None
    """Texts made, of which the n with the highest mean log-probability are returned; n where None."""
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
    presence_penalty: float = 0.0
    """Taken off the logit of every token that the output holds; -2 to 2."""
    frequency_penalty: float = 0.0
    """Taken off the logit of a token once for each time that the output holds it; -2 to 2."""
    repetition_penalty: float = 1.0
    """Divides a positive logit, multiplies a negative one, of every token in prompt or output; 1: off."""
    logit_bias: Mapping[int, float] | None = None
    """Added to the logits of these token ids."""
    suppress_tokens: Sequence[int] = ()
    """Token ids that are never made."""
    allowed_token_ids: Sequence[int] | None = None
    """The only token ids that may be made, an end-of-text token among them or not; None: all."""
    bad_words: str | Sequence[str] = ()
    """Texts whose tokens are never made in a row, as the tokenizer cuts them alone and after a space."""
    stop: str | Sequence[str] = ()
    """The text ends before the first of these strings."""
    stop_token_ids: Sequence[int] = ()
    """Tokens that end the text, beside the model's own."""
    ignore_eos: bool = False
    """The model's end-of-text tokens do not end the text."""
    include_stop_str_in_output: bool = False
    """The text keeps the stop string, or the stop token's text, that ended it."""
    skip_special_tokens: bool = True
    """Special tokens are left out of the text."""
    logprobs: int | None = None
    """How many most likely tokens, beside the chosen one, are returned with their log-probabilities at each
    output token; None: none, not even the chosen one's."""
    prompt_logprobs: int | None = None
    """The same for each prompt token but the first, whose prompt is then computed in full, whatever is
    cached."""
    use_beam_search: bool = False
    """Keep the beam_width most likely continuations and return the n best."""
    beam_width: int | None = None
    """Beams; best_of where None."""
    length_penalty: float = 1.0
    """Beams are ranked by log-probability over length to this power; above 1 favours long ones."""
    early_stopping: bool | Literal["never"] = False
    """True: end when beam_width beams have ended. False: when no running beam is likely to be better.
    "never": when none can be better."""
    guided_json: str | Mapping[str, Any] | bool | None = None
    """The text is JSON that this schema (a dict or its JSON text; True: any) accepts."""
    guided_regex: str | None = None
    """The whole text matches this regular expression."""
    guided_choice: Sequence[str] = ()
    """The text is one of these."""
    guided_grammar: str | None = None
    """The text follows this grammar in Lark's or the EBNF notation."""
    logits_processors: str | Sequence[str] = ()
    """Functions `package.module:name` that change the row's logits: (prompt ids, output ids, logits [V]) to
    logits [V], all NumPy."""

    def __post_init__(self) -> None:
        self._normalize()
        check_types(self)
        check_ranges(self)
        check_combinations(self)

    def _normalize(self) -> None:
        """Gives each field the one form that the engine reads, so far as its value has such a form."""
        for name in _TEXTS:
            if isinstance(value := getattr(self, name), str):
                object.__setattr__(self, name, (value,))
        for name in (*_TEXTS, *_TUPLES):
            value = getattr(self, name)
            if isinstance(value, Sequence) and not isinstance(value, str | bytes):
                object.__setattr__(self, name, tuple(value))
        if isinstance(self.logit_bias, Mapping):
            object.__setattr__(self, "logit_bias", {_token_id(k): v for k, v in self.logit_bias.items()})
        if isinstance(self.guided_json, Mapping | bool):
            object.__setattr__(self, "guided_json", json.dumps(self.guided_json))

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken at every step."""
        return self.temperature < MIN_TEMPERATURE

    @property
    def is_guided(self) -> bool:
        """Whether a schema, expression, choice or grammar says which tokens may come next."""
        guides = (self.guided_json, self.guided_regex, self.guided_grammar)
        return bool(self.guided_choice) or any(guide is not None for guide in guides)

    @property
    def num_samples(self) -> int:
        """Texts to make, of which `n` are returned."""
        return self.best_of or self.n

    @property
    def num_beams(self) -> int:
        """Beams kept; 0 where there is no beam search."""
        return (self.beam_width or self.best_of or 0) if self.use_beam_search else 0

    @property
    def num_top(self) -> int:
        """Most likely tokens that the device reports at each step; 0: none."""
        reported = (
            0 if self.logprobs is None else max(self.logprobs, 1)
        )  # the rank of the chosen one comes along
        return max(reported, 2 * self.num_beams)

    @property
    def needs_host(self) -> bool:
        """Whether the host has a say in every token: such a row cannot make two in one dispatch."""
        return self.is_guided or bool(self.logits_processors)


def _token_id(key: Any) -> Any:
    """JSON has no other keys than texts."""
    return int(key) if isinstance(key, str) and key.isdecimal() else key
