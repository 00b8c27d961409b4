"""The native product against plain XLA, in every instruction set that the machine has."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from headrace.engines import native
from headrace.engines.native import (
    BEST_LEVEL,
    Epilogue,
    Norm,
    PackedLinear,
    RowsOf,
    embed,
    interleave_gate,
    linear,
    linear_of_rows,
    pack_linear,
    pack_weight,
    quantize_packed,
    round_linear,
    round_packed,
)

pytestmark = pytest.mark.skipif(
    not native.is_available(native.LINEAR), reason="the native kernels are not built"
)
LEVELS = range(BEST_LEVEL + 1)
"""A level above the machine's own runs as that one."""


def random(*shape: int, dtype: jnp.dtype | type = jnp.float32) -> jax.Array:
    return jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape), dtype)


def most_wrong(level: int, num_in: int, exact: float) -> float:
    """Room for a product's error at this level: a random row's, of `num_in` inputs with a spread of 1.

    Where the machine has no products of bfloat16 both sides are rounded, to a 4095th of the largest of 128.
    """
    return exact if native.multiplies_bfloat16(level) else 2e-3 * num_in**0.5


def in_float64(
    x: jax.Array, weight: jax.Array, bias: jax.Array | None, *, is_rounded: bool = True
) -> np.ndarray:
    """The product of rows that are rounded to bfloat16, or of rows as they are."""
    rows = np.asarray(x.astype(jnp.bfloat16) if is_rounded else x, np.float64)
    y = rows @ np.asarray(weight, np.float64).T
    return y if bias is None else y + np.asarray(bias, np.float64)


@pytest.mark.parametrize("level", LEVELS)
# The last is more than one slice of the depth, and more rows than a task has.
@pytest.mark.parametrize("shape", [(1, 16, 16), (7, 48, 40), (33, 240, 100), (200, 64, 32), (600, 1216, 72)])
def test_products_equal_those_in_float64(level: int, shape: tuple[int, int, int]):
    num_rows, num_in, num_out = shape
    atol = most_wrong(level, num_in, max(1e-4, 2e-7 * num_in))  # sums of float32
    x, weight, bias = random(num_rows, num_in), random(num_out, num_in, dtype=jnp.bfloat16), random(num_out)
    x = x.astype(jnp.bfloat16).astype(jnp.float32)
    want = in_float64(x, weight, bias)
    got = linear(x, pack_linear(weight, bias), num_out, level=level)
    np.testing.assert_allclose(got, want, atol=atol)
    halves = linear(x.astype(jnp.bfloat16), pack_linear(weight, None), num_out, level=level)
    np.testing.assert_allclose(halves, in_float64(x, weight, None), atol=atol)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("shape", [(1, 16, 16), (7, 48, 40), (33, 240, 100), (600, 1216, 72)])
def test_weights_of_16_bits_are_nearer_to_float32_than_bfloat16(
    level: int, dtype: jnp.dtype, shape: tuple[int, int, int]
):
    num_rows, num_in, num_out = shape
    x, weight, bias = random(num_rows, num_in, dtype=dtype), random(num_out, num_in), random(num_out)
    got = np.asarray(linear(x, round_linear(weight, bias), num_out, level=level))
    want = in_float64(x, weight, bias, is_rounded=False)
    np.testing.assert_allclose(got, want, atol=2e-3 * num_in**0.5)
    rounded = in_float64(x, weight.astype(jnp.bfloat16), bias)
    if num_rows > 1:  # of few results the errors may lie otherwise
        assert np.abs(got - want).mean() < 0.3 * np.abs(rounded - want).mean()


def test_weights_of_16_bits_are_whole_steps_of_their_span():
    weight = np.array(random(24, 200))
    weight[:, :128] *= 100.0
    numbers, scale = round_packed(weight)
    assert (numbers.shape, scale.shape) == ((2, 112, 16, 2), (2, 2, 16))
    whole = numbers.transpose(0, 2, 1, 3).reshape(32, 224)
    steps = np.repeat(scale.swapaxes(1, 2).reshape(32, 2), 128, axis=1)[:, :224]
    back = whole * steps
    np.testing.assert_allclose(back[:24, :200], weight, atol=0.51 * steps.max())
    np.testing.assert_allclose(back[:24, 128:200], weight[:, 128:], atol=0.51 * steps[:24, 128:].max())
    assert np.abs(whole).max() == 4095
    assert not whole[24:].any()
    assert not whole[:, 200:].any()


