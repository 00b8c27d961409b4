"""Pages of a prompt that a row need not compute, as a sibling or an earlier prompt has them."""

from typing import NamedTuple

from headrace.engines.llm.engine_config import CacheConfig
from headrace.engines.llm.page_pool import NO_PREFIX, PagePool
from headrace.engines.llm.request import Sequence


class Shared(NamedTuple):
    """What a row need not compute."""

    pages: list[int]
    name: int
    """Name of the prefix in the pool."""
    num_tokens: int
    partial_page: int | None
    """Page of another row whose first tokens are wanted, too, in a page of one's own."""
    num_published: int
    """Pages that need not be offered to others."""


class PromptPages:
    """Shares the pages of prompts among the rows of one engine."""

    def __init__(self, config: CacheConfig, pool: PagePool) -> None:
        self._keeps_prefixes = config.enable_prefix_caching
        self._pool = pool

    def share(self, sequence: Sequence) -> Shared:
        """What of the row's prompt is computed already, by a sibling or by earlier rows; takes its pages.

        e.g. a sibling of a row with a prompt of 40 tokens, pages of 16: it shares two pages, copies the third
        and computes the last token again, as its own first one is drawn from that token's logits.
        """
        page_size = self._pool.page_size
        for sibling in sequence.siblings:
            if sibling.pages and not sibling.is_prefilling and sibling is not sequence:
                num_tokens = sequence.num_prompt - 1
                count = num_tokens // page_size
                self._pool.share(sibling.pages[:count])
                partial = sibling.pages[count] if num_tokens % page_size else None
                # Its pages are published by the sibling, if at all.
                num_published = sequence.num_prompt // page_size
                return Shared(sibling.pages[:count], NO_PREFIX, num_tokens, partial, num_published)
        if not self._keeps_prefixes or sequence.needs_whole_prompt:
            return Shared([], NO_PREFIX, 0, None, 0)
        name, pages = self._pool.share_prefix(sequence.request.prompt_token_ids)
        return Shared(pages, name, len(pages) * page_size, None, len(pages))

    def publish(self, sequence: Sequence) -> None:
        """Offers the row's full, computed prompt pages to later prompts. Outputs are never offered."""
        if not self._keeps_prefixes:
            return
        page_size = self._pool.page_size
        num_full = min(sequence.num_computed, sequence.num_prompt) // page_size
        for index in range(sequence.num_published, num_full):
            tokens = sequence.tokens[index * page_size : (index + 1) * page_size]
            sequence.prefix = self._pool.publish(sequence.prefix, tokens, sequence.pages[index])
        sequence.num_published = max(sequence.num_published, num_full)
