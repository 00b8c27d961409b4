"""Which KV pages are free, on the host, and which of them still hold the prefix of some prompt.

Full pages of prompts are published under (what comes before them, their own tokens), so that a later prompt
with the same beginning shares them instead of computing them again. A published page that no row uses stays
where it is until its room is needed; the one that was used longest ago goes first.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from headrace.engines.llm.kv_cache import NULL_PAGE

NO_PREFIX = 0
"""Name of the empty prefix."""


class Prefix(NamedTuple):
    """A run of published pages at the beginning of a prompt."""

    name: int
    """Stands for all tokens up to the end of the last page; NO_PREFIX where there are no pages."""
    pages: list[int]


class PagePool:
    """Hands out page numbers and counts their users; page 0 is the null page and never leaves the pool.

    Prefixes are compared token by token, never by a hash alone.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.page_size = page_size
        self.num_usable = num_pages - 1
        self._blank = [page for page in range(num_pages - 1, -1, -1) if page != NULL_PAGE]
        self._idle: OrderedDict[int, None] = OrderedDict()  # published, unused; least recently used first
        self._num_users = [0] * num_pages
        self._published: dict[tuple[int, tuple[int, ...]], tuple[int, int]] = {}  # -> (name, page)
        self._keys: dict[int, tuple[int, tuple[int, ...]]] = {}  # page -> its key in _published
        self._last_name = NO_PREFIX

    @property
    def num_free(self) -> int:
        """Pages that nobody uses."""
        return len(self._blank) + len(self._idle)

    def pages_for(self, num_tokens: int) -> int:
        """Pages that hold so many tokens."""
        return -(-num_tokens // self.page_size)

    def allocate(self, count: int) -> list[int] | None:
        """`count` pages with one user each, or None where not as many are free."""
        if count > self.num_free:
            return None
        return [self._take() for _ in range(count)]

    def free(self, pages: list[int]) -> None:
        """Takes a user off each page, last page first: a prefix shall lose its end before its beginning."""
        for page in reversed(pages):
            assert page != NULL_PAGE, "the null page has no user"
            assert self._num_users[page] > 0, "a page was freed twice"
            self._num_users[page] -= 1
            if self._num_users[page] == 0:
                if page in self._keys:
                    self._idle[page] = None
                else:
                    self._blank.append(page)

    def share(self, pages: list[int]) -> None:
        """Puts a user more on pages that have users."""
        for page in pages:
            assert self._num_users[page] > 0, "a page without a user has no content to share"
            self._num_users[page] += 1

    def share_prefix(self, tokens: Sequence[int]) -> Prefix:
        """The longest published beginning of `tokens` with a token to spare; its pages have a user more."""
        name, pages = NO_PREFIX, []
        for start in range(0, len(tokens) - self.page_size, self.page_size):
            found = self._published.get((name, tuple(tokens[start : start + self.page_size])))
            if found is None:
                break
            name, page = found
            pages.append(page)
            self._num_users[page] += 1
            self._idle.pop(page, None)
        return Prefix(name, pages)

    def publish(self, before: int, tokens: Sequence[int], page: int) -> int:
        """Name of the prefix that ends with this full, computed page; `before` names what precedes it.

        Where an equal page is published already that one stays, and this one remains private.
        """
        key = (before, tuple(tokens))
        assert len(key[1]) == self.page_size, "only full pages are published"
        found = self._published.get(key)
        if found is not None:
            return found[0]
        self._last_name += 1
        self._published[key] = (self._last_name, page)
        self._keys[page] = key
        return self._last_name

    def forget_prefixes(self) -> None:
        """Takes back all that was published: what the pages hold is out of date."""
        self._published.clear()
        self._keys.clear()
        self._blank.extend(self._idle)
        self._idle.clear()

    def _take(self) -> int:
        if self._blank:
            page = self._blank.pop()
        else:
            page, _ = self._idle.popitem(last=False)
            del self._published[self._keys.pop(page)]
        self._num_users[page] = 1
        return page
