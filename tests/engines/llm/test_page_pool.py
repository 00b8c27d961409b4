"""The page pool's books: users, prefixes, and what is given up first."""

import random

import pytest

from headrace.engines.llm.page_pool import NO_PREFIX, PagePool

PAGE = 4


def publish_all(pool: PagePool, tokens: list[int], pages: list[int]) -> int:
    """Publishes every full page of a prompt; the name of the whole."""
    name = NO_PREFIX
    for index in range(len(tokens) // PAGE):
        name = pool.publish(name, tokens[index * PAGE : (index + 1) * PAGE], pages[index])
    return name


def test_pages_are_handed_out_once_and_the_null_page_never():
    pool = PagePool(6, PAGE)
    pages = pool.allocate(5)
    assert sorted(pages) == [1, 2, 3, 4, 5]
    assert pool.allocate(1) is None
    pool.free(pages[:2])
    assert sorted(pool.allocate(2)) == sorted(pages[:2])


def test_a_prompt_shares_the_pages_that_an_equal_beginning_left():
    pool = PagePool(10, PAGE)
    tokens = list(range(12))
    pages = pool.allocate(3)
    publish_all(pool, tokens, pages)
    assert pool.share_prefix([*tokens, 99]).pages == pages
    assert pool.share_prefix([*tokens[:8], 99, 99, 99, 99, 99]).pages == pages[:2]
    assert pool.share_prefix([7, *tokens]).pages == []


def test_a_prompt_that_is_known_whole_still_has_a_token_to_compute():
    pool = PagePool(10, PAGE)
    pages = pool.allocate(2)
    publish_all(pool, list(range(8)), pages)
    assert pool.share_prefix(list(range(8))).pages == pages[:1]
    assert pool.share_prefix(list(range(9))).pages == pages


def test_equal_tokens_after_other_beginnings_are_other_prefixes():
    pool = PagePool(10, PAGE)
    first, second = pool.allocate(2), pool.allocate(2)
    publish_all(pool, [1, 1, 1, 1, 5, 5, 5, 5], first)
    publish_all(pool, [2, 2, 2, 2, 5, 5, 5, 5], second)
    assert pool.share_prefix([2, 2, 2, 2, 5, 5, 5, 5, 0]).pages == second


def test_unused_prefixes_are_free_and_the_one_used_longest_ago_goes_first():
    pool = PagePool(5, PAGE)
    old, new = pool.allocate(2), pool.allocate(2)
    publish_all(pool, list(range(8)), old)
    publish_all(pool, list(range(50, 58)), new)
    pool.free(old)
    pool.free(new)
    assert pool.num_free == 4
    pool.allocate(1)
    # The end of the older prefix went; its beginning can still be shared.
    assert pool.share_prefix(list(range(9))).pages == old[:1]
    assert pool.share_prefix(list(range(50, 59))).pages == new


def test_a_shared_page_is_free_only_after_its_last_user():
    pool = PagePool(4, PAGE)
    pages = pool.allocate(1)
    publish_all(pool, [1, 2, 3, 4], pages)
    again = pool.share_prefix([1, 2, 3, 4, 5]).pages
    pool.free(pages)
    assert pool.num_free == 2
    pool.free(again)
    assert pool.num_free == 3
    with pytest.raises(AssertionError, match="twice"):
        pool.free(again)


def test_the_books_balance_after_random_work():
    rng = random.Random(0)
    pool = PagePool(40, PAGE)
    rows = []
    for _ in range(3000):
        if rows and rng.random() < 0.5:
            pool.free(rows.pop(rng.randrange(len(rows))))
            continue
        tokens = [rng.randrange(2) for _ in range(rng.randrange(1, 30))]
        prefix = pool.share_prefix(tokens)
        pages = pool.allocate(pool.pages_for(len(tokens)) - len(prefix.pages))
        if pages is None:
            pool.free(prefix.pages)
            continue
        rows.append(prefix.pages + pages)
        publish_all(pool, tokens, rows[-1])
        assert 0 <= pool.num_free <= 39
    for row in rows:
        pool.free(row)
    assert pool.num_free == 39
