"""Beam search over a group of rows that share a window: which beams go on, and which texts have ended.

The rule is openai/whisper's (decoding.py): of all beams' likeliest next tokens those that end a text leave
the beam while fewer than beam_size better ones go on; a window is done once beam_size x patience texts have
ended. Here it runs on the device, for all windows at once.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int32

from headrace.engines.top_tokens import top_tokens


class EndedTexts(NamedTuple):
    """The texts of each window that have ended, M at most, in the order in which they did."""

    tokens: Int32[Array, "W M S"]
    """Prompt, then generated tokens with the end token."""
    position: Int32[Array, "W M"]
    """Where the end token lies."""
    sum_logprob: Float32[Array, "W M"]
    """Of the generated tokens, the end token among them."""
    count: Int32[Array, " W"]


class Beams(NamedTuple):
    """The rows of all windows as a step of the search finds them: those of a window follow each other."""

    tokens: Int32[Array, "B S"]
    position: Int32[Array, " B"]
    """Index of each row's newest token."""
    sum_logprob: Float32[Array, " B"]
    is_first: Bool[Array, " B"]
    """Whether the token chosen now is the first generated one: all rows of a window are equal then."""
    is_searching: Bool[Array, " B"]
    """Rows that generate by beam search; of the others nothing changes."""


class Choice(NamedTuple):
    """What a step of the search gives each row."""

    source: Int32[Array, " B"]
    """The row whose text it goes on with."""
    token: Int32[Array, " B"]
    sum_logprob: Float32[Array, " B"]
    ended: EndedTexts


def num_candidates(beam_size: int, patience: float) -> int:
    """Texts that end the search of a window."""
    return max(1, round(beam_size * patience))


def no_texts(num_windows: int, num_texts: int, max_length: int) -> EndedTexts:
    """Room for texts, without one."""
    shape = (num_windows, num_texts)
    return EndedTexts(
        tokens=jnp.zeros((*shape, max_length), jnp.int32),
        position=jnp.zeros(shape, jnp.int32),
        sum_logprob=jnp.zeros(shape, jnp.float32),
        count=jnp.zeros(num_windows, jnp.int32),
    )


def choose_beams(
    logprobs: Float32[Array, "B V"], beams: Beams, ended: EndedTexts, beam_size: int, eot: int
) -> Choice:
    """The best continuations of each window's beams.

    Worked example: with 2 beams and candidates in the order A-x, B-eot, A-y, A-eot, the beams become A-x and
    A-y and B ends; A-eot comes too late.
    """
    num_rows, each = logprobs.shape[0], beam_size + 1
    num_windows = num_rows // beam_size
    row = jnp.arange(num_rows, dtype=jnp.int32)
    is_copy = beams.is_first & (row % beam_size > 0)
    before = jnp.where(is_copy, -jnp.inf, beams.sum_logprob)
    best = top_tokens(logprobs, each)
    score = (before[:, None] + best.logits).reshape(num_windows, beam_size * each)
    order = jnp.argsort(-score, axis=1, stable=True).astype(jnp.int32)
    score = jnp.take_along_axis(score, order, axis=1)
    token = jnp.take_along_axis(best.tokens.reshape(score.shape), order, axis=1)
    source = jnp.arange(num_windows, dtype=jnp.int32)[:, None] * beam_size + order // each
    ends = token == eot
    num_going = jnp.cumsum(~ends, axis=1, dtype=jnp.int32)
    wanted = jnp.arange(1, beam_size + 1, dtype=jnp.int32)
    goes = ~ends[:, None] & (num_going[:, None] == wanted[None, :, None])
    place = jnp.argmax(goes, axis=2)

    def taken(of: Array, unchanged: Array) -> Array:
        chosen = jnp.take_along_axis(of, place, axis=1).reshape(num_rows)
        return jnp.where(beams.is_searching, chosen, unchanged)

    in_time = ends & (num_going < beam_size) & (score > -jnp.inf)
    leaves = in_time & beams.is_searching.reshape(num_windows, beam_size)[:, :1]
    is_first = beams.is_first.reshape(num_windows, beam_size)[:, 0]
    fresh = ended._replace(count=jnp.where(is_first, 0, ended.count))
    return Choice(
        source=taken(source, row),
        token=taken(token, jnp.zeros_like(row)),
        sum_logprob=taken(score, beams.sum_logprob),
        ended=_put(fresh, leaves, source, score, beams, eot),
    )


def _put(
    ended: EndedTexts,
    leaves: Bool[Array, "W C"],
    source: Int32[Array, "W C"],
    score: Float32[Array, "W C"],
    beams: Beams,
    eot: int,
) -> EndedTexts:
    """The ended texts with those candidates that end one, best first, as long as there is room."""
    num_windows, room = ended.position.shape
    number = ended.count[:, None] + jnp.cumsum(leaves, axis=1, dtype=jnp.int32) - 1
    place = jnp.where(leaves, number, room)
    window = jnp.arange(num_windows, dtype=jnp.int32)[:, None]
    position = beams.position[source] + 1
    column = jnp.arange(beams.tokens.shape[1], dtype=jnp.int32)
    texts = jnp.where(column[None, None] == position[:, :, None], eot, beams.tokens[source])
    return EndedTexts(
        tokens=ended.tokens.at[window, place].set(texts, mode="drop"),
        position=ended.position.at[window, place].set(position, mode="drop"),
        sum_logprob=ended.sum_logprob.at[window, place].set(score, mode="drop"),
        count=jnp.minimum(ended.count + jnp.sum(leaves, axis=1, dtype=jnp.int32), room),
    )


class Text(NamedTuple):
    """One of the texts that a window is chosen from."""

    token_ids: tuple[int, ...]
    """Without the end token."""
    sum_logprob: float
    ended: bool
    """Whether the model ended it itself."""


def likeliest(texts: Sequence[Text], length_penalty: float | None) -> Text:
    """The text of the largest log-probability over length, or over ((5 + length) / 6) ** length_penalty."""

    def score(text: Text) -> float:
        length = len(text.token_ids)
        over = max(length, 1) if length_penalty is None else ((5 + length) / 6) ** length_penalty
        return text.sum_logprob / over

    return max(texts, key=score)
