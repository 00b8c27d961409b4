"""Attention of the encoder and of one decoder step: one set of functions, two backends.

The one in plain XLA runs everywhere and is the reference of the other, the native kernels of a CPU. Keys and
values lie as their backend wants them: nothing outside of this module and `native_attention` looks inside.
"""

import math
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Float32, Int32, Shaped

from headrace.engines.whisper.storage import from_storage, storage_dtype, to_storage

QUERY_ROWS = 300
"""Query rows of one block on a CPU: the block's scores stay in the cache."""


REORDERED = 64
"""Tokens whose keys and values are reordered at a time."""


class LayerKV(NamedTuple):
    """Keys and values of one layer for all slots, in their backend's layout."""

    k: Shaped[Array, "slots *layout"]
    v: Shaped[Array, "slots *layout"]


class Frames(NamedTuple):
    """Which of a layer's frames the rows attend to: as many rows after each other as there are for a slot."""

    slots: Int32[Array, " W"]
    """The slot that they lie in."""
    lengths: Int32[Array, " W"]
    """How many of them hold audio, counted from the first; 0 where nothing is asked for."""


@runtime_checkable
class Attention(Protocol):
    """What a model asks of its backend; queries are scaled already."""

    num_heads: int

    def of_frames(self, qkv: Float[Array, "B F D3"]) -> Float[Array, "B F D"]:
        """Full attention among the frames of a window."""
        ...

    def empty_frames(self, num_slots: int, num_frames: int, width: int, dtype: jnp.dtype) -> LayerKV:
        """Room for keys and values of frames in each slot."""
        ...

    def empty_tokens(self, num_slots: int, length: int, width: int, dtype: jnp.dtype) -> LayerKV:
        """Room for keys and values of `length` tokens in each slot."""
        ...

    def put_frames(self, layer: LayerKV, kv: Float[Array, "E F D2"], slots: Int32[Array, " E"]) -> LayerKV:
        """The layer with windows' keys and values in their slots. Donates layer."""
        ...

    def frames_at(
        self, layer: LayerKV, slot: Int32[Array, ""], num_frames: int
    ) -> tuple[Float[Array, "F D"], Float[Array, "F D"]]:
        """Keys and values of one slot's frames, as near to what was put as they are stored."""
        ...

    def to_frames(self, q: Float[Array, "B D"], layer: LayerKV, frames: Frames) -> Float[Array, "B D"]:
        """Attention of one query a row over the row's frames; some finite numbers where it has none."""
        ...

    def to_tokens(
        self, qkv: Float[Array, "B D3"], layer: LayerKV, position: Int32[Array, " B"]
    ) -> tuple[Float[Array, "B D"], LayerKV]:
        """Attention of one token a row over itself and the row's tokens before it.

        Row i lies in slot i; its key and value are written at `position`. Donates layer.
        """
        ...


