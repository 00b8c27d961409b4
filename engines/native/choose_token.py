"""The most likely token of each row under Whisper's rules in one native pass over the logits."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int32

from headrace.engines.native.kernels import CHOOSE_TOKEN
from headrace.engines.native.linear import BEST_LEVEL


class TokenKinds(NamedTuple):
    """How a vocabulary is laid out: text, other tokens from `eot` on, timestamps, and text again."""

    eot: int
    times_begin: int
    times_end: int


class Allowed(NamedTuple):
    """What may come next in each row."""

    kind: Int32[Array, " B"]
    """The row of the table of allowed tokens that holds; -1: nothing is asked for."""
    text: Bool[Array, " B"]
    others: Bool[Array, " B"]
    """Tokens that are neither text nor a time."""
    first_time: Int32[Array, " B"]
    end_time: Int32[Array, " B"]
    """The token after the last timestamp that may come."""
    prefers_times: Bool[Array, " B"]
    """Whether a timestamp comes once all of them together are likelier than any other token."""


def choose_token(
    logits: Float32[Array, "B V"],
    table: Float32[Array, "kinds V"],
    allowed: Allowed,
    kinds: TokenKinds,
    level: int = BEST_LEVEL,
) -> tuple[Int32[Array, " B"], Float32[Array, " B"]]:
    """The token, the first of equals, and the logarithm of the sum of the exponentials of what is left.

    The table holds 0 where a token is allowed, else minus infinity.
    """
    num_rows = logits.shape[0]
    shapes = (
        jax.ShapeDtypeStruct((num_rows,), jnp.int32),
        jax.ShapeDtypeStruct((num_rows,), jnp.float32),
    )
    call = jax.ffi.ffi_call(CHOOSE_TOKEN, shapes)
    limits = jnp.stack([field.astype(jnp.int32) for field in allowed], axis=1)
    layout = {name: np.int64(value) for name, value in kinds._asdict().items()}
    tokens, totals = call(logits, table, limits, **layout, level=np.int64(level))
    return tokens, totals
