"""The next token of every row: the rules, then the likeliest token, or a draw where a row has a temperature.

Two ways with the same results: one native pass over the logits, or plain XLA, which is the reference and runs
everywhere.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float32, Int32, UInt32

from headrace.engines import native
from headrace.engines.whisper.logit_rules import (
    History,
    Suppress,
    SuppressAtBegin,
    Timestamps,
)
from headrace.engines.whisper.slots import Decoding, Rows
from headrace.engines.whisper.tokenizer import SpecialTokens

Chosen = tuple[Int32[Array, " B"], Float32[Array, " B"]]
"""The token of every row, and its log-probability after the rules."""


def choose(logits: Float32[Array, "B V"], rows: Rows, decoding: Decoding) -> Chosen:
    """The next tokens; what finished rows get means nothing."""
    history = history_of(rows, decoding.special)
    if can_choose_natively(decoding):
        return _choose_natively(logits, rows, history, decoding)
    return choose_in_xla(apply_rules(logits, history, decoding), rows, decoding)


def can_choose_natively(decoding: Decoding) -> bool:
    """Whether the kernels are there, and know these rules."""
    kinds = tuple(type(rule) for rule in decoding.rules)
    is_built = native.is_available(native.CHOOSE_TOKEN) and native.is_available(native.DRAW)
    return is_built and kinds == (SuppressAtBegin, Suppress, Timestamps)


def apply_rules(logits: Float32[Array, "B V"], history: History, decoding: Decoding) -> Float32[Array, "B V"]:
    """Logits, minus infinity where a rule forbids the token."""
    for rule in decoding.rules:
        logits = rule(logits, history)
    return logits


def history_of(rows: Rows, special: SpecialTokens) -> History:
    """What the rules look at."""
    return History(
        num_generated=jnp.maximum(rows.position + 1 - rows.prompt_len, 0),
        last=entry_at(rows.tokens, rows.position),
        second_last=entry_at(rows.tokens, jnp.maximum(rows.position - 1, 0)),
        last_timestamp=rows.last_timestamp,
        with_timestamps=rows.with_timestamps,
    )


def entry_at(table: Array, column: Int32[Array, " B"]) -> Array:
    """One entry a row of a [B, S] table; a column past the end reads the last."""
    return jnp.take_along_axis(table, column[:, None], axis=1, mode="clip")[:, 0]


def choose_in_xla(logits: Float32[Array, "B V"], rows: Rows, decoding: Decoding) -> Chosen:
    """The next tokens from logits after the rules."""
    num_generated = jnp.maximum(rows.position + 1 - rows.prompt_len, 0)
    hot = rows.temperature > 0

    def greedy() -> Int32[Array, " B"]:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)

    def sampled() -> Int32[Array, " B"]:
        # Row by row: few rows are hot, and noise for all of them would cost more than the decoder's step.
        def one(row: tuple[Array, ...]) -> Array:
            is_hot, best, *draw = row
            return lax.cond(is_hot, lambda: _draw(decoding.seed, *draw), lambda: best)

        return lax.map(one, (hot, greedy(), logits, rows.temperature, rows.seed, num_generated))

    token = lax.cond(jnp.any(hot & ~rows.finished), sampled, greedy)
    return token, entry_at(logits, token) - jax.nn.logsumexp(logits, axis=-1)


def _draw(
    job_seed: int,
    logits: Float32[Array, " V"],
    temperature: Float32[Array, ""],
    seed: UInt32[Array, ""],
    index: Int32[Array, ""],
) -> Int32[Array, ""]:
    """One sampled token: its randomness depends on nothing but the seeds and the token's number."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(job_seed), seed), index)
    noise = jax.random.gumbel(key, logits.shape, jnp.float32)
    return jnp.argmax(logits / temperature + noise).astype(jnp.int32)


def _choose_natively(
    logits: Float32[Array, "B V"], rows: Rows, history: History, decoding: Decoding
) -> Chosen:
    begin, always, timestamps = decoding.rules
    assert isinstance(begin, SuppressAtBegin)
    assert isinstance(always, Suppress)
    assert isinstance(timestamps, Timestamps)
    special = decoding.special
    kinds = native.TokenKinds(special.eot, special.timestamp_begin, special.timestamp_end)
    table = _table(logits.shape[1], begin, always, special)
    allowed = timestamps.allowed(history)
    kind = jnp.where(rows.finished, -1, allowed.kind)
    best, total = native.choose_token(logits, jnp.asarray(table), allowed._replace(kind=kind), kinds)
    hot = (rows.temperature > 0) & ~rows.finished

    def sampled() -> Int32[Array, " B"]:
        off = jnp.zeros(len(best), jnp.int32), jnp.ones(len(best)), jnp.zeros(len(best))
        keys = jax.vmap(lambda seed: jax.random.fold_in(jax.random.key(decoding.seed), seed))(rows.seed)
        noise = jax.random.key_data(keys), history.num_generated
        # A row without a temperature takes its best token: nothing is drawn for it.
        ruled = apply_rules(logits, history, decoding)
        drawn = native.draw(ruled, rows.temperature, off, noise)
        return jnp.where(hot, drawn, best)

    token = lax.cond(jnp.any(hot), sampled, lambda: best)
    return token, entry_at(logits, token) - total


def _table(num_vocab: int, begin: SuppressAtBegin, always: Suppress, special: SpecialTokens) -> np.ndarray:
    """What may come: 0 or minus infinity, by whether the row is at its beginning and gives timestamps."""
    table = np.zeros((4, num_vocab), np.float32)
    for tokens, kinds in (
        (always.tokens, slice(None)),
        (begin.tokens, slice(1, None, 2)),
        ((special.no_timestamps,), slice(2, None)),
    ):
        table[kinds, [token for token in tokens if 0 <= token < num_vocab]] = -np.inf
    return table
