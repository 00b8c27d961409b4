"""The public face of the text engine."""

import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.engines.allocator import limit_arenas, release_memory
from headrace.engines.checkpoints import Checkpoint, open_checkpoint
from headrace.engines.driver import Driver
from headrace.engines.errors import ConfigError, ModelError, RequestError, RowError
from headrace.engines.llm.artifacts import stored_config, write_artifact
from headrace.engines.llm.assembly import Overrides, Replacements, assemble, load_replicas, open_model
from headrace.engines.llm.conversation import ChatOptions, Message
from headrace.engines.llm.draft import Draft, choose_draft
from headrace.engines.llm.engine_config import EngineConfig
from headrace.engines.llm.families import read_model_config
from headrace.engines.llm.prompts import EncodeOptions, Prompt, TextRequest, list_params, list_prompts
from headrace.engines.llm.request import LLMRequest, OutputKind, RequestOutput
from headrace.engines.llm.sampling_params import SamplingParams
from headrace.engines.llm.streams import OnOutput, errors_to_outputs, finished, stream_outputs
from headrace.engines.partition import PartitionRules
from headrace.engines.ratios import with_ratios
from headrace.engines.replicas import ReplicatedDriver

logger = logging.getLogger(__name__)

Prompts = Prompt | Sequence[Prompt]
TextDriver = Driver[LLMRequest, RequestOutput] | ReplicatedDriver[LLMRequest, RequestOutput]
Params = SamplingParams | Mapping[str, Any] | Sequence[SamplingParams | Mapping[str, Any] | None] | None


