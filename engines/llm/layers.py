"""The parts of a decoder layer: products, norms, the MLP."""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from headrace.engines.llm.config import Activation, ModelConfig
from headrace.engines.native.linear import (
    LANES,
    PANEL,
    Epilogue,
    Norm,
    PackedLinear,
    linear,
    packed_bias,
    packed_byte_shape,
    packed_scale_shape,
    packed_shape,
)
from headrace.engines.quantization import TextQuantization


class Precision(NamedTuple):
    """How the numbers of a model are kept."""

    dtype: jnp.dtype  # weights, and what enters a product
    quantization: TextQuantization | None = None  # kernels are whole numbers with float32 scales
    is_packed: bool = False  # kernels lie in the order in which the native product reads them
    num_shards: int = 1  # products that lie side by side in one kernel do so shard by shard


class RMSNorm(nnx.Module):
    """Root mean square normalisation of the last axis, in float32."""

    def __init__(self, size: int, eps: float) -> None:
        self.scale = nnx.Param(jnp.ones((size,), jnp.float32))
        self.eps = eps

    def __call__(self, inputs: Float[Array, "*rows E"]) -> Float[Array, "*rows E"]:
        mean_square = jnp.mean(jnp.square(inputs), axis=-1, keepdims=True)
        scale = jnp.expand_dims(self.scale[...], range(inputs.ndim - 1))
        return inputs * jax.lax.rsqrt(mean_square + self.eps) * scale

    def as_native(self) -> Norm:
        """As the native kernel takes it."""
        return Norm(self.scale[...], epsilon=self.eps)


