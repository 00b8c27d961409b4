"""Runs batches on the device: one program for prefills and one for bursts of decode steps, by bucket."""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from headrace.engines.buckets import pick_bucket
from headrace.engines.errors import ConfigError
from headrace.engines.llm.attention import choose_backend
from headrace.engines.llm.batch import (
    DecodeBatch,
    PackedPrefill,
    PrefillBatch,
    Sampled,
    max_blocks,
    pack_known,
    pack_prefill,
    pack_rows,
    packed_rows,
    unpack_sampled,
)
from headrace.engines.llm.engine_config import EngineConfig
from headrace.engines.llm.host_rules import add_host_rules, need_host
from headrace.engines.llm.kv_cache import NULL_PAGE, copy_pages, make_cache
from headrace.engines.llm.logit_edits import Extras, pack_edits, pack_mask
from headrace.engines.llm.logprobs import count_top
from headrace.engines.llm.model import Decoder
from headrace.engines.llm.programs import choose, decode_burst, decode_scores, prefill, prefill_scores
from headrace.engines.llm.shapes import choose_shapes
from headrace.engines.programs import ProgramKey, Programs

SMALL_BUCKETS_AFTER_S = 10.0
"""Seconds of work after which the rest of the buckets is compiled: a small job has ended by then."""

COPY_PAGES = 32
"""Pages that are copied at once."""
COPY = ProgramKey("copy", COPY_PAGES)
StopIds = list[tuple[int, ...]]


class Dispatch(NamedTuple):
    """A batch that was launched; its result is on the device, or will be."""

    batch: PrefillBatch | DecodeBatch
    key: ProgramKey
    """The program that runs it: its size is the tokens of a prefill, the rows of a decode."""
    result: jax.Array
    most_steps: int
    """Tokens a row for which the result has room."""