def in_bytes(x: jax.Array, weight: np.ndarray) -> np.ndarray:
    """The product of rows and weights that are turned and rounded to 8 bits."""
    turned = []
    for values in (np.asarray(x.astype(jnp.bfloat16), np.float64), np.asarray(weight, np.float64)):
        padded = np.pad(values, ((0, 0), (0, -values.shape[1] % 64)))
        whole = (padded.reshape(len(values), -1, 64) @ scipy.linalg.hadamard(64) / 8).reshape(padded.shape)
        steps = np.abs(whole).max(axis=1, keepdims=True) / 127
        turned.append(np.round(whole / steps) * steps)
    return turned[0] @ turned[1].T


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", [(1, 16, 16), (7, 48, 40), (33, 240, 100), (200, 576, 96)])
def test_products_with_weights_of_8_bits_are_those_of_rounded_rows(level: int, shape: tuple[int, int, int]):
    num_rows, num_in, num_out = shape
    x, weight, bias = random(num_rows, num_in), np.asarray(random(num_out, num_in)), random(num_out)
    x = x.at[:, 3].multiply(20.0)  # what is large in one place is spread
    kernel, scale = quantize_packed(weight)
    padding = (0, -num_out % 16)
    packed = PackedLinear(jnp.asarray(kernel), jnp.pad(bias, padding), np.pad(scale, padding))
    got = linear(x, packed, num_out, level=level)
    want = in_bytes(x, weight) + np.asarray(bias)
    # A number between two steps may be rounded to either.
    np.testing.assert_allclose(got, want, atol=0.02 * np.abs(want).max())
    assert np.abs(got - want).mean() < 1e-3 * np.abs(want).max()
    exact = in_float64(x, jnp.asarray(weight), bias)
    assert np.abs(got - exact).mean() < 0.015 * np.abs(exact).mean()


@pytest.mark.parametrize("level", LEVELS)
def test_norm_activation_and_residual_are_those_of_xla(level: int):
    x, weight, bias = random(37, 48), random(32, 48, dtype=jnp.bfloat16) * jnp.bfloat16(0.1), random(32)
    norm, residual = Norm(random(48), random(48) * 2.0), random(37, 32) * 3.0
    rows = np.asarray(x)
    centred = rows - rows.mean(axis=1, keepdims=True)
    normed = centred / np.sqrt(np.mean(centred**2, axis=1, keepdims=True) + 1e-5)
    normed = jnp.asarray(normed * np.asarray(norm.scale) + np.asarray(norm.bias))
    is_rounded = native.multiplies_bfloat16(level)
    sums = jnp.asarray(in_float64(normed, weight, bias, is_rounded=is_rounded), jnp.float32)
    want = np.asarray(jax.nn.gelu(sums, approximate=False)) + np.asarray(residual)
    epilogue = Epilogue(gelu=True, residual=residual)
    got = linear(x, pack_linear(weight, bias), 32, norm=norm, epilogue=epilogue, level=level)
    # A norm that differs in its last bit may round to another bfloat16: 1/256 of one input's product.
    np.testing.assert_allclose(got, want, atol=5e-3)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("num_rows", [3, 170])
def test_rows_are_normed_by_their_root_mean_square(level: int, num_rows: int):
    """Of 170 rows the work is cut by columns, and the rows are prepared once for all of them."""
    x, weight = random(num_rows, 288) * 3.0, random(512, 288, dtype=jnp.bfloat16) * jnp.bfloat16(0.1)
    norm = Norm(random(288), epsilon=0.5)
    rows = np.asarray(x, np.float64)
    normed = rows / np.sqrt(np.mean(rows**2, axis=1, keepdims=True) + 0.5) * np.asarray(norm.scale)
    is_rounded = native.multiplies_bfloat16(level)
    want = in_float64(jnp.asarray(normed, jnp.float32), weight, None, is_rounded=is_rounded)
    got = linear(x, pack_linear(weight, None), 512, norm=norm, level=level)
    np.testing.assert_allclose(got, want, atol=0.02)
    assert np.abs(got - want).mean() < 1e-3


@pytest.mark.parametrize("level", LEVELS)
def test_a_gate_opens_and_closes_in_the_same_pass(level: int):
    x, weight = random(41, 64, dtype=jnp.bfloat16) * jnp.bfloat16(8), random(96, 64, dtype=jnp.bfloat16)
    gate, up = np.split(in_float64(x, weight, None), 2, axis=1)
    want = gate / (1 + np.exp(-np.clip(gate, -80, None))) * up
    rows = interleave_gate(np.asarray(weight))
    packed = PackedLinear(jnp.asarray(pack_weight(rows)), jnp.zeros(0, jnp.float32))
    got = linear(x, packed, 48, epilogue=Epilogue(gated=True), level=level)
    exact = native.multiplies_bfloat16(level)
    np.testing.assert_allclose(got, want, atol=(1e-6 if exact else 1e-3) * np.abs(want).max())


def test_gelu_is_exact_over_its_whole_range():
    x = jnp.linspace(-9.0, 9.0, 4096, dtype=jnp.float32).astype(jnp.bfloat16)[:, None]
    x = jnp.pad(x, ((0, 0), (0, 31)))
    packed = pack_linear(jnp.eye(32, dtype=jnp.bfloat16), None)
    for level in LEVELS:
        got = linear(x, packed, 32, epilogue=Epilogue(gelu=True), level=level)[:, 0]
        want = jax.nn.gelu(x[:, 0].astype(jnp.float32), approximate=False)
        np.testing.assert_allclose(got, want, atol=1e-5 if native.multiplies_bfloat16(level) else 2e-5)


