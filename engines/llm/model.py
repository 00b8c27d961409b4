"""The decoder: embeddings, layers of attention and MLP, output head. State in, state out."""

from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from headrace.engines.llm.attention import AttentionRule, Projected, Rotation
from headrace.engines.llm.config import LayerConfig, ModelConfig, RopeConfig
from headrace.engines.llm.experts import Experts
from headrace.engines.llm.kv_cache import LayerPages
from headrace.engines.llm.layers import (
    MLP,
    Inputs,
    Normed,
    Onto,
    Precision,
    RMSNorm,
    cap_softly,
    make_linear,
    make_norm,
)
from headrace.engines.llm.rope import rope_rotation


@runtime_checkable
class Attend(Protocol):
    """Writes the keys and values of a batch into a layer's pages and attends over them."""

    def __call__(
        self, projected: Projected, cache: LayerPages, rule: AttentionRule
    ) -> tuple[Float[Array, "T H D"], LayerPages]: ...


class Attention(nnx.Module):
    """Projections around the attention over the pages."""

    def __init__(self, config: ModelConfig, layer: LayerConfig, precision: Precision) -> None:
        self.config = config
        self.rule = AttentionRule(
            scale=config.attention_scale or config.head_dim**-0.5,
            window=layer.window,
            soft_cap=config.attention_soft_cap,
        )
        query_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        hidden = config.hidden_size
        self.qkv = make_linear(hidden, query_size + 2 * kv_size, precision, use_bias=config.qkv_bias)
        self.query_norm = RMSNorm(config.head_dim, config.norm_eps) if config.has_qk_norm else None
        self.key_norm = RMSNorm(config.head_dim, config.norm_eps) if config.has_qk_norm else None
        self.output = make_linear(query_size, hidden, precision, use_bias=config.output_bias)
        self.dtype, self.num_shards = precision.dtype, precision.num_shards

    def __call__(
        self, inputs: Inputs, rotation: Rotation, cache: LayerPages, attend: Attend, onto: Onto
    ) -> tuple[Float[Array, "T E"], LayerPages]:
        config = self.config
        qkv = self.qkv(inputs)
        num_tokens = qkv.shape[0]
        norms = None
        if self.query_norm is not None and self.key_norm is not None:
            norms = jnp.stack([self.query_norm.scale[...], self.key_norm.scale[...]])
        projected = Projected(
            qkv=qkv.reshape(num_tokens, config.num_heads + 2 * config.num_kv_heads, config.head_dim),
            rotation=rotation,
            norms=norms,
            norm_eps=config.norm_eps,
            num_kv_heads=config.num_kv_heads,
            dtype=self.dtype,
            num_shards=self.num_shards,
        )
        mixed, cache = attend(projected, cache, self.rule)
        return self.output(mixed.reshape(num_tokens, config.num_heads * config.head_dim), onto), cache


class DecoderLayer(nnx.Module):
    """Attention and MLP, each behind a norm and added to the float32 residual stream."""

    def __init__(self, config: ModelConfig, layer: LayerConfig, precision: Precision) -> None:
        self.attention_norm = make_norm(config) if layer.has_attention_norm else None
        self.attention = Attention(config, layer, precision)
        self.mlp_norm = make_norm(config)
        self.mlp = (
            MLP(config, precision) if layer.experts is None else Experts(config, layer.experts, precision)
        )
        self.attention_post_norm = make_norm(config) if config.has_post_norms else None
        self.mlp_post_norm = make_norm(config) if config.has_post_norms else None

    def __call__(
        self,
        residual: Float[Array, "T E"],
        rotation: Rotation,
        cache: LayerPages,
        attend: Attend,
    ) -> tuple[Float[Array, "T E"], LayerPages]:
        inputs = residual if self.attention_norm is None else Normed(residual, self.attention_norm)
        if self.attention_post_norm is None or self.mlp_post_norm is None:
            residual, cache = self.attention(inputs, rotation, cache, attend, residual)
            return self.mlp(Normed(residual, self.mlp_norm), residual), cache
        mixed, cache = self.attention(inputs, rotation, cache, attend, None)
        residual = residual + self.attention_post_norm(mixed)
        return residual + self.mlp_post_norm(self.mlp(Normed(residual, self.mlp_norm))), cache


