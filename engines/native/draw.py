"""The draw of a token a row in one native pass."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int, Int32, UInt32

from headrace.engines.native.kernels import DRAW
from headrace.engines.native.linear import BEST_LEVEL


def draw(
    logits: Float32[Array, "B V"],
    temperature: Float[Array, " B"],
    filters: tuple[Int[Array, " B"], Float[Array, " B"], Float[Array, " B"]],
    noise: tuple[UInt32[Array, "B 2"], Int[Array, " B"]],
    level: int = BEST_LEVEL,
) -> Int32[Array, " B"]:
    """One token a row, as `headrace.engines.sampling.sample` defines it.

    `filters` are top-k, top-p and min-p; `noise` is each row's seed and the number that is folded into it.
    """
    call = jax.ffi.ffi_call(DRAW, jax.ShapeDtypeStruct((logits.shape[0],), jnp.int32))
    return call(logits, temperature, *filters, *noise, level=np.int64(level))
