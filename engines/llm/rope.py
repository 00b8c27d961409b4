"""Rotary position embedding and its variants for longer contexts."""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from headrace.engines.llm.config import RopeConfig


def rope_rotation(positions: Int[Array, " T"], rope: RopeConfig, head_dim: int) -> Float[Array, "2 T half"]:
    """Cosines and sines of the rotation at each position."""
    frequencies = jnp.asarray(inverse_frequencies(rope, head_dim))
    angles = positions.astype(jnp.float32)[:, None] * frequencies[None, :]
    rotation = jnp.stack([jnp.cos(angles), jnp.sin(angles)])
    return rotation if rope.attention_factor == 1.0 else rotation * rope.attention_factor


def rotate(vectors: Float[Array, "T N D"], rotation: Float[Array, "2 T half"]) -> Float[Array, "T N D"]:
    """Vectors with the two halves of their first 2 * half dimensions rotated against each other."""
    cos, sin = rotation[0][:, None, :], rotation[1][:, None, :]
    half = cos.shape[-1]
    first, second, rest = jnp.split(vectors, (half, 2 * half), axis=-1)
    turned = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate(turned if 2 * half == vectors.shape[-1] else [*turned, rest], axis=-1)


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> np.ndarray:
    """Inverse frequency of each pair of rotated dimensions, float32 [rotary_dim / 2].

    `llama3` stretches long wavelengths by the factor, keeps short ones and blends between the two (Llama 3.1
    model card). `yarn` does the same by the number of a dimension's turns (Peng et al. 2023,
    arXiv:2309.00071). `longrope` has a divisor for each dimension (Ding et al. 2024, arXiv:2402.13753).
    """
    rotary_dim = rope.rotary_dim or head_dim
    exponents = np.arange(0, rotary_dim, 2, dtype=np.float32) / np.float32(rotary_dim)
    # Powers in float64, rounded once: the last bit of a frequency is 1e-6 rad at position 30 and shows.
    powers = (rope.theta ** exponents.astype(np.float64)).astype(np.float32)
    frequencies = np.float32(1) / powers
    if rope.frequency_divisors is not None:
        return frequencies / np.asarray(rope.frequency_divisors, np.float32)
    if rope.kind == "linear":
        return frequencies / np.float32(rope.factor)
    if rope.kind == "llama3":
        turns = rope.original_max_position * frequencies / np.float32(2 * np.pi)
        kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        return _blend(frequencies, rope.factor, np.clip(kept, 0.0, 1.0))
    if rope.kind == "yarn":
        return _blend(frequencies, rope.factor, 1 - _yarn_ramp(rope, rotary_dim))
    if rope.kind == "longrope":
        divisors = rope.long_factors if rope.is_long else rope.short_factors
        return np.float32(1) / (np.asarray(divisors, np.float32) * powers)
    return frequencies


def _blend(frequencies: np.ndarray, factor: float, kept: np.ndarray) -> np.ndarray:
    """Frequencies divided by the factor where `kept` is 0, as they are where it is 1."""
    return ((1 - kept) * frequencies / factor + kept * frequencies).astype(np.float32)


def _yarn_ramp(rope: RopeConfig, rotary_dim: int) -> np.ndarray:
    """Share of the stretch of each pair of dimensions: 0 for fast ones, rising to 1 for slow ones."""

    def pair_that_turns(turns: float) -> float:
        wavelength = rope.original_max_position / (turns * 2 * math.pi)
        return rotary_dim * math.log(wavelength) / (2 * math.log(rope.theta))

    low, high = pair_that_turns(rope.beta_fast), pair_that_turns(rope.beta_slow)
    if rope.rounds_ramp:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    width = high - low or 0.001
    ramp = (np.arange(rotary_dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(width)
    return np.clip(ramp, 0.0, 1.0)
