"""How a batch of tokens attends: its keys and values go into the pages, then its queries read them."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from headrace.engines.llm.accelerator_attention import (
    Spans,
    attend_ragged,
    attend_singles,
    can_attend_singles,
    even_spans,
    ragged_spans,
)
from headrace.engines.llm.accelerator_pages import GpuPages, TpuPages
from headrace.engines.llm.attention import (
    AttentionRule,
    Backend,
    Projected,
    TokenRows,
    attend_pages,
    write_and_attend,
)
from headrace.engines.llm.batch import BLOCK_TOKENS, Chunks, Rows
from headrace.engines.llm.kv_cache import NULL_PAGE, LayerCache, LayerPages, write_pages

Attended = tuple[Float[Array, "T H D"], LayerPages]


def attend_single(
    backend: Backend,
    page_table: Int[Array, "T P"],
    positions: Int[Array, " T"],
    projected: Projected,
    cache: LayerPages,
    rule: AttentionRule,
) -> Attended:
    """Attention of one token a row."""
    return attend_even(backend, page_table, positions[:, None], projected, cache, rule)


def attend_even(
    backend: Backend,
    page_table: Int[Array, "R P"],
    positions: Int[Array, "R C"],
    projected: Projected,
    cache: LayerPages,
    rule: AttentionRule,
) -> Attended:
    """Attention of C tokens a row, those of the first row first; padding is at -1."""
    num_rows, count = positions.shape
    token_row = jnp.repeat(jnp.arange(num_rows, dtype=jnp.int32), count)
    if backend == "native":
        assert isinstance(cache, LayerCache)
        token_rows = TokenRows(page_table, token_row, positions.reshape(-1))
        return write_and_attend(projected, cache, token_rows, rule)
    queries, keys, values = projected.split()
    pages, offsets = places(page_table, token_row, positions.reshape(-1), cache.page_size)
    cache = write_pages(cache, keys, values, pages, offsets)
    if isinstance(cache, TpuPages):
        spans = even_spans(page_table, positions)
        return _attend_spans(spans, positions.reshape(-1), queries, projected, cache, rule), cache
    if isinstance(cache, GpuPages) and count == 1 and can_attend_singles(rule):
        is_cpu = jax.default_backend() == "cpu"
        return attend_singles(queries, cache, page_table, positions[:, 0], rule, interpret=is_cpu), cache
    blocks = queries.reshape(num_rows, count, *queries.shape[1:])
    mixed = attend_pages(blocks, cache, page_table, positions, rule)
    return mixed.reshape(queries.shape), cache


def attend_blocks(
    backend: Backend,
    rows: Rows,
    chunks: Chunks,
    projected: Projected,
    cache: LayerPages,
    rule: AttentionRule,
) -> Attended:
    """Attention of ragged chunks, cut into blocks that belong to one row each.

    e.g. two rows of 40 and 10 tokens, blocks of 32: blocks start at tokens 0, 32 and 40.
    """
    if backend == "native":
        assert isinstance(cache, LayerCache)
        token_rows = TokenRows(rows.page_table, chunks.token_row, chunks.positions)
        return write_and_attend(projected, cache, token_rows, rule)
    queries, keys, values = projected.split()
    num_tokens = queries.shape[0]
    pages, offsets = places(rows.page_table, chunks.token_row, chunks.positions, cache.page_size)
    cache = write_pages(cache, keys, values, pages, offsets)
    if isinstance(cache, TpuPages):
        spans = ragged_spans(rows.page_table, chunks.token_row, chunks.positions)
        return _attend_spans(spans, chunks.positions, queries, projected, cache, rule), cache
    within = jnp.arange(BLOCK_TOKENS, dtype=jnp.int32)[None, :]
    is_real = within < chunks.block_len[:, None]
    index = jnp.where(is_real, chunks.block_start[:, None] + within, num_tokens)
    # Else XLA would work out the place again for each number that it gathers, and rotate the queries there.
    index, queries = jax.lax.optimization_barrier((index, queries))
    block_positions = jnp.where(is_real, chunks.positions.at[index].get(mode="fill", fill_value=-1), -1)
    mixed = attend_pages(
        queries.at[index].get(mode="clip"),  # what stands in padding does not matter: its position is -1
        cache,
        rows.page_table[chunks.block_row],
        block_positions,
        rule,
    )
    flat = jnp.zeros(queries.shape, mixed.dtype).at[index].set(mixed, mode="drop")
    return flat, cache


def _attend_spans(
    spans: Spans,
    positions: Int[Array, " T"],
    queries: Float[Array, "T H D"],
    projected: Projected,
    cache: TpuPages,
    rule: AttentionRule,
) -> Float[Array, "T H D"]:
    """Attention on a TPU, with zeros for padding: what else stood there would go into the null page."""
    mixed = attend_ragged(queries, projected.num_kv_heads, cache, spans, rule)
    return jnp.where((positions >= 0)[:, None, None], mixed, jnp.zeros_like(mixed))


def places(
    page_table: Int[Array, "R P"], token_row: Int[Array, " T"], positions: Int[Array, " T"], page_size: int
) -> tuple[Int[Array, " T"], Int[Array, " T"]]:
    """Page and offset where each token's key and value lie; padding goes to the null page."""
    index = jnp.maximum(positions, 0)
    pages = page_table[token_row, index // page_size]
    return jnp.where(positions < 0, NULL_PAGE, pages), index % page_size
