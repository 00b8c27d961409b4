"""What changes a row's logits before its temperature and filters: penalties, biases, bad words, masks.

Of each row the device gets the tokens that are touched, not the vocabulary: those that it holds, with how
often, and those with a bias. Counts are thus made anew from the row's tokens at every dispatch, and go on
from there within a burst: chunks, bursts and preemption cannot change them.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from headrace.engines.buckets import pick_bucket
from headrace.engines.llm.request import Sequence
from headrace.engines.llm.token_rules import MAX_BAD_WORD_TOKENS, TokenRules

Arrays = Array | np.ndarray
"""Packed on the host, worked with on the device."""
NO_TOKEN = -1
ANY_TOKEN = -2
"""Stands before a bad word that is shorter than the longest."""
WORD_BITS = 32
ALL_ALLOWED = 2**WORD_BITS - 1
NO_PENALTIES = np.asarray([0.0, 0.0, 1.0], np.float32)
"""Presence, frequency, repetition."""
EDITS_PER_BAD_WORD = 8
"""Touched tokens for which there is room in a batch, for each bad word for which there is."""
EDIT_BUCKETS = tuple(64 * 4**power for power in range(10))


class Edits(NamedTuple):
    """Touched tokens of each row."""

    tokens: Int[Arrays, "R E"]  # no token twice; NO_TOKEN: unused
    counts: Int[Arrays, "R E"]  # times in the output
    is_seen: Bool[Arrays, "R E"]  # in the prompt or the output
    bias: Float[Arrays, "R E"]
    penalties: Float[Arrays, "R 3"]  # presence, frequency, repetition
    bad_words: Int[Arrays, "R W L"]  # the last token is barred where those before it are the row's last ones
    recent: Int[Arrays, "R recent"]  # the row's last output tokens


class Extras(NamedTuple):
    """All that changes logits in one dispatch; None where no row needs it, which makes another program."""

    edits: Edits | None = None
    mask: UInt32[Arrays, "R words"] | None = None
    """One bit a token, the lowest first; 0: barred."""
    logits: Float[Arrays, "R V"] | None = None
    """What logits processors made of the model's; they take their place."""

    @property
    def is_plain(self) -> bool:
        """Whether nothing changes any logit."""
        return self.edits is None and self.mask is None and self.logits is None


def edit_logits(logits: Float[Array, "R V"], extras: Extras) -> Float[Array, "R V"]:
    """Logits after processors, penalties, biases and suppression, bad words, and the mask, in this order."""
    logits = logits if extras.logits is None else jnp.asarray(extras.logits)
    if extras.edits is not None:
        logits = _apply_edits(logits, extras.edits)
        logits = _bar_bad_words(logits, extras.edits)
    if extras.mask is not None:
        logits = jnp.where(_unpack_bits(jnp.asarray(extras.mask), logits.shape[-1]), logits, -jnp.inf)
    return logits


def is_edited(extras: Extras, logits: Float[Array, "R V"]) -> Bool[Array, " R"]:
    """Whether anything may change a row's logits."""
    result = jnp.zeros(logits.shape[:1], bool)
    if extras.logits is not None:
        result = result | jnp.any(jnp.asarray(extras.logits) != logits, axis=-1)
    if extras.edits is not None:
        edits = extras.edits
        result = result | jnp.any(jnp.asarray(edits.bias) != 0.0, axis=-1)
        result = result | jnp.any(jnp.asarray(edits.penalties) != jnp.asarray(NO_PENALTIES)[None, :], axis=-1)
        result = result | jnp.any(jnp.asarray(edits.bad_words)[:, :, -1] != NO_TOKEN, axis=-1)
    if extras.mask is not None:
        result = result | jnp.any(jnp.asarray(extras.mask) != jnp.uint32(ALL_ALLOWED), axis=-1)
    return result


def record_tokens(extras: Extras, tokens: Int[Array, " R"], column: Int[Array, ""]) -> Extras:
    """The extras after each row made a token; `column`, unused in every row, takes those that are new."""
    if extras.edits is None:
        return extras
    edits = extras.edits
    is_it = edits.tokens == tokens[:, None]
    is_new = ~jnp.any(is_it, axis=-1)
    is_it = is_it.at[:, column].set(is_new)
    edits = edits._replace(
        tokens=jnp.asarray(edits.tokens).at[:, column].set(jnp.where(is_new, tokens, NO_TOKEN)),
        counts=edits.counts + is_it.astype(jnp.int32),
        is_seen=edits.is_seen | is_it,
        recent=jnp.concatenate([edits.recent[:, 1:], tokens[:, None]], axis=1),
    )
    return extras._replace(edits=edits)


def pack_edits(sequences: list[Sequence], num_rows: int, num_new: int) -> Edits | None:
    """The edits of a batch on the host, `num_new` columns at their end unused; None where there are none."""
    if not any(sequence.request.rules.has_edits for sequence in sequences):
        return None
    touched = [_touched_tokens(sequence) for sequence in sequences]
    num_touched = max(map(len, touched)) + num_new
    num_bad = max(len(sequence.request.rules.bad_words) for sequence in sequences)
    width = pick_bucket(EDIT_BUCKETS, max(num_touched, num_bad * EDITS_PER_BAD_WORD))
    edits = no_edits(num_rows, width)
    for row, (sequence, tokens) in enumerate(zip(sequences, touched, strict=True)):
        _fill_row(edits, row, sequence, tokens)
    return edits