class LLM:
    """A text model that stays loaded and serves any number of threads.

    `tokenizer`, a directory, a model spec or an object, takes the place of the model's own; so does
    `chat_template`, Jinja text or the path of a file with it. `hf_overrides` are entries that replace those
    of the model's config.json, or a function from that config to another. `num_replicas` engines on the
    same devices share the weights and the memory for KV pages, each with a thread of its own; the one with
    the fewest requests gets the next, and so among the replicas that the config spreads over devices.
    `speculative_model` takes the place of the config's: an LLM proposes tokens with its own precision and
    attention, and has to stay open. `partition_rules` say how weights are split over
    the axis "tensor" of the devices, in place of the engine's own rules: pairs of a regular expression,
    looked for in a weight's path ("layers.0.mlp.down.kernel"), and a PartitionSpec. The first that is found
    counts, and a weight that none names is replicated.

    Raises:
      ModelError: the model cannot be found, read or run.
      ConfigError: the configuration does not fit the model or the memory.
    """

    def __init__(
        self,
        model: str | Checkpoint,
        config: EngineConfig | None = None,
        *,
        tokenizer: Any = None,
        chat_template: str | Path | None = None,
        hf_overrides: Overrides | None = None,
        num_replicas: int = 1,
        speculative_model: "str | LLM | None" = None,
        partition_rules: PartitionRules | None = None,
    ) -> None:
        started_s = time.monotonic()
        limit_arenas()
        replaced = Replacements(tokenizer=tokenizer, chat_template=chat_template, hf_overrides=hf_overrides)
        checkpoint = open_model(model, config)
        config = config or stored_config(checkpoint) or EngineConfig()
        config, draft = choose_draft(config, speculative_model)
        made = assemble(checkpoint, config, replaced, num_replicas, draft, partition_rules)
        self.config, self.model_config = made.config, made.model_config
        self.max_model_len = made.max_model_len
        self._checkpoint, self._tokenizer, self._encoder = made.checkpoint, made.tokenizer, made.encoder
        self._engines = made.engines
        self._engine = self._engines[0]
        self._partition_rules = partition_rules
        drivers = [
            Driver(
                engine,
                max_queue=self.config.scheduler.max_waiting,
                name="llm" if len(self._engines) == 1 else f"llm-{number}",
            )
            for number, engine in enumerate(self._engines)
        ]
        self._drivers = drivers
        self._driver: TextDriver = drivers[0] if len(drivers) == 1 else ReplicatedDriver(drivers)
        self._driver.start()
        self._request_numbers = itertools.count()
        release_memory()
        self._load_s = time.monotonic() - started_s
        logger.info("loaded %s: %.1f s", made.checkpoint.model.spec, self._load_s)

    @property
    def num_slots(self) -> int:
        """Rows that decode at the same time."""
        return self.config.scheduler.max_num_seqs

    @property
    def max_prompt_len(self) -> int:
        """Most tokens of a prompt: the context length less one for the output."""
        return self.max_model_len - 1

    @property
    def processor(self) -> Any:
        """The model's tokenizer, of transformers."""
        return self._tokenizer.processor

    @property
    def driver(self) -> TextDriver:
        """The thread that owns the engine, or the threads that own its replicas."""
        return self._driver

    def generate(
        self,
        prompts: Prompts | None = None,
        sampling_params: Params = None,
        *,
        prompt_token_ids: Any = None,
        tokenizer_kwargs: Mapping[str, Any] | None = None,
    ) -> RequestOutput | list[RequestOutput]:
        """The output of one prompt, or those of a list of prompts in its order.

        `sampling_params` are one for all or one each; a dict is read as SamplingParams.
        `prompt_token_ids` takes the place of `prompts`: the tokens of one prompt, of several, an array, or
        {"input_ids", "attention_mask"} as Hugging Face tokenizers pad a batch. `tokenizer_kwargs` are fields
        of EncodeOptions.
        A bad prompt gives an output with `error` set; the others are not touched.

        Raises:
          TypeError: params that are neither SamplingParams nor dicts.
          ValueError: both or neither of prompts and prompt_token_ids, or not one params a prompt.
        """
        if (prompts is None) == (prompt_token_ids is None):
            raise ValueError("give either prompts or prompt_token_ids")
        each, is_one = list_prompts(prompts if prompt_token_ids is None else prompt_token_ids)
        outputs = self._run(each, sampling_params, encode=EncodeOptions.from_dict(tokenizer_kwargs or {}))
        return outputs[0] if is_one else outputs

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> RequestOutput | list[RequestOutput]:
        """The answer to one conversation, or those to a list of conversations in its order.

        Messages are in OpenAI's form. The further arguments are described at ChatOptions.

        Raises:
          ValueError: add_generation_prompt and continue_final_message are both true, or as `generate`.
        """
        options = ChatOptions(
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            chat_template=chat_template,
            tools=tuple(tools or ()),
            template_kwargs=chat_template_kwargs,
        )
        each, is_one = list_prompts(messages)
        outputs = self._run(each, sampling_params, chat=options)
        return outputs[0] if is_one else outputs

    def stream_generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | Mapping[str, Any] | None = None,
        *,
        output_kind: OutputKind = "delta",
        chat: ChatOptions | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """The outputs of one prompt while its text grows, for `async for`; the last one is `finished`.

        They hold the new text ("delta") or all of it so far ("cumulative"); with "final" only the last comes.
        `chat` makes a text the user's turn of a conversation. Leaving the loop aborts the request.
        """
        params = list_params(sampling_params, 1)[0]
        return self.stream(TextRequest(prompt=prompt, params=params, output_kind=output_kind, chat=chat))

    def stream(self, request: TextRequest, *, timeout_s: float | None = None) -> AsyncIterator[RequestOutput]:
        """The outputs of a request, as its output_kind says, for `async for`.

        Raises (from the loop):
          QueueFullError: the engine's queue stayed full for `timeout_s` seconds.
          EngineError: the engine is closed or has failed.
        """
        request_id = request.request_id or self._next_id()
        named = replace(request, request_id=request_id)

        def submit(on_output: OnOutput) -> "Future[RequestOutput]":
            return self.submit_request(named, on_output=on_output, timeout_s=timeout_s)

        return stream_outputs(submit, lambda: self.abort(request_id))

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str,
        chat: bool = False,
        system: str | None = None,
        priority: int = 0,
    ) -> "Future[RequestOutput]":
        """A future of the prompt's output; blocks while the engine's queue is full.

        `chat` makes a plain prompt the user's turn of a conversation, after `system` where given. Where the
        engine's policy is `priority`, requests of a lower number go first. A fault of
        the row comes back in the output's `error`; the future itself raises EngineError alone.
        """
        request = TextRequest(
            prompt=prompt,
            params=params or SamplingParams(),
            request_id=request_id,
            chat=ChatOptions() if chat else None,
            system=system,
            priority=priority,
        )
        return self.submit_request(request)

    def submit_request(
        self, request: TextRequest, *, on_output: OnOutput | None = None, timeout_s: float | None = None
    ) -> "Future[RequestOutput]":
        """A future of the request's last output; those before it go to `on_output`, on the engine's thread.

        A fault of the request comes back in the output's `error`; the future itself raises EngineError alone.

        Raises:
          EngineError: the engine is closed or has failed.
          QueueFullError: the engine's queue stayed full for `timeout_s` seconds (None: waits).
        """
        submit_time_s = time.monotonic()
        request_id = request.request_id or self._next_id()
        try:
            encoded = self._encoder.encode(request, request_id, submit_time_s)
        except RequestError as error:
            failed = RequestOutput(request_id=request_id, error=RowError.of(error), metadata=request.metadata)
            return finished(failed)
        inner = self._driver.submit(encoded, on_output=on_output, timeout_s=timeout_s)
        return errors_to_outputs(inner, encoded)

    def count_tokens(self, text_or_conversation: Prompt, chat: ChatOptions | None = None) -> int:
        """Tokens of a text, or of a conversation under the chat template.

        Raises:
          RequestError: it is neither, or the template refuses it.
        """
        return len(self._encoder.tokens_of(TextRequest(prompt=text_or_conversation, chat=chat)))

    def abort(self, request_id: str) -> None:
        """Drops a request that is not finished; its output carries an error of kind `aborted`."""
        self._driver.abort(request_id)

    def announce(self, sampling_params: Params) -> None:
        """Foresees rows with such params: programs are compiled ahead for them, and for no others.

        Of several params each alone and all together are foreseen. Params that were announced before stay.

        Raises:
          RequestError: the params cannot be served by this model.
        """
        count = len(sampling_params) if isinstance(sampling_params, list | tuple) else 1
        requests = [TextRequest(prompt=[0], params=own) for own in list_params(sampling_params, count)]
        encoded = [self._encoder.encode(request, "announced", 0.0) for request in requests]
        for engine in self._engines:
            engine.announce(encoded)

    def precompile(
        self,
        num_tokens: int | Sequence[int] | None = None,
        num_seqs: int | Sequence[int] | None = None,
        *,
        sampling_params: Params = None,
        progress_callback: Callable[[int, int], None] | None = None,
    ) -> list[str]:
        """Compiles programs now and in parallel; names of those that were not compiled before.

        `num_tokens` are prompt tokens of a dispatch, `num_seqs` rows that decode; both are taken up to their
        buckets. Lists are taken side by side, and a shorter one repeats its last value. Without them all
        programs are compiled; a later compile is then counted as late, or an error with strict_shapes.
        Programs are those of `sampling_params` and of what was announced before, or plain ones.
        `progress_callback(completed, total)` is called after each.

        Raises:
          ConfigError: a number is larger than the largest bucket.
          RequestError: as `announce`.
        """
        if sampling_params is not None:
            self.announce(sampling_params)
        made, count = [], len(self._engines)
        for number, engine in enumerate(self._engines):

            def tell(completed: int, total: int, number: int = number) -> None:
                if progress_callback is not None:
                    progress_callback(number * total + completed, count * total)

            made.append(engine.precompile(num_tokens, num_seqs, tell))
        release_memory()
        return [str(key) for key in made[0]]

    def update_weights(self, weights: Mapping[str, Any] | Checkpoint | str) -> None:
        """Goes on with other weights: arrays by their names in the checkpoint, or a whole other checkpoint.

        Nothing is compiled again, and prompts that were computed with the old weights are forgotten.

        Raises:
          ModelError: no weight was given, or one of another name or shape than the model's; or the other
            checkpoint is of another architecture.
          EngineError: requests are unfinished.
        """
        if isinstance(weights, Mapping):
            checkpoint = self._checkpoint.with_tensors(weights)
        else:
            checkpoint = open_checkpoint(weights) if isinstance(weights, str) else weights
            if read_model_config(checkpoint.config) != self.model_config:
                raise ModelError(f"{checkpoint.model.spec} is not a model of the same shape as this one")
        replicas = load_replicas(checkpoint, self.model_config, self.config, self._partition_rules)
        pairs = list(zip(self._drivers, self._engines, strict=True))
        for driver, engine in pairs:
            driver.call(engine.check_idle)
        for number, (driver, engine) in enumerate(pairs):
            stages = replicas[number % len(replicas)]
            driver.call(lambda engine=engine, stages=stages: engine.update_weights(stages))
        self._checkpoint = checkpoint

    def save_artifact(self, path: str | Path) -> None:
        """Writes weights, tokenizer, config and the programs of all that was announced to a new directory.

        `LLM(path)` starts from it without tracing or compiling, on a machine of the same kind. A program
        that the engine has not compiled yet is compiled for it.

        Raises:
          ConfigError: there is something at this place.
          EngineError: a program cannot be written.
        """
        write_artifact(Path(path), self._engine, self.config, self._checkpoint, self._tokenizer)

    @classmethod
    def load_artifact(cls, path: str | Path, **options: Any) -> "LLM":
        """The engine that `save_artifact` or `headrace compile` wrote, as it was set up then.

        `options` are those of the constructor; another `config` takes the place of the stored one.

        Raises:
          ModelError: there is no artifact, it is damaged, or its weights are laid out for another machine.
        """
        checkpoint = open_checkpoint(str(path))
        if checkpoint.artifact is None:
            raise ModelError(f"{str(path)!r} is a model and no artifact: take LLM(...)")
        return cls(checkpoint, **options)

    def counters(self) -> dict[str, float]:
        """Counters since the start, and the seconds that loading took: what may be added up."""
        each = [engine.counters() for engine in self._engines]
        return {**{name: sum(one[name] for one in each) for name in each[0]}, "load_s": self._load_s}

    def metrics(self) -> dict[str, float]:
        """The counters, and the ratios of those that have counted something (`headrace.engines.ratios`)."""
        return with_ratios(self.counters())

    def as_draft(self) -> Draft:
        """What another engine needs to have its tokens proposed by this model.

        Raises:
          ConfigError: its weights lie on other devices than JAX's default one.
        """
        if not self.config.parallel.is_default:
            raise ConfigError(
                "a draft model runs on the default device: give it no parallel sizes, no devices"
            )
        decoder, vocabulary = self._engine.decoder, self._tokenizer.vocabulary
        return Draft(decoder=decoder, config=self.config, is_borrowed=True, vocabulary=vocabulary)

    def close(self, *, drain: bool = False) -> None:
        """Stops the engine and gives its memory back.

        Requests in flight are finished before (`drain`), or get EngineError.
        """
        self._driver.stop(drain=drain)
        for engine in self._engines:
            engine.release()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(
        self,
        prompts: list[Any],
        params: Params,
        *,
        chat: ChatOptions | None = None,
        encode: EncodeOptions | None = None,
    ) -> list[RequestOutput]:
        requests = [
            TextRequest(prompt=prompt, params=own, chat=chat, encode=encode or EncodeOptions())
            for prompt, own in zip(prompts, list_params(params, len(prompts)), strict=True)
        ]
        futures = [self.submit_request(request) for request in requests]
        return [future.result() for future in futures]

    def _next_id(self) -> str:
        return f"request-{next(self._request_numbers)}"
