"""Requests in text or messages to requests in tokens."""

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from headrace.engines.errors import RequestError
from headrace.engines.llm.conversation import ChatOptions, Message
from headrace.engines.llm.engine_config import EngineConfig, Overlong
from headrace.engines.llm.guided import GuideMaker
from headrace.engines.llm.prompts import EncodeOptions, Prompt, TextRequest
from headrace.engines.llm.request import LLMRequest
from headrace.engines.llm.sampling_params import SamplingParams
from headrace.engines.llm.token_rules import RuleMaker
from headrace.engines.llm.tokenizer import PromptTokenizer
from headrace.engines.sampling import derive_seed

DEFAULT_CHAT = ChatOptions()


class RequestEncoder:
    """Tokenizes requests for one engine. May be used from any thread."""

    def __init__(
        self, tokenizer: PromptTokenizer, config: EngineConfig, *, vocab_size: int, max_prompt_len: int
    ) -> None:
        self._tokenizer = tokenizer
        self._config = config
        self._vocab_size = vocab_size
        guides = GuideMaker(tokenizer.to_json, vocab_size, tokenizer.eos_token_ids)
        self._rules = RuleMaker(tokenizer.encode_part, vocab_size, guides)
        self._max_prompt_len = max_prompt_len

    def encode(self, request: TextRequest, request_id: str, submit_time_s: float) -> LLMRequest:
        """The request in tokens, its prompt cut where it is too long and the engine's config says so.

        Raises:
          RequestError: the prompt is of no known form, the template refuses it, or it has unknown tokens.
        """
        token_ids = self.tokens_of(request)
        _check_ids(token_ids, request.params, self._vocab_size)
        token_ids, was_cut = fit_prompt(token_ids, self._max_prompt_len, self._config.overlong)
        seed = request.params.seed
        return LLMRequest(
            request_id=request_id,
            prompt_token_ids=tuple(token_ids),
            params=request.params,
            seed=derive_seed(self._config.seed, request_id) if seed is None else int(seed) % 2**63,
            output_kind=request.output_kind,
            rules=self._rules.make(request.params),
            priority=request.priority,
            metadata=request.metadata,
            quality_flags=("prompt_truncated",) if was_cut else (),
            submit_time_s=submit_time_s,
        )

    def tokens_of(self, request: TextRequest) -> list[int]:
        """The tokens of a request's prompt.

        Raises:
          RequestError: as `encode`.
        """
        prompt = _unwrap(request.prompt)
        if isinstance(prompt, str):
            if request.chat is None and request.system is None:
                return _cut(self._tokenizer.encode(prompt, request.encode.add_special_tokens), request.encode)
            prompt = [{"role": "user", "content": prompt}]
        if isinstance(prompt, bytes | Mapping) or not isinstance(prompt, Sequence):
            raise RequestError(
                f"a prompt is text, token ids or messages, not {type(prompt).__name__}", kind="prompt_type"
            )
        if all(isinstance(token, Integral) for token in prompt):
            return _cut([int(token) for token in prompt], request.encode)  # pyright: ignore[reportArgumentType]
        messages = _with_system(prompt, request.system)
        options = request.chat or DEFAULT_CHAT
        tokens = self._tokenizer.encode_chat(messages, options, request.encode.add_special_tokens)
        return _cut(tokens, request.encode)


def fit_prompt(token_ids: list[int], max_tokens: int, overlong: Overlong) -> tuple[list[int], bool]:
    """The prompt, cut to `max_tokens` where it is longer and a cut is wanted, and whether it was cut.

    A prompt that is too long and not to be cut comes back whole: the scheduler refuses it.
    """
    if len(token_ids) <= max_tokens or overlong == "error":
        return token_ids, False
    kept = token_ids[-max_tokens:] if overlong == "truncate-left" else token_ids[:max_tokens]
    return kept, True


def _unwrap(prompt: Prompt) -> Any:
    if not isinstance(prompt, Mapping):
        return prompt
    if prompt.keys() == {"prompt"}:
        return prompt["prompt"]
    if prompt.keys() == {"prompt_token_ids"}:
        return prompt["prompt_token_ids"]
    raise RequestError(
        'a prompt that is a mapping is {"prompt": text} or {"prompt_token_ids": ids}', kind="prompt_type"
    )


def _with_system(messages: Sequence[Any], system: str | None) -> list[Message]:
    first = messages[0]
    has_own = isinstance(first, Mapping) and first.get("role") in ("system", "developer")
    return list(messages) if system is None or has_own else [{"role": "system", "content": system}, *messages]


def _cut(token_ids: list[int], options: EncodeOptions) -> list[int]:
    if options.max_length is None:
        return token_ids
    return fit_prompt(
        token_ids,
        options.max_length,
        "truncate-left" if options.truncation_side == "left" else "truncate-right",
    )[0]


def _check_ids(token_ids: Sequence[int], params: SamplingParams, vocab_size: int) -> None:
    """A token that the model does not have would silently be read as another."""
    for token in (min(token_ids, default=0), max((*token_ids, *params.stop_token_ids), default=0)):
        if not 0 <= token < vocab_size:
            raise RequestError(
                f"token id {token} is none of the model's, which end at {vocab_size - 1}", kind="token_ids"
            )