def pack_mask(sequences: list[Sequence], num_rows: int, vocab_size: int) -> np.ndarray | None:
    """The mask of allowed_token_ids on the host; None where no row has them."""
    allowed = [sequence.request.rules.allowed for sequence in sequences]
    if all(bits is None for bits in allowed):
        return None
    mask = all_allowed(num_rows, vocab_size)
    for row, bits in enumerate(allowed):
        if bits is not None:
            mask[row] = bits
    return mask


def all_allowed(num_rows: int, vocab_size: int) -> np.ndarray:
    """A mask that bars nothing."""
    return np.full((num_rows, -(-vocab_size // WORD_BITS)), ALL_ALLOWED, np.uint32)


def _apply_edits(logits: Float[Array, "R V"], edits: Edits) -> Float[Array, "R V"]:
    row = jnp.arange(logits.shape[0], dtype=jnp.int32)[:, None]
    places = jnp.where(edits.tokens == NO_TOKEN, logits.shape[-1], edits.tokens)
    values = logits.at[row, places].get(mode="fill", fill_value=0.0)
    presence, frequency, repetition = (edits.penalties[:, index : index + 1] for index in range(3))
    repeated = jnp.where(values > 0, values / repetition, values * repetition)
    values = jnp.where(edits.is_seen, repeated, values)
    values = values - frequency * edits.counts.astype(jnp.float32)
    values = values - presence * (edits.counts > 0).astype(jnp.float32)
    return logits.at[row, places].set(values + edits.bias, mode="drop")


def _bar_bad_words(logits: Float[Array, "R V"], edits: Edits) -> Float[Array, "R V"]:
    before, last = edits.bad_words[:, :, :-1], edits.bad_words[:, :, -1]
    is_next = jnp.all((before == ANY_TOKEN) | (before == edits.recent[:, None, :]), axis=-1)
    row = jnp.arange(logits.shape[0], dtype=jnp.int32)[:, None]
    places = jnp.where(is_next & (last != NO_TOKEN), last, logits.shape[-1])
    return logits.at[row, places].set(-jnp.inf, mode="drop")


def _unpack_bits(mask: UInt32[Array, "R words"], count: int) -> Bool[Array, "R count"]:
    bits = (mask[:, :, None] >> jnp.arange(WORD_BITS, dtype=jnp.uint32)[None, None, :]) & jnp.uint32(1)
    return bits.reshape(mask.shape[0], -1)[:, :count] == 1


def _touched_tokens(sequence: Sequence) -> np.ndarray:
    """The distinct tokens that a row's rules touch."""
    rules = sequence.request.rules
    parts = [rules.bias_tokens]
    if rules.repetition != 1.0:
        parts.append(np.asarray(sequence.past_tokens, np.int32))
    elif rules.has_penalties:
        parts.append(np.asarray(sequence.past_outputs, np.int32))
    return np.unique(np.concatenate(parts)) if rules.has_edits else rules.bias_tokens


def no_edits(num_rows: int, width: int) -> Edits:
    """Edits that change nothing, with room for `width` touched tokens a row."""
    return Edits(
        tokens=np.full((num_rows, width), NO_TOKEN, np.int32),
        counts=np.zeros((num_rows, width), np.int32),
        is_seen=np.zeros((num_rows, width), bool),
        bias=np.zeros((num_rows, width), np.float32),
        penalties=np.tile(NO_PENALTIES, (num_rows, 1)),
        bad_words=np.full((num_rows, width // EDITS_PER_BAD_WORD, MAX_BAD_WORD_TOKENS), NO_TOKEN, np.int32),
        recent=np.full((num_rows, MAX_BAD_WORD_TOKENS - 1), NO_TOKEN, np.int32),
    )


def _fill_row(edits: Edits, row: int, sequence: Sequence, tokens: np.ndarray) -> None:
    """Writes a row's touched tokens, which are sorted, and what is done to them."""
    rules: TokenRules = sequence.request.rules
    count = len(tokens)
    edits.tokens[row, :count] = tokens
    edits.bias[row, np.searchsorted(tokens, rules.bias_tokens)] = rules.biases
    edits.penalties[row] = rules.presence, rules.frequency, rules.repetition
    outputs = np.asarray(sequence.past_outputs, np.int32)
    if rules.has_penalties:
        places = np.searchsorted(tokens, outputs)
        edits.counts[row, :count] = np.bincount(places, minlength=count)
        edits.is_seen[row, :count] = np.isin(tokens, np.asarray(sequence.past_tokens, np.int32))
    for index, word in enumerate(rules.bad_words):
        edits.bad_words[row, index, : -len(word)] = ANY_TOKEN
        edits.bad_words[row, index, -len(word) :] = word
    num_recent = min(len(outputs), MAX_BAD_WORD_TOKENS - 1)
    if num_recent:
        edits.recent[row, -num_recent:] = outputs[-num_recent:]
