"""Every form of attention equals the plain one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headrace.engines.whisper.attention import (
    Masked,
    _attend,
    _attend_by_blocks,
    cross_attention,
    encoder_attention,
    recent_attention,
)

N, H = 3, 8


def plain(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """One query [N, H] over keys and values [S, N, H], in float64."""
    scores = np.einsum("nh,snh->ns", q.astype(np.float64), k)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("ns,snh->nh", weights / weights.sum(-1, keepdims=True), v).reshape(-1)


def random(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape), jnp.float32)


def test_cross_attention_equals_a_product_a_head():
    q, k, v = random(4, N * H), random(4, 50, N * H), random(4, 50, N * H) + 1.0
    got = cross_attention(q, jnp.swapaxes(k, 1, 2), jnp.swapaxes(v, 1, 2), N)
    for b in range(4):
        want = plain(np.asarray(q[b]).reshape(N, H), *(np.asarray(x[b]).reshape(50, N, H) for x in (k, v)))
        np.testing.assert_allclose(got[b], want, atol=1e-5)


@pytest.mark.parametrize("past_len", [0, 1, 37, 40])
def test_past_and_burst_together_equal_one_context(past_len: int):
    q, k, v = random(2, N * H), random(2, 44, N * H), random(2, 44, N * H) - 1.0
    past_mask = jnp.broadcast_to(jnp.arange(40)[None] < past_len, (2, 40))
    recent_mask = jnp.broadcast_to(jnp.arange(4)[None] <= 2, (2, 4))
    past = Masked(jnp.swapaxes(k[:, :40], 1, 2), jnp.swapaxes(v[:, :40], 1, 2), past_mask)
    got = recent_attention(q, past, Masked(k[:, 40:], v[:, 40:], recent_mask), N)
    seen = [*range(past_len), 40, 41, 42]
    for b in range(2):
        keys, values = (np.asarray(x[b])[seen].reshape(-1, N, H) for x in (k, v))
        want = plain(np.asarray(q[b]).reshape(N, H), keys, values)
        np.testing.assert_allclose(got[b], want, atol=1e-5)


@pytest.mark.parametrize("frames", [1500, 600, 77])
def test_encoder_attention_by_blocks_equals_full_scores(frames: int):
    q, k, v = (random(2, N, frames, H) + shift for shift in (0.0, 0.5, 1.0))
    np.testing.assert_allclose(_attend_by_blocks(q, k, v), _attend(q, k, v), atol=2e-5)


def test_encoder_attention_keeps_heads_apart():
    q, k, v = random(1, 20, N * H), random(1, 20, N * H) + 0.5, random(1, 20, N * H)
    got = encoder_attention(q, k, v, N)
    keys, values = (np.asarray(x[0]).reshape(20, N, H) for x in (k, v))
    want = [plain(np.asarray(q[0, i]).reshape(N, H), keys, values) for i in range(20)]
    np.testing.assert_allclose(got[0], np.stack(want), atol=1e-5)
