"""The next token of each row: logits in, tokens and their log-probabilities out."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from headrace.engines.llm.batch import NO_STOP_ID, Rows
from headrace.engines.sampling import sample


def choose_tokens(
    logits: Float[Array, "R V"], rows: Rows, made: Int[Array, " R"]
) -> tuple[Int[Array, " R"], Float[Array, " R"]]:
    """The next token of each row, `made` tokens after the rows were packed, and its log-probability."""
    # Before the barring, so that it can be done in place; the token that is chosen is never a barred one.
    normalizer = jax.nn.logsumexp(logits, axis=-1)
    logits = _bar_tokens(logits, rows.stop_ids, made < rows.min_left)
    sampling = rows.sampling._replace(output_index=rows.sampling.output_index + made)
    tokens = sample(logits, sampling)
    chosen = jnp.take_along_axis(logits, tokens[:, None], axis=-1)[:, 0]
    return tokens, chosen - normalizer


def _bar_tokens(
    logits: Float[Array, "R V"], tokens: Int[Array, "R I"], is_barred: Bool[Array, " R"]
) -> Float[Array, "R V"]:
    """Logits with -inf at the tokens of the barred rows; NO_STOP_ID stands for no token."""
    vocab_size = logits.shape[-1]
    barred = jnp.where(is_barred[:, None] & (tokens != NO_STOP_ID), tokens, vocab_size)
    row_index = jnp.arange(logits.shape[0], dtype=jnp.int32)[:, None]
    return logits.at[row_index, barred].set(-jnp.inf, mode="drop")
