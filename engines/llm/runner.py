"""Runs batches on the device: one program for prefills and one for bursts of decode steps, by bucket."""

import logging
import time
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from headrace.engines.buckets import growing_buckets, pick_bucket
from headrace.engines.llm.attention import SEGMENT_TOKENS, Backend, choose_backend, paged_attention
from headrace.engines.llm.batch import (
    BLOCK_TOKENS,
    NO_STOP_ID,
    Chunks,
    DecodeBatch,
    PackedPrefill,
    PrefillBatch,
    Rows,
    Sampled,
    max_blocks,
    pack_prefill,
    pack_rows,
    pack_sampled,
    unpack_prefill,
    unpack_rows,
    unpack_sampled,
)
from headrace.engines.llm.config import EngineConfig
from headrace.engines.llm.kv_cache import NULL_PAGE, KVCache, LayerCache, make_cache, write_pages
from headrace.engines.llm.model import Decoder
from headrace.engines.sampling import sample

logger = logging.getLogger(__name__)

SMALLEST_DECODE_BUCKET = 8
SMALLEST_PREFILL_BUCKET = 128
MAX_PREFILL_ROWS = 32
"""Rows of one prefill dispatch."""


class Shapes(NamedTuple):
    """Static shapes of the programs."""

    decode_rows: tuple[int, ...]
    prefill_tokens: tuple[int, ...]
    prefill_rows: int
    table_width: int
    burst: int


class Runner:
    """Owns the weights and the KV pages, and turns a batch into tokens with one dispatch."""

    def __init__(
        self, decoder: Decoder, config: EngineConfig, num_pages: int, max_model_len: int, dtype: jnp.dtype
    ) -> None:
        self._graph, self._weights = nnx.split(decoder)
        self._cache = make_cache(decoder.config, num_pages, config.page_size, dtype)
        self._config = config
        self.shapes = choose_shapes(config, max_model_len)
        self.num_dispatches = 0
        self.padding_tokens = 0
        self.compile_s = 0.0
        model = decoder.config
        backend = choose_backend(config.attention_backend, model.head_dim, config.page_size)
        self._programs: dict[tuple[str, int], jax.stages.Compiled] = {}
        self._decode = jax.jit(
            partial(_decode_burst, self._graph, backend, burst=self.shapes.burst), donate_argnames="cache"
        )
        self._prefill = jax.jit(
            partial(_prefill, self._graph, backend), donate_argnames="cache", static_argnames="sizes"
        )

    @property
    def num_compiles(self) -> int:
        """Programs that were compiled so far."""
        return len(self._programs)

    def run_prefill(self, batch: PrefillBatch, stop_ids: list[tuple[int, ...]]) -> Sampled:
        """Computes the chunks' keys and values; one token for each row, real where its last chunk is done."""
        num_tokens = sum(batch.lengths)
        bucket = pick_bucket(self.shapes.prefill_tokens, num_tokens)
        sizes = PackedPrefill(
            self.shapes.prefill_rows,
            bucket,
            max_blocks(bucket, self.shapes.prefill_rows),
            self.shapes.table_width,
        )
        packed = pack_prefill(batch, stop_ids, sizes, self._config.pad_token_id)
        program = self._program(("prefill", bucket), self._prefill, packed=packed, sizes=sizes)
        self._cache, sampled = program(self._weights, cache=self._cache, packed=packed)
        self._count(bucket - num_tokens)
        return unpack_sampled(jax.device_get(sampled))

    def run_decode(self, batch: DecodeBatch, stop_ids: list[tuple[int, ...]]) -> Sampled:
        """Up to `batch.max_steps` tokens for every row."""
        bucket = pick_bucket(self.shapes.decode_rows, len(batch.sequences))
        packed = pack_rows(batch.sequences, stop_ids, bucket, self.shapes.table_width)
        bounds = np.asarray([min(batch.max_steps, self.shapes.burst), batch.min_active], np.int32)
        program = self._program(("decode", bucket), self._decode, packed=packed, bounds=bounds)
        self._cache, sampled = program(self._weights, cache=self._cache, packed=packed, bounds=bounds)
        result = unpack_sampled(jax.device_get(sampled))
        self._count(bucket * int(result.counts.max()) - int(result.counts.sum()))
        return result

    def _program(
        self, key: tuple[str, int], function: jax.stages.Wrapped, **arguments
    ) -> jax.stages.Compiled:
        """The compiled program of a bucket, compiled at its first use."""
        if key not in self._programs:
            started_s = time.monotonic()
            lowered = function.lower(self._weights, cache=self._cache, **arguments)
            self._programs[key] = lowered.compile()
            seconds = time.monotonic() - started_s
            logger.info("compiled the %s program of bucket %d: %.1f s", *key, seconds)
            self.compile_s += seconds
        return self._programs[key]

    def release(self) -> None:
        """Frees weights and KV pages."""
        for array in jax.tree.leaves((self._weights, self._cache)):
            array.delete()

    def _count(self, padding: int) -> None:
        self.num_dispatches += 1
        self.padding_tokens += padding


