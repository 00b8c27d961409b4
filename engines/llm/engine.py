"""Scheduler and runner joined: requests in, finished outputs out."""

import time

import jax

from headrace.engines.errors import RequestError
from headrace.engines.llm.batch import PrefillBatch, Sampled
from headrace.engines.llm.engine_config import EngineConfig
from headrace.engines.llm.outputs import Ending, OutputWriter, trace_logprobs
from headrace.engines.llm.page_pool import PagePool
from headrace.engines.llm.request import LLMRequest, RequestOutput, Sequence
from headrace.engines.llm.runner import Runner
from headrace.engines.llm.sampling_params import MAX_STOP_IDS
from headrace.engines.llm.scheduler import Scheduler
from headrace.engines.llm.tokenizer import PromptTokenizer


class LLMEngine:
    """An engine for a driver: every method is called from one thread."""

    def __init__(
        self,
        runner: Runner,
        tokenizer: PromptTokenizer,
        config: EngineConfig,
        *,
        num_pages: int,
        max_model_len: int,
    ) -> None:
        self._runner = runner
        self._tokenizer = tokenizer
        self._writer = OutputWriter(tokenizer)
        pool = PagePool(num_pages, config.cache.page_size)
        self._scheduler = Scheduler(config, pool, max_model_len, runner.shapes.prefill_rows)
        self._counts = {"requests": 0, "prompt_tokens": 0, "cached_tokens": 0, "completion_tokens": 0}

    def add(self, request: LLMRequest) -> None:
        """Queues a request; RequestError where it can never run."""
        if len(self._tokenizer.stop_ids(request.params)) > MAX_STOP_IDS:
            raise RequestError(f"more than {MAX_STOP_IDS} stop token ids: give fewer", kind="params")
        self._scheduler.add(request)

    def abort(self, request_id: str) -> None:
        """Forgets a request and frees its pages."""
        self._scheduler.abort(request_id)

    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return self._scheduler.has_work()

    @property
    def num_used_slots(self) -> int:
        """Rows that have a slot."""
        return self._scheduler.num_running

    def step(self) -> list[RequestOutput]:
        """One dispatch, the outputs that it finished, and those that are wanted while they grow."""
        batch = self._scheduler.next_batch()
        stop_ids = [self._writer.stop_ids(sequence) for sequence in batch.sequences]
        now_s = time.monotonic()
        for sequence in batch.sequences:
            if sequence.first_scheduled_s is None:
                sequence.first_scheduled_s = now_s
        if isinstance(batch, PrefillBatch):
            sampled = self._runner.run_prefill(batch, stop_ids)
            return self._update_prefill(batch, sampled)
        sampled = self._runner.run_decode(batch, stop_ids)
        return self._update(batch.sequences, sampled)

    def metrics(self) -> dict[str, float]:
        """Counters since the start."""
        counts = {
            **self._counts,
            "dispatches": self._runner.num_dispatches,
            "padding_tokens": self._runner.padding_tokens,
            "compiles": self._runner.num_compiles,
            "compile_s": self._runner.compile_s,
            "preemptions": self._scheduler.num_preemptions,
        }
        return {name: float(value) for name, value in counts.items()}

    def release(self) -> None:
        """Gives the memory of weights and KV pages back; the engine cannot be used after."""
        self._runner.release()

    def _update_prefill(self, batch: PrefillBatch, sampled: Sampled) -> list[RequestOutput]:
        done, rows = [], []
        for row, (sequence, length) in enumerate(zip(batch.sequences, batch.lengths, strict=True)):
            sequence.num_computed += length
            self._scheduler.publish_prompt(sequence)
            if sequence.num_uncomputed == 0:
                done.append(sequence)
                rows.append(row)
        # The token sampled here is not computed: `_update` counts every token but the last as computed.
        for sequence in done:
            sequence.num_computed -= 1
        return self._update(done, jax.tree.map(lambda array: array[rows], sampled))

    def _update(self, sequences: list[Sequence], sampled: Sampled) -> list[RequestOutput]:
        now_s = time.monotonic()
        outputs = []
        for row, sequence in enumerate(sequences):
            count = int(sampled.counts[row])
            num_before = sequence.num_outputs
            sequence.tokens.extend(sampled.tokens[row, :count].tolist())
            sequence.num_computed += count
            sequence.logprob += float(sampled.logprobs[row, :count].sum())
            trace_logprobs(sequence, sampled, row)
            if sequence.first_token_s is None:
                sequence.first_token_s = now_s
            ending = self._writer.find_ending(sequence, num_before)
            if ending is None:
                outputs.append(self._writer.growing(sequence))
                continue
            surplus = sequence.num_outputs - ending.num_outputs
            if surplus:
                sequence.logprob -= float(sampled.logprobs[row, count - surplus : count].sum())
            self._scheduler.finish(sequence)
            self._count(sequence, ending)
            outputs.append(self._writer.finished(sequence, ending, now_s))
        return [output for output in outputs if output is not None]

    def _count(self, sequence: Sequence, ending: Ending) -> None:
        self._counts["requests"] += 1
        self._counts["prompt_tokens"] += sequence.num_prompt
        self._counts["cached_tokens"] += sequence.num_cached
        self._counts["completion_tokens"] += ending.num_outputs
