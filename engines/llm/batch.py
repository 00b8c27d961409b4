"""One dispatch's worth of work: chosen by the scheduler, packed for the device, unpacked there.

A batch travels as a single int32 vector. Both directions of the packing stand in this file.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from headrace.engines.llm.request import Sequence
from headrace.engines.llm.sampling_params import MAX_STOP_IDS
from headrace.engines.sampling import SamplingRows

NO_STOP_ID = -1
UNKNOWN = -1
MAX_INT = 2**31 - 1
MIN_TOP_P, MAX_TEMPERATURE = 1e-30, 1e30
"""Bounds within which float32 keeps a small top_p above 0 and a great temperature finite."""
BLOCK_TOKENS = 32
"""Query tokens of one row that attend together in a prefill."""


@dataclass(frozen=True, slots=True)
class PrefillBatch:
    """Chunks of tokens: the next `lengths[i]` uncomputed tokens of `sequences[i]`."""

    sequences: list[Sequence]
    lengths: list[int]
    is_last: list[bool]
    """Whether the chunk is its row's last, after which a token is made."""
    starts: list[int] = field(default_factory=list)
    """Where the chunks begin, where that is not at the first uncomputed token."""
    ahead: int = 0
    """By how much the tokens are ahead of their positions: an EAGLE head takes the one that follows."""

    @property
    def num_tokens(self) -> int:
        return sum(self.lengths)

    def add(self, sequence: Sequence, length: int, *, is_last: bool) -> None:
        self.sequences.append(sequence)
        self.lengths.append(length)
        self.is_last.append(is_last)


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """Rows that make up to `max_steps` tokens each; the dispatch ends when fewer than `min_active` go on."""

    sequences: list[Sequence]
    max_steps: int
    min_active: int
    is_speculative: bool = False
    """Whether tokens are proposed and checked, so that a step can make several."""


class Rows(NamedTuple):
    """What the device knows of each row of a batch."""

    token: Int[Array, " R"]  # decode: the last token, not yet in the pages
    position: Int[Array, " R"]  # decode: position of that token
    limit: Int[Array, " R"]  # tokens that the row may still make; 0: not a row
    min_left: Int[Array, " R"]  # tokens before which it may not stop
    sampling: SamplingRows
    stop_ids: Int[Array, "R I"]  # NO_STOP_ID: unused
    page_table: Int[Array, "R P"]


class Chunks(NamedTuple):
    """The ragged tokens of a prefill and the query blocks that they are cut into."""

    tokens: Int[Array, " T"]
    positions: Int[Array, " T"]  # -1: padding
    token_row: Int[Array, " T"]
    block_start: Int[Array, " N"]  # index in `tokens` of a block's first token
    block_len: Int[Array, " N"]  # 0: padding
    block_row: Int[Array, " N"]
    last_token: Int[Array, " R"]  # index in `tokens` of each row's last token


class PackedPrefill(NamedTuple):
    """Sizes of a packed prefill, static in the compiled program."""

    num_rows: int
    num_tokens: int
    num_blocks: int
    table_width: int


_INT_COLUMNS = (
    "token", "position", "limit", "min_left", "seed_high", "seed_low", "output_index", "top_k",
)  # fmt: skip
_FLOAT_COLUMNS = ("temperature", "top_p", "min_p")
NUM_COLUMNS = len(_INT_COLUMNS) + len(_FLOAT_COLUMNS) + MAX_STOP_IDS


def max_blocks(num_tokens: int, num_rows: int) -> int:
    """Most query blocks that `num_tokens` tokens of `num_rows` rows can need.

    e.g. 64 tokens, 3 rows, blocks of 32: 2 full ones and up to 2 more that rows end in -> 4
    """
    return num_tokens // BLOCK_TOKENS + num_rows


