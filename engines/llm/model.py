"""The decoder: embeddings, layers of attention and gated MLP, output head. State in, state out."""

from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from headrace.engines.llm.attention import AttentionRule
from headrace.engines.llm.config import ModelConfig, RopeConfig
from headrace.engines.llm.kv_cache import KVCache, LayerCache


@runtime_checkable
class Attend(Protocol):
    """Writes the keys and values of a batch into a layer's pages and attends over them."""

    def __call__(
        self,
        queries: Float[Array, "T H D"],
        keys: Float[Array, "T K D"],
        values: Float[Array, "T K D"],
        cache: LayerCache,
        rule: AttentionRule,
    ) -> tuple[Float[Array, "T H D"], LayerCache]: ...


class Linear(nnx.Module):
    """A product with float32 accumulation and a float32 result, and an optional bias."""

    def __init__(self, in_size: int, out_size: int, dtype: jnp.dtype, *, use_bias: bool) -> None:
        self.kernel = nnx.Param(jnp.zeros((in_size, out_size), dtype))
        self.bias = nnx.Param(jnp.zeros((out_size,), jnp.float32)) if use_bias else None

    def __call__(self, inputs: Float[Array, "T I"]) -> Float[Array, "T O"]:
        kernel = self.kernel[...]
        outputs = jnp.dot(inputs.astype(kernel.dtype), kernel, preferred_element_type=jnp.float32)
        return outputs if self.bias is None else outputs + self.bias[...][None, :]


class RMSNorm(nnx.Module):
    """Root mean square normalisation in float32."""

    def __init__(self, size: int, eps: float) -> None:
        self.scale = nnx.Param(jnp.ones((size,), jnp.float32))
        self.eps = eps

    def __call__(self, inputs: Float[Array, "T E"]) -> Float[Array, "T E"]:
        mean_square = jnp.mean(jnp.square(inputs), axis=-1, keepdims=True)
        return inputs * jax.lax.rsqrt(mean_square + self.eps) * self.scale[...][None, :]


class DecoderLayer(nnx.Module):
    """Attention and MLP, each behind a norm and added to the float32 residual stream."""

    def __init__(self, config: ModelConfig, dtype: jnp.dtype) -> None:
        self.config = config
        self.rule = AttentionRule(scale=config.head_dim**-0.5)
        hidden, inner = config.hidden_size, config.intermediate_size
        query_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.attention_norm = RMSNorm(hidden, config.norm_eps)
        self.qkv = Linear(hidden, query_size + 2 * kv_size, dtype, use_bias=config.qkv_bias)
        self.output = Linear(query_size, hidden, dtype, use_bias=config.output_bias)
        self.mlp_norm = RMSNorm(hidden, config.norm_eps)
        self.gate_up = Linear(hidden, 2 * inner, dtype, use_bias=config.mlp_bias)
        self.down = Linear(inner, hidden, dtype, use_bias=config.mlp_bias)

    def __call__(
        self,
        residual: Float[Array, "T E"],
        rotation: Float[Array, "2 T half"],
        cache: LayerCache,
        attend: Attend,
    ) -> tuple[Float[Array, "T E"], LayerCache]:
        config = self.config
        num_tokens = residual.shape[0]
        num_queries, num_kv = config.num_heads, config.num_kv_heads
        qkv = self.qkv(self.attention_norm(residual))
        qkv = qkv.reshape(num_tokens, num_queries + 2 * num_kv, config.head_dim)
        rotated = rotate(qkv[:, : num_queries + num_kv], rotation)
        dtype = self.output.kernel[...].dtype
        mixed, cache = attend(
            rotated[:, :num_queries].astype(dtype),
            rotated[:, num_queries:].astype(dtype),
            qkv[:, num_queries + num_kv :].astype(dtype),
            cache,
            self.rule,
        )
        residual = residual + self.output(mixed.reshape(num_tokens, num_queries * config.head_dim))
        gate, up = jnp.split(self.gate_up(self.mlp_norm(residual)), 2, axis=-1)
        return residual + self.down(jax.nn.silu(gate) * up), cache


class Decoder(nnx.Module):
    """A decoder-only transformer. Weights in `dtype`, norms and the residual stream in float32."""

    def __init__(self, config: ModelConfig, dtype: jnp.dtype) -> None:
        self.config = config
        self.embedding = nnx.Param(jnp.zeros((config.vocab_size, config.hidden_size), dtype))
        self.layers = nnx.List([DecoderLayer(config, dtype) for _ in range(config.num_layers)])
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        head = None if config.tie_embeddings else jnp.zeros((config.vocab_size, config.hidden_size), dtype)
        self.head = None if head is None else nnx.Param(head)

    def __call__(
        self, tokens: Int[Array, " T"], positions: Int[Array, " T"], cache: KVCache, attend: Attend
    ) -> tuple[Float[Array, "T E"], KVCache]:
        """Normed hidden states (float32) of a batch of tokens, and the cache with their keys and values."""
        residual = self.embedding[...][tokens].astype(jnp.float32)
        rotation = rope_rotation(positions, self.config.rope, self.config.head_dim)
        new_cache = []
        for layer, layer_cache in zip(self.layers, cache, strict=True):
            residual, layer_cache = layer(residual, rotation, layer_cache, attend)
            new_cache.append(layer_cache)
        return self.norm(residual), tuple(new_cache)

    def logits(self, hidden: Float[Array, "T E"]) -> Float[Array, "T V"]:
        """Logits (float32) of normed hidden states."""
        table = self.embedding[...] if self.head is None else self.head[...]
        return jax.lax.dot_general(
            hidden.astype(table.dtype), table, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
        )


def rope_rotation(positions: Int[Array, " T"], rope: RopeConfig, head_dim: int) -> Float[Array, "2 T half"]:
    """Cosines and sines of the rotation at each position."""
    frequencies = jnp.asarray(inverse_frequencies(rope, head_dim))
    angles = positions.astype(jnp.float32)[:, None] * frequencies[None, :]
    return jnp.stack([jnp.cos(angles), jnp.sin(angles)])


def rotate(vectors: Float[Array, "T N D"], rotation: Float[Array, "2 T half"]) -> Float[Array, "T N D"]:
    """Vectors with their first and second halves rotated against each other."""
    cos, sin = rotation[0][:, None, :], rotation[1][:, None, :]
    first, second = jnp.split(vectors, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> np.ndarray:
    """Inverse frequency of each pair of dimensions, float32 [head_dim / 2].

    `llama3` stretches long wavelengths by the factor, keeps short ones and blends between the two
    (Llama 3.1 model card).
    """
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    # Powers in float64, rounded once: the last bit of a frequency is 1e-6 rad at position 30 and shows.
    frequencies = np.float32(1) / (rope.theta ** exponents.astype(np.float64)).astype(np.float32)
    if rope.frequency_divisors is not None:
        return (frequencies / np.asarray(rope.frequency_divisors, np.float32)).astype(np.float32)
    if rope.kind == "linear":
        return (frequencies / np.float32(rope.factor)).astype(np.float32)
    if rope.kind == "llama3":
        turns = rope.original_max_position * frequencies / np.float32(2 * np.pi)
        blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        blend = np.clip(blend, 0.0, 1.0)
        return ((1 - blend) * frequencies / rope.factor + blend * frequencies).astype(np.float32)
    return frequencies
