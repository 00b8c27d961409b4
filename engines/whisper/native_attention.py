"""Attention in the native kernels of a CPU, on bfloat16 keys and values in the kernels' own order."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32

from headrace.engines import native
from headrace.engines.native import BEST_LEVEL
from headrace.engines.whisper.attention import Attention, Frames, LayerKV, XlaAttention

MULTIPLE = 32
"""Head sizes and room for frames are multiples of this."""


class NativeAttention:
    """Keys are [slots, N, room / 16, H / 2, 16, 2] and values [slots, N, H / 16, room / 2, 16, 2], flat."""

    def __init__(self, num_heads: int, level: int = BEST_LEVEL) -> None:
        self.num_heads = num_heads
        self.level = level

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NativeAttention) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((NativeAttention, self.num_heads, self.level))

    def of_frames(self, qkv: Float[Array, "B F D3"]) -> Float[Array, "B F D"]:
        B, F, D3 = qkv.shape
        shape = jax.ShapeDtypeStruct((B, F, D3 // 3), jnp.bfloat16)
        call = jax.ffi.ffi_call(native.ENCODER_ATTENTION, shape)
        return call(qkv, num_heads=np.int64(self.num_heads), level=np.int64(self.level))

    def empty(self, num_slots: int, length: int, width: int, dtype: jnp.dtype) -> LayerKV:
        assert dtype == jnp.bfloat16, "the kernels take bfloat16 alone"
        room = -(-length // MULTIPLE) * MULTIPLE
        shape = (num_slots, self.num_heads, room * width // self.num_heads)
        return LayerKV(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))

    def put_frames(self, layer: LayerKV, kv: Float[Array, "E F D2"], slots: Int32[Array, " E"]) -> LayerKV:
        call = jax.ffi.ffi_call(
            native.PACK_FRAMES,
            [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in layer],
            input_output_aliases={1: 0, 2: 1},
        )
        return LayerKV(*call(kv, *layer, slots, **self._sizes(kv.shape[-1] // 2)))

    def frames_at(
        self, layer: LayerKV, slot: Int32[Array, ""], num_frames: int
    ) -> tuple[Float[Array, "F D"], Float[Array, "F D"]]:
        N = self.num_heads
        k, v = layer.k[slot], layer.v[slot]
        # A layer's width is not in its shape: both orders hold room * H numbers a head.
        room = -(-num_frames // MULTIPLE) * MULTIPLE
        H = k.shape[1] // room
        keys = k.reshape(N, room // 16, H // 2, 16, 2).transpose(1, 3, 0, 2, 4).reshape(room, N * H)
        values = v.reshape(N, H // 16, room // 2, 16, 2).transpose(2, 4, 0, 1, 3).reshape(room, N * H)
        return keys[:num_frames], values[:num_frames]

    def to_frames(self, q: Float[Array, "B D"], layer: LayerKV, frames: Frames) -> Float[Array, "B D"]:
        call = jax.ffi.ffi_call(native.CROSS_ATTENTION, jax.ShapeDtypeStruct(q.shape, q.dtype))
        slots, lengths = (jnp.repeat(x, len(q) // len(x)) for x in frames)
        return call(q, *layer, slots, lengths, **self._sizes(q.shape[1]))

    def to_tokens(
        self, qkv: Float[Array, "B D3"], layer: LayerKV, position: Int32[Array, " B"]
    ) -> tuple[Float[Array, "B D"], LayerKV]:
        B, D3 = qkv.shape
        call = jax.ffi.ffi_call(
            native.SELF_ATTENTION,
            [
                jax.ShapeDtypeStruct((B, D3 // 3), qkv.dtype),
                *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in layer),
            ],
            input_output_aliases={1: 1, 2: 2},
        )
        out, *new = call(qkv, *layer, position, **self._sizes(D3 // 3))
        return out, LayerKV(*new)

    def _sizes(self, width: int) -> dict[str, np.int64]:
        return {"head_size": np.int64(width // self.num_heads), "level": np.int64(self.level)}


def choose_attention(num_heads: int, width: int, dtype: jnp.dtype) -> Attention:
    """The native kernels where they can run, else plain XLA."""
    head_size = width // num_heads
    is_fit = dtype == jnp.bfloat16 and head_size % MULTIPLE == 0 and head_size <= 128
    return (
        NativeAttention(num_heads)
        if is_fit and native.is_available(native.CROSS_ATTENTION)
        else XlaAttention(num_heads)
    )