class LayerNorm(nnx.Module):
    """Normalisation of mean and variance, in float32."""

    def __init__(self, size: int, eps: float) -> None:
        self.scale = nnx.Param(jnp.ones((size,), jnp.float32))
        self.bias = nnx.Param(jnp.zeros((size,), jnp.float32))
        self.eps = eps

    def __call__(self, inputs: Float[Array, "T E"]) -> Float[Array, "T E"]:
        centred = inputs - jnp.mean(inputs, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
        return (
            centred * jax.lax.rsqrt(variance + self.eps) * self.scale[...][None, :] + self.bias[...][None, :]
        )

    def as_native(self) -> Norm:
        """As the native kernel takes it."""
        return Norm(self.scale[...], self.bias[...], self.eps)


def make_norm(config: ModelConfig) -> RMSNorm | LayerNorm:
    """A norm of the residual stream."""
    kind = RMSNorm if config.norm == "rms" else LayerNorm
    return kind(config.hidden_size, config.norm_eps)


class Normed(NamedTuple):
    """Rows before a norm, which a native product applies while it reads them."""

    rows: Float[Array, "T I"]
    norm: RMSNorm | LayerNorm

    def values(self) -> Float[Array, "T I"]:
        """The normed rows."""
        return self.norm(self.rows)


Inputs = Float[Array, "T I"] | Normed
Onto = Float[Array, "T O"] | None
"""What a product's result is added to."""


def values_of(inputs: Inputs) -> Float[Array, "T I"]:
    """Rows as they enter a product."""
    return inputs.values() if isinstance(inputs, Normed) else inputs


class Linear(nnx.Module):
    """A product with float32 accumulation and a float32 result, and an optional bias."""

    def __init__(self, in_size: int, out_size: int, precision: Precision, *, use_bias: bool) -> None:
        self.dtype, is_int8 = precision.dtype, precision.quantization == "int8"
        self.kernel = nnx.Param(jnp.zeros((in_size, out_size), jnp.int8 if is_int8 else self.dtype))
        self.kernel_scale = nnx.Param(jnp.ones((out_size,), jnp.float32)) if is_int8 else None
        self.bias = nnx.Param(jnp.zeros((out_size,), jnp.float32)) if use_bias else None

    def __call__(self, inputs: Inputs, onto: Onto = None) -> Float[Array, "T O"]:
        kernel = self.kernel[...].astype(self.dtype)
        rows = values_of(inputs).astype(self.dtype)
        outputs = jnp.dot(rows, kernel, preferred_element_type=jnp.float32)
        if self.kernel_scale is not None:
            outputs = outputs * self.kernel_scale[...][None, :]
        outputs = outputs if self.bias is None else outputs + self.bias[...][None, :]
        return outputs if onto is None else onto + outputs


class PackedProduct(nnx.Module):
    """As `Linear`, by the native kernel: faster on CPUs with AMX, AVX-512 or AVX2.

    With int8 weights each row of inputs is rounded to 8 bits as well, with a scale of its own, with int16
    ones to 13. A row's result does not depend on the other rows, nor on their number.
    """

    def __init__(self, in_size: int, out_size: int, precision: Precision, *, use_bias: bool) -> None:
        self.out_size = out_size
        self.packed, self.kernel_scale = _packed_weight(in_size, out_size, precision.quantization)
        self.bias = nnx.Param(jnp.zeros((out_size,), jnp.float32)) if use_bias else None

    def __call__(self, inputs: Inputs, onto: Onto = None) -> Float[Array, "T O"]:
        bias = None if self.bias is None else self.bias[...]
        packed = PackedLinear(self.packed[...], packed_bias(bias, self.out_size), _scale_of(self))
        return _native(inputs, packed, self.out_size, Epilogue(residual=onto))


class PackedGate(nnx.Module):
    """silu(gate) * up of packed weights in one kernel, in the precision's dtype."""

    def __init__(self, in_size: int, out_size: int, precision: Precision) -> None:
        self.out_size, self.dtype = out_size, precision.dtype
        self.packed_pairs, self.kernel_scale = _packed_weight(in_size, 2 * out_size, precision.quantization)

    def __call__(self, inputs: Inputs) -> Float[Array, "T O"]:
        packed = PackedLinear(self.packed_pairs[...], packed_bias(None, self.out_size), _scale_of(self))
        return _native(inputs, packed, self.out_size, Epilogue(gated=True, dtype=self.dtype))


def _packed_weight(
    in_size: int, out_size: int, quantization: TextQuantization | None
) -> tuple[nnx.Param, nnx.Param | None]:
    """Packed weights, and the scales of whole ones."""
    if quantization == "int8":
        packed = nnx.Param(jnp.zeros(packed_byte_shape(in_size, out_size), jnp.uint8))
        return packed, nnx.Param(jnp.ones((out_size,), jnp.float32))
    shape = packed_shape(in_size, out_size)
    if quantization == "int16":
        scale = jnp.ones(packed_scale_shape(in_size, out_size), jnp.float32)
        return nnx.Param(jnp.zeros(shape, jnp.int16)), nnx.Param(scale)
    return nnx.Param(jnp.zeros(shape, jnp.bfloat16)), None


def _scale_of(product: PackedProduct | PackedGate) -> Float[Array, "..."]:
    if product.kernel_scale is None:
        return packed_bias(None, 0)
    scale = product.kernel_scale[...]
    return packed_bias(scale, len(scale)) if scale.ndim == 1 else scale


def _native(inputs: Inputs, packed: PackedLinear, out_size: int, epilogue: Epilogue) -> Float[Array, "T O"]:
    rows, norm = (inputs.rows, inputs.norm.as_native()) if isinstance(inputs, Normed) else (inputs, None)
    return linear(rows, packed, out_size, norm=norm, epilogue=epilogue)


def make_linear(
    in_size: int, out_size: int, precision: Precision, *, use_bias: bool
) -> Linear | PackedProduct:
    """A product, in the form that the precision says."""
    if precision.is_packed and in_size % LANES == 0:
        return PackedProduct(in_size, out_size, precision, use_bias=use_bias)
    return Linear(in_size, out_size, precision, use_bias=use_bias)


ACTIVATIONS: dict[Activation, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "gelu": lambda inputs: jax.nn.gelu(inputs, approximate=False),
    "gelu_tanh": lambda inputs: jax.nn.gelu(inputs, approximate=True),
}


class MLP(nnx.Module):
    """Two products with an activation between them; gated where the config says so."""

    def __init__(self, config: ModelConfig, precision: Precision) -> None:
        hidden, inner = config.hidden_size, config.intermediate_size
        self.config, self.num_shards = config, precision.num_shards
        fits_kernel = precision.is_packed and hidden % LANES == 0 and inner % PANEL == 0
        if config.is_gated and config.activation == "silu" and not config.mlp_bias and fits_kernel:
            self.gate_up = PackedGate(hidden, inner, precision)
        elif config.is_gated:
            self.gate_up = make_linear(hidden, 2 * inner, precision, use_bias=config.mlp_bias)
        else:
            self.up = make_linear(hidden, inner, precision, use_bias=config.mlp_bias)
        self.down = make_linear(inner, hidden, precision, use_bias=config.mlp_bias)

    def __call__(self, inputs: Inputs, onto: Onto = None) -> Float[Array, "T E"]:
        activate = ACTIVATIONS[self.config.activation]
        if not self.config.is_gated:
            return self.down(activate(self.up(inputs)), onto)
        if isinstance(self.gate_up, PackedGate):
            return self.down(self.gate_up(inputs), onto)
        gate, up = split_by_shard(self.gate_up(inputs), (1, 1), self.num_shards)
        return self.down(activate(gate) * up, onto)


def split_by_shard(
    outputs: Float[Array, "T O"], shares: Sequence[int], num_shards: int
) -> list[Float[Array, "T part"]]:
    """The products that lie side by side in one, shard by shard, in these shares.

    e.g. shares (1, 1) of two shards: a0 b0 a1 b1 -> a0 a1 and b0 b1
    """
    num_rows, size = outputs.shape
    by_shard = outputs.reshape(num_rows, num_shards, size // num_shards)
    unit = by_shard.shape[2] // sum(shares)
    ends = [unit * end for end in itertools.accumulate(shares)]
    return [part.reshape(num_rows, -1) for part in jnp.split(by_shard, ends[:-1], axis=2)]


def cap_softly(values: Float[Array, "T V"], cap: float | None) -> Float[Array, "T V"]:
    """Values squeezed into (-cap, cap); as they are where there is no cap."""
    return values if cap is None else cap * jnp.tanh(values / cap)
