"""The device programs of the text engine: a prefill of ragged chunks, and a burst of decode steps."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from headrace.engines.llm.attend import attend_blocks, attend_single
from headrace.engines.llm.attention import Backend
from headrace.engines.llm.batch import (
    UNKNOWN,
    PackedPrefill,
    Rows,
    Sampled,
    SampledTop,
    pack_sampled,
    unpack_prefill,
    unpack_rows,
)
from headrace.engines.llm.choose import (
    Chosen,
    Head,
    Scores,
    Top,
    choose_from_scores,
    choose_tokens,
    score,
)
from headrace.engines.llm.kv_cache import KVCache
from headrace.engines.llm.logit_edits import Extras, record_tokens
from headrace.engines.llm.model import Decoder


def prefill(
    graph: nnx.GraphDef,
    backend: Backend,
    weights: nnx.State,
    cache: KVCache,
    packed: Int[Array, " L"],
    extras: Extras,
    sizes: PackedPrefill,
    num_top: int,
    entering: Float[Array, "T E"] | None = None,
) -> tuple[KVCache, Int[Array, "R results"], Float[Array, "T E"]]:
    """The tokens of rows whose chunk is the last, and the hidden states of all tokens. Donates cache.

    `entering` is, here and below, what the pipeline stage before hands over.
    """
    decoder: Decoder = nnx.merge(graph, weights)
    hidden, last, cache = _hidden_states(decoder, backend, cache, packed, sizes, entering)
    rows, _ = unpack_prefill(packed, sizes)
    head = Head(decoder, last, backend)
    chosen = choose_tokens(head, rows, jnp.zeros_like(rows.limit), extras, num_top)
    return cache, _pack_once(chosen, rows), hidden


def prefill_scores(
    graph: nnx.GraphDef,
    backend: Backend,
    weights: nnx.State,
    cache: KVCache,
    packed: Int[Array, " L"],
    sizes: PackedPrefill,
    entering: Float[Array, "T E"] | None = None,
) -> tuple[KVCache, Scores, Float[Array, "T E"]]:
    """A prefill without the choice of tokens. Donates cache."""
    decoder: Decoder = nnx.merge(graph, weights)
    hidden, last, cache = _hidden_states(decoder, backend, cache, packed, sizes, entering)
    return cache, score(Head(decoder, last, backend)), hidden


def decode_scores(
    graph: nnx.GraphDef,
    backend: Backend,
    weights: nnx.State,
    cache: KVCache,
    packed: Int[Array, "R columns"],
    entering: Float[Array, "R E"] | None = None,
) -> tuple[KVCache, Scores]:
    """One decode step without the choice of tokens. Donates cache."""
    decoder: Decoder = nnx.merge(graph, weights)
    rows = unpack_rows(packed)
    attend = partial(attend_single, backend, rows.page_table, jnp.where(rows.limit > 0, rows.position, -1))
    hidden, cache = decoder(rows.token, jnp.maximum(rows.position, 0), cache, attend, entering)
    return cache, score(Head(decoder, hidden, backend))


def choose(
    scores: Scores, packed: Int[Array, "R columns"], extras: Extras, num_top: int
) -> Int[Array, "R results"]:
    """The choice of tokens of a prefill or a decode step, from its scores and its packed rows."""
    rows = unpack_rows(packed)
    return _pack_once(choose_from_scores(scores, rows, jnp.zeros_like(rows.limit), extras, num_top), rows)


def decode_burst(
    graph: nnx.GraphDef,
    backend: Backend,
    weights: nnx.State,
    cache: KVCache,
    packed: Int[Array, "R columns"],
    known: Int[Array, "R K"],
    bounds: Int[Array, " 2"],
    extras: Extras,
    num_top: int,
    entering: Float[Array, "R E"] | None = None,
) -> tuple[KVCache, Int[Array, "R results"]]:
    """Donates cache."""
    decoder: Decoder = nnx.merge(graph, weights)
    rows = unpack_rows(packed)
    num_rows, burst = known.shape
    assert entering is None or burst == 1, "a pipeline makes a step a dispatch"
    max_steps, min_active = bounds[0], bounds[1]

    def goes_on(state: _Burst) -> Bool[Array, ""]:
        num_active = jnp.sum(state.is_active, dtype=jnp.int32)
        wanted = jnp.where(state.step == 0, 1, jnp.maximum(min_active, 1))
        return (state.step < max_steps) & (num_active >= wanted)

    def step(state: _Burst) -> _Burst:
        positions = jnp.where(state.is_active, rows.position + state.made, -1)
        attend = partial(attend_single, backend, rows.page_table, positions)
        hidden, cache = decoder(state.token, jnp.maximum(positions, 0), state.cache, attend, entering)
        chosen = choose_tokens(Head(decoder, hidden, backend), rows, state.made, state.extras, num_top)
        known_token = known[:, state.step]
        tokens = jnp.where(known_token == UNKNOWN, chosen.tokens, known_token)
        made = state.made + state.is_active.astype(jnp.int32)
        is_stop = jnp.any(tokens[:, None] == rows.stop_ids, axis=-1)
        return _Burst(
            step=state.step + 1,
            token=jnp.where(state.is_active, tokens, state.token),
            made=made,
            is_active=state.is_active & ~is_stop & (made < rows.limit),
            chosen=jax.tree.map(lambda all_, one: all_.at[:, state.step].set(one), state.chosen, chosen),
            extras=record_tokens(state.extras, tokens, state.step - burst),
            cache=cache,
        )

    start = _Burst(
        step=jnp.int32(0),
        token=rows.token,
        made=jnp.zeros_like(rows.limit),
        is_active=rows.limit > 0,
        chosen=no_tokens(num_rows, burst, num_top),
        extras=extras,
        cache=cache,
    )
    end = jax.lax.while_loop(goes_on, step, start)
    return end.cache, pack_sampled(
        Sampled(end.chosen.tokens, end.chosen.logprobs, end.made, _as_sampled(end.chosen.top))
    )


class _Burst(NamedTuple):
    step: Int[Array, ""]
    token: Int[Array, " R"]
    made: Int[Array, " R"]
    is_active: Bool[Array, " R"]
    chosen: Chosen  # of all steps: [R, K, ...]
    extras: Extras
    cache: KVCache


def no_tokens(num_rows: int, burst: int, num_top: int) -> Chosen:
    """Room for what the steps of a burst choose."""
    shape = (num_rows, burst)
    top = Top(
        rank=jnp.zeros(shape, jnp.int32),
        tokens=jnp.zeros((*shape, num_top), jnp.int32),
        logprobs=jnp.zeros((*shape, num_top), jnp.float32),
    )
    return Chosen(jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.float32), top if num_top else None)


def _hidden_states(
    decoder: Decoder,
    backend: Backend,
    cache: KVCache,
    packed: Int[Array, " L"],
    sizes: PackedPrefill,
    entering: Float[Array, "T E"] | None,
) -> tuple[Float[Array, "T E"], Float[Array, "R E"], KVCache]:
    """The hidden states of all tokens, and of each row's last one."""
    rows, chunks = unpack_prefill(packed, sizes)
    attend = partial(attend_blocks, backend, rows, chunks)
    hidden, cache = decoder(chunks.tokens, jnp.maximum(chunks.positions, 0), cache, attend, entering)
    return hidden, hidden[chunks.last_token], cache


def _pack_once(chosen: Chosen, rows: Rows) -> Int[Array, "R results"]:
    one = jax.tree.map(lambda array: array[:, None], chosen)
    counts = (rows.limit > 0).astype(jnp.int32)
    return pack_sampled(Sampled(one.tokens, one.logprobs, counts, _as_sampled(one.top)))


def _as_sampled(top: Top | None) -> SampledTop | None:
    return None if top is None else SampledTop(*top)
