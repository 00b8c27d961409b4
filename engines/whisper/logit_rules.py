"""Rules that forbid tokens by setting their logits to minus infinity, one small class each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int32

from headrace.engines.native import Allowed
from headrace.engines.whisper.tokenizer import SpecialTokens

MAX_INITIAL_TIMESTAMP = 50
"""Latest first timestamp, 1.0 s in steps of 0.02 s."""


class History(NamedTuple):
    """What the rules look at, for each row."""

    num_generated: Int32[Array, " B"]
    """Tokens generated so far, the prompt not counted."""
    last: Int32[Array, " B"]
    """The newest generated token."""
    second_last: Int32[Array, " B"]
    """The one before."""
    last_timestamp: Int32[Array, " B"]
    """The newest generated timestamp token, -1 where there is none."""
    with_timestamps: Bool[Array, " B"]
    """Rows that are to give timestamps."""


@runtime_checkable
class LogitRule(Protocol):
    def __call__(self, logits: Float32[Array, "B V"], history: History) -> Float32[Array, "B V"]: ...


@dataclass(frozen=True)
class Suppress:
    """Forbids some tokens everywhere."""

    tokens: tuple[int, ...]

    def __call__(self, logits: Float32[Array, "B V"], history: History) -> Float32[Array, "B V"]:
        return _forbid(logits, _members(self.tokens, logits.shape[1])[None])


@dataclass(frozen=True)
class SuppressAtBegin:
    """Forbids some tokens (a blank, the end) as the first of a window."""

    tokens: tuple[int, ...]

    def __call__(self, logits: Float32[Array, "B V"], history: History) -> Float32[Array, "B V"]:
        at_begin = history.num_generated == 0
        return _forbid(logits, at_begin[:, None] & _members(self.tokens, logits.shape[1])[None])


@dataclass(frozen=True)
class OnlyLanguages:
    """Forbids all but the language tokens: the rule of language detection."""

    tokens: tuple[int, ...]

    def __call__(self, logits: Float32[Array, "B V"], history: History) -> Float32[Array, "B V"]:
        return _forbid(logits, ~_members(self.tokens, logits.shape[1])[None])


@dataclass(frozen=True)
class Timestamps:
    """Keeps the timestamps of a window well formed, in the rows that are to give them.

    They come in pairs, except before the end; they do not go back, and a segment is not empty; the first
    token is a timestamp, at most 1.0 s; a timestamp is taken where all of them together are likelier than
    any text token (decoding.py of openai/whisper).
    """

    special: SpecialTokens
    max_initial: int = MAX_INITIAL_TIMESTAMP

    def __call__(self, logits: Float32[Array, "B V"], history: History) -> Float32[Array, "B V"]:
        forbidden = self._out_of_place(logits.shape[1], history)
        logits = _forbid(logits, forbidden & history.with_timestamps[:, None])
        return self._prefer_timestamps(logits, history.with_timestamps)

    def allowed(self, history: History) -> Allowed:
        """Which tokens are in their place, as ranges; the kinds are at_begin + 2 * with_timestamps."""
        special, generated = self.special, history.num_generated
        first = (generated == 0) & history.with_timestamps
        closed = _is_timestamp(history.last, special) & (generated >= 1) & history.with_timestamps
        paired = _is_timestamp(history.second_last, special) | (generated < 2)
        opens = closed & ~paired
        later = history.last_timestamp + jnp.where(opens, 0, 1)
        has_last = history.with_timestamps & (history.last_timestamp >= 0)
        begin, end = special.timestamp_begin, special.timestamp_end
        latest_first = min(begin + self.max_initial + 1, end)
        return Allowed(
            kind=(generated == 0).astype(jnp.int32) + 2 * history.with_timestamps.astype(jnp.int32),
            text=~opens & ~first,
            others=~first,
            first_time=jnp.where(closed & paired, end, jnp.where(has_last, later, begin)),
            end_time=jnp.where(first, latest_first, end),
            prefers_times=history.with_timestamps,
        )

    def _out_of_place(self, num_vocab: int, history: History) -> Bool[Array, "B V"]:
        special, allowed = self.special, self.allowed(history)
        token = jnp.arange(num_vocab, dtype=jnp.int32)[None]
        is_text = (token < special.eot) | (token >= special.timestamp_end)
        is_timestamp = _is_timestamp(token, special)
        in_time = (token >= allowed.first_time[:, None]) & (token < allowed.end_time[:, None])
        may_come = jnp.where(is_text, allowed.text[:, None], allowed.others[:, None])
        return (token == special.no_timestamps) | ~jnp.where(is_timestamp, in_time, may_come)

    def _prefer_timestamps(
        self, logits: Float32[Array, "B V"], with_timestamps: Bool[Array, " B"]
    ) -> Float32[Array, "B V"]:
        begin, end = self.special.timestamp_begin, min(self.special.timestamp_end, logits.shape[1])
        token = jnp.arange(logits.shape[1], dtype=jnp.int32)[None]
        is_timestamp = (token >= begin) & (token < end)
        mass = jax.nn.logsumexp(logits[:, begin:end], axis=-1)
        best_text = jnp.max(jnp.where(is_timestamp, -jnp.inf, logits), axis=-1)
        prefer = with_timestamps & (mass > best_text)
        return _forbid(logits, prefer[:, None] & ~is_timestamp)


def decoding_rules(
    special: SpecialTokens, suppress: Sequence[int], begin_suppress: Sequence[int]
) -> tuple[LogitRule, ...]:
    """The rules of a decoding step, in their order."""
    return (SuppressAtBegin(tuple(begin_suppress)), Suppress(tuple(suppress)), Timestamps(special))


def _is_timestamp(token: Int32[Array, "*any"], special: SpecialTokens) -> Bool[Array, "*any"]:
    return (token >= special.timestamp_begin) & (token < special.timestamp_end)


def _members(tokens: Sequence[int], num_vocab: int) -> Bool[Array, " V"]:
    inside = [token for token in tokens if 0 <= token < num_vocab]
    return jnp.zeros(num_vocab, bool).at[jnp.array(inside, jnp.int32)].set(True)


def _forbid(logits: Float32[Array, "B V"], forbidden: Bool[Array, "#B V"]) -> Float32[Array, "B V"]:
    return jnp.where(forbidden, -jnp.inf, logits)
