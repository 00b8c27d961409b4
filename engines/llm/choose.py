"""The next token of each row: logits in, tokens and their log-probabilities out."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from headrace.engines.llm.batch import NO_STOP_ID, Rows
from headrace.engines.llm.logit_edits import Extras, edit_logits
from headrace.engines.sampling import sample
from headrace.engines.top_tokens import top_tokens


class Top(NamedTuple):
    """The most likely tokens of each row beside the one that was chosen."""

    rank: Int[Array, " R"]  # of the chosen token; 1: the most likely
    tokens: Int[Array, "R top"]
    logprobs: Float[Array, "R top"]


class Chosen(NamedTuple):
    """One token a row, with its log-probability under the model: before edits, temperature and filters."""

    tokens: Int[Array, " R"]
    logprobs: Float[Array, " R"]
    top: Top | None


def choose_tokens(
    logits: Float[Array, "R V"], rows: Rows, made: Int[Array, " R"], extras: Extras, num_top: int
) -> Chosen:
    """The next token of each row, `made` tokens after the rows were packed."""
    # Before the barring, so that it can be done in place where nothing else needs the logits as they are.
    normalizer = jax.nn.logsumexp(logits, axis=-1)
    edited = _bar_tokens(edit_logits(logits, extras), rows.stop_ids, made < rows.min_left)
    sampling = rows.sampling._replace(output_index=rows.sampling.output_index + made)
    tokens = sample(edited, sampling)
    # A token that was only barred is never chosen: without edits the barred logits serve as well.
    unedited = edited if extras.is_plain and num_top == 0 else logits
    chosen = jnp.take_along_axis(unedited, tokens[:, None], axis=-1)
    top = score_top(logits, chosen, normalizer, num_top) if num_top else None
    return Chosen(tokens, chosen[:, 0] - normalizer, top)


def score_top(
    logits: Float[Array, "R V"], chosen: Float[Array, "R 1"], normalizer: Float[Array, " R"], num_top: int
) -> Top:
    """The `num_top` most likely tokens of each row, and the rank of the one whose logit is `chosen`."""
    most_likely = top_tokens(logits, num_top)
    return Top(
        rank=1 + jnp.sum(logits > chosen, axis=-1, dtype=jnp.int32),
        tokens=most_likely.tokens,
        logprobs=most_likely.logits - normalizer[:, None],
    )


def _bar_tokens(
    logits: Float[Array, "R V"], tokens: Int[Array, "R I"], is_barred: Bool[Array, " R"]
) -> Float[Array, "R V"]:
    """Logits with -inf at the tokens of the barred rows; NO_STOP_ID stands for no token."""
    vocab_size = logits.shape[-1]
    barred = jnp.where(is_barred[:, None] & (tokens != NO_STOP_ID), tokens, vocab_size)
    row_index = jnp.arange(logits.shape[0], dtype=jnp.int32)[:, None]
    return logits.at[row_index, barred].set(-jnp.inf, mode="drop")
