"""Whisper's encoder and decoder (Radford et al. 2022, arXiv:2212.04356) as Flax NNX modules.

Weights and activations have the model's dtype, bfloat16 or float32; products, normalisation, softmax and
the residual stream are float32.
"""

from typing import NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Float32, Int32

from headrace.engines import native
from headrace.engines.native import Epilogue
from headrace.engines.whisper.attention import Attention, Frames, LayerKV, XlaAttention
from headrace.engines.whisper.config import ModelDims
from headrace.engines.whisper.layers import Convolution, LayerNorm, Linear
from headrace.engines.whisper.native_attention import choose_attention
from headrace.engines.whisper.storage import from_storage, to_storage
from headrace.engines.whisper.weights import Weights, on_device


class Read(NamedTuple):
    """What the rows of a decoder step read beside their own tokens; it does not change meanwhile."""

    crosses: tuple[LayerKV, ...]
    """Keys and values of the encoder's frames, a layer each."""
    frames: Frames
    """Where each row's frames lie."""


class FeedForward(nnx.Module):
    def __init__(self, weights: Weights, name: str) -> None:
        self.norm = LayerNorm(*weights.norm(f"{name}.final_layer_norm"))
        self.up = Linear(weights.linear(f"{name}.fc1"), form=weights.form)
        self.down = Linear(weights.linear(f"{name}.fc2"), form=weights.form)
        self.dtype = weights.dtype

    def __call__(self, x: Float32[Array, "*rows D"]) -> Float32[Array, "*rows D"]:
        hidden = self.up(x, self.norm, Epilogue(gelu=True, dtype=self.dtype))
        return self.down(hidden, epilogue=Epilogue(residual=x))


class SelfAttention(nnx.Module):
    """Projections of an attention whose queries, keys and values come from the same rows."""

    def __init__(self, weights: Weights, name: str, num_heads: int) -> None:
        self.norm = LayerNorm(*weights.norm(f"{name}.self_attn_layer_norm"))
        fused = weights.fused([f"{name}.self_attn.{part}_proj" for part in "qkv"], num_heads)
        self.qkv = Linear(fused, form=weights.form)
        self.out = Linear(weights.linear(f"{name}.self_attn.out_proj"), form=weights.form)
        self.dtype = weights.dtype

    def project(self, x: Float32[Array, "*rows D"]) -> Float[Array, "*rows D3"]:
        """Queries (scaled), keys and values, side by side."""
        return self.qkv(x, self.norm, Epilogue(dtype=self.dtype))