class Runner:
    """Owns the weights and the KV pages, and turns a batch into tokens with one dispatch."""

    def __init__(
        self, decoder: Decoder, config: EngineConfig, num_pages: int, max_model_len: int, dtype: jnp.dtype
    ) -> None:
        graph, self._weights = nnx.split(decoder)
        self._cache = make_cache(decoder.config, num_pages, config.cache.page_size, dtype)
        self._config = config
        self.shapes = choose_shapes(config, max_model_len)
        self.num_dispatches = 0
        self.padding_tokens = 0
        self._first_launch_s: float | None = None
        backend = choose_backend(config.attention_backend, decoder.config.head_dim, config.cache.page_size)
        self._copy = jax.jit(copy_pages, donate_argnames="cache")
        self._vocab_size = decoder.config.vocab_size
        self._decode = jax.jit(
            partial(decode_burst, graph, backend), donate_argnames="cache", static_argnames="num_top"
        )
        self._prefill = jax.jit(
            partial(prefill, graph, backend), donate_argnames="cache", static_argnames=("sizes", "num_top")
        )
        self._decode_scores = jax.jit(partial(decode_scores, graph, backend), donate_argnames="cache")
        self._prefill_scores = jax.jit(
            partial(prefill_scores, graph, backend), donate_argnames="cache", static_argnames="sizes"
        )
        self._choose = jax.jit(choose, static_argnames="num_top")
        # Workers trace while the engine's thread donates the cache: they are given shapes alone.
        self._state = jax.tree.map(_shape_of, (self._weights, self._cache))
        self._plan = [
            *(ProgramKey("prefill", size) for size in self.shapes.prefill_tokens),
            *(ProgramKey("decode", size) for size in self.shapes.decode_rows),
            COPY,
        ]
        self.programs = Programs(config.compilation, self._plan, self._lower, self._example)

    def expect(self, num_rows: int, num_tokens: int) -> None:
        """Has the programs compiled that so many rows, with so many tokens to prefill, are going to need."""
        if not self._config.compilation.aot or num_rows == 0:
            return
        shapes = self.shapes
        num_tokens = min(max(num_tokens, 1), shapes.prefill_tokens[-1])
        keys = [
            ProgramKey("prefill", pick_bucket(shapes.prefill_tokens, num_tokens)),
            ProgramKey("decode", pick_bucket(shapes.decode_rows, min(num_rows, shapes.decode_rows[-1]))),
        ]
        if self._first_launch_s and time.monotonic() - self._first_launch_s > SMALL_BUCKETS_AFTER_S:
            keys += reversed(self._plan)
        self.programs.expect(keys)

    def precompile(
        self, num_tokens: int | Sequence[int] | None, num_seqs: int | Sequence[int] | None
    ) -> list[ProgramKey]:
        """Compiles the programs of these prefills and decodes, or all; those that were not compiled before.

        Raises:
          ConfigError: a number is larger than the largest bucket.
        """
        if num_tokens is None and num_seqs is None:
            return self.programs.precompile()
        keys = []
        for tokens, seqs in _paired(num_tokens, num_seqs):
            if tokens is not None:
                keys.append(ProgramKey("prefill", _bucket("num_tokens", self.shapes.prefill_tokens, tokens)))
            if seqs is not None:
                keys.append(ProgramKey("decode", _bucket("num_seqs", self.shapes.decode_rows, seqs)))
        return self.programs.precompile(dict.fromkeys(keys))

    def launch(
        self, batch: PrefillBatch | DecodeBatch, stop_ids: StopIds, copies: list[tuple[int, int]]
    ) -> Dispatch:
        """Starts the work of a batch after copying pages; what is launched later runs after it."""
        num_top = count_top(batch.sequences)
        if isinstance(batch, PrefillBatch):
            key = self._pick("prefill", self.shapes.prefill_tokens, batch.num_tokens, num_top)
            arguments = self._pack_prefill(batch, stop_ids, key.size)
        else:
            key = self._pick("decode", self.shapes.decode_rows, len(batch.sequences), num_top)
            arguments = self._pack_decode(batch, stop_ids, key.size)
        self._copy_pages(copies)
        self._first_launch_s = self._first_launch_s or time.monotonic()
        self.num_dispatches += 1
        if need_host(batch.sequences):
            return Dispatch(batch, key, self._choose_with_host(batch, key, arguments), 1)
        program = self.programs.get(key, arguments)
        self._cache, result = program(self._weights, cache=self._cache, **arguments)
        most_steps = 1 if isinstance(batch, PrefillBatch) else self.shapes.burst
        return Dispatch(batch, key, result, most_steps)

    def fetch(self, dispatch: Dispatch) -> Sampled:
        """The tokens of a dispatch: of a prefill one a row, real where it was the row's last chunk."""
        batch, key = dispatch.batch, dispatch.key
        sampled = unpack_sampled(jax.device_get(dispatch.result), dispatch.most_steps, key.num_top)
        if isinstance(batch, PrefillBatch):
            self.padding_tokens += key.size - batch.num_tokens
        else:
            num_steps = int(sampled.counts.max())
            self.padding_tokens += key.size * num_steps - int(sampled.counts.sum())
        return sampled

    def update_weights(self, decoder: Decoder) -> None:
        """Puts other weights of the same shapes in the place of those that are there."""
        _, weights = nnx.split(decoder)
        shapes = jax.tree.map(_shape_of, weights)
        assert shapes == self._state[0], "programs are compiled for the shapes and dtypes that there were"
        self._weights = weights  # other replicas may still use the old ones

    def release(self) -> None:
        """Frees weights and KV pages."""
        self.programs.close()
        for array in jax.tree.leaves((self._weights, self._cache)):
            array.delete()

    def _choose_with_host(
        self, batch: PrefillBatch | DecodeBatch, key: ProgramKey, arguments: dict[str, Any]
    ) -> jax.Array:
        """The result of one token a row: the host adds its rules while the device computes the logits."""
        packed, extras = arguments["packed"], arguments["extras"]
        logits_key = ProgramKey(f"{key.kind} logits", key.size)
        program = self.programs.get(logits_key, {"packed": packed})
        self._cache, scores = program(self._weights, cache=self._cache, packed=packed)
        rows = packed if isinstance(batch, DecodeBatch) else packed_rows(packed, self._sizes(key.size))
        extras = add_host_rules(extras, batch.sequences, scores.logits, self._vocab_size)
        choice = {"scores": scores, "packed": rows, "extras": extras}
        return self.programs.get(ProgramKey("choose", len(rows), key.num_top), choice)(**choice)

    def _copy_pages(self, copies: list[tuple[int, int]]) -> None:
        for first in range(0, len(copies), COPY_PAGES):
            pages = np.full((2, COPY_PAGES), NULL_PAGE, np.int32)
            pages[:, : len(copies[first:][:COPY_PAGES])] = np.asarray(copies[first:][:COPY_PAGES]).T
            program = self.programs.get(COPY, {"pages": pages})
            self._cache = program(cache=self._cache, pages=pages)

    def _pick(self, kind: str, sizes: tuple[int, ...], count: int, num_top: int) -> ProgramKey:
        """The bucket to run in: the smallest, or a larger one where only that is compiled."""
        smallest = ProgramKey(kind, pick_bucket(sizes, count), num_top)
        if self._config.compilation.aot:
            fitting = [ProgramKey(kind, size, num_top) for size in sizes if size >= count]
            return next((key for key in fitting if self.programs.is_ready(key)), smallest)
        return smallest

    def _sizes(self, num_tokens: int) -> PackedPrefill:
        rows = self.shapes.prefill_rows
        return PackedPrefill(rows, num_tokens, max_blocks(num_tokens, rows), self.shapes.table_width)

    def _pack_prefill(self, batch: PrefillBatch, stop_ids: StopIds, size: int) -> dict[str, Any]:
        sizes = self._sizes(size)
        return {
            "packed": pack_prefill(batch, stop_ids, sizes, self._config.pad_token_id),
            "extras": self._pack_extras(batch, sizes.num_rows, num_new=0),
        }

    def _pack_decode(self, batch: DecodeBatch, stop_ids: StopIds, size: int) -> dict[str, Any]:
        return {
            "packed": pack_rows(batch.sequences, stop_ids, size, self.shapes.table_width),
            "known": pack_known(batch.sequences, size, self.shapes.burst),
            "bounds": np.asarray([min(batch.max_steps, self.shapes.burst), batch.min_active], np.int32),
            "extras": self._pack_extras(batch, size, num_new=self.shapes.burst),
        }

    def _pack_extras(self, batch: PrefillBatch | DecodeBatch, num_rows: int, num_new: int) -> Extras:
        sequences = batch.sequences
        return Extras(
            pack_edits(sequences, num_rows, num_new), pack_mask(sequences, num_rows, self._vocab_size)
        )

    def _example(self, key: ProgramKey) -> dict[str, Any]:
        """Arguments of the shapes that a bucket has."""
        if key == COPY:
            return {"pages": np.zeros((2, COPY_PAGES), np.int32)}
        if key.kind == "prefill":
            return self._pack_prefill(PrefillBatch([], [], []), [], key.size)
        return self._pack_decode(DecodeBatch([], 1, 1), [], key.size)

    def _lower(self, key: ProgramKey, arguments: Mapping[str, Any]) -> jax.stages.Lowered:
        weights, cache = self._state
        if key == COPY:
            return self._copy.lower(cache=cache, **arguments)
        if key.kind == "choose":
            return self._choose.lower(num_top=key.num_top, **arguments)
        if key.kind == "decode logits":
            return self._decode_scores.lower(weights, cache=cache, **arguments)
        if key.kind == "prefill logits":
            return self._prefill_scores.lower(weights, cache=cache, sizes=self._sizes(key.size), **arguments)
        if key.kind == "prefill":
            sizes = self._sizes(key.size)
            return self._prefill.lower(weights, cache=cache, sizes=sizes, num_top=key.num_top, **arguments)
        return self._decode.lower(weights, cache=cache, num_top=key.num_top, **arguments)


def _shape_of(array: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def _paired(
    num_tokens: int | Sequence[int] | None, num_seqs: int | Sequence[int] | None
) -> list[tuple[int | None, int | None]]:
    """The numbers side by side; the last of a shorter list is repeated.

    e.g. [128, 512, 1024] and 8 -> (128, 8), (512, 8), (1024, 8)
    """
    lists = [[each] if isinstance(each, int | None) else list(each) for each in (num_tokens, num_seqs)]
    if not all(lists):
        raise ConfigError("precompile was given an empty list: give numbers, or nothing for every bucket")
    length = max(map(len, lists))
    first, second = (each + each[-1:] * (length - len(each)) for each in lists)
    return list(zip(first, second, strict=True))


def _bucket(name: str, sizes: tuple[int, ...], wanted: int) -> int:
    if not 1 <= wanted <= sizes[-1]:
        raise ConfigError(f"{name} is {wanted}, wanted 1 to {sizes[-1]}")
    return pick_bucket(sizes, wanted)
