"""Decides which rows the next dispatch works on, and which pages they get.

A row has tokens and a number of them that are computed. What is not computed is prefilled, in chunks that
fit the token budget; a row with one uncomputed token decodes. Rows that are running come before waiting
ones, and a waiting row is admitted when a slot and the pages of its prompt are free.
"""

from collections import deque

from headrace.engines.errors import RequestError
from headrace.engines.llm.batch import DecodeBatch, PrefillBatch
from headrace.engines.llm.engine_config import EngineConfig
from headrace.engines.llm.page_pool import NO_PREFIX, PagePool, Prefix
from headrace.engines.llm.request import LLMRequest, Sequence

REFILL_SHARE = 8
"""While rows wait, a decode burst ends when one in so many of its rows has finished."""


class Scheduler:
    """Waiting and running rows of one engine."""

    def __init__(
        self, config: EngineConfig, pool: PagePool, max_model_len: int, max_prefill_rows: int
    ) -> None:
        self._config = config
        self._pool = pool
        self._max_model_len = max_model_len
        self._max_prefill_rows = max_prefill_rows
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self.num_preemptions = 0

    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def add(self, request: LLMRequest) -> None:
        """Queues a request.

        Raises:
          RequestError: it could never run: its prompt, or its prompt with its output, is too long.
        """
        num_prompt = len(request.prompt_token_ids)
        if num_prompt == 0:
            raise RequestError("the prompt is empty: it has no tokens", kind="prompt_empty")
        if num_prompt >= self._max_model_len:
            raise RequestError(
                f"prompt has {num_prompt} tokens, the engine takes {self._max_model_len - 1}: "
                "raise max_model_len, shorten the prompt or set overlong to truncate-left or -right",
                kind="prompt_too_long",
            )
        max_total = min(num_prompt + request.params.max_tokens, self._max_model_len)
        if self._pool.pages_for(max_total) > self._pool.num_usable:
            raise RequestError(
                f"prompt and output have up to {max_total} tokens, all KV pages together hold "
                f"{self._pool.num_usable * self._pool.page_size}: raise num_pages or lower max_tokens",
                kind="prompt_too_long",
            )
        self._waiting.append(
            Sequence(request=request, tokens=list(request.prompt_token_ids), max_total=max_total)
        )

    def abort(self, request_id: str) -> None:
        """Forgets a row and frees its pages."""
        for sequence in self._running:
            if sequence.request.request_id == request_id:
                self.finish(sequence)
                return
        self._waiting = deque(s for s in self._waiting if s.request.request_id != request_id)

    def finish(self, sequence: Sequence) -> None:
        """Takes a row out and frees its pages."""
        self._running.remove(sequence)
        self._release(sequence)

    def next_batch(self) -> PrefillBatch | DecodeBatch:
        """The next dispatch. Prefills go first: a decode pays more the more rows it has."""
        assert self.has_work()
        prefill = self._next_prefill()
        return prefill if prefill is not None else self._next_decode()

    def publish_prompt(self, sequence: Sequence) -> None:
        """Offers the row's full, computed prompt pages to later prompts. Outputs are never offered."""
        if not self._config.cache.enable_prefix_caching:
            return
        page_size = self._pool.page_size
        num_full = min(sequence.num_computed, sequence.num_prompt) // page_size
        for index in range(sequence.num_published, num_full):
            tokens = sequence.tokens[index * page_size : (index + 1) * page_size]
            sequence.prefix = self._pool.publish(sequence.prefix, tokens, sequence.pages[index])
        sequence.num_published = max(sequence.num_published, num_full)

    def _next_prefill(self) -> PrefillBatch | None:
        """Chunks of rows that run already, then of waiting ones as far as tokens, slots and pages go."""
        budget = self._config.scheduler.max_num_batched_tokens
        batch = PrefillBatch([], [])
        prefilling = iter([sequence for sequence in self._running if _is_prefilling(sequence)])
        while budget > 0 and len(batch.sequences) < self._max_prefill_rows:
            sequence = next(prefilling, None) or self._admit()
            if sequence is None:
                break
            length = min(sequence.num_uncomputed, budget)
            budget -= length
            batch.sequences.append(sequence)
            batch.lengths.append(length)
        return batch if batch.sequences else None

    def _admit(self) -> Sequence | None:
        """The first waiting row, with its pages, or None where there is none or no room for it."""
        if not self._waiting or len(self._running) == self._config.scheduler.max_num_seqs:
            return None
        sequence = self._waiting[0]
        prefix = Prefix(NO_PREFIX, [])
        if self._config.cache.enable_prefix_caching:
            prefix = self._pool.share_prefix(sequence.request.prompt_token_ids)
        num_pages = self._pool.pages_for(self._tokens_to_reserve(sequence)) - len(prefix.pages)
        has_room = self._pool.num_free >= num_pages + self._num_spare_pages()
        pages = self._pool.allocate(num_pages) if has_room else None
        if pages is None:
            self._pool.free(prefix.pages)
            return None
        sequence.pages = prefix.pages + pages
        sequence.prefix, sequence.num_published = prefix.name, len(prefix.pages)
        sequence.num_computed = len(prefix.pages) * self._pool.page_size
        if sequence.num_preemptions == 0:
            sequence.num_cached = sequence.num_computed
        self._running.append(self._waiting.popleft())
        return sequence

    def _tokens_to_reserve(self, sequence: Sequence) -> int:
        """All that the row can ever need where preemption is out of the question, else its tokens so far."""
        return sequence.max_total if self._config.deterministic else len(sequence.tokens)

    def _num_spare_pages(self) -> int:
        """Pages that admission leaves to the running rows to grow into: without them the newcomer would be
        preempted, admitted and preempted again."""
        return 0 if self._config.deterministic else len(self._running)

    def _next_decode(self) -> DecodeBatch:
        max_steps = self._config.scheduler.decode_burst
        while not self._reserve(max_steps):
            if max_steps > 1:
                max_steps //= 2
            else:
                self._preempt(self._running[-1])
        num_rows = len(self._running)
        min_active = num_rows - num_rows // REFILL_SHARE if self._waiting else 1
        return DecodeBatch(list(self._running), max_steps, min_active)

    def _reserve(self, max_steps: int) -> bool:
        """Gives every running row the pages of its next `max_steps` tokens, or none of them."""
        wanted = [
            self._pool.pages_for(sequence.num_computed + min(max_steps, sequence.num_remaining))
            - len(sequence.pages)
            for sequence in self._running
        ]
        pages = self._pool.allocate(sum(max(count, 0) for count in wanted))
        if pages is None:
            return False
        for sequence, count in zip(self._running, wanted, strict=True):
            for _ in range(count):
                sequence.pages.append(pages.pop())
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """Sends the newest row back to the head of the queue; its tokens are computed again later."""
        assert len(self._running) > 1, "a row alone always fits: admission saw to it"
        self.finish(sequence)
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self._waiting.appendleft(sequence)

    def _release(self, sequence: Sequence) -> None:
        self._pool.free(sequence.pages)
        sequence.pages = []
        sequence.num_computed = 0


def _is_prefilling(sequence: Sequence) -> bool:
    """A fresh or preempted row; one that decodes has exactly its last output uncomputed."""
    return sequence.num_uncomputed > 1 or sequence.num_outputs == 0
