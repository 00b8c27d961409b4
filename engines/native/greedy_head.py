"""The output head and the greedy choice in one native pass, without logits in memory."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int32

from headrace.engines.native.kernels import GREEDY_HEAD, is_available
from headrace.engines.native.linear import BEST_LEVEL, DEPTH


def can_run_greedy_head(table: Float[Array, "V E"]) -> bool:
    """Whether the kernel is built and takes this output head: its width is a multiple of 32."""
    return (
        table.dtype in (jnp.bfloat16, jnp.float32)
        and table.shape[1] % DEPTH == 0
        and is_available(GREEDY_HEAD)
    )


def greedy_head(
    hidden: Float[Array, "R E"], table: Float[Array, "V E"], level: int = BEST_LEVEL
) -> tuple[Int32[Array, " R"], Float32[Array, " R"]]:
    """Each row's most likely token, the first of equals, and its log-probability (to 1e-5).

    Hidden states and a table of bfloat16 are multiplied as such, and summed in float32. A table of float32
    and its hidden states are rounded to whole numbers of 13 bits, as those of bfloat16 are on CPUs without
    such products: log-probabilities are then right to some 1e-3. A row's result does not depend on the
    others, nor on their number.
    """
    num_rows = hidden.shape[0]
    shapes = (
        jax.ShapeDtypeStruct((num_rows,), jnp.int32),
        jax.ShapeDtypeStruct((num_rows,), jnp.float32),
    )
    call = jax.ffi.ffi_call(GREEDY_HEAD, shapes)
    tokens, logprobs = call(hidden.astype(table.dtype), table, level=np.int64(level))
    return tokens, logprobs
