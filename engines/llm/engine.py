"""Scheduler and runner joined: requests in, finished outputs out."""

import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Several
from dataclasses import replace
from pathlib import Path

import numpy as np

from headrace.engines.errors import EngineError, RequestError
from headrace.engines.llm.batch import DecodeBatch, PrefillBatch, Sampled
from headrace.engines.llm.beams import BeamSearch, Branch, Step
from headrace.engines.llm.burst_times import BurstTimes
from headrace.engines.llm.engine_config import EngineConfig
from headrace.engines.llm.model import Decoder
from headrace.engines.llm.outputs import Ending, OutputWriter, trace_logprobs
from headrace.engines.llm.page_pool import PagePool
from headrace.engines.llm.pipeline import Stage
from headrace.engines.llm.request import LLMRequest, RequestOutput, Sequence
from headrace.engines.llm.runner import Dispatch, Runner
from headrace.engines.llm.sampling_params import MAX_STOP_IDS
from headrace.engines.llm.scheduler import Scheduler
from headrace.engines.llm.tokenizer import PromptTokenizer
from headrace.engines.programs import ProgramKey


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
        self._config = config
        self._in_flight: deque[Dispatch] = deque()
        self._searches: dict[str, BeamSearch] = {}
        self._ended: dict[str, list[RequestOutput]] = {}  # of requests some of whose rows go on
        pool = PagePool(num_pages, config.cache.page_size)
        self._scheduler = Scheduler(config, pool, max_model_len, runner.shapes)
        self._times = BurstTimes(config.speculative.measure_every)
        self._counts = {"requests": 0, "prompt_tokens": 0, "cached_tokens": 0, "completion_tokens": 0}
        self._counts |= {"speculative_steps": 0, "draft_tokens": 0, "accepted_tokens": 0}
        self._counts |= {"slot_steps": 0, "busy_slot_steps": 0, "page_steps": 0, "busy_page_steps": 0}

    def add(self, request: LLMRequest) -> None:
        """Queues a request; RequestError where it can never run."""
        if len(self._tokenizer.stop_ids(request.params)) > MAX_STOP_IDS:
            raise RequestError(f"more than {MAX_STOP_IDS} stop token ids: give fewer", kind="params")
        params = request.params
        if params.use_beam_search:
            self._check_beams(request)
        elif request.output_kind != "final" and params.num_samples > params.n:
            raise RequestError("best_of chooses at the end: take n for texts as they grow", kind="params")
        self._scheduler.add(request)
        self._runner.foresight.note(request)

    def abort(self, request_id: str) -> None:
        """Forgets a request and frees its pages."""
        self._scheduler.abort(request_id)
        self._ended.pop(request_id, None)
        self._searches.pop(request_id, None)

    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return self._scheduler.has_work()

    @property
    def decoder(self) -> Decoder:
        """The model with the weights that are in use."""
        return self._runner.decoder

    @property
    def num_used_slots(self) -> int:
        """Rows that have a slot."""
        return self._scheduler.num_running

    @property
    def num_free_pages(self) -> int:
        """KV pages that no row uses."""
        return self._scheduler.num_free_pages

    def step(self) -> list[RequestOutput]:
        """The outputs that the oldest dispatch finished, and those that are wanted while they grow.

        The next dispatch is on its way before the texts are made.
        """
        self._launch()
        if not self._in_flight:
            assert not self._scheduler.has_work(), "no dispatch is in flight and none can be launched"
            return []
        dispatch = self._in_flight.popleft()
        sampled = self._runner.fetch(dispatch)
        self._scheduler.land(dispatch.batch)
        self._count_slots(dispatch.batch, sampled)
        settled = self._settle(dispatch.batch, sampled)
        if self._config.scheduler.async_scheduling:
            self._launch()
        now_s = time.monotonic()
        outputs = []
        for sequence, ending in settled:
            if ending is None:
                outputs.append(self._writer.growing(sequence))
            else:
                self._count(sequence, ending)
                outputs.append(self._finish(sequence, ending, now_s))
        return [output for output in outputs if output is not None]

    def precompile(
        self,
        num_tokens: int | Several[int] | None = None,
        num_seqs: int | Several[int] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[ProgramKey]:
        """Compiles programs now: see `Foresight.precompile`."""
        return self._runner.foresight.precompile(num_tokens, num_seqs, on_progress)

    def announce(self, requests: Several[LLMRequest]) -> None:
        """Foresees rows like these: see `Foresight.announce`."""
        self._runner.foresight.announce(requests)

    def counters(self) -> dict[str, float]:
        """Counters since the start."""
        programs = self._runner.programs
        counts = {
            **self._counts,
            "dispatches": self._runner.num_dispatches,
            "padding_tokens": self._runner.padding_tokens,
            "compiles": programs.num_compiles,
            "programs_read": programs.num_loads,
            "late_compiles": programs.num_late_compiles,
            "evicted_programs": programs.num_evictions,
            "compile_s": programs.compile_s,
            "preemptions": self._scheduler.num_preemptions,
            "speculative_s": self._times.speculative_s,
            "without_speculation_s": self._times.without_s,
        }
        return {name: float(value) for name, value in counts.items()}

    def check_idle(self) -> None:
        """Raises EngineError where requests are unfinished."""
        if self.has_work() or self._in_flight:
            raise EngineError("requests are unfinished: wait for them, or abort them, to update the weights")

    def update_weights(self, stages: Several[Stage]) -> None:
        """Goes on with other weights; what the KV pages hold of prompts is forgotten.

        Raises:
          EngineError: requests are unfinished: their texts would be of two models.
        """
        self.check_idle()
        self._runner.update_weights(stages)
        self._scheduler.forget_prefixes()

    @property
    def num_pages(self) -> int:
        """KV pages, the null page included."""
        return self._runner.num_pages

    def export(self, directory: Path) -> dict[str, str]:
        """Writes weights and foreseen programs into an artifact: see `Runner.export`."""
        return self._runner.export(directory)

    def release(self) -> None:
        """Gives the memory of weights and KV pages back; the engine cannot be used after."""
        self._runner.release()

    def _launch(self) -> None:
        """Launches dispatches while there is work that waits for none of those in flight."""
        limits = self._config.scheduler
        most = limits.dispatches_in_flight if limits.async_scheduling else 1
        while len(self._in_flight) < most and self._scheduler.has_work():
            if not self._runner.programs.is_warm:
                self._runner.foresight.expect(*self._scheduler.demand())
            batch = self._scheduler.next_batch()
            if batch is None:
                return
            batch = self._times.launch(batch, self._runner.programs.num_made, self._runner.is_ready)
            stop_ids = [self._writer.stop_ids(sequence) for sequence in batch.sequences]
            self._in_flight.append(self._runner.launch(batch, stop_ids, self._scheduler.take_copies()))
            self._scheduler.launch(batch)
            now_s = time.monotonic()
            for sequence in batch.sequences:
                if sequence.first_scheduled_s is None:
                    sequence.first_scheduled_s = now_s

    def _count_slots(self, batch: PrefillBatch | DecodeBatch, sampled: Sampled) -> None:
        """Counts, a decode step at a time, slots and pages: those there were and those in use."""
        if isinstance(batch, DecodeBatch):
            made = sampled.counts[: len(batch.sequences)]
            self._times.land(int(made.sum()), self._runner.programs.num_made)
            steps = int(made.max(initial=0))
            num_used = self._scheduler.num_pages - self._scheduler.num_free_pages
            self._counts["slot_steps"] += steps * self._config.scheduler.max_num_seqs
            self._counts["busy_slot_steps"] += int(made.sum())
            if sampled.proposed is not None:
                num_steps = int(sampled.proposed.steps.sum())
                self._counts["speculative_steps"] += num_steps
                self._counts["draft_tokens"] += int(sampled.proposed.tokens.sum())
                self._counts["accepted_tokens"] += int(made.sum()) - num_steps
            self._counts["page_steps"] += steps * self._scheduler.num_pages
            self._counts["busy_page_steps"] += steps * num_used

    def _settle(
        self, batch: PrefillBatch | DecodeBatch, sampled: Sampled
    ) -> list[tuple[Sequence, Ending | None]]:
        """Gives the rows of a batch their new tokens and lets those go that have ended."""
        now_s = time.monotonic()
        settled = []
        for row, sequence in enumerate(batch.sequences):
            if sequence.is_finished or (isinstance(batch, PrefillBatch) and not batch.is_last[row]):
                continue
            count = int(sampled.counts[row])
            if isinstance(batch, DecodeBatch):
                sequence.num_computed += count
                if batch.is_speculative:
                    sequence.num_drafted = sequence.num_computed
            # A row that is computed again knows its first tokens; the last one made is not computed.
            num_before = sequence.num_outputs
            made = slice(count - (sequence.num_computed + 1 - len(sequence.tokens)), count)
            if sequence.request.params.use_beam_search:
                if made.start < made.stop:
                    settled += self._step_beam(sequence, sampled, row, made.start)
                continue
            sequence.tokens.extend(sampled.tokens[row, made].tolist())
            sequence.logprob += float(sampled.logprobs[row, made].sum())
            if sequence.num_outputs == num_before:
                continue
            trace_logprobs(sequence, sampled, row, made)
            if sequence.first_token_s is None:
                sequence.first_token_s = now_s
            ending = self._writer.find_ending(sequence, num_before)
            if ending is not None:
                surplus = sequence.num_outputs - ending.num_outputs
                if surplus:
                    sequence.logprob -= float(sampled.logprobs[row, count - surplus : count].sum())
                self._scheduler.finish(sequence)
            settled.append((sequence, ending))
        return settled

    def _check_beams(self, request: LLMRequest) -> None:
        params, limits = request.params, self._config.scheduler
        if params.stop:
            raise RequestError("beams end at tokens: give stop_token_ids and no stop", kind="params")
        if request.output_kind != "final":
            raise RequestError("a beam search has no text before its end: stream plain rows", kind="params")
        if params.num_beams > limits.max_num_seqs:
            raise RequestError(
                f"{params.num_beams} beams, the engine has {limits.max_num_seqs} rows: raise max_num_seqs",
                kind="params",
            )

    def _step_beam(
        self, sequence: Sequence, sampled: Sampled, row: int, step: int
    ) -> list[tuple[Sequence, Ending | None]]:
        """Takes what a beam may go on with; the best texts where its search is over."""
        assert sampled.top is not None
        request = sequence.request
        if request.request_id not in self._searches:
            most = sequence.max_total - sequence.num_prompt
            search = BeamSearch(request, self._writer.stop_ids(sequence), most)
            search.live = [sequence]
            self._searches[request.request_id] = search
        search = self._searches[request.request_id]
        if sequence.first_token_s is None:
            sequence.first_token_s = time.monotonic()
        sequence.is_held = True
        top = sampled.top
        best = Step(np.asarray(top.tokens[row, step]), np.asarray(top.logprobs[row, step]))
        if not search.report(sequence, best):
            return []
        branches = search.advance()
        self._branch(search, branches)
        if branches:
            return []
        del self._searches[request.request_id]
        # Siblings, so that they come out as one output.
        best = [beam.sequence for beam in search.ended[: request.params.n]]
        endings = []
        for index, beam in enumerate(search.ended[: request.params.n]):
            found, last = beam.sequence, beam.sequence.tokens[-1]
            found.sample, found.siblings = index, best
            stop_reason = last if beam.is_stopped and last in request.params.stop_token_ids else None
            reason = "stop" if beam.is_stopped else "length"
            endings.append((found, Ending(found.num_outputs, reason, stop_reason)))
        return endings

    def _branch(self, search: BeamSearch, branches: list[Branch]) -> None:
        """Lets beams without a branch go, and makes rows of all branches of a beam but the first."""
        first: dict[int, Branch] = {}
        for branch in branches:
            first.setdefault(branch.parent.sample, branch)
        live = []
        for sequence in search.live:
            sequence.is_held = False
            if sequence.sample not in first:
                self._scheduler.finish(sequence)
        for branch in branches:
            if branch is first[branch.parent.sample]:
                live.append(branch.parent)
                continue
            child = branch.copied(search.num_rows)
            search.num_rows += 1
            self._scheduler.fork(branch.parent, child)
            live.append(child)
        for branch in first.values():
            branch.grow(branch.parent)
        search.live = live

    def _finish(self, sequence: Sequence, ending: Ending, now_s: float) -> RequestOutput | None:
        """The output of a row that has ended, or of the whole request where it was the last one."""
        output = self._writer.finished(sequence, ending, now_s)
        request = sequence.request
        if len(sequence.siblings) <= 1:
            return output
        ended = self._ended.setdefault(request.request_id, [])
        ended.append(output)
        is_whole = len(ended) == len(sequence.siblings)
        if is_whole:
            del self._ended[request.request_id]
        if request.output_kind != "final":
            return replace(output, finished=is_whole)
        if not is_whole:
            return None
        failed = [each for each in ended if each.error is not None]
        return failed[0] if failed else self._writer.joined(ended, request.params)

    def _count(self, sequence: Sequence, ending: Ending) -> None:
        if sequence.sample == 0:
            self._counts["requests"] += 1
            self._counts["prompt_tokens"] += sequence.num_prompt
            self._counts["cached_tokens"] += sequence.num_cached
        self._counts["completion_tokens"] += ending.num_outputs
