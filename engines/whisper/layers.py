"""The products of a Whisper model, with what stands before and after them: in plain XLA, or in the native
kernel of a CPU, which takes norm, bias, activation and residual in one pass."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Float32, Shaped

from headrace.engines import native
from headrace.engines.quantization import quantize_int8
from headrace.engines.whisper.weights import AnyArray, Form, Pair, Weights, on_device


class LayerNorm(nnx.Module):
    """Normalisation over the last axis, in float32."""

    def __init__(self, scale: Float32[Array, " D"], bias: Float32[Array, " D"]) -> None:
        self.scale, self.bias = nnx.Param(scale), nnx.Param(bias)

    def __call__(self, x: Float32[Array, "*rows D"]) -> Float32[Array, "*rows D"]:
        lead = tuple(range(x.ndim - 1))
        centred = x - jnp.mean(x, axis=-1, keepdims=True)
        spread = lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + 1e-5)
        return centred * spread * jnp.expand_dims(self.scale[...], lead) + jnp.expand_dims(
            self.bias[...], lead
        )


class Linear(nnx.Module):
    """A product with float32 sums, and a bias."""

    def __init__(self, pair: Pair, form: Form) -> None:
        self.num_out, self.num_in = pair[0].shape
        self.dtype = form.dtype
        self.is_native = form.kind in ("packed", "int16")
        weight, scale, bias = (_outlined if form.is_outline else _kept)(*pair, form)
        self.weight = nnx.Param(weight)
        self.scale = None if scale is None else nnx.Param(scale)
        self.bias = None if bias is None else nnx.Param(bias)

    def __call__(
        self,
        x: Float[Array, "*rows in"],
        norm: LayerNorm | None = None,
        epilogue: native.Epilogue = native.SUMS,
    ) -> Float[Array, "*rows out"]:
        """residual + gelu(norm(x) W + b), rounded to the epilogue's dtype."""
        if self.is_native:
            return native.linear(x, self.packed, self.num_out, norm=_parameters(norm), epilogue=epilogue)
        y = self._product(x if norm is None else norm(x))
        return finish(y, epilogue)

    @property
    def packed(self) -> native.PackedLinear:
        assert self.is_native
        assert self.bias is not None
        scale = native.NOTHING if self.scale is None else self.scale[...]
        return native.PackedLinear(self.weight[...], self.bias[...], scale)

    def _product(self, x: Float[Array, "*rows in"]) -> Float32[Array, "*rows out"]:
        weight = self.weight[...].astype(self.dtype)
        contract = (((x.ndim - 1,), (1,)), ((), ()))
        y = lax.dot_general(x.astype(weight.dtype), weight, contract, preferred_element_type=jnp.float32)
        if self.scale is not None:
            y = y * jnp.expand_dims(self.scale[...], tuple(range(y.ndim - 1)))
        if self.bias is None:
            return y
        return y + jnp.expand_dims(self.bias[...], tuple(range(y.ndim - 1)))


class _Kept(NamedTuple):
    """The arrays of a product on the device, in its form."""

    weight: Shaped[Array, "..."]
    scale: Float32[AnyArray, "..."] | None
    bias: Float32[Array, " padded"] | None


def _kept(weight: Float[AnyArray, "out in"], bias: Float32[AnyArray, " out"] | None, form: Form) -> _Kept:
    if form.kind == "packed":
        packed = native.pack_linear(weight, bias)
        return _Kept(packed.weight, None, packed.bias)
    if form.kind == "int16":
        packed = native.round_linear(weight, bias)
        return _Kept(packed.weight, packed.scale, packed.bias)
    kept_bias = None if bias is None else on_device(bias)
    if form.kind == "int8":
        kernel, scale = quantize_int8(np.asarray(weight, np.float32).T)
        return _Kept(on_device(np.ascontiguousarray(kernel.T)), on_device(scale), kept_bias)
    return _Kept(on_device(weight), None, kept_bias)


def _outlined(weight: Float[AnyArray, "out in"], bias: Float32[AnyArray, " out"] | None, form: Form) -> _Kept:
    """As `_kept`, of values that are but traced."""
    num_out, num_in = weight.shape
    kept_bias = None if bias is None else jnp.asarray(bias)
    if form.kind == "packed":
        packed = jnp.zeros(native.packed_shape(num_in, num_out), jnp.bfloat16)
        return _Kept(packed, None, native.packed_bias(kept_bias, num_out))
    if form.kind == "int16":
        numbers = jnp.zeros(native.packed_shape(num_in, num_out), jnp.int16)
        scale = jnp.zeros(native.packed_scale_shape(num_in, num_out), jnp.float32)
        return _Kept(numbers, scale, native.packed_bias(kept_bias, num_out))
    if form.kind == "int8":
        return _Kept(jnp.asarray(weight, jnp.int8), jnp.zeros(num_out, jnp.float32), kept_bias)
    return _Kept(jnp.asarray(weight), None, kept_bias)


class Convolution(nnx.Module):
    """A convolution of width 3 along time, as a product, with its activation."""

    def __init__(self, weights: Weights, name: str, stride: int) -> None:
        self.linear = Linear(weights.convolution(name), weights.plain_form)
        self.stride = stride
        self.dtype = weights.dtype

    def __call__(
        self, x: Float[Array, "B T C"], residual: Float32[Array, "F D"] | None = None
    ) -> Float[Array, "B F D"]:
        """In the model's dtype; float32 with a residual."""
        dtype = self.dtype if residual is None else jnp.float32
        epilogue = native.Epilogue(gelu=True, residual=residual, dtype=dtype)
        if not self.linear.is_native:
            rows = _neighbours(x) if self.stride == 1 else _neighbours_of_even(x)
            return self.linear(rows, epilogue=epilogue)
        B, T, C = x.shape
        padded = jnp.pad(x, ((0, 0), (1, 1), (0, 0))).reshape(B, (T + 2) * C)
        rows = native.RowsOf(T // self.stride, self.stride * C)
        sizes = (self.linear.num_in, self.linear.num_out)
        return native.linear_of_rows(padded, self.linear.packed, sizes, rows, epilogue=epilogue)


def finish(y: Float32[Array, "*rows out"], epilogue: native.Epilogue) -> Float[Array, "*rows out"]:
    """What an epilogue makes of sums, in plain XLA."""
    if epilogue.gelu:
        y = jax.nn.gelu(y, approximate=False)
    if epilogue.residual is not None:
        residual = epilogue.residual
        y = y + jnp.expand_dims(residual, tuple(range(y.ndim - residual.ndim)))
    return y.astype(epilogue.dtype)


def _parameters(norm: LayerNorm | None) -> native.Norm | None:
    return None if norm is None else native.Norm(norm.scale[...], norm.bias[...])


def _neighbours(x: Float[Array, "B T C"]) -> Float[Array, "B T C3"]:
    """Every frame with the one before and the one after."""
    padded = jnp.pad(x, ((0, 0), (1, 1), (0, 0)))
    return jnp.concatenate([padded[:, :-2], x, padded[:, 2:]], axis=-1)


def _neighbours_of_even(x: Float[Array, "B T C"]) -> Float[Array, "B F C3"]:
    """As `_neighbours`, for the even frames only: a stride of 2."""
    B, T, C = x.shape
    pairs = x.reshape(B, T // 2, 2, C)
    even, odd = pairs[:, :, 0], pairs[:, :, 1]
    before = jnp.pad(odd, ((0, 0), (1, 0), (0, 0)))[:, :-1]
    return jnp.concatenate([before, even, odd], axis=-1)
