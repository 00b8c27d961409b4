"""Which KV pages are free, on the host."""

from headrace.engines.llm.kv_cache import NULL_PAGE


class PagePool:
    """Hands out page numbers; page 0 is the null page and never leaves the pool."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.page_size = page_size
        self.num_usable = num_pages - 1
        self._free = [page for page in range(num_pages - 1, -1, -1) if page != NULL_PAGE]

    @property
    def num_free(self) -> int:
        """Pages that nobody owns."""
        return len(self._free)

    def pages_for(self, num_tokens: int) -> int:
        """Pages that hold so many tokens."""
        return -(-num_tokens // self.page_size)

    def allocate(self, count: int) -> list[int] | None:
        """`count` pages, or None where not as many are free."""
        if count > len(self._free):
            return None
        return [self._free.pop() for _ in range(count)]

    def free(self, pages: list[int]) -> None:
        """Takes pages back, those at the end first, so that the next row reuses warm ones."""
        assert NULL_PAGE not in pages, "the null page has no owner"
        self._free.extend(reversed(pages))
        assert len(self._free) <= self.num_usable, "a page was freed twice"
