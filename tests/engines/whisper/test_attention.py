"""Every form of attention equals the plain one, in both backends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headrace.engines import native
from headrace.engines.whisper.attention import (
    Attention,
    Frames,
    LayerKV,
    XlaAttention,
    _attend,
    _attend_by_blocks,
)
from headrace.engines.whisper.native_attention import NativeAttention

N, H = 3, 32
needs_native = pytest.mark.skipif(
    not native.is_available(native.CROSS_ATTENTION), reason="the native kernels are not built"
)
XLA = XlaAttention(N)
BFLOAT16 = jnp.dtype(jnp.bfloat16)
LEVELS = [pytest.param(NativeAttention(N, level), marks=needs_native) for level in range(5)]
BACKENDS = [XLA, *LEVELS]


def plain(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """One query [N, H] over keys and values [S, N, H], in float64."""
    scores = np.einsum("nh,snh->ns", q.astype(np.float64), k)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("ns,snh->nh", weights / weights.sum(-1, keepdims=True), v).reshape(-1)


def random(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape), jnp.bfloat16)


def heads(x: jax.Array | np.ndarray) -> np.ndarray:
    return np.asarray(x.astype(np.float32)).reshape(*x.shape[:-1], N, H)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_query_reads_the_frames_of_its_row(backend: Attention):
    q, kv = random(3, N * H) * jnp.bfloat16(0.2), random(3, 50, 2 * N * H) + jnp.bfloat16(0.5)
    layer = backend.empty_frames(3, 50, N * H, BFLOAT16)
    for row in range(3):
        layer = jax.jit(backend.put_frames, donate_argnums=0)(layer, kv[row : row + 1], jnp.array([row]))
    lengths = (50, 1, 37)
    got = backend.to_frames(q, layer, Frames(jnp.arange(3), jnp.array(lengths)))
    for row, length in enumerate(lengths):
        k, v = (heads(x)[:length] for x in jnp.split(kv[row], 2, axis=-1))
        want = plain(heads(q[row]), k, v)
        np.testing.assert_allclose(got[row].astype(jnp.float32), want, atol=2e-2)


def put_one(backend: Attention, kv: jax.Array) -> LayerKV:
    """A window's keys and values [F, 2 D] in the second of two slots."""
    layer = backend.empty_frames(2, len(kv), N * H, BFLOAT16)
    return jax.jit(backend.put_frames, donate_argnums=0)(layer, kv[None], jnp.array([1]))


def test_frames_come_back_as_they_were_put():
    kv = random(50, 2 * N * H)
    got = XLA.frames_at(put_one(XLA, kv), jnp.int32(1), 50)
    for part, want in zip(got, jnp.split(kv, 2, axis=-1), strict=True):
        np.testing.assert_array_equal(part.astype(jnp.float32), want.astype(jnp.float32))


@pytest.mark.parametrize("backend", LEVELS)
def test_frames_of_8_bits_come_back_to_half_a_step_of_their_column(backend: Attention):
    kv = random(50, 2 * N * H).astype(jnp.float32)
    kv = kv.at[:, 7].mul(40.0).at[:, 2 * H + 5].mul(0.02)  # each column has its own scale,
    kv = kv.at[3].mul(0.01).at[4].set(0.0).at[:, 9].set(0.0).astype(jnp.bfloat16)  # and each frame
    got = backend.frames_at(put_one(backend, kv), jnp.int32(1), 50)
    for part, want in zip(got, jnp.split(kv, 2, axis=-1), strict=True):
        part, want = np.asarray(part.astype(jnp.float32)), np.asarray(want.astype(jnp.float32))
        column = np.abs(want).max(axis=0)
        share = np.abs(heads(want / np.maximum(column, 1e-30))).max(axis=-1)  # of a frame, head by head
        step = column * np.repeat(share, H, axis=1) / 127
        assert np.all(np.abs(part - want) <= 0.51 * step + np.abs(want) / 256)


@pytest.mark.parametrize("backend", LEVELS)
def test_8_bits_of_real_sizes_cost_little_and_no_instruction_set_more(backend: Attention):
    q = random(1, N * H) * jnp.bfloat16(0.3)
    kv = random(1500, 2 * N * H)
    layer, frames = put_one(backend, kv), Frames(jnp.array([1]), jnp.array([1490]))
    got = np.asarray(backend.to_frames(q, layer, frames).astype(jnp.float32))[0]
    k, v = (heads(x)[:1490] for x in jnp.split(kv, 2, axis=-1))
    want = plain(heads(q[0]), k, v)
    assert np.linalg.norm(got - want) <= 0.02 * np.linalg.norm(want)
    k, v = (heads(x)[:1490] for x in backend.frames_at(layer, jnp.int32(1), 1500))
    np.testing.assert_allclose(got, plain(heads(q[0]), k, v), atol=4e-3)  # theirs are rounded to bfloat16


@pytest.mark.parametrize("backend", LEVELS)
def test_the_largest_bytes_of_many_frames_are_summed_exactly(backend: Attention):
    signs = jnp.where(jnp.arange(N * H) % 3 == 0, jnp.bfloat16(-1), jnp.bfloat16(1))
    kv = jnp.broadcast_to(jnp.concatenate([jnp.ones_like(signs), signs]), (1500, 2 * N * H))
    for sign in (1, -1):  # every score is the same, and every byte at its end
        q = jnp.full((1, N * H), sign, jnp.bfloat16)
        got = backend.to_frames(q, put_one(backend, kv), Frames(jnp.array([1]), jnp.array([1500])))
        np.testing.assert_array_equal(got[0].astype(jnp.float32), signs.astype(jnp.float32))


