"""The public face of the text engine."""

import itertools
import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from numbers import Integral
from typing import Any

from headrace.engines.checkpoints import Checkpoint, open_checkpoint
from headrace.engines.compilation import enable_compilation_cache
from headrace.engines.driver import Driver
from headrace.engines.errors import ConfigError, RequestError, RowError
from headrace.engines.llm.engine import LLMEngine
from headrace.engines.llm.engine_config import EngineConfig
from headrace.engines.llm.families import load_decoder, read_model_config
from headrace.engines.llm.kv_cache import choose_num_pages
from headrace.engines.llm.request import LLMRequest, RequestOutput
from headrace.engines.llm.runner import Runner
from headrace.engines.llm.sampling_params import MAX_STOP_IDS, SamplingParams
from headrace.engines.llm.token_rules import RuleMaker
from headrace.engines.llm.tokenizer import Message, PromptTokenizer, fit_prompt
from headrace.engines.precision import resolve_dtype
from headrace.engines.sampling import derive_seed

logger = logging.getLogger(__name__)

Prompt = str | Sequence[int] | Sequence[Message]
"""A text, token ids, or the messages of a conversation."""


class LLM:
    """A text model that stays loaded and serves any number of threads.

    Raises:
      ModelError: the model cannot be found, read or run.
      ConfigError: the configuration does not fit the model or the memory.
    """

    def __init__(self, model: str | Checkpoint, config: EngineConfig | None = None) -> None:
        started_s = time.monotonic()
        enable_compilation_cache()
        self.config = config or EngineConfig()
        checkpoint = open_checkpoint(model) if isinstance(model, str) else model
        dtype = resolve_dtype(self.config.dtype)
        self.model_config = read_model_config(checkpoint.config)
        self.max_model_len = _choose_max_model_len(self.config, self.model_config.max_position)
        _check_token_ids(self.config.token_ids, self.model_config.vocab_size)
        self._tokenizer = PromptTokenizer(checkpoint, self.config)
        self._rules = RuleMaker(self._tokenizer.encode_part, self.model_config.vocab_size)
        decoder = load_decoder(checkpoint, self.model_config, dtype)
        num_pages = choose_num_pages(self.model_config, self.config, self.max_model_len, dtype)
        runner = Runner(decoder, self.config, num_pages, self.max_model_len, dtype)
        self._engine = LLMEngine(
            runner, self._tokenizer, self.config, num_pages=num_pages, max_model_len=self.max_model_len
        )
        self._driver: Driver[LLMRequest, RequestOutput] = Driver(self._engine, name="llm")
        self._driver.start()
        self._request_numbers = itertools.count()
        self._load_s = time.monotonic() - started_s
        logger.info("loaded %s: %.1f s", checkpoint.model.spec, self._load_s)

    @property
    def num_slots(self) -> int:
        """Rows that decode at the same time."""
        return self.config.scheduler.max_num_seqs

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> RequestOutput | list[RequestOutput]:
        """The output of one prompt, or those of a list of prompts in its order.

        A bad prompt gives an output with `error` set; the others are not touched.
        """
        if _is_one_prompt(prompts):
            return self._run([prompts], sampling_params)[0]
        return self._run(list(prompts), sampling_params)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> RequestOutput | list[RequestOutput]:
        """The answer to one conversation, or those to a list of conversations in its order."""
        if messages and isinstance(messages[0], Mapping):
            return self._run([messages], sampling_params)[0]  # pyright: ignore[reportArgumentType]
        return self._run(list(messages), sampling_params)  # pyright: ignore[reportArgumentType]

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str,
        chat: bool = False,
        system: str | None = None,
    ) -> "Future[RequestOutput]":
        """A future of the prompt's output; blocks while the engine's queue is full.

        `chat` makes a plain prompt the user's turn of a conversation, after `system` where given. A fault of
        the row comes back in the output's `error`; the future itself raises EngineError alone.
        """
        params = params or SamplingParams()
        submit_time_s = time.monotonic()
        try:
            token_ids = self._encode(prompt, chat=chat, system=system)
            _check_ids_of_row(token_ids, params, self.model_config.vocab_size)
            rules = self._rules.make(params)
        except RequestError as error:
            return _finished(RequestOutput(request_id=request_id, error=RowError.of(error)))
        token_ids, was_cut = fit_prompt(token_ids, self.max_model_len - 1, self.config.overlong)
        request = LLMRequest(
            request_id=request_id,
            prompt_token_ids=tuple(token_ids),
            params=params,
            seed=derive_seed(self.config.seed, request_id)
            if params.seed is None
            else int(params.seed) % 2**63,
            rules=rules,
            quality_flags=("prompt_truncated",) if was_cut else (),
            submit_time_s=submit_time_s,
        )
        return _errors_to_outputs(self._driver.submit(request), request)

    def abort(self, request_id: str) -> None:
        """Drops a request that is not finished; its output carries an error of kind `aborted`."""
        self._driver.abort(request_id)

    def metrics(self) -> dict[str, float]:
        """Counters since the start, and the seconds that loading took."""
        return {**self._engine.metrics(), "load_s": self._load_s}

    def close(self) -> None:
        """Stops the engine and gives its memory back; requests in flight get EngineError."""
        self._driver.stop(drain=False)
        self._engine.release()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(
        self, prompts: list[Any], params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[RequestOutput]:
        each = (
            [params] * len(prompts) if params is None or isinstance(params, SamplingParams) else list(params)
        )
        for own in each:
            if not isinstance(own, SamplingParams | None):
                raise TypeError(f"sampling params are SamplingParams or None, not {type(own).__name__}")
        if len(each) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts and {len(each)} sampling params: give one each, or one")
        futures = [
            self.submit(prompt, own, request_id=f"request-{next(self._request_numbers)}")
            for prompt, own in zip(prompts, each, strict=True)
        ]
        return [future.result() for future in futures]

    def _encode(self, prompt: Prompt, *, chat: bool, system: str | None) -> list[int]:
        if isinstance(prompt, str):
            if not chat:
                return self._tokenizer.encode(prompt)
            turns = [{"role": "user", "content": prompt}]
            if system is not None:
                turns.insert(0, {"role": "system", "content": system})
            return self._tokenizer.encode_chat(turns)
        if isinstance(prompt, bytes) or not isinstance(prompt, Sequence):
            kind = type(prompt).__name__
            raise RequestError(f"a prompt is text, token ids or messages, not {kind}", kind="prompt_type")
        if all(isinstance(token, Integral) for token in prompt):
            return [int(token) for token in prompt]  # pyright: ignore[reportArgumentType]
        messages: list[Message] = list(prompt)  # pyright: ignore[reportAssignmentType]
        first = messages[0]
        if system is not None and not (isinstance(first, Mapping) and first.get("role") == "system"):
            messages.insert(0, {"role": "system", "content": system})
        return self._tokenizer.encode_chat(messages)


def check_model(
    checkpoint: Checkpoint, config: EngineConfig, params: SamplingParams | None = None, *, chat: bool = False
) -> None:
    """Finds out, without reading weights, whether an engine could be made, and serve such requests.

    Raises:
      ModelError: the checkpoint's architecture is not supported.
      ConfigError: the config or the params do not fit the model, or it has no template and `chat` wants one.
    """
    model = read_model_config(checkpoint.config)
    _choose_max_model_len(config, model.max_position)
    _check_token_ids((*config.token_ids, *(params.stop_token_ids if params else ())), model.vocab_size)
    if not chat and not (params and params.stop_token_ids):
        return  # a tokenizer takes a while to load
    tokenizer = PromptTokenizer(checkpoint, config)
    if chat and not tokenizer.has_chat_template:
        raise ConfigError(f"{checkpoint.model.spec} has no chat template: send plain prompts")
    if params and len({*tokenizer.eos_token_ids, *params.stop_token_ids}) > MAX_STOP_IDS:
        raise ConfigError(f"there are more than {MAX_STOP_IDS} stop token ids, the model's own included")


def _check_token_ids(token_ids: Sequence[int], vocab_size: int) -> None:
    largest = max(token_ids, default=0)
    if largest >= vocab_size:
        raise ConfigError(f"token id {largest} is none of the model's, which end at {vocab_size - 1}")


def _check_ids_of_row(token_ids: Sequence[int], params: SamplingParams, vocab_size: int) -> None:
    """A token that the model does not have would silently be read as another."""
    for token in (min(token_ids, default=0), max((*token_ids, *params.stop_token_ids), default=0)):
        if not 0 <= token < vocab_size:
            raise RequestError(
                f"token id {token} is none of the model's, which end at {vocab_size - 1}", kind="token_ids"
            )


def _is_one_prompt(prompts: Any) -> bool:
    """Whether it is a text, token ids or a conversation, and not a list of such."""
    if isinstance(prompts, str):
        return True
    is_list = isinstance(prompts, Sequence) and len(prompts) > 0
    return is_list and all(isinstance(each, Integral | Mapping) for each in prompts)


def _choose_max_model_len(config: EngineConfig, max_position: int) -> int:
    wanted = config.scheduler.max_model_len
    if wanted is None:
        return max_position
    if wanted > max_position:
        raise ConfigError(f"max_model_len is {wanted}, the model was made for {max_position}: lower it")
    return wanted


def _finished(output: RequestOutput) -> "Future[RequestOutput]":
    future: Future[RequestOutput] = Future()
    future.set_result(output)
    return future


def _errors_to_outputs(future: "Future[RequestOutput]", request: LLMRequest) -> "Future[RequestOutput]":
    """The same future, but a refused request gives an output that says why."""
    outer: Future[RequestOutput] = Future()
    outer.set_running_or_notify_cancel()

    def forward(inner: "Future[RequestOutput]") -> None:
        error = inner.exception()
        if error is None:
            outer.set_result(inner.result())
        elif isinstance(error, RequestError):
            outer.set_result(
                RequestOutput(
                    request_id=request.request_id,
                    prompt_token_ids=request.prompt_token_ids,
                    quality_flags=request.quality_flags,
                    error=RowError.of(error),
                )
            )
        else:
            outer.set_exception(error)

    future.add_done_callback(forward)
    return outer
