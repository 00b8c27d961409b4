"""How a batch of tokens attends: its keys and values go into the pages, then its queries read them."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from headrace.engines.llm.attention import AttentionRule, Backend, paged_attention
from headrace.engines.llm.batch import BLOCK_TOKENS, Chunks, Rows
from headrace.engines.llm.kv_cache import NULL_PAGE, LayerCache, write_pages


def attend_single(
    backend: Backend,
    page_table: Int[Array, "R P"],
    positions: Int[Array, " R"],
    queries: Float[Array, "R H D"],
    keys: Float[Array, "R K D"],
    values: Float[Array, "R K D"],
    cache: LayerCache,
    rule: AttentionRule,
) -> tuple[Float[Array, "R H D"], LayerCache]:
    """Attention of one token a row."""
    token_row = jnp.arange(positions.shape[0], dtype=jnp.int32)
    pages, offsets = _places(page_table, token_row, positions, cache.values.shape[2])
    cache = write_pages(cache, keys, values, pages, offsets)
    mixed = paged_attention(queries[:, None], cache, page_table, positions[:, None], rule, backend)
    return mixed[:, 0], cache


def attend_even(
    backend: Backend,
    page_table: Int[Array, "R P"],
    positions: Int[Array, "R C"],
    queries: Float[Array, "T H D"],
    keys: Float[Array, "T K D"],
    values: Float[Array, "T K D"],
    cache: LayerCache,
    rule: AttentionRule,
) -> tuple[Float[Array, "T H D"], LayerCache]:
    """Attention of C tokens a row, those of the first row first; padding is at -1."""
    num_rows, count = positions.shape
    token_row = jnp.repeat(jnp.arange(num_rows, dtype=jnp.int32), count)
    pages, offsets = _places(page_table, token_row, positions.reshape(-1), cache.values.shape[2])
    cache = write_pages(cache, keys, values, pages, offsets)
    blocks = queries.reshape(num_rows, count, *queries.shape[1:])
    mixed = paged_attention(blocks, cache, page_table, positions, rule, backend)
    return mixed.reshape(queries.shape), cache


def attend_blocks(
    backend: Backend,
    rows: Rows,
    chunks: Chunks,
    queries: Float[Array, "T H D"],
    keys: Float[Array, "T K D"],
    values: Float[Array, "T K D"],
    cache: LayerCache,
    rule: AttentionRule,
) -> tuple[Float[Array, "T H D"], LayerCache]:
    """Attention of ragged chunks, cut into blocks that belong to one row each.

    e.g. two rows of 40 and 10 tokens, blocks of 32: blocks start at tokens 0, 32 and 40.
    """
    num_tokens = queries.shape[0]
    page_size = cache.values.shape[2]
    pages, offsets = _places(rows.page_table, chunks.token_row, chunks.positions, page_size)
    cache = write_pages(cache, keys, values, pages, offsets)
    within = jnp.arange(BLOCK_TOKENS, dtype=jnp.int32)[None, :]
    is_real = within < chunks.block_len[:, None]
    index = jnp.where(is_real, chunks.block_start[:, None] + within, num_tokens)
    # Else XLA would work out the place again for each number that it gathers, and rotate the queries there.
    index, queries = jax.lax.optimization_barrier((index, queries))
    block_positions = jnp.where(is_real, chunks.positions.at[index].get(mode="fill", fill_value=-1), -1)
    mixed = paged_attention(
        queries.at[index].get(mode="clip"),  # what stands in padding does not matter: its position is -1
        cache,
        rows.page_table[chunks.block_row],
        block_positions,
        rule,
        backend,
    )
    flat = jnp.zeros(queries.shape, mixed.dtype).at[index].set(mixed, mode="drop")
    return flat, cache


def _places(
    page_table: Int[Array, "R P"], token_row: Int[Array, " T"], positions: Int[Array, " T"], page_size: int
) -> tuple[Int[Array, " T"], Int[Array, " T"]]:
    """Page and offset where each token's key and value lie; padding goes to the null page."""
    index = jnp.maximum(positions, 0)
    pages = page_table[token_row, index // page_size]
    return jnp.where(positions < 0, NULL_PAGE, pages), index % page_size