def choose_shapes(config: EngineConfig, max_model_len: int) -> Shapes:
    """The buckets; a single one of each where the engine is deterministic."""
    rows = config.max_num_seqs
    tokens = max(config.max_num_batched_tokens, BLOCK_TOKENS)
    segment = -(-max_model_len // SEGMENT_TOKENS) * SEGMENT_TOKENS
    return Shapes(
        decode_rows=(rows,)
        if config.deterministic
        else growing_buckets(min(SMALLEST_DECODE_BUCKET, rows), rows),
        prefill_tokens=(tokens,)
        if config.deterministic
        else growing_buckets(min(SMALLEST_PREFILL_BUCKET, tokens), tokens),
        prefill_rows=min(MAX_PREFILL_ROWS, rows),
        table_width=segment // config.page_size,
        burst=config.decode_burst,
    )


def _prefill(
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
    attend = partial(_attend_blocks, backend, rows, chunks)
    hidden, cache = decoder(chunks.tokens, jnp.maximum(chunks.positions, 0), cache, attend)
    logits = decoder.logits(hidden[chunks.last_token])
    tokens, logprobs = _choose(logits, rows, jnp.zeros_like(rows.limit))
    return cache, pack_sampled(tokens[:, None], logprobs[:, None], jnp.ones_like(rows.limit))


def _decode_burst(
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
        attend = partial(_attend_single, backend, rows.page_table, positions)
        hidden, cache = decoder(state.token, jnp.maximum(positions, 0), state.cache, attend)
        tokens, logprobs = _choose(decoder.logits(hidden), rows, state.made)
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


def _choose(
    logits: Float[Array, "R V"], rows: Rows, made: Int[Array, " R"]
) -> tuple[Int[Array, " R"], Float[Array, " R"]]:
    """The next token of each row, `made` tokens after the rows were packed, and its log-probability."""
    # Before the barring, so that it can be done in place; the token that is chosen is never a barred one.
    normalizer = jax.nn.logsumexp(logits, axis=-1)
    logits = _bar_tokens(logits, rows.stop_ids, made < rows.min_left)
    sampling = rows.sampling._replace(output_index=rows.sampling.output_index + made)
    tokens = sample(logits, sampling)
    chosen = jnp.take_along_axis(logits, tokens[:, None], axis=-1)[:, 0]
    return tokens, chosen - normalizer


def _bar_tokens(
    logits: Float[Array, "R V"], tokens: Int[Array, "R I"], is_barred: Bool[Array, " R"]
) -> Float[Array, "R V"]:
    """Logits with -inf at the tokens of the barred rows; NO_STOP_ID stands for no token."""
    vocab_size = logits.shape[-1]
    barred = jnp.where(is_barred[:, None] & (tokens != NO_STOP_ID), tokens, vocab_size)
    row_index = jnp.arange(logits.shape[0], dtype=jnp.int32)[:, None]
    return logits.at[row_index, barred].set(-jnp.inf, mode="drop")


def _places(
    page_table: Int[Array, "R P"], token_row: Int[Array, " T"], positions: Int[Array, " T"], page_size: int
) -> tuple[Int[Array, " T"], Int[Array, " T"]]:
    """Page and offset where each token's key and value lie; padding goes to the null page."""
    index = jnp.maximum(positions, 0)
    pages = page_table[token_row, index // page_size]
    return jnp.where(positions < 0, NULL_PAGE, pages), index % page_size


def _attend_single(
    backend: Backend,
    page_table: Int[Array, "R P"],
    positions: Int[Array, " R"],
    queries: Float[Array, "R H D"],
    keys: Float[Array, "R K D"],
    values: Float[Array, "R K D"],
    cache: LayerCache,
) -> tuple[Float[Array, "R H D"], LayerCache]:
    """Attention of one token a row."""
    token_row = jnp.arange(positions.shape[0], dtype=jnp.int32)
    pages, offsets = _places(page_table, token_row, positions, cache.values.shape[2])
    cache = write_pages(cache, keys, values, pages, offsets)
    mixed = paged_attention(queries[:, None], cache, page_table, positions[:, None], backend)
    return mixed[:, 0], cache


def _attend_blocks(
    backend: Backend,
    rows: Rows,
    chunks: Chunks,
    queries: Float[Array, "T H D"],
    keys: Float[Array, "T K D"],
    values: Float[Array, "T K D"],
    cache: LayerCache,
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
    block_positions = jnp.where(is_real, chunks.positions.at[index].get(mode="fill", fill_value=-1), -1)
    mixed = paged_attention(
        queries.at[index].get(mode="fill", fill_value=0),
        cache,
        rows.page_table[chunks.block_row],
        block_positions,
        backend,
    )
    flat = jnp.zeros(queries.shape, mixed.dtype).at[index].set(mixed, mode="drop")
    return flat, cache
