"""Attention in the native kernels of a CPU, on keys and values in the kernels' own order.

Those of tokens are bfloat16, those of frames have 8 bits: attention to frames is mostly reading them.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Float32, Int32, UInt8

from headrace.engines import native
from headrace.engines.native import BEST_LEVEL
from headrace.engines.whisper.attention import Attention, Frames, LayerKV, XlaAttention

MULTIPLE = 32
"""Head sizes and room for frames are multiples of this."""


class NativeAttention:
    """Tokens' keys are [slots, N, room / 16, H / 2, 16, 2], their values [slots, N, H / 16, room / 2, 16, 2].

    Frames' keys are bytes [slots, N, room / 16, H / 4, 16, 4], 128 more than they are, and their values
    signed bytes [slots, N, H / 16, room / 4, 16, 4]. After either, bfloat16 [room] scales the frames and
    float32 [H] the columns. All axes but the first two are flat.
    """

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

    def empty_frames(self, num_slots: int, num_frames: int, width: int, dtype: jnp.dtype) -> LayerKV:
        assert dtype == jnp.bfloat16, "the kernels take bfloat16 alone"
        H = width // self.num_heads
        shape = (num_slots, self.num_heads, _room(num_frames) * (H + 2) + 4 * H)
        return LayerKV(native.zeros(shape, jnp.uint8), native.zeros(shape, jnp.uint8))

    def empty_tokens(self, num_slots: int, length: int, width: int, dtype: jnp.dtype) -> LayerKV:
        assert dtype == jnp.bfloat16, "the kernels take bfloat16 alone"
        shape = (num_slots, self.num_heads, _room(length) * width // self.num_heads)
        return LayerKV(native.zeros(shape, dtype), native.zeros(shape, dtype))

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
        N, room = self.num_heads, _room(num_frames)
        H = (layer.k.shape[2] - 2 * room) // (room + 4)
        k, v = (_Bytes.of(x[slot], room, H) for x in layer)
        keys = k.bytes.reshape(N, room // 16, H // 4, 16, 4).transpose(1, 3, 0, 2, 4)
        values = v.bytes.reshape(N, H // 16, room // 4, 16, 4).transpose(2, 4, 0, 1, 3)
        keys = keys.astype(jnp.float32) - 128
        values = lax.bitcast_convert_type(values, jnp.int8).astype(jnp.float32)

        def scaled(whole: Float32[Array, "..."], packed: _Bytes) -> Float[Array, "F D"]:
            by_frame = whole.reshape(room, N, H) * packed.frames.T[:, :, None] * packed.columns[None]
            return by_frame.reshape(room, N * H)[:num_frames].astype(jnp.bfloat16)

        return scaled(keys, k), scaled(values, v)

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


class _Bytes(NamedTuple):
    """Keys or values of one slot's frames, taken apart."""

    bytes: UInt8[Array, "N size"]
    frames: Float32[Array, "N room"]
    columns: Float32[Array, "N H"]

    @classmethod
    def of(cls, packed: UInt8[Array, "N packed"], room: int, head_size: int) -> "_Bytes":
        N, size = packed.shape[0], room * head_size
        frames, columns = packed[:, size : size + 2 * room], packed[:, size + 2 * room :]
        return cls(
            packed[:, :size],
            lax.bitcast_convert_type(frames.reshape(N, room, 2), jnp.bfloat16).astype(jnp.float32),
            lax.bitcast_convert_type(columns.reshape(N, head_size, 4), jnp.float32),
        )


def _room(length: int) -> int:
    return -(-length // MULTIPLE) * MULTIPLE


def choose_attention(num_heads: int, width: int, dtype: jnp.dtype) -> Attention:
    """The native kernels where they can run, else plain XLA."""
    head_size = width // num_heads
    is_fit = dtype == jnp.bfloat16 and head_size % MULTIPLE == 0 and head_size <= 128
    return (
        NativeAttention(num_heads)
        if is_fit and native.is_available(native.CROSS_ATTENTION)
        else XlaAttention(num_heads)
    )
