"""Decides which rows the next dispatch works on, and which pages they get.

A row has tokens and a number of them that are computed. Up to `prefill_end` they are prefilled, in chunks
that fit the token budget; after that the row decodes. Rows that are running come before waiting ones, and a
waiting row is admitted when a slot and the pages of its tokens are free.

A dispatch is launched before the one before it has come back. Chunks whose tokens are known can follow one
another; a row whose next token is still being made is in flight, and left alone until it is there.
"""

from typing import Literal

from headrace.engines.buckets import pick_bucket
from headrace.engines.errors import QueueFullError, RequestError
from headrace.engines.llm.batch import DecodeBatch, PrefillBatch
from headrace.engines.llm.engine_config import EngineConfig
from headrace.engines.llm.logprobs import PromptTrace
from headrace.engines.llm.page_pool import PagePool
from headrace.engines.llm.prompt_pages import PromptPages, Shared
from headrace.engines.llm.request import LLMRequest, Sequence
from headrace.engines.llm.shapes import Shapes
from headrace.engines.llm.waiting import WaitingQueue

Admission = Literal["admitted", "no room", "later"]
REFILL_SHARE = 8
"""While rows wait, a decode burst ends when one in so many of its rows has finished."""


class Scheduler:
    """Waiting and running rows of one engine."""

    def __init__(self, config: EngineConfig, pool: PagePool, max_model_len: int, shapes: Shapes) -> None:
        self._config = config
        self._limits = config.scheduler
        self._pool = pool
        self._prompts = PromptPages(config.cache, pool)
        self._max_model_len = max_model_len
        self._shapes = shapes
        self._waiting = WaitingQueue(config.scheduler, pool.page_size)
        self._running: list[Sequence] = []
        self._num_in_flight = 0
        self._num_arrivals = 0
        self._copies: list[tuple[int, int]] = []
        self.num_preemptions = 0

    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_free_pages(self) -> int:
        """KV pages that nobody uses; those that are kept for prefixes alone are among them."""
        return self._pool.num_free

    @property
    def num_pages(self) -> int:
        """KV pages that rows can hold."""
        return self._pool.num_usable

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Takes in a row that begins as another one: shares its full pages, copies the one that is not full.

        Where no slot or no page is free for it, it waits, and is computed anew.
        """
        self._num_arrivals += 1
        child.arrival = self._num_arrivals
        num_shared = parent.num_computed // self._pool.page_size
        count = self._pool.pages_for(parent.num_computed) - num_shared
        has_slot = parent.pages and len(self._running) < self._limits.max_num_seqs
        pages = self._pool.allocate(count) if has_slot else None
        if pages is None:
            child.num_preemptions += 1
            self._waiting.put_back(child)
            return
        shared = parent.pages[:num_shared]
        self._pool.share(shared)
        self._copies += zip(parent.pages[num_shared:], pages, strict=False)
        child.pages = shared + pages
        child.num_computed, child.prefill_end = parent.num_computed, parent.prefill_end
        child.num_published = child.num_prompt // self._pool.page_size
        self._running.append(child)

    def take_copies(self) -> list[tuple[int, int]]:
        """Pages to copy before the next dispatch, from and to."""
        copies, self._copies = self._copies, []
        return copies

    def forget_prefixes(self) -> None:
        """Shares no page of earlier prompts any more."""
        self._pool.forget_prefixes()

    def demand(self) -> tuple[int, int]:
        """Rows that wait or run, and tokens of theirs that are to be prefilled."""
        num_waiting = sum(len(sequence.tokens) for sequence in self._waiting)
        num_running = sum(max(each.prefill_end - each.num_computed, 0) for each in self._running)
        return len(self._waiting) + len(self._running), num_waiting + num_running

    def add(self, request: LLMRequest) -> None:
        """Queues a request.

        Raises:
          RequestError: it could never run: its prompt, or its prompt with its output, is too long.
          QueueFullError: as many rows wait as may.
        """
        num_prompt = len(request.prompt_token_ids)
        max_total = min(num_prompt + request.params.max_tokens, self._max_model_len)
        self._check_length(num_prompt, max_total)
        if len(self._waiting) >= self._limits.max_waiting:
            raise QueueFullError(f"{self._limits.max_waiting} rows wait: step first, or raise max_waiting")
        for sequence in self._rows_of(request, max_total):
            self._waiting.add(sequence)

    def abort(self, request_id: str) -> None:
        """Forgets a row and frees its pages, at once: what is in flight for it is done before their reuse."""
        for sequence in [*self._running, *self._waiting]:
            if sequence.request.request_id == request_id:
                self.finish(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Takes a row out and frees its pages."""
        if sequence in self._running:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        self._release(sequence)
        sequence.is_finished = True

    def next_batch(self) -> PrefillBatch | DecodeBatch | None:
        """The next dispatch, None where all there is to do waits for one in flight.

        Prefills go first, and decodes wait for them: a decode pays more the more rows it has.
        """
        while True:
            batch = self._next_prefill()
            if batch is None and self._num_in_flight == 0:
                batch = self._next_decode()
            is_stuck = batch is None and self._num_in_flight == 0 and self._waiting and self._running
            if not is_stuck:
                return batch
            self._preempt(self._victim())  # beams that wait for one that has no place

    def launch(self, batch: PrefillBatch | DecodeBatch) -> None:
        """Notes that a batch is on its way: the keys and values of its chunks are there for what follows."""
        self._num_in_flight += 1
        if isinstance(batch, DecodeBatch):
            for sequence in batch.sequences:
                sequence.is_in_flight = True
            return
        for sequence, length, is_last in zip(batch.sequences, batch.lengths, batch.is_last, strict=True):
            sequence.num_computed += length
            sequence.is_in_flight = is_last
            self._prompts.publish(sequence)

    def land(self, batch: PrefillBatch | DecodeBatch) -> None:
        """Notes that the results of a batch are there."""
        self._num_in_flight -= 1
        is_last = batch.is_last if isinstance(batch, PrefillBatch) else [True] * len(batch.sequences)
        for sequence, has_token in zip(batch.sequences, is_last, strict=True):
            if has_token:
                sequence.is_in_flight = False

    def _check_length(self, num_prompt: int, max_total: int) -> None:
        if num_prompt == 0:
            raise RequestError("the prompt is empty: it has no tokens", kind="prompt_empty")
        if num_prompt >= self._max_model_len:
            raise RequestError(
                f"prompt has {num_prompt} tokens, the engine takes {self._max_model_len - 1}: "
                "raise max_model_len, shorten the prompt or set overlong to truncate-left or -right",
                kind="prompt_too_long",
            )
        if self._pool.pages_for(max_total) > self._pool.num_usable:
            raise RequestError(
                f"prompt and output have up to {max_total} tokens, all KV pages together hold "
                f"{self._pool.num_usable * self._pool.page_size}: raise num_pages or lower max_tokens",
                kind="prompt_too_long",
            )

    def _rows_of(self, request: LLMRequest, max_total: int) -> list[Sequence]:
        """The rows that a request begins with: one a sample; of a beam search the first beam alone."""
        num_prompt, num_top = len(request.prompt_token_ids), request.params.prompt_logprobs
        prompt_trace = None if num_top is None else PromptTrace(num_top, num_prompt)
        num_rows = 1 if request.params.use_beam_search else request.params.num_samples
        siblings: list[Sequence] = []
        for sample in range(num_rows):
            self._num_arrivals += 1
            siblings.append(
                Sequence(
                    request=request,
                    sample=sample,
                    siblings=siblings,
                    tokens=list(request.prompt_token_ids),
                    prompt_trace=prompt_trace,
                    max_total=max_total,
                    arrival=self._num_arrivals,
                )
            )
        return siblings

    def _next_prefill(self) -> PrefillBatch | None:
        """Chunks of rows that run already, then of waiting ones as far as tokens, slots and pages go."""
        batch = PrefillBatch([], [], [])
        for sequence in self._running:
            if sequence.is_prefilling:
                self._add_chunk(batch, sequence)
        if batch.num_tokens < self._limits.max_num_batched_tokens:
            self._admit(batch)
        if not batch.sequences:
            return None
        if not self._config.deterministic:
            self._add_decoding(batch)
        return batch

    def _add_decoding(self, batch: PrefillBatch) -> None:
        """Adds a token of rows that decode wherever the prefill's shape has places that are padding else."""
        room = pick_bucket(self._shapes.prefill_tokens, batch.num_tokens) - batch.num_tokens
        room = min(room, self._shapes.prefill_rows - len(batch.sequences))
        for sequence in self._running:
            if sequence.is_prefilling or sequence.is_busy:
                continue
            if room <= 0 or not self._reserve([sequence], 1):
                return
            batch.add(sequence, 1, is_last=True)
            room -= 1

    def _add_chunk(self, batch: PrefillBatch, sequence: Sequence) -> bool:
        """Adds the next chunk of a row, as much of it as there is room for."""
        wanted = self._chunk_of(sequence)
        room = self._limits.max_num_batched_tokens - batch.num_tokens
        if not self._limits.chunked_prefill_enabled and batch.sequences and wanted > room:
            return False
        length = min(wanted, room) if self._limits.chunked_prefill_enabled else wanted
        if length <= 0 or len(batch.sequences) == self._shapes.prefill_rows:
            return False
        batch.add(sequence, length, is_last=length == sequence.prefill_end - sequence.num_computed)
        return True

    def _chunk_of(self, sequence: Sequence) -> int:
        """Tokens that the row would have computed next if it were alone."""
        left = sequence.prefill_end - sequence.num_computed
        if not self._limits.chunked_prefill_enabled:
            return left
        threshold = self._limits.long_prefill_token_threshold
        if threshold and left > threshold:
            left = threshold
        return min(left, self._limits.prefill_chunk_size or left)

    def _admit(self, batch: PrefillBatch) -> None:
        """Adds waiting rows in order, past those whose pages are not free, as often as they may be passed."""
        passed: list[Sequence] = []
        starts: set[tuple[int, tuple[int, ...]]] = set()
        for sequence in self._waiting.candidates():
            is_full = len(batch.sequences) == self._shapes.prefill_rows or not self._has_slot()
            if is_full or batch.num_tokens >= self._limits.max_num_batched_tokens:
                return
            outcome = self._try_admit(sequence, batch, starts)
            if outcome == "admitted":
                for earlier in passed:
                    earlier.num_passed += 1
            elif outcome == "no room":
                passed.append(sequence)
                if sequence.num_passed >= self._limits.look_past:
                    return

    def _has_slot(self) -> bool:
        num_prefilling = sum(sequence.is_prefilling for sequence in self._running)
        return (
            len(self._running) < self._limits.max_num_seqs
            and num_prefilling < self._limits.max_concurrent_prefill
        )

    def _try_admit(
        self, sequence: Sequence, batch: PrefillBatch, starts: set[tuple[int, tuple[int, ...]]]
    ) -> Admission:
        """Gives a waiting row its pages and a place in the batch, if there are any.

        `starts` are the pages that rows of the batch are about to compute: a row that wants the same comes
        after them, and shares.
        """
        if sequence.is_held:
            return "later"
        shared = self._prompts.share(sequence)
        start = (shared.name, sequence.request.prompt_token_ids[shared.num_tokens :][: self._pool.page_size])
        is_awaited = any(sibling.is_prefilling and sibling.pages for sibling in sequence.siblings)
        if start in starts or is_awaited:
            self._pool.free(shared.pages)
            return "later"
        if not self._allocate(sequence, shared):
            self._pool.free(shared.pages)
            return "no room"
        if not self._add_chunk(batch, sequence):
            self._release(sequence)
            return "later"
        if shared.partial_page is not None:
            self._copies.append((shared.partial_page, sequence.pages[len(shared.pages)]))
        sequence.prefix, sequence.num_published = shared.name, shared.num_published
        if sequence.num_preemptions == 0:
            sequence.num_cached = shared.num_tokens
        if self._config.cache.enable_prefix_caching and len(start[1]) == self._pool.page_size:
            starts.add(start)
        self._waiting.remove(sequence)
        self._running.append(sequence)
        return "admitted"

    def _allocate(self, sequence: Sequence, shared: Shared) -> bool:
        """Gives a waiting row the pages of all its tokens beside those that it shares, or none of them."""
        num_pages = self._pool.pages_for(len(sequence.tokens)) - len(shared.pages)
        has_room = self._pool.num_free >= num_pages + self._num_spare_pages()
        pages = self._pool.allocate(num_pages) if has_room else None
        if pages is None:
            return False
        sequence.pages = shared.pages + pages
        sequence.num_computed = shared.num_tokens
        # Outputs that are known are decoded again where the last bits of a token depend on its program.
        sequence.prefill_end = sequence.num_prompt if self._config.deterministic else len(sequence.tokens)
        return True

    def _num_spare_pages(self) -> int:
        """Pages that admission leaves to the running rows to grow into: without them the newcomer would be
        preempted, admitted and preempted again."""
        if not self._running:
            return 0
        margin = self._pool.pages_for(self._limits.token_safety_margin)
        share = int(self._config.cache.spare_page_share * self._pool.num_usable)
        return max(len(self._running) * margin, share)

    def _next_decode(self) -> DecodeBatch | None:
        rows = [sequence for sequence in self._running if not sequence.is_busy]
        has_beams = any(sequence.request.params.use_beam_search for sequence in rows)
        max_steps = 1 if has_beams else self._limits.decode_burst
        while rows and not self._reserve(rows, max_steps):
            if max_steps > 1:
                max_steps //= 2
            else:
                self._preempt(self._victim())
                rows = [sequence for sequence in self._running if not sequence.is_busy]
        if not rows:
            return None
        min_active = len(rows) - len(rows) // REFILL_SHARE if self._waiting else 1
        return DecodeBatch(rows, max_steps, min_active, self._can_speculate(rows))

    def _can_speculate(self, rows: list[Sequence]) -> bool:
        """Whether these rows are so few that proposals pay, and such that they can be checked."""
        sizes = self._shapes.speculative_rows
        return bool(sizes) and len(rows) <= sizes[-1] and all(each.can_speculate for each in rows)

    def _reserve(self, rows: list[Sequence], max_steps: int) -> bool:
        """Gives every row the pages of its next `max_steps` tokens, or none of them."""
        wanted = [
            self._pool.pages_for(min(sequence.num_computed + max_steps, sequence.max_total - 1))
            - len(sequence.pages)
            for sequence in rows
        ]
        pages = self._pool.allocate(sum(max(count, 0) for count in wanted))
        if pages is None:
            return False
        for sequence, count in zip(rows, wanted, strict=True):
            for _ in range(count):
                sequence.pages.append(pages.pop())
        return True

    def _victim(self) -> Sequence:
        """The row to preempt: the newest, or of the lowest priority the newest."""
        if self._limits.policy == "priority":
            return max(self._running, key=lambda sequence: (sequence.request.priority, sequence.arrival))
        return self._running[-1]

    def _preempt(self, sequence: Sequence) -> None:
        """Sends a row back to the queue; its tokens are computed again later."""
        self._running.remove(sequence)
        self._release(sequence)
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self._waiting.put_back(sequence)

    def _release(self, sequence: Sequence) -> None:
        self._pool.free(sequence.pages)
        sequence.pages = []
        sequence.num_computed = sequence.num_drafted = 0
