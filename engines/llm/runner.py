"""Runs batches on the device: one program for prefills and one for bursts of decode steps, by bucket."""

import logging
import time
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from headrace.engines.buckets import growing_buckets, pick_bucket
from headrace.engines.llm.attention import SEGMENT_TOKENS, choose_backend
from headrace.engines.llm.batch import (
    BLOCK_TOKENS,
    DecodeBatch,
    PackedPrefill,
    PrefillBatch,
    Sampled,
    max_blocks,
    pack_prefill,
    pack_rows,
    unpack_sampled,
)
from headrace.engines.llm.engine_config import EngineConfig
from headrace.engines.llm.kv_cache import make_cache
from headrace.engines.llm.logit_edits import Extras, pack_edits, pack_mask
from headrace.engines.llm.logprobs import count_top
from headrace.engines.llm.model import Decoder
from headrace.engines.llm.programs import decode_burst, prefill
from headrace.engines.llm.request import Sequence

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
        self._cache = make_cache(decoder.config, num_pages, config.cache.page_size, dtype)
        self._config = config
        self.shapes = choose_shapes(config, max_model_len)
        self.num_dispatches = 0
        self.padding_tokens = 0
        self.compile_s = 0.0
        model = decoder.config
        backend = choose_backend(config.attention_backend, model.head_dim, config.cache.page_size)
        self._programs: dict[tuple, jax.stages.Compiled] = {}
        self._vocab_size = model.vocab_size
        self._decode = jax.jit(
            partial(decode_burst, self._graph, backend, burst=self.shapes.burst),
            donate_argnames="cache",
            static_argnames="num_top",
        )
        self._prefill = jax.jit(
            partial(prefill, self._graph, backend),
            donate_argnames="cache",
            static_argnames=("sizes", "num_top"),
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
        extras = self._pack_extras(batch.sequences, sizes.num_rows, num_new=0)
        num_top = count_top(batch.sequences)
        program = self._program(
            ("prefill", bucket), self._prefill, packed=packed, extras=extras, sizes=sizes, num_top=num_top
        )
        self._cache, sampled = program(self._weights, cache=self._cache, packed=packed, extras=extras)
        self._count(bucket - num_tokens)
        return unpack_sampled(jax.device_get(sampled), 1, num_top)

    def run_decode(self, batch: DecodeBatch, stop_ids: list[tuple[int, ...]]) -> Sampled:
        """Up to `batch.max_steps` tokens for every row."""
        bucket = pick_bucket(self.shapes.decode_rows, len(batch.sequences))
        packed = pack_rows(batch.sequences, stop_ids, bucket, self.shapes.table_width)
        bounds = np.asarray([min(batch.max_steps, self.shapes.burst), batch.min_active], np.int32)
        extras = self._pack_extras(batch.sequences, bucket, num_new=self.shapes.burst)
        num_top = count_top(batch.sequences)
        program = self._program(
            ("decode", bucket), self._decode, packed=packed, bounds=bounds, extras=extras, num_top=num_top
        )
        self._cache, sampled = program(
            self._weights, cache=self._cache, packed=packed, bounds=bounds, extras=extras
        )
        result = unpack_sampled(jax.device_get(sampled), self.shapes.burst, num_top)
        self._count(bucket * int(result.counts.max()) - int(result.counts.sum()))
        return result

    def _pack_extras(self, sequences: list[Sequence], num_rows: int, num_new: int) -> Extras:
        return Extras(
            pack_edits(sequences, num_rows, num_new), pack_mask(sequences, num_rows, self._vocab_size)
        )

    def _program(
        self, bucket: tuple[str, int], function: jax.stages.Wrapped, *, extras: Extras, num_top: int, **rest
    ) -> jax.stages.Compiled:
        """The compiled program of a bucket, compiled at its first use: one for each kind of extras."""
        key = (*bucket, extras.edits and extras.edits.tokens.shape[1], extras.mask is not None, num_top)
        if key not in self._programs:
            started_s = time.monotonic()
            arguments = {**rest, "extras": extras, "num_top": num_top}
            lowered = function.lower(self._weights, cache=self._cache, **arguments)
            self._programs[key] = lowered.compile()
            seconds = time.monotonic() - started_s
            logger.info("compiled the %s program of bucket %d: %.1f s", *bucket, seconds)
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
    rows = config.scheduler.max_num_seqs
    tokens = max(config.scheduler.max_num_batched_tokens, BLOCK_TOKENS)
    segment = -(-max_model_len // SEGMENT_TOKENS) * SEGMENT_TOKENS
    return Shapes(
        decode_rows=(rows,)
        if config.deterministic
        else growing_buckets(min(SMALLEST_DECODE_BUCKET, rows), rows),
        prefill_tokens=(tokens,)
        if config.deterministic
        else growing_buckets(min(SMALLEST_PREFILL_BUCKET, tokens), tokens),
        prefill_rows=min(MAX_PREFILL_ROWS, rows),
        table_width=segment // config.cache.page_size,
        burst=config.scheduler.decode_burst,
    )
