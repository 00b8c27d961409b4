"""Products with packed weights in the native kernel: norm, bias, activation and residual in one pass."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int16, Int32, Shaped, UInt8

from headrace.engines.native.kernels import EMBED, LINEAR
from headrace.engines.quantization import quantize_int8

PANEL = 16
"""Outputs that lie side by side in packed weights."""
LANES = 16
"""The length of float32 rows is a multiple of this."""
DEPTH = 32
"""Inputs of one step."""
BYTE_DEPTH = 64
"""Inputs of one step with weights of 8 bits."""
BYTE_ZERO = 128
"""The byte of a weight that is zero."""
SPAN = 128
"""Inputs that have a scale in common where weights are whole numbers of 13 bits; as in vectors.h."""
MOST_WHOLE = 4095
"""The largest of these: 128 products of two are below 2^31."""
LEAST_SIZE = 1e-30
"""What counts as the largest size of zeros."""
BEST_LEVEL = 4
"""Instruction sets: 0 portable, 1 AVX2, 2 AVX-512, 3 with bfloat16 products, 4 with tiles (AMX)."""

NOTHING = np.zeros(0, np.float32)


class PackedLinear(NamedTuple):
    """Weights in the order in which the kernel reads them."""

    weight: Shaped[Array, "panels groups 16 2or4"]
    """bfloat16 or int16 in pairs of inputs, or bytes in fours."""
    bias: Float32[Array, " padded"]
    """One a packed output, or none at all."""
    scale: Float32[Array | np.ndarray, "..."] = NOTHING
    """What a step of whole weights stands for: one a packed output, or [panels, spans, 16] of int16."""


class Epilogue(NamedTuple):
    """What becomes of the sums."""

    gelu: bool = False
    gated: bool = False
    """silu(gate) * up: weights are those of `interleave_gate`, and there are half as many results."""
    residual: Float32[Array, "*rows out"] | None = None
    """Added last; of all rows, or of one batch entry's."""
    dtype: jnp.dtype | type = jnp.float32


SUMS = Epilogue()
"""The sums as they are."""


class Norm(NamedTuple):
    """A layer norm of the input; without a bias, a norm by the root mean square."""

    scale: Float32[Array, " in"]
    bias: Float32[Array, " in"] | None = None
    epsilon: float = 1e-5


class RowsOf(NamedTuple):
    """How rows lie in each batch entry's values: they overlap where `step` is less than their length."""

    count: int
    step: int


def pack_linear(
    weight: Float[Array | np.ndarray, "out in"], bias: Float32[Array | np.ndarray, " out"] | None
) -> PackedLinear:
    """Weights for `linear`, padded with zeros to whole panels and steps."""
    return PackedLinear(*jax.device_put((pack_weight(weight), _padded(bias))))


def round_linear(
    weight: Float[Array | np.ndarray, "out in"], bias: Float32[Array | np.ndarray, " out"] | None
) -> PackedLinear:
    """As `pack_linear`, in whole numbers of 13 bits."""
    numbers, scale = round_packed(np.asarray(weight))
    return PackedLinear(*jax.device_put((numbers, _padded(bias), scale)))


def _padded(bias: Float32[Array | np.ndarray, " out"] | None) -> Float32[np.ndarray, " padded"]:
    return NOTHING if bias is None else np.pad(np.asarray(bias), (0, -len(bias) % PANEL))


def pack_weight(weight: Float[Array | np.ndarray, "out in"]) -> np.ndarray:
    """Weights alone, [panels, pairs, 16, 2] in bfloat16."""
    num_out, num_in = weight.shape
    shape = panels, pairs, _, _ = packed_shape(num_in, num_out)
    rounded = np.ascontiguousarray(weight, jnp.bfloat16)
    if (num_out, num_in) != (panels * PANEL, pairs * 2):
        rounded = np.pad(rounded, ((0, panels * PANEL - num_out), (0, pairs * 2 - num_in)))
    whole_pairs = rounded.view(np.uint32).reshape(panels, PANEL, pairs)
    return np.ascontiguousarray(whole_pairs.swapaxes(1, 2)).view(jnp.bfloat16).reshape(shape)


def round_packed(
    weight: Float[np.ndarray, "out in"],
) -> tuple[Int16[np.ndarray, "panels pairs 16 2"], Float32[np.ndarray, "panels spans 16"]]:
    """Weights as whole numbers of 13 bits, and the scale of each 128 inputs of an output."""
    num_out, num_in = weight.shape
    shape = panels, pairs, _, _ = packed_shape(num_in, num_out)
    spans = packed_scale_shape(num_in, num_out)[1]
    padded = np.zeros((panels * PANEL, spans, SPAN), np.float32)
    padded.reshape(len(padded), -1)[:num_out, :num_in] = weight
    size = np.maximum(padded.max(axis=2), -padded.min(axis=2))
    scale = np.maximum(size, LEAST_SIZE) / np.float32(MOST_WHOLE)
    padded *= (1 / scale)[:, :, None]  # in place: a head has tens of millions
    whole = np.rint(padded, out=padded).astype(np.int16).reshape(len(padded), -1)[:, : 2 * pairs]
    by_pairs = np.ascontiguousarray(whole).view(np.uint32).reshape(panels, PANEL, pairs).swapaxes(1, 2)
    by_span = scale.reshape(panels, PANEL, spans).swapaxes(1, 2)
    return np.ascontiguousarray(by_pairs).view(np.int16).reshape(shape), np.ascontiguousarray(by_span)


