"""What goes into the engine and what comes out of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.engines.errors import RowError
from headrace.engines.llm.guided import GuideState
from headrace.engines.llm.logprobs import LogprobTrace, PromptTrace, TokenLogprobs
from headrace.engines.llm.output_text import OutputText
from headrace.engines.llm.sampling_params import SamplingParams
from headrace.engines.llm.token_rules import NO_RULES, TokenRules
from headrace.engines.sampling import derive_seed

FinishReason = Literal["stop", "length"]
OutputKind = Literal["final", "cumulative", "delta"]
"""final: one output, at the end; cumulative: one a dispatch, of the text so far; delta: of the new text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LLMRequest:
    """One prompt, in tokens, on its way into the engine."""

    request_id: str
    """Name that the output carries; unique among the requests in flight."""
    prompt_token_ids: tuple[int, ...]
    """The prompt."""
    params: SamplingParams
    """How to decode it."""
    seed: int
    """Seed of its draws; unused where the params are greedy."""
    rules: TokenRules = NO_RULES
    """What the params say about single tokens."""
    output_kind: OutputKind = "final"
    """Whether outputs come while the text grows, and what they hold."""
    metadata: Mapping[str, Any] | None = None
    """What the caller gave along; the output carries it."""
    quality_flags: tuple[str, ...] = ()
    """What happened to the prompt before, e.g. `prompt_truncated`."""
    priority: int = 0
    """Rows of a lower number go first where the policy is `priority`."""
    submit_time_s: float
    """Clock (time.monotonic) at submission."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompletionOutput:
    """One text made from a prompt."""

    index: int
    """Number of the sample, from 0."""
    text: str
    """The text, without special tokens and without what ended it; of a delta, the new part alone."""
    token_ids: tuple[int, ...]
    """The tokens, an end-of-text or stop token included; of a delta, the new ones alone."""
    num_tokens: int = 0
    """All its tokens so far, those of earlier deltas too."""
    finish_reason: FinishReason | None
    """stop: a stop token or string; length: max_tokens or the context length; None: it still grows."""
    stop_reason: int | str | None = None
    """The stop string or stop token that ended the text; None where it ended otherwise, or at end-of-text."""
    cumulative_logprob: float
    """Sum of all its tokens' log-probabilities so far under the unfiltered model (natural log)."""
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """At each of `token_ids`, the most likely tokens and the one that was made; None where not asked for."""
    seed: int | None
    """Seed of the draws, in 0 .. 2**63 - 1; None where greedy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestOutput:
    """Everything about one request: either outputs or an error."""

    request_id: str
    """The request's name."""
    prompt_token_ids: tuple[int, ...] = ()
    """The prompt as the model saw it."""
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    """At each prompt token, itself and the most likely ones there (None at the first); None where not asked
    for, and in deltas after the first."""
    outputs: tuple[CompletionOutput, ...] = ()
    """The texts; empty where `error` is set."""
    error: RowError | None = None
    """Why the request failed; None where it did not."""
    finished: bool = True
    """Whether this is the request's last output; False only where outputs come while the text grows."""
    metadata: Mapping[str, Any] | None = None
    """What the request carried along."""
    quality_flags: tuple[str, ...] = ()
    """`prompt_truncated` where the prompt was cut to fit."""
    cached_tokens: int = 0
    """Prompt tokens whose keys and values were there already."""
    queue_s: float | None = None
    """Seconds from submission to the first dispatch."""
    ttft_s: float | None = None
    """Seconds from submission to the first token on the host."""
    latency_s: float | None = None
    """Seconds from submission to the finish; None before it."""

    @property
    def num_generated_tokens(self) -> int:
        """Tokens of all its texts so far."""
        return sum(text.num_tokens for text in self.outputs)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of all its texts a second, from its first dispatch to its end; None before that."""
        if self.latency_s is None or self.queue_s is None:
            return None
        return self.num_generated_tokens / max(self.latency_s - self.queue_s, 1e-9)

    @property
    def text(self) -> str:
        """The first text; empty where the request failed."""
        return self.outputs[0].text if self.outputs else ""


@dataclass(kw_only=True, slots=True, eq=False)
class Sequence:
    """One text of a request inside the engine, with its pages and what it has made so far."""

    request: LLMRequest
    sample: int = 0
    """Number of the text among those of its request."""
    siblings: "list[Sequence]" = field(default_factory=list)
    """All rows of the request, where it makes more than one text."""
    tokens: list[int]
    text: OutputText | None = None
    """The text as it grows, where somebody looks at it before the end: a stop string or a reader."""
    num_read: int = 0
    """Output tokens that were given out in deltas."""
    max_total: int
    """Tokens at which it ends: the prompt's plus max_tokens, or the context length."""
    num_computed: int = 0
    """Tokens whose keys and values are in the pages."""
    num_drafted: int = 0
    """Tokens whose keys and values are in the pages of the draft model."""
    pages: list[int] = field(default_factory=list)
    prefix: int = 0
    """Name, in the page pool, of the prompt's pages that are published or shared so far."""
    num_published: int = 0
    """How many pages that are."""
    num_cached: int = 0
    """Prompt tokens that were in shared pages at the start."""
    logprob: float = 0.0
    guide: GuideState | None = None
    """Where it stands in its guide; None before the first token and without one."""
    error: RowError | None = None
    """What ends it at its next token: a guide or a logits processor that failed."""
    trace: LogprobTrace | None = None
    """Log-probabilities at each output token; None where the params do not ask for them."""
    prompt_trace: PromptTrace | None = None
    """The same of the prompt, one for all rows of the request."""
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    num_preemptions: int = 0
    arrival: int = 0
    """Number of the row in the order of arrival."""
    num_passed: int = 0
    """How often a later row was admitted while the pages of this one were not free."""
    prefill_end: int = 0
    """Tokens that are computed in chunks; those after them are decoded one by one."""
    is_in_flight: bool = False
    """Its next token is being made."""
    is_held: bool = False
    """It waits for the other beams of its request."""
    is_finished: bool = False
    """Nothing more is wanted of it, not even what is in flight."""

    @property
    def seed(self) -> int:
        """Seed of its draws."""
        return derive_seed(self.request.seed, "", self.sample) if self.sample else self.request.seed

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def num_outputs(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def output_ids(self) -> list[int]:
        return self.tokens[self.num_prompt :]

    @property
    def is_busy(self) -> bool:
        """Whether it can have no place in the next dispatch."""
        return self.is_in_flight or self.is_held

    @property
    def is_prefilling(self) -> bool:
        """Whether chunks of it are still to be computed."""
        return self.num_computed < self.prefill_end

    @property
    def can_speculate(self) -> bool:
        """Whether several of its tokens can be chosen at once: no rule depends on those before."""
        request = self.request
        return not (request.params.needs_host or request.params.use_beam_search or request.rules.has_edits)

    @property
    def needs_whole_prompt(self) -> bool:
        """Whether pages of earlier prompts do not help it: log-probabilities of its own are wanted."""
        return self.prompt_trace is not None and not self.prompt_trace.is_requested

    @property
    def num_sampled(self) -> int:
        """Outputs before the one that is made next: fewer than there are where known ones are made again."""
        return max(self.prefill_end, self.num_computed + 1) - self.num_prompt

    @property
    def past_tokens(self) -> list[int]:
        """The tokens before the one that is made next."""
        return self.tokens[: self.num_prompt + self.num_sampled]

    @property
    def past_outputs(self) -> list[int]:
        """The outputs before the one that is made next."""
        return self.past_tokens[self.num_prompt :]

    @property
    def num_remaining(self) -> int:
        """Tokens that may still be made."""
        return self.max_total - len(self.tokens)
