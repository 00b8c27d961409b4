"""How bfloat16 lies in arrays that are read or written at single rows.

On a CPU, XLA turns gathers, scatters and slice updates of bfloat16 into float32 ones, and so converts the
whole array there and back for every row. There such arrays hold the bit patterns, as uint16.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped


def storage_dtype(dtype: jnp.dtype) -> jnp.dtype:
    """The dtype in which values of `dtype` are stored on the default backend."""
    as_bits = dtype == jnp.bfloat16 and jax.default_backend() == "cpu"
    return jnp.dtype(jnp.uint16) if as_bits else jnp.dtype(dtype)


def to_storage(values: Float[Array, "..."]) -> Shaped[Array, "..."]:
    """The values as they are stored."""
    if storage_dtype(values.dtype) == values.dtype:
        return values
    return jax.lax.bitcast_convert_type(values, jnp.uint16)


def from_storage(stored: Shaped[Array, "..."]) -> Float[Array, "..."]:
    """The stored values as numbers."""
    return jax.lax.bitcast_convert_type(stored, jnp.bfloat16) if stored.dtype == jnp.uint16 else stored
