"""A decoder with random weights: for runs whose times and memory matter, and whose texts do not."""

import jax
import jax.numpy as jnp
import numpy as np

from headrace.engines.llm.config import ModelConfig
from headrace.engines.llm.families.outline import Path, outline
from headrace.engines.llm.layers import Precision
from headrace.engines.llm.model import Decoder
from headrace.engines.llm.partition import ON_DEFAULT_DEVICE, Layout
from headrace.engines.native.linear import MOST_WHOLE

SPREAD = 0.02
"""Standard deviation of the weights."""


def random_decoder(
    config: ModelConfig, precision: Precision, seed: int = 0, layout: Layout = ON_DEFAULT_DEVICE
) -> Decoder:
    """A decoder of this shape and precision; the same for the same seed and layout."""
    plan = outline(config, precision, layout)
    rng = np.random.default_rng(seed)
    pairs = zip(plan.paths, plan.leaves, strict=True)
    return plan.fill([layout.place(path, _make(rng, path, leaf)) for path, leaf in pairs])


def _make(rng: np.random.Generator, path: Path, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
    if leaf.dtype == jnp.int8:
        return rng.integers(-127, 128, leaf.shape, np.int8)
    if leaf.dtype == jnp.uint8:  # packed: 128 is zero
        return rng.integers(1, 256, leaf.shape, np.uint8)
    if leaf.dtype == jnp.int16:
        return rng.integers(-MOST_WHOLE, MOST_WHOLE + 1, leaf.shape, np.int16)
    if path[-1] == "kernel_scale":
        most = 64 if len(leaf.shape) == 1 else MOST_WHOLE / 2
        return np.full(leaf.shape, SPREAD / most, leaf.dtype)
    if path[-1] == "scale":  # of a norm
        return np.ones(leaf.shape, leaf.dtype)
    return (rng.standard_normal(leaf.shape, np.float32) * SPREAD).astype(leaf.dtype)