def rope_rotations(config: ModelConfig, positions: Int[Array, " T"]) -> dict[RopeConfig, Rotation]:
    """The rotation of these positions by each position embedding that layers have."""
    ropes = dict.fromkeys(layer.rope for layer in config.layers if layer.rope is not None)
    return {rope: rope_rotation(positions, rope, config.head_dim) for rope in ropes}


class Ends(NamedTuple):
    """What stands before and after the layers; of a model in pipeline stages not every stage has both."""

    is_first: bool = True  # the embedding stands before the layers
    is_last: bool = True  # the norm and the output head come after them


WHOLE = Ends()


class Decoder(nnx.Module):
    """A decoder-only transformer. Norms and the residual stream are in float32, the embedding and the head in
    the precision's dtype."""

    def __init__(self, config: ModelConfig, precision: Precision, ends: Ends = WHOLE) -> None:
        self.config, self.quantization = config, precision.quantization
        dtype, shape = precision.dtype, (config.vocab_size, config.hidden_size)
        has_table = ends.is_first or (ends.is_last and config.tie_embeddings)
        self.embedding = nnx.Param(jnp.zeros(shape, dtype)) if has_table else None
        table = jnp.zeros((config.max_position, config.hidden_size), dtype)
        self.positions = nnx.Param(table) if config.has_learned_positions and ends.is_first else None
        self.layers = nnx.List([DecoderLayer(config, layer, precision) for layer in config.layers])
        self.norm = make_norm(config) if ends.is_last else None
        has_head = ends.is_last and not config.tie_embeddings
        self.head = nnx.Param(jnp.zeros(shape, dtype)) if has_head else None

    def __call__(
        self,
        tokens: Int[Array, " T"],
        positions: Int[Array, " T"],
        cache: tuple[LayerPages, ...],
        attend: Attend,
        entering: Float[Array, "T E"] | None = None,
    ) -> tuple[Float[Array, "T E"], tuple[LayerPages, ...]]:
        """Normed hidden states (float32) of a batch of tokens, and the cache with their keys and values.

        `entering` is the residual stream that a pipeline stage is given by the one before it; a stage that is
        not the last gives that of the next one.
        """
        config = self.config
        residual = self._embed(tokens, positions) if entering is None else entering
        rotations = rope_rotations(config, positions)
        new_cache = []
        for own, layer, layer_cache in zip(config.layers, self.layers, cache, strict=True):
            rotation = None if own.rope is None else rotations[own.rope]
            residual, layer_cache = layer(residual, rotation, layer_cache, attend)
            new_cache.append(layer_cache)
        return residual if self.norm is None else self.norm(residual), tuple(new_cache)

    def _embed(self, tokens: Int[Array, " T"], positions: Int[Array, " T"]) -> Float[Array, "T E"]:
        assert self.embedding is not None, "a later stage of a pipeline embeds no tokens"
        table = self.embedding[...]
        embedded = _rows_of(table, tokens).astype(jnp.float32)
        if self.config.embedding_scale != 1.0:
            # Gemma was trained with the factor in the precision of the table.
            embedded = embedded * jnp.asarray(self.config.embedding_scale, table.dtype).astype(jnp.float32)
        if self.positions is not None:
            embedded = embedded + _rows_of(self.positions[...], positions).astype(jnp.float32)
        return embedded

    @property
    def head_table(self) -> Float[Array, "V E"]:
        """The output head, a row a token."""
        table = self.embedding if self.head is None else self.head
        assert table is not None, "an earlier stage of a pipeline has no output head"
        return table[...]

    def logits(self, hidden: Float[Array, "T E"]) -> Float[Array, "T V"]:
        """Logits (float32) of normed hidden states."""
        table = self.head_table
        logits = jax.lax.dot_general(
            hidden.astype(table.dtype), table, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
        )
        return cap_softly(logits, self.config.logit_soft_cap)


def _rows_of(table: Float[Array, "V E"], indices: Int[Array, " T"]) -> Float[Array, "T E"]:
    """Rows of a table, looked up in it as it is.

    XLA for a CPU looks bfloat16 up in float32. Where the table is the same in all steps of a loop it would
    convert the whole of it ahead of the loop.
    """
    table, indices = jax.lax.optimization_barrier((table, indices))
    return table[indices]