@needs_native
def test_a_row_reads_its_frames_alike_whatever_the_others_are():
    backend = NativeAttention(N)
    q, kv = random(2, N * H), random(2, 77, 2 * N * H)
    read = []
    for other in (0.0, 100.0):
        layer = backend.empty_frames(2, 77, N * H, BFLOAT16)
        put = jax.jit(backend.put_frames, donate_argnums=0)
        layer = put(layer, kv.at[0].mul(jnp.bfloat16(other)), jnp.array([0, 1]))
        read.append(backend.to_frames(q, layer, Frames(jnp.arange(2), jnp.array([77, 60])))[1])
    np.testing.assert_array_equal(*(x.astype(jnp.float32) for x in read))


@pytest.mark.parametrize("backend", BACKENDS)
def test_tokens_read_those_before_them_in_their_row(backend: Attention):
    tokens = random(40, 2, 3 * N * H)
    layer = backend.empty_tokens(4, 40, N * H, BFLOAT16)
    step = jax.jit(backend.to_tokens, donate_argnums=1)
    start = (0, 3)  # the second row begins later: what lies before is empty
    for t in range(37):
        got, layer = step(tokens[t], layer, jnp.array([t, t + start[1]]))
    for row in range(2):
        q, k, v = (heads(x) for x in jnp.split(tokens[:37, row], 3, axis=-1))
        if start[row]:
            k, v = (np.concatenate([np.zeros_like(x[: start[row]]), x]) for x in (k, v))
        want = plain(q[36], k, v)
        np.testing.assert_allclose(got[row].astype(jnp.float32), want, atol=4e-2)


@pytest.mark.parametrize("backend", LEVELS)
@pytest.mark.parametrize("frames", [1, 77, 150])
def test_encoder_attention_equals_full_scores(backend: Attention, frames: int):
    qkv = random(2, frames, 3 * N * H)
    want = XLA.of_frames(qkv)
    got = backend.of_frames(qkv)
    np.testing.assert_allclose(got.astype(jnp.float32), want.astype(jnp.float32), atol=3e-2)


@pytest.mark.parametrize("backend", LEVELS)
@pytest.mark.parametrize("size", [1e-3, 1.0, 30.0])
def test_encoder_attention_sums_the_largest_numbers(backend: Attention, size: float):
    signs = jnp.where(jnp.arange(N * H) % 3 == 0, -size, size)
    qkv = jnp.broadcast_to(jnp.concatenate([signs, signs, signs]), (1, 300, 3 * N * H)).astype(jnp.bfloat16)
    got = backend.of_frames(qkv)  # every score is the same
    np.testing.assert_array_equal(got.astype(jnp.float32), qkv[..., : N * H].astype(jnp.float32))


@pytest.mark.parametrize("backend", LEVELS)
def test_encoder_attention_bears_numbers_that_stand_out(backend: Attention):
    qkv = random(1, 200, 3 * N * H).at[:, :, 5 :: N * H].mul(jnp.bfloat16(12.0))
    qkv = qkv.at[0, 3].set(jnp.bfloat16(0.0))  # a frame of zeros, and one with a single number
    qkv = qkv.at[0, 4, : 2 * N * H].set(jnp.bfloat16(0.0)).at[0, 4, 7].set(20.0)
    want = XLA.of_frames(qkv.astype(jnp.float32))
    np.testing.assert_allclose(backend.of_frames(qkv).astype(jnp.float32), want, atol=3e-2, rtol=1e-2)


@pytest.mark.parametrize("backend", LEVELS)
def test_encoder_attention_of_a_window_is_the_same_beside_any_other(backend: Attention):
    qkv = random(1, 150, 3 * N * H)
    alone, second = backend.of_frames(qkv)[0], backend.of_frames(jnp.concatenate([-qkv, qkv]))[1]
    np.testing.assert_array_equal(alone.astype(jnp.float32), second.astype(jnp.float32))


@pytest.mark.parametrize("frames", [600, 77])
def test_encoder_attention_by_blocks_equals_full_scores(frames: int):
    q, k, v = (random(2, N, frames, 8).astype(jnp.float32) + shift for shift in (0.0, 0.5, 1.0))
    np.testing.assert_allclose(_attend_by_blocks(q, k, v), _attend(q, k, v), atol=2e-5)


def test_encoder_attention_keeps_heads_apart():
    qkv = random(1, 20, 3 * N * H).astype(jnp.float32)
    got = XLA.of_frames(qkv)
    q, k, v = (heads(x[0]) for x in jnp.split(qkv, 3, axis=-1))
    want = [plain(q[i], k, v) for i in range(20)]
    np.testing.assert_allclose(got[0], np.stack(want), atol=1e-5)


@needs_native
def test_a_slot_is_written_without_a_copy_of_the_others():
    backend = NativeAttention(N)
    layer = backend.empty_frames(4, 64, N * H, BFLOAT16)
    put = jax.jit(backend.put_frames, donate_argnums=0)
    program = put.lower(layer, random(1, 64, 2 * N * H), jnp.array([2])).compile().as_text()
    assert program is not None
    assert "custom-call" in program
    assert "copy(" not in program
