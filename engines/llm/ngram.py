"""Proposals without a model: what followed the last tokens of a row when they stood there before."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


def look_up(
    history: Int[Array, "R L"], length: Int[Array, " R"], num_tokens: int, sizes: tuple[int, int]
) -> tuple[Int[Array, "R K"], Bool[Array, " R"]]:
    """`num_tokens` proposals for each row, and whether any were found.

    `history` holds the first `length` tokens of each row. Of the places before its end where the most of its
    last tokens stand, from `sizes[0]` to `sizes[1]` of them, the latest is taken. What would be copied from
    beyond the end is what was copied before, so that a period goes on for ever.

    e.g. a b c a b: `a b` is found at the beginning, and c a b c a is proposed.
    """
    fewest, most = sizes
    index = jnp.arange(history.shape[1], dtype=jnp.int32)[None, :]
    last = length - 1
    is_same = index < last[:, None]
    num_same = jnp.zeros(history.shape, jnp.int32)
    for back in range(most):
        own = jnp.take_along_axis(history, jnp.maximum(last - back, 0)[:, None], axis=1)
        is_same = is_same & (jnp.roll(history, back, axis=1) == own) & (index >= back)
        num_same = num_same + is_same.astype(jnp.int32)
    rank = jnp.where(num_same >= fewest, num_same * history.shape[1] + index, -1)
    best = jnp.argmax(rank, axis=1).astype(jnp.int32)
    is_found = jnp.max(rank, axis=1) >= 0
    period = jnp.maximum(last - best, 1)
    steps = jnp.arange(num_tokens, dtype=jnp.int32)[None, :]
    source = best[:, None] + 1 + steps % period[:, None]
    return jnp.take_along_axis(history, jnp.minimum(source, history.shape[1] - 1), axis=1), is_found