def pack_rows(
    sequences: list[Sequence], stop_ids: list[tuple[int, ...]], num_rows: int, table_width: int
) -> np.ndarray:
    """Rows as int32 [num_rows, NUM_COLUMNS + table_width]; rows past the sequences are padding."""
    packed = np.zeros((num_rows, NUM_COLUMNS + table_width), np.int32)
    packed[:, _INT_COLUMNS.index("position")] = -1
    floats = packed[:, len(_INT_COLUMNS) : len(_INT_COLUMNS) + len(_FLOAT_COLUMNS)].view(np.float32)
    stops = packed[:, NUM_COLUMNS - MAX_STOP_IDS : NUM_COLUMNS]
    stops[:] = NO_STOP_ID
    seeds = packed.view(np.uint32)
    for row, (sequence, ids) in enumerate(zip(sequences, stop_ids, strict=True)):
        params = sequence.request.params
        seed = sequence.seed
        packed[row, :4] = (
            sequence.tokens[min(sequence.num_computed, len(sequence.tokens) - 1)],
            sequence.num_computed,
            sequence.max_total - sequence.num_prompt - sequence.num_sampled,
            min(params.min_tokens - sequence.num_sampled, MAX_INT),
        )
        seeds[row, 4:6] = seed >> 32, seed & 0xFFFFFFFF
        packed[row, 6:8] = sequence.num_sampled, min(params.top_k, MAX_INT)
        floats[row] = min(params.temperature, MAX_TEMPERATURE), max(params.top_p, MIN_TOP_P), params.min_p
        stops[row, : len(ids)] = ids
        packed[row, NUM_COLUMNS : NUM_COLUMNS + len(sequence.pages)] = sequence.pages
    return packed


def pack_known(sequences: list[Sequence], num_rows: int, burst: int) -> np.ndarray:
    """The tokens that rows of a burst are known to make, int32 [num_rows, burst]; UNKNOWN after them.

    A row that was preempted makes its outputs again, in the program that made them, so that not a bit of
    their keys and values differs.
    """
    known = np.full((num_rows, burst), UNKNOWN, np.int32)
    for row, sequence in enumerate(sequences):
        tokens = sequence.tokens[sequence.num_computed + 1 :][:burst]
        known[row, : len(tokens)] = tokens
    return known


def pack_history(sequences: list[Sequence], num_rows: int, length: int) -> np.ndarray:
    """The tokens of each row, int32 [num_rows, length]; what stands after them does not matter.

    Empty where the length is 0.
    """
    history = np.zeros((num_rows, length), np.int32)
    for row, sequence in enumerate(sequences if length else []):
        history[row, : len(sequence.tokens)] = sequence.tokens
    return history


def unpack_rows(packed: Int[Array, "R columns"]) -> Rows:
    """The rows that `pack_rows` packed."""
    ints = {name: packed[:, index] for index, name in enumerate(_INT_COLUMNS)}
    floats = {
        name: jax.lax.bitcast_convert_type(packed[:, len(_INT_COLUMNS) + index], jnp.float32)
        for index, name in enumerate(_FLOAT_COLUMNS)
    }
    seed = jnp.stack([ints["seed_high"], ints["seed_low"]], axis=-1)
    return Rows(
        token=ints["token"],
        position=ints["position"],
        limit=ints["limit"],
        min_left=ints["min_left"],
        sampling=SamplingRows(
            seed=jax.lax.bitcast_convert_type(seed, jnp.uint32),
            output_index=ints["output_index"],
            top_k=ints["top_k"],
            **floats,
        ),
        stop_ids=packed[:, NUM_COLUMNS - MAX_STOP_IDS : NUM_COLUMNS],
        page_table=packed[:, NUM_COLUMNS:],
    )


def pack_prefill(
    batch: PrefillBatch, stop_ids: list[tuple[int, ...]], sizes: PackedPrefill, pad_token: int
) -> np.ndarray:
    """A prefill batch as one int32 vector."""
    rows = pack_rows(batch.sequences, stop_ids, sizes.num_rows, sizes.table_width)
    tokens = np.full(sizes.num_tokens, pad_token, np.int32)
    positions = np.full(sizes.num_tokens, -1, np.int32)
    token_row = np.zeros(sizes.num_tokens, np.int32)
    blocks = np.zeros((3, sizes.num_blocks), np.int32)
    last_token = np.zeros(sizes.num_rows, np.int32)
    cursor = num_blocks = 0
    for row, (sequence, length) in enumerate(zip(batch.sequences, batch.lengths, strict=True)):
        first = batch.starts[row] if batch.starts else sequence.num_computed
        tokens[cursor : cursor + length] = sequence.tokens[first + batch.ahead :][:length]
        positions[cursor : cursor + length] = np.arange(first, first + length)
        token_row[cursor : cursor + length] = row
        for start in range(0, length, BLOCK_TOKENS):
            blocks[:, num_blocks] = cursor + start, min(BLOCK_TOKENS, length - start), row
            num_blocks += 1
        cursor += length
        last_token[row] = cursor - 1
    parts = [rows.ravel(), tokens, positions, token_row, blocks.ravel(), last_token]
    return np.concatenate(parts)


