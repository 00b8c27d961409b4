"""The device programs of the text engine: a prefill of ragged chunks, and a burst of decode steps."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from headrace.engines.llm.attend import attend_blocks, attend_single
from headrace.engines.llm.attention import Backend
from headrace.engines.llm.batch import PackedPrefill, pack_sampled, unpack_prefill, unpack_rows
from headrace.engines.llm.choose import choose_tokens
from headrace.engines.llm.kv_cache import KVCache
from headrace.engines.llm.model import Decoder


def prefill(
    graph: nnx.GraphDef,
    backend: Backend,
    weights: nnx.State,
    cache: KVCache,
    packed: Int[Array, " L"],
    sizes: PackedPrefill,
) -> tuple[KVCache, Int[Array, "R results"]]:
    """Donates cache."""
    decoder: Decoder = nnx.merge(graph, weights)
    rows, chunks = unpack_prefill(packed, sizes)
    attend = partial(attend_blocks, backend, rows, chunks)
    hidden, cache = decoder(chunks.tokens, jnp.maximum(chunks.positions, 0), cache, attend)
    logits = decoder.logits(hidden[chunks.last_token])
    tokens, logprobs = choose_tokens(logits, rows, jnp.zeros_like(rows.limit))
    return cache, pack_sampled(tokens[:, None], logprobs[:, None], jnp.ones_like(rows.limit))


def decode_burst(
    graph: nnx.GraphDef,
    backend: Backend,
    weights: nnx.State,
    cache: KVCache,
    packed: Int[Array, "R columns"],
    bounds: Int[Array, " 2"],
    burst: int,
) -> tuple[KVCache, Int[Array, "R results"]]:
    """Donates cache."""
    decoder: Decoder = nnx.merge(graph, weights)
    rows = unpack_rows(packed)
    max_steps, min_active = bounds[0], bounds[1]

    def goes_on(state: _Burst) -> Bool[Array, ""]:
        num_active = jnp.sum(state.is_active, dtype=jnp.int32)
        wanted = jnp.where(state.step == 0, 1, jnp.maximum(min_active, 1))
        return (state.step < max_steps) & (num_active >= wanted)

    def step(state: _Burst) -> _Burst:
        positions = jnp.where(state.is_active, rows.position + state.made, -1)
        attend = partial(attend_single, backend, rows.page_table, positions)
        hidden, cache = decoder(state.token, jnp.maximum(positions, 0), state.cache, attend)
        tokens, logprobs = choose_tokens(decoder.logits(hidden), rows, state.made)
        made = state.made + state.is_active.astype(jnp.int32)
        is_stop = jnp.any(tokens[:, None] == rows.stop_ids, axis=-1)
        return _Burst(
            step=state.step + 1,
            token=jnp.where(state.is_active, tokens, state.token),
            made=made,
            is_active=state.is_active & ~is_stop & (made < rows.limit),
            tokens=state.tokens.at[:, state.step].set(tokens),
            logprobs=state.logprobs.at[:, state.step].set(logprobs),
            cache=cache,
        )

    num_rows = rows.token.shape[0]
    start = _Burst(
        step=jnp.int32(0),
        token=rows.token,
        made=jnp.zeros_like(rows.limit),
        is_active=rows.limit > 0,
        tokens=jnp.zeros((num_rows, burst), jnp.int32),
        logprobs=jnp.zeros((num_rows, burst), jnp.float32),
        cache=cache,
    )
    end = jax.lax.while_loop(goes_on, step, start)
    return end.cache, pack_sampled(end.tokens, end.logprobs, end.made)


class _Burst(NamedTuple):
    step: Int[Array, ""]
    token: Int[Array, " R"]
    made: Int[Array, " R"]
    is_active: Bool[Array, " R"]
    tokens: Int[Array, "R K"]
    logprobs: Float[Array, "R K"]
    cache: KVCache
