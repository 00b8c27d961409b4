"""A decoder over the KV pages of a dispatch's rows: chunks of a prefill, or as many tokens for each row."""

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from headrace.engines.llm.attend import attend_blocks, attend_even, attend_single
from headrace.engines.llm.attention import Backend
from headrace.engines.llm.batch import Chunks, Rows
from headrace.engines.llm.kv_cache import KVCache
from headrace.engines.llm.model import Decoder

Computed = tuple[Float[Array, "T E"], KVCache]
"""Normed hidden states, and the cache with the keys and values of their tokens."""


class Forward(NamedTuple):
    """A decoder and what attends for it. `entering` is what the pipeline stage before hands over."""

    decoder: Decoder
    backend: Backend

    def chunks(
        self, rows: Rows, chunks: Chunks, cache: KVCache, entering: Float[Array, "T E"] | None = None
    ) -> Computed:
        """Computes the ragged chunks of a prefill."""
        attend = partial(attend_blocks, self.backend, rows, chunks)
        return self.decoder(chunks.tokens, jnp.maximum(chunks.positions, 0), cache, attend, entering)

    def singles(
        self,
        page_table: Int[Array, "R P"],
        tokens: Int[Array, " R"],
        positions: Int[Array, " R"],
        cache: KVCache,
        entering: Float[Array, "R E"] | None = None,
    ) -> Computed:
        """Computes one token a row; at -1 there is none."""
        attend = partial(attend_single, self.backend, page_table, positions)
        return self.decoder(tokens, jnp.maximum(positions, 0), cache, attend, entering)

    def even(
        self,
        page_table: Int[Array, "R P"],
        tokens: Int[Array, "R C"],
        positions: Int[Array, "R C"],
        cache: KVCache,
    ) -> Computed:
        """Computes C tokens a row, those of the first row first; padding is at -1 and comes last."""
        attend = partial(attend_even, self.backend, page_table, positions)
        flat = jnp.maximum(positions, 0).reshape(-1)
        return self.decoder(tokens.reshape(-1), flat, cache, attend)
