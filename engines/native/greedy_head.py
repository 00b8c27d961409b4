"""The output head and the greedy choice in one native pass, without logits in memory."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int32

from headrace.engines.native.kernels import GREEDY_HEAD, is_available
from headrace.engines.native.linear import BEST_LEVEL, DEPTH


def can_run_greedy_head(table: Float[Array, "V E"]) -> bool:
    """Whether the kernel is built and takes this output head: bfloat16, its width a multiple of 32."""
    return table.dtype == jnp.bfloat16 and table.shape[1] % DEPTH == 0 and is_available(GREEDY_HEAD)


def greedy_head(
    hidden: Float[Array, "R E"], table: Float[Array, "V E"], level: int = BEST_LEVEL
) -> tuple[Int32[Array, " R"], Float32[Array, " R"]]:
    """Each row's most likely token, the first of equals, and its log-probability (to 1e-5).

    The hidden states are rounded to bfloat16, products are summed in float32. CPUs without products of
    bfloat16 multiply whole numbers of 13 bits: log-probabilities are then right to some 1e-3. A row's result
    does not depend on the others, nor on their number.
    """
    num_rows = hidden.shape[0]
    shapes = (
        jax.ShapeDtypeStruct((num_rows,), jnp.int32),
        jax.ShapeDtypeStruct((num_rows,), jnp.float32),
    )
    call = jax.ffi.ffi_call(GREEDY_HEAD, shapes)
    tokens, logprobs = call(hidden.astype(jnp.bfloat16), table, level=np.int64(level))
    return tokens, logprobs
