"""Token sampling on the device: filters by thresholds, then a Gumbel argmax.

The order is: temperature, top-k, top-p, min-p. A native kernel does it where there is one. In plain XLA no
filter sorts the vocabulary: each is a threshold on the
logits, and a threshold is found by 32 halvings over the ordered bit patterns of float32, which is exact.
"""

import hashlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from headrace.engines import native

NUM_FLOAT_BITS = 32
ARGMAX_BLOCK = 64
MIN_TEMPERATURE = 1e-5
"""Below this temperature a row is greedy."""


class SamplingRows(NamedTuple):
    """Sampling parameters of a batch, one entry a row."""

    temperature: Float[Array, " B"]  # < MIN_TEMPERATURE: greedy
    top_k: Int[Array, " B"]  # <= 0: off
    top_p: Float[Array, " B"]  # >= 1: off
    min_p: Float[Array, " B"]  # <= 0: off
    seed: UInt32[Array, "B 2"]  # high and low word
    output_index: Int[Array, " B"]  # position of the token among the row's outputs


def derive_seed(job_seed: int, row_id: str, sample: int = 0) -> int:
    """Seed of a row that names none, in 0 .. 2**63 - 1: a hash of the three arguments and of nothing else."""
    digest = hashlib.blake2b(f"{job_seed}\0{row_id}\0{sample}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def sample(logits: Float[Array, "B V"], rows: SamplingRows) -> Int[Array, " B"]:
    """One token a row: the most likely where the temperature is (almost) zero, else a draw.

    A row's draw depends on its own logits, parameters, seed and output index alone.
    """
    if logits.dtype == jnp.float32 and native.is_available(native.DRAW):
        filters = (rows.top_k, rows.top_p, rows.min_p)
        return native.draw(logits, rows.temperature, filters, (rows.seed, rows.output_index))
    return sample_in_xla(logits, rows)


def sample_in_xla(logits: Float[Array, "B V"], rows: SamplingRows) -> Int[Array, " B"]:
    """As `sample`, without the native kernel."""
    greedy = argmax(logits)
    is_sampled = rows.temperature >= MIN_TEMPERATURE
    return jax.lax.cond(
        jnp.any(is_sampled),
        lambda: jnp.where(is_sampled, _draw(logits, rows), greedy),
        lambda: greedy,
    )


def argmax(logits: Float[Array, "B V"]) -> Int[Array, " B"]:
    """Index of the largest logit of each row, the first of equals.

    Looks for the block with the largest one, then inside it: on a CPU a maximum over a block is a vector
    operation and an argmax is not (2.1 ms against 11 ms for 128 x 49152 in one process).
    """
    num_rows, vocab_size = logits.shape
    if vocab_size % ARGMAX_BLOCK:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    blocks = logits.reshape(num_rows, vocab_size // ARGMAX_BLOCK, ARGMAX_BLOCK)
    best_block = jnp.argmax(jnp.max(blocks, axis=-1), axis=-1).astype(jnp.int32)
    inside = jnp.take_along_axis(blocks, best_block[:, None, None], axis=1)[:, 0]
    return best_block * ARGMAX_BLOCK + jnp.argmax(inside, axis=-1).astype(jnp.int32)


def filter_logits(logits: Float[Array, "B V"], rows: SamplingRows) -> Float[Array, "B V"]:
    """Logits over temperature, with -inf where top-k, top-p or min-p drops a token.

    Tokens that tie with the last one kept are kept.
    """
    temperature = jnp.maximum(rows.temperature, MIN_TEMPERATURE)
    logits = logits / temperature[:, None]
    logits = _drop_below(logits, _top_k_threshold(logits, rows.top_k))
    logits = _drop_below(logits, _top_p_threshold(logits, rows.top_p))
    min_p = jnp.clip(rows.min_p, 0.0, 1.0)
    peak = jnp.max(logits, axis=-1)
    return _drop_below(logits, jnp.where(min_p > 0.0, peak + jnp.log(min_p), -jnp.inf))


def _draw(logits: Float[Array, "B V"], rows: SamplingRows) -> Int[Array, " B"]:
    def noise(seed: UInt32[Array, " 2"], index: Int[Array, ""]) -> Float[Array, " V"]:
        key = jax.random.fold_in(jax.random.wrap_key_data(seed), index)
        return jax.random.gumbel(key, (logits.shape[-1],), logits.dtype)

    gumbel = jax.vmap(noise)(rows.seed, rows.output_index)
    return argmax(filter_logits(logits, rows) + gumbel)


def _drop_below(logits: Float[Array, "B V"], threshold: Float[Array, " B"]) -> Float[Array, "B V"]:
    return jnp.where(logits < threshold[:, None], -jnp.inf, logits)


def _top_k_threshold(logits: Float[Array, "B V"], top_k: Int[Array, " B"]) -> Float[Array, " B"]:
    wanted = jnp.clip(top_k, 1, logits.shape[-1])

    def enough(kept: Bool[Array, "B V"]) -> Bool[Array, " B"]:
        return jnp.sum(kept, axis=-1, dtype=jnp.int32) >= wanted

    found = jax.lax.cond(
        jnp.any(top_k > 0),
        lambda: _largest_threshold(logits, enough),
        lambda: jnp.full(top_k.shape, -jnp.inf, logits.dtype),
    )
    return jnp.where(top_k > 0, found, -jnp.inf)


def _top_p_threshold(logits: Float[Array, "B V"], top_p: Float[Array, " B"]) -> Float[Array, " B"]:
    def found() -> Float[Array, " B"]:
        probabilities = jax.nn.softmax(logits, axis=-1)

        def enough(kept: Bool[Array, "B V"]) -> Bool[Array, " B"]:
            return jnp.sum(jnp.where(kept, probabilities, 0.0), axis=-1) >= top_p

        return _largest_threshold(logits, enough)

    is_on = top_p < 1.0
    threshold = jax.lax.cond(jnp.any(is_on), found, lambda: jnp.full(top_p.shape, -jnp.inf, logits.dtype))
    return jnp.where(is_on, threshold, -jnp.inf)


def _largest_threshold(logits: Float[Array, "B V"], enough) -> Float[Array, " B"]:
    """Largest t, a row, for which the tokens with logits >= t are `enough`.

    Works on integers that are ordered as the floats are, from the highest bit down:
    e.g. for three bits and an answer of 0b101 the trials are 100 (enough), 110 (not), 101 (enough).
    """
    keys = _ordered_bits(logits)

    def try_bit(step: Int[Array, ""], best: UInt32[Array, " B"]) -> UInt32[Array, " B"]:
        bit = jnp.uint32(1) << (NUM_FLOAT_BITS - 1 - step).astype(jnp.uint32)
        trial = best | bit
        return jnp.where(enough(keys >= trial[:, None]), trial, best)

    best = jax.lax.fori_loop(0, NUM_FLOAT_BITS, try_bit, jnp.zeros(logits.shape[:1], jnp.uint32))
    return _from_ordered_bits(best)


def _ordered_bits(values: Float[Array, "B V"]) -> UInt32[Array, "B V"]:
    bits = jax.lax.bitcast_convert_type(values, jnp.uint32)
    is_negative = (bits >> 31) == 1
    return jnp.where(is_negative, ~bits, bits | jnp.uint32(1 << 31))


def _from_ordered_bits(keys: UInt32[Array, " B"]) -> Float[Array, " B"]:
    is_negative = (keys >> 31) == 0
    bits = jnp.where(is_negative, ~keys, keys & jnp.uint32((1 << 31) - 1))
    return jax.lax.bitcast_convert_type(bits, jnp.float32)
