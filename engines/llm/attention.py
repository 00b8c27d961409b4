"""Attention of query blocks over KV pages, in plain XLA: the reference of every other backend.

The context is read in segments of fixed length with a running softmax, and the number of segments follows
the longest row of the call. One compiled program therefore serves every context length, and a row's result
does not depend on how long its companions are: a segment that is masked in full adds an exact zero.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from headrace.engines.llm.kv_cache import LayerCache, read_pages

SEGMENT_TOKENS = 256
"""Context tokens read at a time (measured on a CPU: 64, 128 and 256 within 10 %, fewer steps win)."""
MASKED = -1e30


def paged_attention(
    queries: Float[Array, "N C H D"],
    cache: LayerCache,
    page_table: Int[Array, "N P"],
    positions: Int[Array, "N C"],
    scale: float,
) -> Float[Array, "N C H D"]:
    """Causal attention of N blocks of C query tokens, each block over the pages of its own row.

    `page_table` holds the row's pages in order of position; P times the page size is a multiple of the
    segment length. `positions` are those of the queries in their rows; a query at -1 is padding and gives
    zeros. The keys and values of the queries themselves must be in the cache already. Returns float32.
    """
    num_blocks, block_len, num_heads, head_dim = queries.shape
    num_kv_heads, page_size = cache.keys.shape[1:3]
    segment_pages = SEGMENT_TOKENS // page_size
    group = num_heads // num_kv_heads
    # [N, C, K*G, D] -> [N, K, G*C, D]: the queries of one kv head side by side.
    grouped = queries.reshape(num_blocks, block_len, num_kv_heads, group, head_dim).transpose(0, 2, 3, 1, 4)
    grouped = grouped.reshape(num_blocks, num_kv_heads, group * block_len, head_dim)
    row_positions = jnp.tile(positions, (1, group))

    def read(pages: Shaped[Array, "pages K page D"], index: Int[Array, ""]) -> Float[Array, "N K S D"]:
        chosen = jax.lax.dynamic_slice_in_dim(page_table, index * segment_pages, segment_pages, axis=1)
        segment = read_pages(pages, chosen).transpose(0, 2, 1, 3, 4)
        return segment.reshape(num_blocks, num_kv_heads, SEGMENT_TOKENS, head_dim)

    def add_segment(index, carry):
        peak, total, weighted = carry
        scores = jnp.einsum(
            "nkqd,nksd->nkqs", grouped, read(cache.keys, index), preferred_element_type=jnp.float32
        )
        context = index * SEGMENT_TOKENS + jnp.arange(SEGMENT_TOKENS, dtype=jnp.int32)
        visible = (context[None, None, :] <= row_positions[:, :, None])[:, None]
        scores = jnp.where(visible, scores * scale, MASKED)
        new_peak = jnp.maximum(peak, jnp.max(scores, axis=-1))
        weights = jnp.where(visible, jnp.exp(scores - new_peak[..., None]), 0.0)
        decay = jnp.exp(peak - new_peak)
        values = read(cache.values, index)
        added = jnp.einsum(
            "nkqs,nksd->nkqd", weights.astype(values.dtype), values, preferred_element_type=jnp.float32
        )
        return (
            new_peak,
            total * decay + jnp.sum(weights, axis=-1),
            weighted * decay[..., None] + added,
        )

    num_segments = jnp.max(positions) // SEGMENT_TOKENS + 1
    shape = grouped.shape[:3]
    start = (
        jnp.full(shape, MASKED, jnp.float32),
        jnp.zeros(shape, jnp.float32),
        jnp.zeros((*shape, head_dim), jnp.float32),
    )
    _, total, weighted = jax.lax.fori_loop(0, num_segments, add_segment, start)
    mixed = weighted / jnp.maximum(total, jnp.finfo(jnp.float32).tiny)[..., None]
    mixed = mixed.reshape(num_blocks, num_kv_heads, group, block_len, head_dim).transpose(0, 3, 1, 2, 4)
    return mixed.reshape(num_blocks, block_len, num_heads, head_dim)
