"""Zeros that take no memory until they are written."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Shaped

from headrace.engines.native.kernels import ZEROS, is_available


def zeros(shape: Sequence[int], dtype: jnp.dtype | type) -> Shaped[Array, "..."]:
    """Zeros that a program returns as they are, for a state that later programs write in place.

    Without the kernel they are those of `jnp.zeros`.
    """
    if not is_available(ZEROS):
        return jnp.zeros(shape, dtype)
    call = jax.ffi.ffi_call(ZEROS, jax.ShapeDtypeStruct(tuple(shape), dtype), has_side_effect=True)
    return call()
