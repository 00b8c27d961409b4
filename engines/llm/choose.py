"""The next token of each row: hidden states in, tokens and their log-probabilities out."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from headrace.engines.llm.attention import Backend
from headrace.engines.llm.batch import NO_STOP_ID, Rows
from headrace.engines.llm.logit_edits import Extras, edit_logits, is_edited
from headrace.engines.llm.model import Decoder
from headrace.engines.native import can_run_greedy_head, greedy_head
from headrace.engines.sampling import MIN_TEMPERATURE, sample
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


class Head(NamedTuple):
    """The output head, and the hidden states that it is put to."""

    decoder: Decoder
    hidden: Float[Array, "R E"]
    backend: Backend

    @property
    def is_native(self) -> bool:
        """Whether the native kernel chooses for greedy rows."""
        return has_native_head(self.decoder, self.backend)


def has_native_head(decoder: Decoder, backend: Backend) -> bool:
    """Whether the native kernel can choose the most likely tokens of this model.

    It rounds a table of float32, which only a model whose products are rounded is to see.
    """
    is_capped, table = decoder.config.logit_soft_cap is not None, decoder.head_table
    is_exact = table.dtype == jnp.float32 and decoder.quantization != "int16"
    return backend == "native" and not is_capped and not is_exact and can_run_greedy_head(table)


class Greedy(NamedTuple):
    """The most likely token of each row, chosen without logits in memory."""

    tokens: Int[Array, " R"]
    logprobs: Float[Array, " R"]


class Scores(NamedTuple):
    """What a choice is made from."""

    logits: Float[Array, "R V"]
    greedy: Greedy | None
    """For the rows to which nothing is done; None where they too are chosen from the logits."""


def choose_tokens(head: Head, rows: Rows, made: Int[Array, " R"], extras: Extras, num_top: int) -> Chosen:
    """The next token of each row, `made` tokens after the rows were packed.

    The native backend chooses for greedy rows without logits in memory (30 ms became 6 for 128 rows and 49152
    tokens). Which way a row goes depends on that row alone.
    """
    if num_top or not extras.is_plain or not head.is_native:
        return choose_from_scores(score(head), rows, made, extras, num_top)
    greedy = Greedy(*greedy_head(head.hidden, head.decoder.head_table))

    def choose_all() -> Chosen:
        scores = Scores(head.decoder.logits(head.hidden), greedy)
        return choose_from_scores(scores, rows, made, extras, num_top)

    is_any = jnp.any(_needs_logits(rows, made))
    return jax.lax.cond(is_any, choose_all, lambda: Chosen(greedy.tokens, greedy.logprobs, None))


def score(head: Head) -> Scores:
    """Logits and greedy choices of all rows."""
    greedy = Greedy(*greedy_head(head.hidden, head.decoder.head_table)) if head.is_native else None
    return Scores(head.decoder.logits(head.hidden), greedy)


def choose_from_scores(
    scores: Scores, rows: Rows, made: Int[Array, " R"], extras: Extras, num_top: int
) -> Chosen:
    """As `choose_tokens`, from scores that are there."""
    chosen = _choose_from_logits(scores.logits, rows, made, extras, num_top)
    if scores.greedy is None:
        return chosen
    needs_logits = _needs_logits(rows, made) | is_edited(extras, scores.logits)
    return chosen._replace(
        tokens=jnp.where(needs_logits, chosen.tokens, scores.greedy.tokens),
        logprobs=jnp.where(needs_logits, chosen.logprobs, scores.greedy.logprobs),
    )


def _needs_logits(rows: Rows, made: Int[Array, " R"]) -> Bool[Array, " R"]:
    return (rows.sampling.temperature >= MIN_TEMPERATURE) | (made < rows.min_left)


def _choose_from_logits(
    logits: Float[Array, "R V"], rows: Rows, made: Int[Array, " R"], extras: Extras, num_top: int
) -> Chosen:
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
