"""Whisper's encoder and decoder (Radford et al. 2022, arXiv:2212.04356) as Flax NNX modules.

Weights and activations have the model's dtype, bfloat16 or float32; products, normalisation, softmax and
the residual stream are float32.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Float32, Int32

from headrace.engines.whisper.attention import Masked, cross_attention, encoder_attention, recent_attention
from headrace.engines.whisper.config import ModelDims
from headrace.engines.whisper.storage import from_storage, to_storage
from headrace.engines.whisper.weights import Weights


class LayerKV(NamedTuple):
    """Keys and values of one layer, heads side by side: [B D S], of a burst's own tokens [B K D]."""

    k: Float[Array, "B *context"]
    v: Float[Array, "B *context"]


class Context(NamedTuple):
    """What the steps of a burst attend to beside the burst's own tokens: it does not change meanwhile."""

    past: tuple[LayerKV, ...]
    """Of the tokens before the burst, a layer each."""
    past_len: Int32[Array, " B"]
    crosses: tuple[tuple[LayerKV, ...], ...]
    """Of the encoder's frames: for each group of rows, a layer each."""


class Linear(nnx.Module):
    """A product with float32 sums, and a bias."""

    def __init__(self, weight: Float[Array, "out in"], bias: Float32[Array, " out"] | None = None) -> None:
        self.weight = nnx.Param(weight)
        self.bias = None if bias is None else nnx.Param(bias)

    def __call__(self, x: Float[Array, "*rows in"]) -> Float32[Array, "*rows out"]:
        weight = self.weight[...]
        contract = (((x.ndim - 1,), (1,)), ((), ()))
        y = lax.dot_general(x.astype(weight.dtype), weight, contract, preferred_element_type=jnp.float32)
        if self.bias is None:
            return y
        return y + jnp.expand_dims(self.bias[...], tuple(range(y.ndim - 1)))


class LayerNorm(nnx.Module):
    """Normalisation over the last axis, in float32."""

    def __init__(self, scale: Float32[Array, " D"], bias: Float32[Array, " D"]) -> None:
        self.scale, self.bias = nnx.Param(scale), nnx.Param(bias)

    def __call__(self, x: Float32[Array, "*rows D"]) -> Float32[Array, "*rows D"]:
        lead = tuple(range(x.ndim - 1))
        centred = x - jnp.mean(x, axis=-1, keepdims=True)
        spread = lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + 1e-5)
        return centred * spread * jnp.expand_dims(self.scale[...], lead) + jnp.expand_dims(
            self.bias[...], lead
        )


class FeedForward(nnx.Module):
    def __init__(self, weights: Weights, name: str) -> None:
        self.norm = LayerNorm(*weights.norm(f"{name}.final_layer_norm"))
        self.up = Linear(*weights.linear(f"{name}.fc1"))
        self.down = Linear(*weights.linear(f"{name}.fc2"))
        self.dtype = weights.dtype

    def __call__(self, x: Float32[Array, "*rows D"]) -> Float32[Array, "*rows D"]:
        hidden = jax.nn.gelu(self.up(self.norm(x)), approximate=False)
        return x + self.down(hidden.astype(self.dtype))


class SelfAttention(nnx.Module):
    """Projections of an attention whose queries, keys and values come from the same rows."""

    def __init__(self, weights: Weights, name: str, num_heads: int) -> None:
        self.norm = LayerNorm(*weights.norm(f"{name}.self_attn_layer_norm"))
        self.qkv = Linear(*weights.fused([f"{name}.self_attn.{part}_proj" for part in "qkv"], num_heads))
        self.out = Linear(*weights.linear(f"{name}.self_attn.out_proj"))
        self.dtype = weights.dtype

    def project(self, x: Float32[Array, "*rows D"]) -> list[Float[Array, "*rows D"]]:
        """Queries (scaled), keys and values."""
        return jnp.split(self.qkv(self.norm(x)).astype(self.dtype), 3, axis=-1)