class XlaAttention:
    """Plain XLA, on any device: keys and values are [slots, D, length] as they are stored."""

    def __init__(self, num_heads: int) -> None:
        self.num_heads = num_heads

    def __eq__(self, other: object) -> bool:
        return isinstance(other, XlaAttention) and other.num_heads == self.num_heads

    def __hash__(self) -> int:
        return hash((XlaAttention, self.num_heads))

    def of_frames(self, qkv: Float[Array, "B F D3"]) -> Float[Array, "B F D"]:
        heads = [_split_heads(x, self.num_heads) for x in jnp.split(qkv, 3, axis=-1)]
        out = lax.platform_dependent(*heads, cpu=_attend_by_blocks, default=_attend)
        B, F, D3 = qkv.shape
        return jnp.swapaxes(out, 1, 2).reshape(B, F, D3 // 3)

    def empty_frames(self, num_slots: int, num_frames: int, width: int, dtype: jnp.dtype) -> LayerKV:
        return self.empty_tokens(num_slots, num_frames, width, dtype)

    def empty_tokens(self, num_slots: int, length: int, width: int, dtype: jnp.dtype) -> LayerKV:
        shape, stored = (num_slots, width, length), storage_dtype(dtype)
        return LayerKV(jnp.zeros(shape, stored), jnp.zeros(shape, stored))

    def put_frames(self, layer: LayerKV, kv: Float[Array, "E F D2"], slots: Int32[Array, " E"]) -> LayerKV:
        new = LayerKV(*jnp.split(to_storage(jnp.swapaxes(kv, 1, 2)), 2, axis=1))

        def put(old: Array, new: Array) -> Array:
            for row in range(new.shape[0]):
                old = lax.dynamic_update_slice_in_dim(old, new[row][None], slots[row], axis=0)
            return old

        return jax.tree.map(put, layer, new)

    def frames_at(
        self, layer: LayerKV, slot: Int32[Array, ""], num_frames: int
    ) -> tuple[Float[Array, "F D"], Float[Array, "F D"]]:
        k, v = (from_storage(x[slot]).T[:num_frames] for x in layer)
        return k, v

    def to_frames(self, q: Float[Array, "B D"], layer: LayerKV, frames: Frames) -> Float[Array, "B D"]:
        num_slots = len(frames.slots)
        k, v = (from_storage(x[:num_slots]) for x in layer)  # slot i is that of the i-th rows
        seen = jnp.arange(k.shape[2], dtype=jnp.int32)[None] < jnp.maximum(frames.lengths, 1)[:, None]
        grouped = q.reshape(num_slots, -1, q.shape[1])
        return _attend_some(grouped, k, v, seen, self.num_heads).reshape(q.shape)

    def to_tokens(
        self, qkv: Float[Array, "B D3"], layer: LayerKV, position: Int32[Array, " B"]
    ) -> tuple[Float[Array, "B D"], LayerKV]:
        q, k, v = jnp.split(qkv, 3, axis=-1)
        row = jnp.arange(q.shape[0], dtype=jnp.int32)

        def put(old: Array, new: Array) -> Array:
            return old.at[row, :, position].set(to_storage(new), mode="drop")

        layer = LayerKV(put(layer.k, k), put(layer.v, v))
        keys, values = (from_storage(x[: q.shape[0]]) for x in layer)
        seen = jnp.arange(keys.shape[2], dtype=jnp.int32)[None] <= position[:, None]
        return _attend_some(q[:, None], keys, values, seen, self.num_heads)[:, 0], layer

    def reorder(self, layer: LayerKV, source: Int32[Array, " R"], num_tokens: Int32[Array, ""]) -> LayerKV:
        """The layer with the first rows' keys and values as those of other rows, as far as tokens reach.

        Row i becomes row source[i] as it was. The layer has room for a multiple of REORDERED. Donates layer.
        """
        count = (num_tokens + REORDERED - 1) // REORDERED

        def move(index: Int32[Array, ""], old: Array) -> Array:
            place = (0, 0, index * REORDERED)
            part = lax.dynamic_slice(old, place, (len(source), old.shape[1], REORDERED))
            return lax.dynamic_update_slice(old, part[source], place)

        return jax.tree.map(lambda old: lax.fori_loop(0, count, move, old), layer)


def _attend_some(
    q: Float[Array, "B R D"],
    k: Float[Array, "B D S"],
    v: Float[Array, "B D S"],
    seen: Bool[Array, "B S"],
    num_heads: int,
) -> Float[Array, "B R D"]:
    """Attention of a few rows each to the keys and values that they share."""
    scores = jnp.where(seen[:, None], _scores(q, k, num_heads), -jnp.inf)
    return _mix(jax.nn.softmax(scores, axis=-1), v, num_heads).astype(q.dtype)


def _scores(q: Float[Array, "B R D"], k: Float[Array, "B D S"], num_heads: int) -> Float32[Array, "B RN S"]:
    """Scores of all heads of all rows by one product.

    The query of head n becomes row n of a matrix that is zero outside of that head's columns, so that the
    keys are read once, in the order they lie in, by a product with as many rows as there are heads. On a CPU
    that is 6 to 10 times faster than a product a head, and keys and values with the context minor are half
    as dear as with it major.
    """
    B, R, D = q.shape
    own = _own_columns(num_heads, D).astype(q.dtype)
    spread = (q[:, :, None] * own[None, None]).reshape(B, R * num_heads, D)
    return jnp.einsum("bnd,bds->bns", spread, k, preferred_element_type=jnp.float32)


def _mix(
    weights: Float32[Array, "B RN S"], v: Float[Array, "B D S"], num_heads: int
) -> Float32[Array, "B R D"]:
    """Values of all heads of all rows by one product, of which each head keeps its own columns."""
    mixed = jnp.einsum("bns,bds->bnd", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
    own = _own_columns(num_heads, v.shape[1])
    return jnp.sum(mixed.reshape(len(v), -1, *own.shape) * own[None, None], axis=2)


def _own_columns(num_heads: int, width: int) -> Float32[Array, "N D"]:
    """1 where a column belongs to a head."""
    return jnp.repeat(jnp.eye(num_heads, dtype=jnp.float32), width // num_heads, axis=1)


def _split_heads(x: Float[Array, "B F D"], num_heads: int) -> Float[Array, "B N F H"]:
    B, F, D = x.shape
    return jnp.swapaxes(x.reshape(B, F, num_heads, D // num_heads), 1, 2)


def _attend(q: Array, k: Array, v: Array) -> Array:
    """[B N F H] each."""
    scores = jnp.einsum("bnqh,bnfh->bnqf", q, k, preferred_element_type=jnp.float32)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    return jnp.einsum("bnqf,bnfh->bnqh", weights, v, preferred_element_type=jnp.float32).astype(v.dtype)


def _attend_by_blocks(q: Array, k: Array, v: Array) -> Array:
    """As `_attend`, one head and one block of query rows at a time.

    A column of ones beside the values makes their product sum the weights too.
    """
    B, N, F, H = q.shape
    rows = math.gcd(F, QUERY_ROWS)

    def one_head(qkv: tuple[Array, Array, Array]) -> Array:
        q, keys, v = qkv
        values = jnp.concatenate([v, jnp.ones((F, 1), v.dtype)], axis=1)

        def one_block(q: Array) -> Array:
            scores = jnp.matmul(q, keys, preferred_element_type=jnp.float32)
            weights = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True)).astype(v.dtype)
            mixed = jnp.matmul(weights, values, preferred_element_type=jnp.float32)
            return (mixed[:, :H] / mixed[:, H:]).astype(v.dtype)

        return lax.map(one_block, q.reshape(F // rows, rows, H)).reshape(F, H)

    heads = q.reshape(B * N, F, H), jnp.swapaxes(k, 2, 3).reshape(B * N, H, F), v.reshape(B * N, F, H)
    return lax.map(one_head, heads).reshape(B, N, F, H)
