"""How texts are decoded beyond temperature and lengths: the options of one part of a job's config."""

from dataclasses import dataclass
from typing import Any

from headrace.engines import ConfigError, Serializable


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodingConfig(Serializable):
    """Samples, penalties, barred and wanted tokens, guides and beams of a run."""

    n: int = 1
    """Texts to make from each prompt; above 1 the column `texts` has all of them, `text` the first."""
    best_of: int | None = None
    """Texts made, of which the n likeliest are kept (default: n)."""
    logprobs: int | None = None
    """Adds the column `logprobs`: at each token of the text this many likeliest ones, and itself."""
    prompt_logprobs: int | None = None
    """Adds the column `prompt_logprobs`: the same of the prompt."""
    presence_penalty: float = 0.0
    """Taken off the logit of every token that the output holds; -2 to 2."""
    frequency_penalty: float = 0.0
    """Taken off the logit of a token once for each time that the output holds it; -2 to 2."""
    repetition_penalty: float = 1.0
    """Makes every token of prompt and output less likely above 1, more likely below (1: off)."""
    logit_bias: tuple[str, ...] = ()
    """Added to the logits of token ids: ID=BIAS,ID=BIAS."""
    suppress_tokens: tuple[int, ...] = ()
    """Token ids that are never made."""
    allowed_token_ids: tuple[int, ...] = ()
    """The only token ids that may be made (default: all)."""
    bad_words: tuple[str, ...] = ()
    """Text whose tokens are never made in a row; may be given several times."""
    include_stop_str_in_output: bool = False
    """Keep the stop string that ended a text."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""
    use_beam_search: bool = False
    """Give the most likely of beam_width continuations."""
    beam_width: int | None = None
    """Beams of a beam search."""
    length_penalty: float = 1.0
    """Beams are ranked by log-probability over length to this power."""
    early_stopping: bool = False
    """End a beam search when beam_width beams have ended."""
    json_schema: str | None = None
    """File of a JSON schema that every text follows, on one line; max_tokens must leave it room."""
    guided_regex: str | None = None
    """Regular expression that every text matches as a whole."""
    guided_choice: tuple[str, ...] = ()
    """Text that may be chosen; given several times, each text is one of them."""
    guided_grammar: str | None = None
    """File of a grammar, in Lark's notation or as ::= rules (GBNF), that every text follows."""
    logits_processors: tuple[str, ...] = ()
    """Functions of your own over the logits: module:name,module:name, which every worker can import."""

    def __post_init__(self) -> None:
        self._biases()

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the results that there are for these options."""
        asked = {"texts": self.n > 1, "logprobs": self.logprobs is not None}
        asked["prompt_logprobs"] = self.prompt_logprobs is not None
        return tuple(name for name, is_asked in asked.items() if is_asked)

    def params(self) -> dict[str, Any]:
        """The fields of SamplingParams that say the same."""
        names = (
            *("n", "best_of", "logprobs", "prompt_logprobs"),
            *("presence_penalty", "frequency_penalty", "repetition_penalty", "suppress_tokens", "bad_words"),
            *("include_stop_str_in_output", "skip_special_tokens", "use_beam_search", "beam_width"),
            *("length_penalty", "early_stopping", "guided_regex", "guided_choice", "guided_grammar"),
            "logits_processors",
        )
        return {
            **{name: getattr(self, name) for name in names},
            "logit_bias": self._biases() or None,
            "allowed_token_ids": self.allowed_token_ids or None,
            "guided_json": self.json_schema,
        }

    def _biases(self) -> dict[int, float]:
        try:
            pairs = [each.split("=") for each in self.logit_bias]
            return {int(token): float(bias) for token, bias in pairs}
        except ValueError:
            wanted = "ID=BIAS,ID=BIAS, for example 13=-5,42=2.5"
            raise ConfigError(f"logit_bias is {','.join(self.logit_bias)!r}: give {wanted}") from None