class CrossAttention(nnx.Module):
    """Projections of the attention from decoder rows to encoder frames."""

    def __init__(self, weights: Weights, name: str, num_heads: int) -> None:
        self.norm = LayerNorm(*weights.norm(f"{name}.encoder_attn_layer_norm"))
        self.q = Linear(*weights.fused([f"{name}.encoder_attn.q_proj"], num_heads))
        self.kv = Linear(*weights.fused([f"{name}.encoder_attn.{part}_proj" for part in "kv"]))
        self.out = Linear(*weights.linear(f"{name}.encoder_attn.out_proj"))
        self.num_heads = num_heads
        self.dtype = weights.dtype

    def attend(self, x: Float32[Array, "B D"], groups: Sequence[LayerKV]) -> Float32[Array, "B D"]:
        """What the rows read from their frames; the frames lie in groups of rows."""
        q = self.q(self.norm(x)).astype(self.dtype)
        queries = jnp.split(q, len(groups))
        read = [cross_attention(q, *kv, self.num_heads) for q, kv in zip(queries, groups, strict=True)]
        return self.out(jnp.concatenate(read))

    def keys_values(self, frames: Float[Array, "B F D"]) -> LayerKV:
        both = jnp.swapaxes(self.kv(frames).astype(self.dtype), 1, 2)
        return LayerKV(*jnp.split(both, 2, axis=1))


class EncoderLayer(nnx.Module):
    def __init__(self, weights: Weights, name: str, num_heads: int) -> None:
        self.attention = SelfAttention(weights, name, num_heads)
        self.feed_forward = FeedForward(weights, name)
        self.num_heads = num_heads

    def __call__(self, x: Float32[Array, "B F D"]) -> Float32[Array, "B F D"]:
        q, k, v = self.attention.project(x)
        x = x + self.attention.out(encoder_attention(q, k, v, self.num_heads))
        return self.feed_forward(x)


class Encoder(nnx.Module):
    """Frames of a window from its log-mel spectrogram."""

    def __init__(self, weights: Weights, dims: ModelDims) -> None:
        self.conv1 = Linear(*weights.convolution("encoder.conv1"))
        self.conv2 = Linear(*weights.convolution("encoder.conv2"))
        self.positions = nnx.Param(weights.array("encoder.embed_positions.weight", jnp.float32))
        self.layers = nnx.List(
            EncoderLayer(weights, f"encoder.layers.{i}", dims.encoder_heads)
            for i in range(dims.encoder_layers)
        )
        self.norm = LayerNorm(*weights.norm("encoder.layer_norm"))
        self.dtype = weights.dtype

    def __call__(self, log_mel: Float32[Array, "B mels T"]) -> Float[Array, "B F D"]:
        x = jnp.swapaxes(log_mel, 1, 2).astype(self.dtype)
        x = jax.nn.gelu(self.conv1(_neighbours(x)), approximate=False).astype(self.dtype)
        x = jax.nn.gelu(self.conv2(_neighbours_of_even(x)), approximate=False)
        x = x + self.positions[...][None]
        for layer in self.layers:
            x = layer(x)
        return self.norm(x).astype(self.dtype)


class DecoderLayer(nnx.Module):
    def __init__(self, weights: Weights, name: str, num_heads: int) -> None:
        self.attention = SelfAttention(weights, name, num_heads)
        self.cross = CrossAttention(weights, name, num_heads)
        self.feed_forward = FeedForward(weights, name)
        self.num_heads = num_heads

    def step(
        self,
        x: Float32[Array, "B D"],
        past: Masked,
        groups: Sequence[LayerKV],
        recent: LayerKV,
        step: Int32[Array, ""],
    ) -> tuple[Float32[Array, "B D"], LayerKV]:
        """One token a row: its new hidden state, and the burst's keys and values with the token's."""
        q, k, v = self.attention.project(x)
        recent = LayerKV(_with(recent.k, k, step), _with(recent.v, v, step))
        seen = jnp.arange(recent.k.shape[1], dtype=jnp.int32)[None] <= step
        own = Masked(*recent, jnp.broadcast_to(seen, recent.k.shape[:2]))
        x = x + self.attention.out(recent_attention(q, past, own, self.num_heads))
        x = x + self.cross.attend(x, groups)
        return self.feed_forward(x), recent


