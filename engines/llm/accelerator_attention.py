"""Attention by the Pallas kernels that ship with jax: ragged rows on TPUs, one token a row on GPUs.

Written against jax 0.10.2. Neither has been run on the hardware that it is for. They are imported where they
are used: that takes 0.2 s, which CPUs need not wait for.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from headrace.engines.llm.accelerator_pages import GpuPages, TpuPages, pad_to
from headrace.engines.llm.attention import AttentionRule

MAX_SPLITS = 16
"""Parts of a row's pages that a GPU works on side by side."""
PAGES_AT_ONCE = 8
UNTUNED_PAGES, UNTUNED_QUERIES = 4, 32
"""Sizes of the TPU kernel's steps where no TPU is there to ask jax's table for."""


class Spans(NamedTuple):
    """Where each row's queries lie, which are side by side, and how far it reaches."""

    page_table: Int[Array, "R P"]
    query_start: Int[Array, " borders"]  # R + 1: index of each row's first query, and the end
    context_len: Int[Array, " R"]  # tokens of the row, its last query included
    num_rows: Int[Array, " 1"]  # rows that have queries; the others come after them


def even_spans(page_table: Int[Array, "R P"], positions: Int[Array, "R C"]) -> Spans:
    """Spans of C queries a row, padding among them: a row's real queries come first and see what is theirs.

    A row of padding alone sees the page that stands first in its table; what it gives is not used.
    """
    num_rows, count = positions.shape
    return Spans(
        page_table=page_table,
        query_start=jnp.arange(num_rows + 1, dtype=jnp.int32) * count,
        context_len=jnp.maximum(positions[:, 0], 0) + count,
        num_rows=jnp.full(1, num_rows, jnp.int32),
    )


def ragged_spans(
    page_table: Int[Array, "R P"], token_row: Int[Array, " T"], positions: Int[Array, " T"]
) -> Spans:
    """Spans of rows with any number of queries each; padding, at -1, comes after all of them.

    e.g. rows 0 0 1, positions 4 5 0 -> query_start 0 2 3, context_len 6 1
    """
    empty = jnp.zeros(page_table.shape[0], jnp.int32)
    counts = empty.at[token_row].add((positions >= 0).astype(jnp.int32))
    return Spans(
        page_table=page_table,
        query_start=jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(counts)]),
        context_len=empty.at[token_row].max(positions + 1),
        num_rows=jnp.sum(counts > 0, dtype=jnp.int32)[None],
    )


def attend_ragged(
    queries: Float[Array, "T H D"],
    num_kv_heads: int,
    cache: TpuPages,
    spans: Spans,
    rule: AttentionRule,
) -> Float[Array, "T H D"]:
    """Causal attention of each row's last tokens over its pages, on a TPU. What padding gives is undefined.

    Raises:
      ValueError: the kernel does not take the shapes.
    """
    from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention

    num_tokens, num_heads, head_dim = queries.shape
    group = num_heads // num_kv_heads
    _, _, pairs, lanes = cache.pairs.shape
    padded = pad_to(queries, (pairs // 2 * group, lanes), cache.pairs.dtype)
    sizes = {}
    if jax.default_backend() != "tpu":
        sizes["num_kv_pages_per_block"] = min(UNTUNED_PAGES, spans.page_table.shape[1])
        sizes["num_queries_per_block"] = min(UNTUNED_QUERIES, num_tokens)
    with jax.numpy_dtype_promotion("standard"):  # the kernel multiplies float32 by bfloat16
        mixed = ragged_paged_attention(
            padded,
            cache.pairs,
            spans.context_len,
            spans.page_table,
            spans.query_start,
            spans.num_rows,
            sm_scale=rule.scale,
            sliding_window=rule.window,
            soft_cap=rule.soft_cap,
            **sizes,
        )
    return mixed[:, :num_heads, :head_dim]


def can_attend_singles(rule: AttentionRule) -> bool:
    """Whether the kernel for GPUs knows the rule: it has no windows."""
    return rule.window is None


def attend_singles(
    queries: Float[Array, "R H D"],
    cache: GpuPages,
    page_table: Int[Array, "R P"],
    positions: Int[Array, " R"],
    rule: AttentionRule,
    *,
    interpret: bool,
) -> Float[Array, "R H D"]:
    """Attention of one token a row over its pages, on a GPU; of padding, at -1, zeros.

    `interpret` runs the kernel by plain XLA, slowly, on any device.
    """
    from jax.experimental.pallas.ops.gpu.paged_attention import paged_attention

    width = page_table.shape[1]
    splits = math.gcd(width, MAX_SPLITS)
    return paged_attention(
        (queries.astype(jnp.float32) * rule.scale).astype(queries.dtype),
        cache.keys,
        cache.values,
        page_table,
        positions + 1,
        k_splits=splits,
        pages_per_compute_block=math.gcd(width // splits, PAGES_AT_ONCE),
        attn_logits_soft_cap=rule.soft_cap,
        interpret=interpret,
    )
