"""A decoder with random weights: for runs whose times and memory matter, and whose texts do not."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from headrace.engines.llm.config import ModelConfig
from headrace.engines.llm.layers import Precision
from headrace.engines.llm.model import Decoder

SPREAD = 0.02
"""Standard deviation of the weights."""


def random_decoder(config: ModelConfig, precision: Precision, seed: int = 0) -> Decoder:
    """A decoder of this shape and precision; the same for the same seed."""
    graph, state = nnx.split(nnx.eval_shape(lambda: Decoder(config, precision)))
    leaves, treedef = jax.tree_util.tree_flatten_with_path(state)
    rng = np.random.default_rng(seed)
    made = [_make(rng, jax.tree_util.keystr(path, simple=True), leaf) for path, leaf in leaves]
    return nnx.merge(graph, jax.tree_util.tree_unflatten(treedef, made))


def _make(rng: np.random.Generator, path: str, leaf: jax.ShapeDtypeStruct) -> jax.Array:
    if leaf.dtype == jnp.int8:
        return jnp.asarray(rng.integers(-127, 128, leaf.shape, np.int8))
    if "kernel_scale" in path:
        return jnp.full(leaf.shape, SPREAD / 64, leaf.dtype)
    if "scale" in path:  # of a norm
        return jnp.ones(leaf.shape, leaf.dtype)
    return jnp.asarray(rng.standard_normal(leaf.shape, np.float32) * SPREAD, leaf.dtype)