class Decoder(nnx.Module):
    """Logits of the next token, one token a row at a time."""

    def __init__(self, weights: Weights, dims: ModelDims) -> None:
        self.embedding = nnx.Param(weights.array("decoder.embed_tokens.weight"))
        self.lookup = nnx.Param(to_storage(self.embedding[...]))
        self.positions = nnx.Param(weights.array("decoder.embed_positions.weight", jnp.float32))
        self.layers = nnx.List(
            DecoderLayer(weights, f"decoder.layers.{i}", dims.decoder_heads)
            for i in range(dims.decoder_layers)
        )
        self.norm = LayerNorm(*weights.norm("decoder.layer_norm"))
        self.dtype = weights.dtype

    def keys_values(self, frames: Float[Array, "B F D"]) -> tuple[LayerKV, ...]:
        """Cross-attention keys and values of every layer, computed once a window."""
        return tuple(layer.cross.keys_values(frames) for layer in self.layers)

    def step(
        self,
        token: Int32[Array, " B"],
        context: Context,
        recent: tuple[LayerKV, ...],
        step: Int32[Array, ""],
    ) -> tuple[Float32[Array, "B V"], tuple[LayerKV, ...]]:
        """Logits after one more token a row, the burst's step-th, and the burst's keys and values with it."""
        position = jnp.minimum(context.past_len + step, self.positions.shape[0] - 1)
        x = self.embed(token) + self.positions[...][position]
        seen = jnp.arange(context.past[0].k.shape[2], dtype=jnp.int32)[None] < context.past_len[:, None]
        new = []
        for i, layer in enumerate(self.layers):
            groups = [group[i] for group in context.crosses]
            x, own = layer.step(x, Masked(*context.past[i], seen), groups, recent[i], step)
            new.append(own)
        return self.logits(x), tuple(new)

    def logits(self, x: Float32[Array, "B D"]) -> Float32[Array, "B V"]:
        """Logits of the token after each hidden state."""
        hidden = self.norm(x).astype(self.dtype)
        contract = (((1,), (1,)), ((), ()))
        return lax.dot_general(hidden, self.embedding[...], contract, preferred_element_type=jnp.float32)

    def embed(self, token: Int32[Array, " B"]) -> Float32[Array, "B D"]:
        """Embeddings of tokens, without their positions."""
        return from_storage(self.lookup[...][token]).astype(jnp.float32)


class WhisperModel(nnx.Module):
    """Both halves of a Whisper model."""

    def __init__(self, weights: Weights, dims: ModelDims) -> None:
        self.encoder = Encoder(weights, dims)
        self.decoder = Decoder(weights, dims)


def _with(buffer: Float[Array, "B K D"], row: Float[Array, "B D"], step: Int32[Array, ""]) -> Array:
    return lax.dynamic_update_slice_in_dim(buffer, row[:, None], step, axis=1)


def _neighbours(x: Float[Array, "B T C"]) -> Float[Array, "B T C3"]:
    """Every frame with the one before and the one after: a convolution of width 3 as a product."""
    padded = jnp.pad(x, ((0, 0), (1, 1), (0, 0)))
    return jnp.concatenate([padded[:, :-2], x, padded[:, 2:]], axis=-1)


def _neighbours_of_even(x: Float[Array, "B T C"]) -> Float[Array, "B F C3"]:
    """As `_neighbours`, for the even frames only: a convolution of width 3 and stride 2."""
    B, T, C = x.shape
    pairs = x.reshape(B, T // 2, 2, C)
    even, odd = pairs[:, :, 0], pairs[:, :, 1]
    before = jnp.pad(odd, ((0, 0), (1, 0), (0, 0)))[:, :-1]
    return jnp.concatenate([before, even, odd], axis=-1)
