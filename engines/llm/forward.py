"""A decoder over the KV pages of a dispatch's rows: chunks of a prefill, or as many tokens for each row."""

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from headrace.engines.llm.attend import attend_blocks, attend_even, attend_single, places
from headrace.engines.llm.attention import Backend
from headrace.engines.llm.batch import Chunks, Rows
from headrace.engines.llm.hidden_pages import HiddenPages
from headrace.engines.llm.kv_cache import KVCache, LayerPages
from headrace.engines.llm.model import Attend, Decoder

Computed = tuple[Float[Array, "T E"], KVCache]
"""Normed hidden states, and the cache with the keys and values of their tokens."""
Entering = Float[Array, "T E"] | None
"""What the pipeline stage before hands over."""


class Forward(NamedTuple):
    """A decoder and what attends for it. Hidden states are kept where the cache has pages for them."""

    decoder: Decoder
    backend: Backend

    def chunks(self, rows: Rows, chunks: Chunks, cache: KVCache, entering: Entering = None) -> Computed:
        """Computes the ragged chunks of a prefill."""
        attend = partial(attend_blocks, self.backend, rows, chunks)
        lie = _Lie(rows.page_table, chunks.token_row, chunks.positions)
        return self._compute(chunks.tokens, lie, cache, attend, entering)

    def singles(
        self,
        page_table: Int[Array, "R P"],
        tokens: Int[Array, " R"],
        positions: Int[Array, " R"],
        cache: KVCache,
        entering: Entering = None,
    ) -> Computed:
        """Computes one token a row; at -1 there is none."""
        attend = partial(attend_single, self.backend, page_table, positions)
        lie = _Lie(page_table, jnp.arange(tokens.shape[0], dtype=jnp.int32), positions)
        return self._compute(tokens, lie, cache, attend, entering)

    def even(
        self,
        page_table: Int[Array, "R P"],
        tokens: Int[Array, "R C"],
        positions: Int[Array, "R C"],
        cache: KVCache,
    ) -> Computed:
        """Computes C tokens a row, those of the first row first; padding is at -1 and comes last."""
        num_rows, count = tokens.shape
        attend = partial(attend_even, self.backend, page_table, positions)
        token_row = jnp.repeat(jnp.arange(num_rows, dtype=jnp.int32), count)
        lie = _Lie(page_table, token_row, positions.reshape(-1))
        return self._compute(tokens.reshape(-1), lie, cache, attend, None)

    def _compute(
        self, tokens: Int[Array, " T"], lie: "_Lie", cache: KVCache, attend: Attend, entering: Entering
    ) -> Computed:
        layers, kept = split_hidden(cache)
        hidden, layers = self.decoder(tokens, jnp.maximum(lie.positions, 0), layers, attend, entering)
        kept = tuple(each.write(*places(*lie, each.page_size), hidden) for each in kept)
        return hidden, (*layers, *kept)


class _Lie(NamedTuple):
    """Where each token lies."""

    page_table: Int[Array, "R P"]
    token_row: Int[Array, " T"]
    positions: Int[Array, " T"]


def split_hidden(cache: KVCache) -> tuple[tuple[LayerPages, ...], tuple[HiddenPages, ...]]:
    """The pages of the layers, and those of hidden states, where there are some."""
    layers = tuple(each for each in cache if not isinstance(each, HiddenPages))
    return layers, tuple(each for each in cache if isinstance(each, HiddenPages))
