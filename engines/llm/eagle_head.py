"""An EAGLE head: the next hidden state of a model from its last one and the token that followed.

Li et al. 2024, arXiv:2401.15077: the embedding of token t + 1 and the hidden state of token t, side by side,
go through a product to the model's width and then through decoder layers, the first of which does not norm
what enters its attention. What comes out stands for the hidden state of token t + 1, as the model's output
head takes it. The pair has the position t.
"""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from headrace.engines.llm.config import ModelConfig
from headrace.engines.llm.kv_cache import LayerPages
from headrace.engines.llm.layers import Precision, make_linear
from headrace.engines.llm.model import Attend, DecoderLayer, rope_rotations


class EagleHead(nnx.Module):
    """The layers of a head, and the embedding of tokens, its own or the model's."""

    def __init__(self, config: ModelConfig, precision: Precision, *, has_bias: bool) -> None:
        self.config = config
        hidden = config.hidden_size
        self.embedding = nnx.Param(jnp.zeros((config.vocab_size, hidden), precision.dtype))
        self.fusion = make_linear(2 * hidden, hidden, precision, use_bias=has_bias)
        self.layers = nnx.List([DecoderLayer(config, layer, precision) for layer in config.layers])

    def __call__(
        self,
        tokens: Int[Array, " T"],
        hidden: Float[Array, "T E"],
        positions: Int[Array, " T"],
        cache: tuple[LayerPages, ...],
        attend: Attend,
    ) -> tuple[Float[Array, "T E"], tuple[LayerPages, ...]]:
        """Hidden states (float32) of `tokens`, each of which came after one with the state `hidden`.

        Positions are those of `hidden`; the head's own keys and values lie there.
        """
        embedded = self.embedding[...][tokens].astype(jnp.float32)
        residual = self.fusion(jnp.concatenate([embedded, hidden], axis=-1))
        rotations = rope_rotations(self.config, positions)
        new_cache = []
        for own, layer, layer_cache in zip(self.config.layers, self.layers, cache, strict=True):
            rotation = None if own.rope is None else rotations[own.rope]
            residual, layer_cache = layer(residual, rotation, layer_cache, attend)
            new_cache.append(layer_cache)
        return residual, tuple(new_cache)
