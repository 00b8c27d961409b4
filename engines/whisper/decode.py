"""The token loop on the device: windows are encoded into slots, and bursts of steps move their rows on."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float32, Int32, UInt32

from headrace.audio import log_mel_batch
from headrace.engines.whisper.attention import Frames, LayerKV
from headrace.engines.whisper.logit_rules import History, OnlyLanguages
from headrace.engines.whisper.model import Read, WhisperModel
from headrace.engines.whisper.repetition import extend_runs
from headrace.engines.whisper.slots import Arrival, Decoding, Rows, Slots, enter
from headrace.engines.whisper.tokenizer import DETECT, SpecialTokens


class Burst(NamedTuple):
    """What the steps of a burst change."""

    rows: Rows
    caches: tuple[LayerKV, ...]
    step: Int32[Array, ""]


def admit(model: WhisperModel, slots: Slots, arrival: Arrival) -> Slots:
    """The slots with new windows in them, encoded. Donates slots."""
    mel = log_mel_batch(arrival.waveform, model.encoder.num_mels)
    crosses = model.decoder.put_frames(slots.crosses, model.encoder(mel), arrival.entry.slot)
    return slots._replace(rows=enter(slots.rows, arrival.entry), crosses=crosses)


def decode_burst(
    model: WhisperModel, slots: Slots, min_active: Int32[Array, ""], num_rows: int, decoding: Decoding
) -> Slots:
    """The slots after some steps of the first num_rows rows: the burst's number of steps, or fewer, once less
    than min_active of them go on. Donates slots.
    """
    rows: Rows = jax.tree.map(lambda x: x[:num_rows], slots.rows)
    frames = Frames(jnp.arange(num_rows, dtype=jnp.int32), rows.num_frames)
    read = Read(slots.crosses, frames)

    def unfinished(burst: Burst) -> Bool[Array, ""]:
        active = jnp.sum(~burst.rows.finished, dtype=jnp.int32)
        return (burst.step < decoding.burst) & (active >= jnp.maximum(min_active, 1))

    def advance(burst: Burst) -> Burst:
        return decode_step(model, read, burst, decoding)

    done = lax.while_loop(unfinished, advance, Burst(rows, slots.caches, jnp.int32(0)))
    rows = jax.tree.map(lambda old, new: old.at[:num_rows].set(new), slots.rows, done.rows)
    return slots._replace(rows=rows, caches=done.caches)


def decode_step(model: WhisperModel, read: Read, burst: Burst, decoding: Decoding) -> Burst:
    """The burst one token later; finished rows stay as they are."""
    rows = burst.rows
    token = _at(rows.tokens, rows.position)
    logits, caches = model.decoder.step(token, burst.caches, read, rows.position)
    at_sot = (token == decoding.special.sot) & (rows.position < rows.prompt_len) & ~rows.finished
    rows = lax.cond(
        jnp.any(at_sot),
        lambda rows: _read_sot(logits, rows, at_sot, decoding),
        lambda rows: rows,
        rows,
    )
    sampled, logprob = _sample(logits, rows, decoding)
    return Burst(append(rows, sampled, logprob, decoding.special), caches, burst.step + 1)


def _read_sot(
    logits: Float32[Array, "B V"], rows: Rows, at_sot: Bool[Array, " B"], decoding: Decoding
) -> Rows:
    """What the raw logits at <|startoftranscript|> say: whether there is speech, and the language."""
    special = decoding.special
    no_speech = jax.nn.softmax(logits, axis=-1)[:, special.no_speech]
    rows = rows._replace(no_speech_prob=jnp.where(at_sot, no_speech, rows.no_speech_prob))
    if not special.is_multilingual:
        return rows
    only = OnlyLanguages(decoding.languages)
    masked = only(logits, _history(rows, special))
    best = jnp.argmax(masked, axis=-1).astype(jnp.int32)
    probability = jnp.max(jax.nn.softmax(masked, axis=-1), axis=-1)
    detect = at_sot & (_at(rows.tokens, rows.position + 1) == DETECT)
    return rows._replace(
        tokens=_put(rows.tokens, rows.position + 1, best, detect),
        language_prob=jnp.where(detect, probability, rows.language_prob),
    )


def _sample(
    logits: Float32[Array, "B V"], rows: Rows, decoding: Decoding
) -> tuple[Int32[Array, " B"], Float32[Array, " B"]]:
    """The next token of every row and its log-probability after the rules."""
    history = _history(rows, decoding.special)
    for rule in decoding.rules:
        logits = rule(logits, history)
    hot = rows.temperature > 0

    def greedy() -> Int32[Array, " B"]:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)

    def sampled() -> Int32[Array, " B"]:
        # Row by row: few rows are hot, and noise for all of them would cost more than the decoder's step.
        def one(row: tuple[Array, ...]) -> Array:
            is_hot, best, *draw = row
            return lax.cond(is_hot, lambda: _draw(decoding.seed, *draw), lambda: best)

        return lax.map(one, (hot, greedy(), logits, rows.temperature, rows.seed, history.num_generated))

    token = lax.cond(jnp.any(hot & ~rows.finished), sampled, greedy)
    return token, _at(logits, token) - jax.nn.logsumexp(logits, axis=-1)


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


def append(
    rows: Rows, sampled: Int32[Array, " B"], logprob: Float32[Array, " B"], special: SpecialTokens
) -> Rows:
    """The rows with one more token each: the prompt's where it goes on, else the sampled one."""
    active = ~rows.finished
    generates = rows.position + 1 >= rows.prompt_len
    token = jnp.where(generates, sampled, _at(rows.tokens, rows.position + 1))
    is_timestamp = (token >= special.timestamp_begin) & (token < special.timestamp_end)
    runs = extend_runs(rows.runs, rows.tokens, (token, rows.position + 1, rows.prompt_len), special)
    loops = jnp.max(runs, axis=1) >= rows.loop_length
    ended = generates & ((token == special.eot) | (rows.position + 2 >= rows.limit) | loops)
    return rows._replace(
        tokens=_put(rows.tokens, rows.position + 1, token, active),
        position=jnp.where(active, rows.position + 1, rows.position),
        finished=rows.finished | ended,
        runs=jnp.where(active[:, None], runs, rows.runs),
        last_timestamp=jnp.where(active & generates & is_timestamp, token, rows.last_timestamp),
        sum_logprob=rows.sum_logprob + jnp.where(active & generates, logprob, 0.0),
    )


def _history(rows: Rows, special: SpecialTokens) -> History:
    return History(
        num_generated=jnp.maximum(rows.position + 1 - rows.prompt_len, 0),
        last=_at(rows.tokens, rows.position),
        second_last=_at(rows.tokens, jnp.maximum(rows.position - 1, 0)),
        last_timestamp=rows.last_timestamp,
        with_timestamps=rows.with_timestamps,
    )


def _at(table: Array, column: Int32[Array, " B"]) -> Array:
    """One entry a row of a [B, S] table; a column past the end reads the last."""
    return jnp.take_along_axis(table, column[:, None], axis=1, mode="clip")[:, 0]


def _put(
    table: Int32[Array, "B S"],
    column: Int32[Array, " B"],
    value: Int32[Array, " B"],
    chosen: Bool[Array, " B"],
) -> Int32[Array, "B S"]:
    """The table with one entry of each chosen row replaced."""
    rows = jnp.arange(table.shape[0], dtype=jnp.int32)
    return table.at[rows, jnp.where(chosen, column, table.shape[1])].set(value, mode="drop")
