"""The device programs of the text engine: a prefill of ragged chunks, and a burst of decode steps."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

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
from headrace.engines.llm.forward import Forward
from headrace.engines.llm.kv_cache import KVCache
from headrace.engines.llm.logit_edits import Extras, record_tokens
from headrace.engines.llm.model import Decoder


class BurstArguments(NamedTuple):
    """What a burst of decode steps is told of its rows."""

    packed: Int[Array, "R columns"]  # by pack_rows
    tokens: Int[Array, "R L"]  # by pack_known, or with proposals by pack_history
    bounds: Int[Array, " 2"]  # most tokens a row, and the rows below which the burst ends
    extras: Extras


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
    rows, chunks = unpack_prefill(packed, sizes)
    hidden, cache = Forward(decoder, backend).chunks(rows, chunks, cache, entering)
    head = Head(decoder, hidden[chunks.last_token], backend)
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
    rows, chunks = unpack_prefill(packed, sizes)
    hidden, cache = Forward(decoder, backend).chunks(rows, chunks, cache, entering)
    return cache, score(Head(decoder, hidden[chunks.last_token], backend)), hidden


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
    positions = jnp.where(rows.limit > 0, rows.position, -1)
    hidden, cache = Forward(decoder, backend).singles(rows.page_table, rows.token, positions, cache, entering)
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
    given: BurstArguments,
    num_top: int,
    entering: Float[Array, "R E"] | None = None,
) -> tuple[KVCache, Int[Array, "R results"]]:
    """The tokens of rows that decode step by step; those that are known stay. Donates cache."""
    forward = Forward(nnx.merge(graph, weights), backend)
    rows, known, bounds = unpack_rows(given.packed), given.tokens, given.bounds
    num_rows, burst = known.shape
    assert entering is None or burst == 1, "a pipeline makes a step a dispatch"
    max_steps, min_active = bounds[0], bounds[1]

    def goes_on(state: _Burst) -> Bool[Array, ""]:
        num_active = jnp.sum(state.is_active, dtype=jnp.int32)
        wanted = jnp.where(state.step == 0, 1, jnp.maximum(min_active, 1))
        return (state.step < max_steps) & (num_active >= wanted)

    def step(state: _Burst) -> _Burst:
        positions = jnp.where(state.is_active, rows.position + state.made, -1)
        hidden, cache = forward.singles(rows.page_table, state.token, positions, state.cache, entering)
        head = Head(forward.decoder, hidden, backend)
        chosen = choose_tokens(head, rows, state.made, state.extras, num_top)
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
        extras=given.extras,
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


def _pack_once(chosen: Chosen, rows: Rows) -> Int[Array, "R results"]:
    one = jax.tree.map(lambda array: array[:, None], chosen)
    counts = (rows.limit > 0).astype(jnp.int32)
    return pack_sampled(Sampled(one.tokens, one.logprobs, counts, _as_sampled(one.top)))


def _as_sampled(top: Top | None) -> SampledTop | None:
    return None if top is None else SampledTop(*top)
