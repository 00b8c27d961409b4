"""The token loop on the device: windows are encoded into slots, and bursts of steps move their rows on."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float32, Int32

from headrace.audio import fill_with_zeros, log_mel_batch
from headrace.engines.whisper.attention import Frames, LayerKV
from headrace.engines.whisper.beams import Beams, EndedTexts, choose_beams
from headrace.engines.whisper.choose import apply_rules, choose, choose_in_xla, entry_at, history_of
from headrace.engines.whisper.logit_rules import OnlyLanguages
from headrace.engines.whisper.model import Read, WhisperModel
from headrace.engines.whisper.repetition import extend_runs
from headrace.engines.whisper.slots import Arrival, Decoding, Rows, Slots, enter
from headrace.engines.whisper.tokenizer import DETECT, SpecialTokens


class Burst(NamedTuple):
    """What the steps of a burst change."""

    rows: Rows
    ended: EndedTexts
    caches: tuple[LayerKV, ...]
    step: Int32[Array, ""]


def admit(model: WhisperModel, slots: Slots, arrival: Arrival, beam_size: int) -> Slots:
    """The slots with new windows in them, encoded. Donates slots."""
    mel = fill_with_zeros(log_mel_batch(arrival.waveform, model.encoder.num_mels), arrival.zeros_from)
    crosses = model.decoder.put_frames(slots.crosses, model.encoder(mel), arrival.entry.slot)
    return slots._replace(rows=enter(slots.rows, arrival.entry, beam_size), crosses=crosses)


def decode_burst(
    model: WhisperModel, slots: Slots, min_active: Int32[Array, ""], num_slots: int, decoding: Decoding
) -> Slots:
    """The slots after some steps of the first num_slots: the burst's number of steps, or fewer, once less
    than min_active of them go on. Donates slots.
    """
    size = decoding.beam_size
    rows: Rows = jax.tree.map(lambda x: x[: num_slots * size], slots.rows)
    ended = jax.tree.map(lambda x: x[:num_slots], slots.ended)
    slot = jnp.arange(num_slots, dtype=jnp.int32)

    def goes_on(burst: Burst) -> Bool[Array, " W"]:
        return jnp.any(~burst.rows.finished.reshape(num_slots, size), axis=1)

    def unfinished(burst: Burst) -> Bool[Array, ""]:
        active = jnp.sum(goes_on(burst), dtype=jnp.int32)
        return (burst.step < decoding.burst) & (active >= jnp.maximum(min_active, 1))

    def advance(burst: Burst) -> Burst:
        # Reading the frames is half of a step's work: those of finished rows are left alone.
        lengths = jnp.where(goes_on(burst), burst.rows.num_frames[::size], 0)
        return decode_step(model, Read(slots.crosses, Frames(slot, lengths)), burst, decoding)

    done = lax.while_loop(unfinished, advance, Burst(rows, ended, slots.caches, jnp.int32(0)))

    def put(old: Array, new: Array) -> Array:
        return old.at[: len(new)].set(new)

    rows, ended = jax.tree.map(put, (slots.rows, slots.ended), (done.rows, done.ended))
    return slots._replace(rows=rows, ended=ended, caches=done.caches)


def decode_step(model: WhisperModel, read: Read, burst: Burst, decoding: Decoding) -> Burst:
    """The burst one token later; finished rows stay as they are."""
    rows = burst.rows
    token = entry_at(rows.tokens, rows.position)
    logits, caches = model.decoder.step(token, burst.caches, read, rows.position)
    at_sot = (token == decoding.special.sot) & (rows.position < rows.prompt_len) & ~rows.finished
    rows = lax.cond(
        jnp.any(at_sot),
        lambda rows: _read_sot(logits, rows, at_sot, decoding),
        lambda rows: rows,
        rows,
    )
    new = burst._replace(caches=caches, step=burst.step + 1)
    if decoding.beam_size > 1:
        logits = apply_rules(logits, history_of(rows, decoding.special), decoding)
        sampled, logprob = choose_in_xla(logits, rows, decoding)
        logprobs = logits - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
        return _search(model, new._replace(rows=rows), logprobs, (sampled, logprob), decoding)
    token, logprob = choose(logits, rows, decoding)
    return new._replace(rows=append(rows, token, logprob, decoding.special))


def _search(
    model: WhisperModel,
    burst: Burst,
    logprobs: Float32[Array, "B V"],
    drawn: tuple[Int32[Array, " B"], Float32[Array, " B"]],
    decoding: Decoding,
) -> Burst:
    """The burst with the best continuations of each window's beams; rows that are drawn take their tokens."""
    rows, special, size = burst.rows, decoding.special, decoding.beam_size
    is_cold = rows.temperature == 0
    generates = (rows.position + 1 >= rows.prompt_len) & ~rows.finished
    beams = Beams(
        tokens=rows.tokens,
        position=rows.position,
        sum_logprob=rows.sum_logprob,
        is_first=rows.position + 1 == rows.prompt_len,
        is_searching=is_cold & generates,
    )
    choice = choose_beams(logprobs, beams, burst.ended, size, special.eot)
    rows = rows._replace(
        tokens=rows.tokens[choice.source],
        runs=rows.runs[choice.source],
        last_timestamp=rows.last_timestamp[choice.source],
        sum_logprob=choice.sum_logprob,
    )
    token, logprob = drawn
    token, logprob = jnp.where(is_cold, choice.token, token), jnp.where(is_cold, 0.0, logprob)
    rows = append(rows, token, logprob, special)
    # The search ends with its texts, at its limit, and where its best beam is a loop.
    best = rows.finished.reshape(-1, size)[:, 0] | (choice.ended.count >= decoding.num_candidates)
    finished = jnp.where(beams.is_searching, jnp.repeat(best, size), rows.finished)
    row = jnp.arange(len(token), dtype=jnp.int32)
    reach = jnp.max(jnp.where(choice.source != row, rows.position, 0))
    caches = model.decoder.reorder(burst.caches, choice.source, reach)
    return burst._replace(rows=rows._replace(finished=finished), ended=choice.ended, caches=caches)


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
    masked = only(logits, history_of(rows, special))
    best = jnp.argmax(masked, axis=-1).astype(jnp.int32)
    probability = jnp.max(jax.nn.softmax(masked, axis=-1), axis=-1)
    detect = at_sot & (entry_at(rows.tokens, rows.position + 1) == DETECT)
    return rows._replace(
        tokens=_put(rows.tokens, rows.position + 1, best, detect),
        language_prob=jnp.where(detect, probability, rows.language_prob),
    )


def append(
    rows: Rows, sampled: Int32[Array, " B"], logprob: Float32[Array, " B"], special: SpecialTokens
) -> Rows:
    """The rows with one more token each: the prompt's where it goes on, else the sampled one."""
    active = ~rows.finished
    generates = rows.position + 1 >= rows.prompt_len
    token = jnp.where(generates, sampled, entry_at(rows.tokens, rows.position + 1))
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


def _put(
    table: Int32[Array, "B S"],
    column: Int32[Array, " B"],
    value: Int32[Array, " B"],
    chosen: Bool[Array, " B"],
) -> Int32[Array, "B S"]:
    """The table with one entry of each chosen row replaced."""
    rows = jnp.arange(table.shape[0], dtype=jnp.int32)
    return table.at[rows, jnp.where(chosen, column, table.shape[1])].set(value, mode="drop")
