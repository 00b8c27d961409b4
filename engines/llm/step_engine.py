"""An engine without a thread: its caller decides when it works."""

import itertools
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.engines.checkpoints import Checkpoint
from headrace.engines.errors import ConfigError, RequestError
from headrace.engines.llm.assembly import Overrides, Replacements, assemble
from headrace.engines.llm.engine_config import EngineConfig
from headrace.engines.llm.prompts import Prompt, TextRequest, list_params
from headrace.engines.llm.request import RequestOutput
from headrace.engines.llm.sampling_params import SamplingParams
from headrace.engines.mesh import count_replicas
from headrace.engines.ratios import with_ratios


class StepEngine:
    """A loaded text model that works when it is told to, for one thread.

    The arguments are those of `LLM`.

        engine.add("The sea is", {"max_tokens": 20})
        while engine.has_work():
            outputs = engine.step()
        engine.free()

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
    ) -> None:
        replaced = Replacements(tokenizer=tokenizer, chat_template=chat_template, hf_overrides=hf_overrides)
        if config is not None and count_replicas(config.parallel) > 1:
            raise ConfigError("a StepEngine is one engine: take LLM for data_parallel_size above 1")
        made = assemble(model, config or EngineConfig(), replaced)
        self._encoder, (self._engine,) = made.encoder, made.engines
        self._unfinished: set[str] = set()
        self._numbers = itertools.count()

    def add(
        self,
        request: TextRequest | Prompt,
        sampling_params: SamplingParams | Mapping[str, Any] | None = None,
    ) -> str:
        """Queues a prompt, or a request with everything about it; its id.

        Raises:
          RequestError: it can never be served, or its id is that of an unfinished request.
          QueueFullError: as many requests wait as may.
          ValueError: a TextRequest, which has its own params, and sampling_params.
        """
        if not isinstance(request, TextRequest):
            request = TextRequest(prompt=request, params=list_params(sampling_params, 1)[0])
        elif sampling_params is not None:
            raise ValueError("a TextRequest has params of its own: leave sampling_params out")
        request_id = request.request_id or f"request-{next(self._numbers)}"
        if request_id in self._unfinished:
            raise RequestError(f"request id in use: {request_id}", kind="duplicate")
        named = replace(request, request_id=request_id)
        self._engine.add(self._encoder.encode(named, request_id, time.monotonic()))
        self._unfinished.add(request_id)
        return request_id

    def step(self) -> list[RequestOutput]:
        """Does one round of work; the outputs that it finished, and those that are wanted while they grow."""
        outputs = self._engine.step()
        self._unfinished -= {output.request_id for output in outputs if output.finished}
        return outputs

    def abort(self, request_id: str) -> None:
        """Forgets a request and frees its KV pages; one that is not there is passed over."""
        self._engine.abort(request_id)
        self._unfinished.discard(request_id)

    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return self._engine.has_work()

    @property
    def num_free_pages(self) -> int:
        """KV pages that no request uses."""
        return self._engine.num_free_pages

    def metrics(self) -> dict[str, float]:
        """Counters since the start, and their ratios."""
        return with_ratios(self._engine.counters())

    def free(self) -> None:
        """Gives the memory of weights and KV pages back; the engine cannot be used after."""
        self._engine.release()