@pytest.mark.parametrize("level", [0, BEST_LEVEL])
@pytest.mark.parametrize("num_in", [96, 1216])
def test_a_row_does_not_depend_on_the_rows_beside_it(level: int, num_in: int):
    x, packed = random(600, num_in), pack_linear(random(48, num_in, dtype=jnp.bfloat16), random(48))
    together = linear(x, packed, 48, level=level)
    for first, last in ((0, 1), (5, 22), (100, 233)):
        np.testing.assert_array_equal(linear(x[first:last], packed, 48, level=level), together[first:last])


@pytest.mark.parametrize("level", LEVELS)
def test_the_largest_sums_zeros_and_nan_stay_what_they_are(level: int):
    """In whole numbers a span of 128 inputs that are all as large as can be just fits its sum of 32 bits."""
    x = jnp.stack([jnp.full(1216, 3.0), jnp.full(1216, -3.0), jnp.zeros(1216), jnp.full(1216, jnp.nan)])
    weight = jnp.concatenate([jnp.full((16, 1216), 5.0), jnp.zeros((16, 1216))]).astype(jnp.bfloat16)
    got = np.asarray(linear(x, pack_linear(weight, None), 32, level=level))
    np.testing.assert_allclose(got[:3, :16], np.outer([18240.0, -18240.0, 0.0], np.ones(16)), rtol=1e-6)
    np.testing.assert_array_equal(got[:3, 16:], 0.0)
    assert np.isnan(got[3]).all()


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_large_costs_others_nothing_outside_its_span(level: int):
    x = random(9, 384).astype(jnp.bfloat16).astype(jnp.float32)
    weight = random(64, 384, dtype=jnp.bfloat16)
    weight = weight.at[:, 5].set(0)
    large = x.at[:, 5].set(4096.0)  # the first span has a coarse scale
    want = in_float64(x.at[:, :128].set(0.0), weight, None)
    packed = pack_linear(weight.at[:, :128].set(0), None)
    got = linear(large, packed, 64, level=level)
    np.testing.assert_allclose(got, want, atol=most_wrong(level, 256, 1e-4))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("stride", [1, 2])
def test_overlapping_rows_are_a_convolution(level: int, stride: int):
    x, kernel = random(2, 50, 16, dtype=jnp.bfloat16), random(24, 16, 3, dtype=jnp.bfloat16)
    want = jax.lax.conv_general_dilated(
        jnp.swapaxes(x, 1, 2).astype(jnp.float32),
        kernel.astype(jnp.float32),
        (stride,),
        [(1, 1)],
        dimension_numbers=("NCH", "OIH", "NHC"),
    )
    packed = pack_linear(jnp.swapaxes(kernel, 1, 2).reshape(24, 48), None)
    padded = jnp.pad(x, ((0, 0), (1, 1), (0, 0))).reshape(2, 52 * 16)
    got = linear_of_rows(padded, packed, (48, 24), RowsOf(50 // stride, 16 * stride), level=level)
    np.testing.assert_allclose(got, want, atol=most_wrong(level, 48, 1e-4))


def test_rows_that_reach_past_the_input_are_refused():
    packed = pack_linear(jnp.ones((16, 32), jnp.bfloat16), None)
    x = jnp.ones((1, 100), jnp.bfloat16)
    with pytest.raises(Exception, match="rows reach past the input"):
        linear_of_rows(x, packed, (32, 16), RowsOf(4, 32)).block_until_ready()


def test_rows_of_an_embedding_come_out_of_the_head():
    table = random(83, 48, dtype=jnp.bfloat16)
    token = jnp.array([0, 82, 17, 16, 15, 33], jnp.int32)
    got = jax.jit(embed, static_argnums=2)(token, pack_linear(table, None), 48)
    np.testing.assert_array_equal(got, table[token].astype(jnp.float32))


def test_rows_of_a_head_of_16_bits_are_its_whole_steps():
    table = random(83, 160)
    packed = round_linear(table, None)
    token = jnp.array([0, 82, 17, 16, 15, 33], jnp.int32)
    got = jax.jit(embed, static_argnums=2)(token, packed, 160)
    np.testing.assert_allclose(got, table[token], atol=0.51 * np.max(packed.scale))


def test_an_embedding_has_no_row_beyond_its_panels():
    packed = pack_linear(random(16, 32, dtype=jnp.bfloat16), None)
    got = embed(jnp.array([-3, 0, 15, 99], jnp.int32), packed, 32)
    np.testing.assert_array_equal(got[0], got[1])
    np.testing.assert_array_equal(got[2], got[3])
