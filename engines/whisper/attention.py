"""Attention of the encoder and of one decoder step."""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

QUERY_ROWS = 300
"""Query rows of one block on a CPU: the block's scores stay in the cache."""


def encoder_attention(
    q: Float[Array, "B F D"], k: Float[Array, "B F D"], v: Float[Array, "B F D"], num_heads: int
) -> Float[Array, "B F D"]:
    """Full attention among the frames; `q` is scaled already."""
    attend = lax.platform_dependent
    heads = [_split_heads(x, num_heads) for x in (q, k, v)]
    out = attend(*heads, cpu=_attend_by_blocks, default=_attend)
    return jnp.swapaxes(out, 1, 2).reshape(q.shape)


def decode_attention(
    q: Float[Array, "B D"],
    k: Float[Array, "B S D"],
    v: Float[Array, "B S D"],
    num_heads: int,
    mask: Bool[Array, "B S"] | None = None,
) -> Float[Array, "B D"]:
    """Attention of one query a row over its context; `q` is scaled already.

    All heads of a row go through one product: the query of head n becomes row n of a matrix that is zero
    outside of that head's columns, so that keys and values are read once, in the order they lie in, by a
    product with as many rows as there are heads. On a CPU that is 6 to 10 times faster than a product a head.
    """
    B, D = q.shape
    N, H = num_heads, D // num_heads
    own = jnp.eye(N, dtype=q.dtype)[None, :, :, None]
    queries = (q.reshape(B, 1, N, H) * own).reshape(B, N, D)
    scores = jnp.einsum("bnd,bsd->bns", queries, k, preferred_element_type=jnp.float32)
    if mask is not None:
        scores = jnp.where(mask[:, None, :], scores, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    mixed = jnp.einsum("bns,bsd->bnd", weights, v, preferred_element_type=jnp.float32)
    out = jnp.sum(mixed.reshape(B, N, N, H) * own.astype(jnp.float32), axis=1)
    return out.reshape(B, D).astype(q.dtype)


def _split_heads(x: Float[Array, "B F D"], num_heads: int) -> Float[Array, "B N F H"]:
    B, F, D = x.shape
    return jnp.swapaxes(x.reshape(B, F, num_heads, D // num_heads), 1, 2)


def _attend(q: Array, k: Array, v: Array) -> Array:
    """[B N F H] each."""
    scores = jnp.einsum("bnqh,bnfh->bnqf", q, k, preferred_element_type=jnp.float32)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    return jnp.einsum("bnqf,bnfh->bnqh", weights, v, preferred_element_type=jnp.float32).astype(v.dtype)


def _attend_by_blocks(q: Array, k: Array, v: Array) -> Array:
    """As `_attend`, one head and one block of query rows at a time."""
    B, N, F, H = q.shape
    rows = math.gcd(F, QUERY_ROWS)

    def one_head(qkv: tuple[Array, Array, Array]) -> Array:
        q, k, v = qkv

        def one_block(q: Array) -> Array:
            scores = jnp.matmul(q, k.T, preferred_element_type=jnp.float32)
            weights = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
            total = jnp.sum(weights, axis=-1, keepdims=True)
            mixed = jnp.matmul(weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
            return (mixed / total).astype(v.dtype)

        return lax.map(one_block, q.reshape(F // rows, rows, H)).reshape(F, H)

    out = lax.map(one_head, tuple(x.reshape(B * N, F, H) for x in (q, k, v)))
    return out.reshape(B, N, F, H)
