"""Guided decoding: which tokens a schema, an expression, a choice or a grammar leaves (llguidance)."""

import functools
import json
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import llguidance
import llguidance.numpy
import numpy as np

from headrace.engines.errors import RequestError
from headrace.engines.llm.sampling_params import SamplingParams

NUM_CACHED = 1024
"""Compiled grammars that are kept."""
MAX_REASON = 300
"""Characters of a compiler's message that are shown."""
JSON_FORM = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON on one line: a model that may write white space between values may write it for ever."""


class GuideSource(NamedTuple):
    """What a guide is made of."""

    field: str
    """The params' field that it came from."""
    grammar: str
    """In llguidance's own form."""


def read_guide(params: SamplingParams) -> GuideSource | None:
    """The guide that the params name; None where there is none.

    Raises:
      RequestError: its text is not JSON, or no grammar.
    """
    matcher = llguidance.LLMatcher
    try:
        if params.guided_json is not None:
            return GuideSource("guided_json", _json_grammar(str(params.guided_json)))
        if params.guided_regex is not None:
            return GuideSource("guided_regex", matcher.grammar_from_regex(params.guided_regex))
        if params.guided_choice:
            choices = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in params.guided_choice)
            return GuideSource("guided_choice", matcher.grammar_from_lark(f"start: {choices}"))
        if params.guided_grammar is not None:
            return GuideSource("guided_grammar", llguidance.grammar_from("grammar", params.guided_grammar))
    except ValueError as error:
        raise RequestError(f"the guide cannot be read: {error}", kind="params") from error
    return None


def check_guide(params: SamplingParams) -> None:
    """Finds out, without a model, whether the params' guide can be compiled.

    Raises:
      RequestError: it cannot.
    """
    source = read_guide(params)
    reason = "" if source is None else llguidance.LLMatcher.validate_grammar(source.grammar)
    if reason and source is not None and not reason.startswith("WARNING"):
        raise RequestError(f"{source.field} cannot be compiled: {reason.strip()[:MAX_REASON]}", kind="params")


def _json_grammar(schema: str) -> str:
    parsed = json.loads(schema)
    # True stands for any JSON, an object as everywhere else.
    parsed = {"type": "object"} if parsed is True else parsed
    if not isinstance(parsed, dict):
        raise ValueError(f"a JSON schema is an object, not {schema[:40]!r}")
    return llguidance.LLMatcher.grammar_from_json_schema(
        json.dumps(parsed),
        overrides=JSON_FORM,  # pyright: ignore[reportArgumentType]
    )


class GuideMaker:
    """Compiles guides for one model; each grammar once. Its methods may be called from any thread."""

    def __init__(
        self, tokenizer_json: Callable[[], str], vocab_size: int, eos_token_ids: Sequence[int]
    ) -> None:
        self._tokenizer_json = tokenizer_json
        self._vocab_size = vocab_size
        self._eos_token_ids = list(eos_token_ids)
        self._lock = threading.Lock()
        self._compile = functools.lru_cache(NUM_CACHED)(self._compile_once)
        self._loaded: llguidance.LLTokenizer | None = None

    def make(self, params: SamplingParams) -> llguidance.LLMatcher | None:
        """A matcher in its first state, to be copied and never fed; None where the params have no guide.

        Raises:
          RequestError: the guide cannot be read or compiled.
        """
        source = read_guide(params)
        return None if source is None else self._compile(source)

    def _compile_once(self, source: GuideSource) -> llguidance.LLMatcher:
        matcher = llguidance.LLMatcher(self._tokenizer, source.grammar, log_level=0)
        if matcher.is_error():
            reason = matcher.get_error().strip()[:MAX_REASON]
            raise RequestError(f"{source.field} cannot be compiled: {reason}", kind="params")
        return matcher

    @property
    def _tokenizer(self) -> llguidance.LLTokenizer:
        """Loaded at its first use: it takes seconds."""
        with self._lock:
            if self._loaded is None:
                self._loaded = llguidance.LLTokenizer(
                    self._tokenizer_json(), n_vocab=self._vocab_size, eos_token=self._eos_token_ids
                )
            return self._loaded


class GuideState:
    """Where one row stands in its guide."""

    def __init__(self, start: llguidance.LLMatcher) -> None:
        self._start = start
        self._matcher = start.deep_copy()
        self._tokens: list[int] = []

    def follow(self, output_ids: list[int]) -> llguidance.LLMatcher:
        """The matcher after these tokens: those that are new are fed to it, or all where they are others."""
        num_fed = len(self._tokens)
        if output_ids[:num_fed] != self._tokens:
            self._matcher, num_fed = self._start.deep_copy(), 0
        if num_fed < len(output_ids):
            self._matcher.consume_tokens(output_ids[num_fed:])
        self._tokens = list(output_ids)
        return self._matcher


def fill_mask(mask: np.ndarray, matchers: Sequence[tuple[llguidance.LLMatcher, int]]) -> None:
    """Writes the tokens that each matcher leaves into its row of the mask (uint32), on all cores."""
    llguidance.numpy.fill_next_token_bitmask_par(_executor(), list(matchers), mask.view(np.int32))


@functools.cache
def _executor() -> llguidance.LLExecutor:
    return llguidance.LLExecutor()
