"""The parts of a decoder layer: products, norms, the MLP."""

from collections.abc import Callable
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
    PackedLinear,
    linear,
    packed_bias,
    packed_shape,
)


class Precision(NamedTuple):
    """How the numbers of a model are kept."""

    dtype: jnp.dtype  # weights, and what enters a product
    is_int8: bool = False  # kernels are int8 with a float32 scale for each output; they enter as dtype
    is_packed: bool = False  # bfloat16 kernels lie in the order in which the native product reads them


class Linear(nnx.Module):
    """A product with float32 accumulation and a float32 result, and an optional bias."""

    def __init__(self, in_size: int, out_size: int, precision: Precision, *, use_bias: bool) -> None:
        self.dtype, is_int8, _ = precision
        self.kernel = nnx.Param(jnp.zeros((in_size, out_size), jnp.int8 if is_int8 else self.dtype))
        self.kernel_scale = nnx.Param(jnp.ones((out_size,), jnp.float32)) if is_int8 else None
        self.bias = nnx.Param(jnp.zeros((out_size,), jnp.float32)) if use_bias else None

    def __call__(self, inputs: Float[Array, "T I"]) -> Float[Array, "T O"]:
        kernel = self.kernel[...].astype(self.dtype)
        outputs = jnp.dot(inputs.astype(self.dtype), kernel, preferred_element_type=jnp.float32)
        if self.kernel_scale is not None:
            outputs = outputs * self.kernel_scale[...][None, :]
        return outputs if self.bias is None else outputs + self.bias[...][None, :]


class PackedProduct(nnx.Module):
    """As `Linear` with bfloat16 weights, by the native kernel: faster on CPUs with AMX or AVX-512-BF16.

    A row's result does not depend on the other rows, nor on their number.
    """

    def __init__(self, in_size: int, out_size: int, *, use_bias: bool) -> None:
        self.out_size = out_size
        self.packed = nnx.Param(jnp.zeros(packed_shape(in_size, out_size), jnp.bfloat16))
        self.bias = nnx.Param(jnp.zeros((out_size,), jnp.float32)) if use_bias else None

    def __call__(self, inputs: Float[Array, "T I"]) -> Float[Array, "T O"]:
        bias = None if self.bias is None else self.bias[...]
        packed = PackedLinear(self.packed[...], packed_bias(bias, self.out_size))
        # Rounded here, where it joins the operations before: the kernel would do so once a task.
        return linear(inputs.astype(jnp.bfloat16), packed, self.out_size)


class PackedGate(nnx.Module):
    """silu(gate) * up of packed bfloat16 weights in one kernel; the result is bfloat16."""

    def __init__(self, in_size: int, out_size: int) -> None:
        self.out_size = out_size
        self.packed_pairs = nnx.Param(jnp.zeros(packed_shape(in_size, 2 * out_size), jnp.bfloat16))

    def __call__(self, inputs: Float[Array, "T I"]) -> Float[Array, "T O"]:
        packed = PackedLinear(self.packed_pairs[...], packed_bias(None, self.out_size))
        epilogue = Epilogue(gated=True, dtype=jnp.bfloat16)
        return linear(inputs.astype(jnp.bfloat16), packed, self.out_size, epilogue=epilogue)


def make_linear(
    in_size: int, out_size: int, precision: Precision, *, use_bias: bool
) -> Linear | PackedProduct:
    """A product, in the form that the precision says."""
    if precision.is_packed and in_size % LANES == 0:
        return PackedProduct(in_size, out_size, use_bias=use_bias)
    return Linear(in_size, out_size, precision, use_bias=use_bias)


class RMSNorm(nnx.Module):
    """Root mean square normalisation of the last axis, in float32."""

    def __init__(self, size: int, eps: float) -> None:
        self.scale = nnx.Param(jnp.ones((size,), jnp.float32))
        self.eps = eps

    def __call__(self, inputs: Float[Array, "*rows E"]) -> Float[Array, "*rows E"]:
        mean_square = jnp.mean(jnp.square(inputs), axis=-1, keepdims=True)
        scale = jnp.expand_dims(self.scale[...], range(inputs.ndim - 1))
        return inputs * jax.lax.rsqrt(mean_square + self.eps) * scale


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


def make_norm(config: ModelConfig) -> RMSNorm | LayerNorm:
    """A norm of the residual stream."""
    kind = RMSNorm if config.norm == "rms" else LayerNorm
    return kind(config.hidden_size, config.norm_eps)


ACTIVATIONS: dict[Activation, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "gelu": lambda inputs: jax.nn.gelu(inputs, approximate=False),
    "gelu_tanh": lambda inputs: jax.nn.gelu(inputs, approximate=True),
}


class MLP(nnx.Module):
    """Two products with an activation between them; gated where the config says so."""

    def __init__(self, config: ModelConfig, precision: Precision) -> None:
        hidden, inner = config.hidden_size, config.intermediate_size
        self.config = config
        fits_kernel = precision.is_packed and hidden % LANES == 0 and inner % PANEL == 0
        if config.is_gated and config.activation == "silu" and not config.mlp_bias and fits_kernel:
            self.gate_up = PackedGate(hidden, inner)
        elif config.is_gated:
            self.gate_up = make_linear(hidden, 2 * inner, precision, use_bias=config.mlp_bias)
        else:
            self.up = make_linear(hidden, inner, precision, use_bias=config.mlp_bias)
        self.down = make_linear(inner, hidden, precision, use_bias=config.mlp_bias)

    def __call__(self, inputs: Float[Array, "T E"]) -> Float[Array, "T E"]:
        activate = ACTIVATIONS[self.config.activation]
        if not self.config.is_gated:
            return self.down(activate(self.up(inputs)))
        if isinstance(self.gate_up, PackedGate):
            return self.down(self.gate_up(inputs))
        gate, up = jnp.split(self.gate_up(inputs), 2, axis=-1)
        return self.down(activate(gate) * up)


def cap_softly(values: Float[Array, "T V"], cap: float | None) -> Float[Array, "T V"]:
    """Values squeezed into (-cap, cap); as they are where there is no cap."""
    return values if cap is None else cap * jnp.tanh(values / cap)
