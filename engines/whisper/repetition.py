"""Notices on the device that a row only repeats itself: the loop ends there, not at the row's limit."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from headrace.engines.whisper.tokenizer import SpecialTokens

MAX_PERIOD = 32
"""Longest stretch of tokens whose repetition is noticed."""
LOOP_TOKENS_PER_S = 6.0
"""Repeated tokens a second of audio, 32 more allowed, that nobody says: fluent speech makes 3 to 5 in all."""


def extend_runs(
    runs: Int32[Array, "B P"],
    tokens: Int32[Array, "B S"],
    new: tuple[Int32[Array, " B"], Int32[Array, " B"], Int32[Array, " B"]],
    special: SpecialTokens,
) -> Int32[Array, "B P"]:
    """How many tokens up to a row's new one are each that of p places before, for every period p up to P.

    `new` holds the row's new token, its column in `tokens`, and the first column that was generated. All
    timestamps count as one token: a loop's go on while its text repeats.

    Worked example: a b a b a has run 3 at period 2 (the third to fifth token) and 0 at period 1.
    """
    token, column, first = new
    period = jnp.arange(1, runs.shape[1] + 1, dtype=jnp.int32)
    before = column[:, None] - period[None]
    earlier = jnp.take_along_axis(tokens, jnp.maximum(before, 0), axis=1)
    is_same = _without_time(earlier, special) == _without_time(token, special)[:, None]
    is_generated: Bool[Array, "B P"] = before >= first[:, None]
    return jnp.where(is_same & is_generated, runs + 1, 0)


def _without_time(token: Int32[Array, "..."], special: SpecialTokens) -> Int32[Array, "..."]:
    is_timestamp = (token >= special.timestamp_begin) & (token < special.timestamp_end)
    return jnp.where(is_timestamp, special.timestamp_begin, token)
