"""Attention of the encoder and of one decoder step."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Float32

QUERY_ROWS = 300
"""Query rows of one block on a CPU: the block's scores stay in the cache."""


class Masked(NamedTuple):
    """Keys and values, and which of them a row may see."""

    k: Float[Array, "B *context"]
    v: Float[Array, "B *context"]
    mask: Bool[Array, "B S"]


def encoder_attention(
    q: Float[Array, "B F D"], k: Float[Array, "B F D"], v: Float[Array, "B F D"], num_heads: int
) -> Float[Array, "B F D"]:
    """Full attention among the frames; `q` is scaled already."""
    heads = [_split_heads(x, num_heads) for x in (q, k, v)]
    out = lax.platform_dependent(*heads, cpu=_attend_by_blocks, default=_attend)
    return jnp.swapaxes(out, 1, 2).reshape(q.shape)


def cross_attention(
    q: Float[Array, "B D"], k: Float[Array, "B D F"], v: Float[Array, "B D F"], num_heads: int
) -> Float[Array, "B D"]:
    """Attention of one query a row over the row's frames; `q` is scaled already."""
    weights = jax.nn.softmax(_scores(q, k, num_heads), axis=-1)
    return _mix(weights, v).astype(q.dtype)


def recent_attention(
    q: Float[Array, "B D"], past: Masked, recent: Masked, num_heads: int
) -> Float[Array, "B D"]:
    """Attention of one query a row over a long past, [B D S], and the burst's few tokens, [B K D]."""
    scores = [
        jnp.where(past.mask[:, None], _scores(q, past.k, num_heads), -jnp.inf),
        jnp.where(recent.mask[:, None], _few_scores(q, recent.k, num_heads), -jnp.inf),
    ]
    weights = jax.nn.softmax(jnp.concatenate(scores, axis=-1), axis=-1)
    of_past, of_recent = jnp.split(weights, [past.k.shape[2]], axis=-1)
    return (_mix(of_past, past.v) + _few_mix(of_recent, recent.v)).astype(q.dtype)


def _scores(q: Float[Array, "B D"], k: Float[Array, "B D S"], num_heads: int) -> Float32[Array, "B N S"]:
    """Scores of all heads of a row by one product.

    The query of head n becomes row n of a matrix that is zero outside of that head's columns, so that the
    keys are read once, in the order they lie in, by a product with as many rows as there are heads. On a CPU
    that is 6 to 10 times faster than a product a head, and keys and values with the context minor are half
    as dear as with it major.
    """
    own = _own_columns(num_heads, q.shape[1]).astype(q.dtype)
    return jnp.einsum("bnd,bds->bns", q[:, None] * own[None], k, preferred_element_type=jnp.float32)


def _mix(weights: Float32[Array, "B N S"], v: Float[Array, "B D S"]) -> Float32[Array, "B D"]:
    """Values of all heads of a row by one product, of which each head keeps its own columns."""
    mixed = jnp.einsum("bns,bds->bnd", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
    return jnp.sum(mixed * _own_columns(weights.shape[1], v.shape[1])[None], axis=1)


def _own_columns(num_heads: int, width: int) -> Float32[Array, "N D"]:
    """1 where a column belongs to a head."""
    return jnp.repeat(jnp.eye(num_heads, dtype=jnp.float32), width // num_heads, axis=1)


def _few_scores(q: Float[Array, "B D"], k: Float[Array, "B K D"], num_heads: int) -> Float32[Array, "B N K"]:
    """As `_scores`, without a product: for few keys its start costs more than its work."""
    B, K, D = k.shape
    terms = q.astype(jnp.float32)[:, None] * k.astype(jnp.float32)
    return jnp.swapaxes(jnp.sum(terms.reshape(B, K, num_heads, D // num_heads), axis=-1), 1, 2)


def _few_mix(weights: Float32[Array, "B N K"], v: Float[Array, "B K D"]) -> Float32[Array, "B D"]:
    B, K, D = v.shape
    N = weights.shape[1]
    values = v.astype(jnp.float32).reshape(B, K, N, D // N)
    return jnp.sum(jnp.swapaxes(weights, 1, 2)[..., None] * values, axis=1).reshape(B, D)


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