class CrossAttention(nnx.Module):
    """Projections of the attention from decoder rows to encoder frames."""

    def __init__(self, weights: Weights, name: str, num_heads: int) -> None:
        self.norm = LayerNorm(*weights.norm(f"{name}.encoder_attn_layer_norm"))
        own, kv = ([f"{name}.encoder_attn.{part}_proj" for part in parts] for parts in ("q", "kv"))
        self.q = Linear(weights.fused(own, num_heads), form=weights.form)
        self.kv = Linear(weights.fused(kv), form=weights.form)
        self.out = Linear(weights.linear(f"{name}.encoder_attn.out_proj"), form=weights.form)
        self.dtype = weights.dtype

    def project(self, x: Float32[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        """Queries (scaled)."""
        return self.q(x, self.norm, Epilogue(dtype=self.dtype))


class EncoderLayer(nnx.Module):
    def __init__(self, weights: Weights, name: str, num_heads: int) -> None:
        self.attention = SelfAttention(weights, name, num_heads)
        self.feed_forward = FeedForward(weights, name)
        self.backend = choose_attention(num_heads, weights.width, weights.dtype)

    def __call__(self, x: Float32[Array, "B F D"]) -> Float32[Array, "B F D"]:
        mixed = self.backend.of_frames(self.attention.project(x))
        return self.feed_forward(self.attention.out(mixed, epilogue=Epilogue(residual=x)))


class Encoder(nnx.Module):
    """Frames of a window from its log-mel spectrogram."""

    def __init__(self, weights: Weights, dims: ModelDims) -> None:
        self.conv1 = Convolution(weights, "encoder.conv1", stride=1)
        self.conv2 = Convolution(weights, "encoder.conv2", stride=2)
        self.positions = nnx.Param(weights.array("encoder.embed_positions.weight", jnp.float32))
        self.layers = nnx.List(
            EncoderLayer(weights, f"encoder.layers.{i}", dims.encoder_heads)
            for i in range(dims.encoder_layers)
        )
        self.norm = LayerNorm(*weights.norm("encoder.layer_norm"))
        self.num_mels = dims.num_mels
        self.dtype = weights.dtype

    def __call__(self, log_mel: Float32[Array, "B mels T"]) -> Float[Array, "B F D"]:
        x = self.conv1(jnp.swapaxes(log_mel, 1, 2).astype(self.dtype))
        x = self.conv2(x, self.positions[...][: x.shape[1] // 2])
        for layer in self.layers:
            x = layer(x)
        return self.norm(x).astype(self.dtype)


class DecoderLayer(nnx.Module):
    def __init__(self, weights: Weights, name: str, backend: Attention) -> None:
        num_heads = backend.num_heads
        self.attention = SelfAttention(weights, name, num_heads)
        self.cross = CrossAttention(weights, name, num_heads)
        self.feed_forward = FeedForward(weights, name)
        self.num_heads = num_heads
        self.backend = backend

    def step(
        self,
        x: Float32[Array, "B D"],
        own: LayerKV,
        cross: tuple[LayerKV, Frames],
        position: Int32[Array, " B"],
    ) -> tuple[Float32[Array, "B D"], LayerKV]:
        """One token a row: its new hidden state, and the rows' keys and values with the token's."""
        mixed, own = self.backend.to_tokens(self.attention.project(x), own, position)
        x = self.attention.out(mixed, epilogue=Epilogue(residual=x))
        read = self.backend.to_frames(self.cross.project(x), *cross)
        x = self.cross.out(read, epilogue=Epilogue(residual=x))
        return self.feed_forward(x), own


class Decoder(nnx.Module):
    """Logits of the next token, one token a row at a time."""

    def __init__(self, weights: Weights, dims: ModelDims, backend: Attention) -> None:
        embedding = weights.values("decoder.embed_tokens.weight", weights.product_dtype)
        self.head = Linear((embedding, None), form=weights.form)
        rows = None if self.head.is_native else to_storage(on_device(embedding.astype(weights.dtype)))
        self.lookup = None if rows is None else nnx.Param(rows)
        self.num_frames = dims.num_frames
        self.positions = nnx.Param(weights.array("decoder.embed_positions.weight", jnp.float32))
        self.layers = nnx.List(
            DecoderLayer(weights, f"decoder.layers.{i}", backend) for i in range(dims.decoder_layers)
        )
        self.norm = LayerNorm(*weights.norm("decoder.layer_norm"))
        self.dtype = weights.dtype

    def put_frames(
        self, crosses: tuple[LayerKV, ...], frames: Float[Array, "E F D"], slots: Int32[Array, " E"]
    ) -> tuple[LayerKV, ...]:
        """Every layer's keys and values with those of windows in their slots. Donates crosses."""
        epilogue = Epilogue(dtype=self.dtype)
        return tuple(
            layer.backend.put_frames(kv, layer.cross.kv(frames, epilogue=epilogue), slots)
            for layer, kv in zip(self.layers, crosses, strict=True)
        )

    def reorder(
        self, caches: tuple[LayerKV, ...], source: Int32[Array, " R"], num_tokens: Int32[Array, ""]
    ) -> tuple[LayerKV, ...]:
        """The rows' keys and values as those of other rows, as far as tokens reach. Donates caches."""
        moved = []
        for layer, own in zip(self.layers, caches, strict=True):
            assert isinstance(layer.backend, XlaAttention), "it alone reorders rows"
            moved.append(layer.backend.reorder(own, source, num_tokens))
        return tuple(moved)

    def step(
        self,
        token: Int32[Array, " B"],
        caches: tuple[LayerKV, ...],
        read: Read,
        position: Int32[Array, " B"],
    ) -> tuple[Float32[Array, "B V"], tuple[LayerKV, ...]]:
        """Logits after one more token a row, and the rows' keys and values with it. Donates caches."""
        x = self.embed(token) + self.positions[...][jnp.minimum(position, self.positions.shape[0] - 1)]
        new = []
        for layer, own, cross in zip(self.layers, caches, read.crosses, strict=True):
            x, own = layer.step(x, own, (cross, read.frames), position)
            new.append(own)
        return self.logits(x), tuple(new)

    def logits(self, x: Float32[Array, "B D"]) -> Float32[Array, "B V"]:
        """Logits of the token after each hidden state."""
        return self.head(x, self.norm)

    def embed(self, token: Int32[Array, " B"]) -> Float32[Array, "B D"]:
        """Embeddings of tokens, without their positions."""
        if self.lookup is None:
            return native.embed(token, self.head.packed, self.head.num_in)
        return from_storage(self.lookup[...][token]).astype(jnp.float32)


class WhisperModel(nnx.Module):
    """Both halves of a Whisper model; with `has_beams` its decoder can reorder the rows of its cache."""

    def __init__(self, weights: Weights, dims: ModelDims, *, has_beams: bool = False) -> None:
        self.encoder = Encoder(weights, dims)
        chosen = choose_attention(dims.decoder_heads, weights.width, weights.dtype)
        self.decoder = Decoder(weights, dims, XlaAttention(dims.decoder_heads) if has_beams else chosen)