def packed_rows(packed: np.ndarray, sizes: PackedPrefill) -> np.ndarray:
    """The rows of a packed prefill, as `pack_rows` packs them."""
    width = NUM_COLUMNS + sizes.table_width
    return packed[: sizes.num_rows * width].reshape(sizes.num_rows, width)


def unpack_prefill(packed: Int[Array, " L"], sizes: PackedPrefill) -> tuple[Rows, Chunks]:
    """The rows and chunks that `pack_prefill` packed."""
    row_width = NUM_COLUMNS + sizes.table_width
    lengths = [
        sizes.num_rows * row_width,
        *[sizes.num_tokens] * 3,
        *[sizes.num_blocks] * 3,
        sizes.num_rows,
    ]
    borders = np.cumsum(lengths)[:-1].tolist()
    rows, *chunks = jnp.split(packed, borders)
    return unpack_rows(rows.reshape(sizes.num_rows, row_width)), Chunks(*chunks)


Arrays = Array | np.ndarray
"""Made on the device, read on the host."""


class SampledTop(NamedTuple):
    """The most likely tokens beside each one that a dispatch made."""

    ranks: Arrays  # int32 [R, K]; rank of the token that was made, from 1
    tokens: Arrays  # int32 [R, K, top]
    logprobs: Arrays  # float32 [R, K, top]; -inf: no token


class Proposed(NamedTuple):
    """What was proposed for the rows of a speculative burst."""

    tokens: Arrays  # int32 [R]
    steps: Arrays  # int32 [R]; in each of which one token more was made than was right of those proposed


class Sampled(NamedTuple):
    """Tokens that a dispatch made."""

    tokens: Arrays  # int32 [R, K]; the first counts[i] of row i are real
    logprobs: Arrays  # float32 [R, K]
    counts: Arrays  # int32 [R]
    top: SampledTop | None = None
    proposed: Proposed | None = None


def pack_sampled(sampled: Sampled) -> Int[Array, "R columns"]:
    """The result of a dispatch as one int32 array: fetched in one transfer."""
    leaves = [_as_int32(leaf).reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(sampled)]
    return jnp.concatenate(leaves, axis=1)


def unpack_sampled(
    packed: np.ndarray, num_steps: int, num_top: int = 0, *, is_speculative: bool = False
) -> Sampled:
    """The result that `pack_sampled` packed, of `num_steps` tokens with `num_top` most likely ones each."""
    num_rows = packed.shape[0]
    widths = [num_steps, num_steps, 1]
    widths += [num_steps, num_steps * num_top, num_steps * num_top] if num_top else []
    widths += [1, 1] if is_speculative else []
    tokens, logprobs, counts, *rest = np.split(packed, np.cumsum(widths)[:-1], axis=1)
    top = None
    if num_top:
        shape = (num_rows, num_steps, num_top)
        ranks, top_tokens, top_logprobs, *rest = rest
        top = SampledTop(ranks, top_tokens.reshape(shape), _as_float32(top_logprobs).reshape(shape))
    proposed = Proposed(*(column[:, 0] for column in rest)) if is_speculative else None
    return Sampled(tokens, _as_float32(logprobs), counts[:, 0], top, proposed)


def _as_int32(array: Array) -> Int[Array, "..."]:
    return array if array.dtype == jnp.int32 else jax.lax.bitcast_convert_type(array, jnp.int32)


def _as_float32(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(np.float32)
