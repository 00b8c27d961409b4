"""The largest logits of each row without a sort."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

BLOCK = 64


class TopTokens(NamedTuple):
    """The largest logits of each row, largest first and equal ones by token id."""

    tokens: Int[Array, "B count"]
    logits: Float[Array, "B count"]  # -inf where the row has no more finite ones; the token is then no one


def top_tokens(logits: Float[Array, "B V"], count: int) -> TopTokens:
    """The `count` largest logits of each row.

    Each round looks through the maxima of blocks and then through one block, not through the vocabulary:
    `count` rounds cost little more than one pass.
    """
    num_rows, vocab_size = logits.shape
    padded = jnp.pad(logits, ((0, 0), (0, -vocab_size % BLOCK)), constant_values=-jnp.inf)
    blocks = padded.reshape(num_rows, -1, BLOCK)
    row = jnp.arange(num_rows, dtype=jnp.int32)

    def take(step: Int[Array, ""], state: _State) -> _State:
        block = jnp.argmax(state.maxima, axis=-1).astype(jnp.int32)
        values, largest = blocks[row, block], state.maxima[row, block]
        is_left = _comes_after(values, state.last_value[row, block], state.last_place[row, block])
        place = jnp.argmax(jnp.where(is_left, values, -jnp.inf), axis=-1).astype(jnp.int32)
        rest = jnp.where(_comes_after(values, largest, place), values, -jnp.inf)
        return _State(
            maxima=state.maxima.at[row, block].set(jnp.max(rest, axis=-1)),
            last_value=state.last_value.at[row, block].set(largest),
            last_place=state.last_place.at[row, block].set(place),
            tokens=state.tokens.at[:, step].set(block * BLOCK + place),
            logits=state.logits.at[:, step].set(largest),
        )

    start = _State(
        maxima=jnp.max(blocks, axis=-1),
        last_value=jnp.full(blocks.shape[:2], jnp.inf, logits.dtype),
        last_place=jnp.full(blocks.shape[:2], -1, jnp.int32),
        tokens=jnp.zeros((num_rows, count), jnp.int32),
        logits=jnp.zeros((num_rows, count), logits.dtype),
    )
    end = jax.lax.fori_loop(0, count, take, start)
    return TopTokens(end.tokens, end.logits)


class _State(NamedTuple):
    maxima: Float[Array, "B M"]  # of what each block has left
    last_value: Float[Array, "B M"]  # what each block gave last, and its place there
    last_place: Int[Array, "B M"]
    tokens: Int[Array, "B count"]
    logits: Float[Array, "B count"]


def _comes_after(
    values: Float[Array, "B block"], last_value: Float[Array, " B"], last_place: Int[Array, " B"]
) -> Bool[Array, "B block"]:
    """Which of a block's values follow its last one in the order of size, then place."""
    places = jnp.arange(BLOCK, dtype=jnp.int32)[None]
    is_equal_later = (values == last_value[:, None]) & (places > last_place[:, None])
    return (values < last_value[:, None]) | is_equal_later