def quantize_packed(
    weight: Float[np.ndarray, "out in"],
) -> tuple[UInt8[np.ndarray, "panels fours 16 4"], Float32[np.ndarray, " out"]]:
    """Weights of 8 bits, and the scale of each output.

    They are turned along their inputs, as the kernel turns the rows that meet them (byte_arithmetic.inc).
    """
    num_out, num_in = weight.shape
    shape = panels, fours, _, _ = packed_byte_shape(num_in, num_out)
    padded = np.pad(weight.astype(np.float32), ((0, 0), (0, fours * 4 - num_in)))
    turned = padded.reshape(num_out, -1, BYTE_DEPTH) @ _turn()
    whole, scale = quantize_int8(turned.reshape(padded.shape).T)
    rows = np.pad(whole.T, ((0, panels * PANEL - num_out), (0, 0))).view(np.uint8) ^ np.uint8(BYTE_ZERO)
    by_fours = rows.view(np.uint32).reshape(panels, PANEL, fours)
    return np.ascontiguousarray(by_fours.swapaxes(1, 2)).view(np.uint8).reshape(shape), scale


def _turn() -> Float32[np.ndarray, "64 64"]:
    """Sylvester's Hadamard matrix, scaled to be its own inverse."""
    turn = np.full((1, 1), BYTE_DEPTH**-0.5, np.float32)
    while len(turn) < BYTE_DEPTH:
        turn = np.block([[turn, turn], [turn, -turn]])
    return turn


def interleave_gate(weight: Shaped[np.ndarray, "both in"]) -> Shaped[np.ndarray, "both in"]:
    """Weights of a gate and of what it opens and closes, one above the other, by panels in turn."""
    num_both, num_in = weight.shape
    panels = weight.reshape(2, num_both // (2 * PANEL), PANEL, num_in)
    return panels.swapaxes(0, 1).reshape(num_both, num_in)


def packed_shape(num_in: int, num_out: int) -> tuple[int, int, int, int]:
    """Shape of packed weights."""
    return -(-num_out // PANEL), -(-num_in // DEPTH) * DEPTH // 2, PANEL, 2


def packed_scale_shape(num_in: int, num_out: int) -> tuple[int, int, int]:
    """Shape of the scales of packed weights of 16 bits."""
    return -(-num_out // PANEL), -(-num_in // SPAN), PANEL


def packed_byte_shape(num_in: int, num_out: int) -> tuple[int, int, int, int]:
    """Shape of packed weights of 8 bits."""
    return -(-num_out // PANEL), -(-num_in // BYTE_DEPTH) * BYTE_DEPTH // 4, PANEL, 4


def packed_bias(bias: Float32[Array, " out"] | None, num_out: int) -> Float32[Array, " padded"]:
    """A bias as long as the packed outputs; none at all where there is none."""
    if bias is None:
        return jnp.zeros(0, jnp.float32)
    return jnp.pad(jnp.asarray(bias), (0, -num_out % PANEL))


def linear(
    x: Float[Array, "*rows in"],
    packed: PackedLinear,
    num_out: int,
    *,
    norm: Norm | None = None,
    epilogue: Epilogue = SUMS,
    level: int = BEST_LEVEL,
) -> Float[Array, "*rows out"]:
    """residual + gelu(norm(x) W + b), inputs rounded to bfloat16, summed in float32.

    CPUs without products of bfloat16 round inputs and weights to whole numbers of 13 bits instead, with a
    scale for each 128 of a row's or an output's: nearer to float32. So are inputs for weights that are such
    numbers. For weights of 8 bits each row of inputs is rounded to 8 bits, with a scale of its own. A norm
    takes float32 rows. The length of float32 rows is a multiple of 16.
    """
    num_rows = int(np.prod(x.shape[:-1]))
    flat = x.reshape(1, num_rows * x.shape[-1])
    rows = RowsOf(num_rows, x.shape[-1])
    y = linear_of_rows(flat, packed, (x.shape[-1], num_out), rows, norm=norm, epilogue=epilogue, level=level)
    return y.reshape(*x.shape[:-1], num_out)


def linear_of_rows(
    x: Float[Array, "B length"],
    packed: PackedLinear,
    sizes: tuple[int, int],
    rows: RowsOf,
    *,
    norm: Norm | None = None,
    epilogue: Epilogue = SUMS,
    level: int = BEST_LEVEL,
) -> Float[Array, "B rows out"]:
    """As `linear`, of `rows.count` rows that begin every `rows.step` values of each entry."""
    num_in, num_out = sizes
    shape = jax.ShapeDtypeStruct((x.shape[0], rows.count, num_out), epilogue.dtype)
    scales = [] if norm is None else [norm.scale] if norm.bias is None else [norm.scale, norm.bias]
    residual = NOTHING if epilogue.residual is None else epilogue.residual.reshape(-1)
    return jax.ffi.ffi_call(LINEAR, shape)(
        x,
        jnp.stack(scales) if scales else NOTHING,
        packed.weight,
        packed.scale,
        packed.bias,
        residual,
        depth=np.int64(num_in),
        row_step=np.int64(rows.step),
        activation=np.int64(2 if epilogue.gated else epilogue.gelu),
        epsilon=np.float32(1e-5 if norm is None else norm.epsilon),
        level=np.int64(level),
    )


def embed(token: Int32[Array, " B"], packed: PackedLinear, width: int) -> Float32[Array, "B D"]:
    """Rows of an embedding whose weights are packed for the output head, which has the same ones."""
    call = jax.ffi.ffi_call(EMBED, jax.ShapeDtypeStruct((len(token), width), jnp.float32))
    return call(token, packed.weight, packed.scale)
