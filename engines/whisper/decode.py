"""The token loop on the device: slots that hold one window each, and the programs that move them on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float32, Int32, UInt32

from headrace.audio import log_mel_batch
from headrace.engines.whisper.alignment import Heads
from headrace.engines.whisper.attention import Frames, LayerKV
from headrace.engines.whisper.config import ModelDims
from headrace.engines.whisper.logit_rules import History, LogitRule, OnlyLanguages
from headrace.engines.whisper.model import Read, WhisperModel
from headrace.engines.whisper.repetition import MAX_PERIOD, extend_runs
from headrace.engines.whisper.tokenizer import DETECT, SpecialTokens


class Rows(NamedTuple):
    """The state of every slot but its keys and values."""

    tokens: Int32[Array, "B S"]
    """Prompt, then generated tokens."""
    position: Int32[Array, " B"]
    """Index of the token that the decoder takes next; those before are in the cache."""
    prompt_len: Int32[Array, " B"]
    limit: Int32[Array, " B"]
    """Most tokens, prompt included."""
    loop_length: Int32[Array, " B"]
    """Tokens of a repeated run that end the row."""
    runs: Int32[Array, "B P"]
    """For each period, how many of the newest tokens are those of a period before."""
    num_frames: Int32[Array, " B"]
    """Positions of the encoder's output that the decoder looks at."""
    finished: Bool[Array, " B"]
    """Rows that wait for the host, empty slots among them."""
    with_timestamps: Bool[Array, " B"]
    last_timestamp: Int32[Array, " B"]
    temperature: Float32[Array, " B"]
    """0: greedy."""
    seed: UInt32[Array, " B"]
    """Folded into the job's key: the number of the window in its recording."""
    sum_logprob: Float32[Array, " B"]
    """Of the generated tokens, the end included, after the rules."""
    no_speech_prob: Float32[Array, " B"]
    language_prob: Float32[Array, " B"]
    """Of the language token, among the languages; 1 where the prompt named it."""


class Slots(NamedTuple):
    """All of the decoder's state. It is donated to the programs that move it on."""

    rows: Rows
    caches: tuple[LayerKV, ...]
    """Self-attention keys and values, a layer each."""
    crosses: tuple[LayerKV, ...]
    """Cross-attention keys and values, a layer each."""


class Entry(NamedTuple):
    """What slots begin with, E at a time."""

    slot: Int32[Array, " E"]
    tokens: Int32[Array, "E S"]
    prompt_len: Int32[Array, " E"]
    limit: Int32[Array, " E"]
    loop_length: Int32[Array, " E"]
    num_frames: Int32[Array, " E"]
    with_timestamps: Bool[Array, " E"]
    seed: UInt32[Array, " E"]


class Arrival(NamedTuple):
    """Windows that enter slots, E at a time; the same window twice fills the batch up."""

    waveform: Float32[Array, "E samples"]
    entry: Entry


class Restart(NamedTuple):
    """Slots that decode their window again, with timestamps; the encoder's work stays."""

    chosen: Bool[Array, " B"]
    temperature: Float32[Array, " B"]
    prompt_len: Int32[Array, " B"]
    """The prompt up to the task: what follows there (<|notimestamps|>) is dropped."""


class Burst(NamedTuple):
    """What the steps of a burst change."""

    rows: Rows
    caches: tuple[LayerKV, ...]
    step: Int32[Array, ""]


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """What the programs are compiled for."""

    dims: ModelDims
    special: SpecialTokens
    rules: Sequence[LogitRule]
    """Applied in their order to the logits of every generated token."""
    num_slots: int
    row_sizes: Sequence[int]
    """Numbers of rows that a burst may have, from the fewest to all slots."""
    contexts: Sequence[int]
    """Numbers of frames that the encoder may take, ascending; the last are a whole window's."""
    max_length: int
    """Most tokens of a row."""
    burst: int
    """Most steps of one dispatch."""
    seed: int
    languages: tuple[int, ...]
    """Language tokens that detection chooses from."""
    alignment_heads: Heads
    """(layer, head) pairs whose cross-attention follows the audio."""


def empty_slots(model: WhisperModel, decoding: Decoding) -> Slots:
    """Slots that hold nothing: all rows are finished."""
    dims, B, S = decoding.dims, decoding.num_slots, decoding.max_length

    def layers(length: int) -> tuple[LayerKV, ...]:
        decoder = model.decoder
        return tuple(layer.backend.empty(B, length, dims.width, decoder.dtype) for layer in decoder.layers)

    rows = Rows(
        tokens=jnp.zeros((B, S), jnp.int32),
        position=jnp.zeros(B, jnp.int32),
        prompt_len=jnp.ones(B, jnp.int32),
        limit=jnp.zeros(B, jnp.int32),
        loop_length=jnp.ones(B, jnp.int32),
        runs=jnp.zeros((B, MAX_PERIOD), jnp.int32),
        num_frames=jnp.ones(B, jnp.int32),
        finished=jnp.ones(B, bool),
        with_timestamps=jnp.zeros(B, bool),
        last_timestamp=jnp.full(B, -1, jnp.int32),
        temperature=jnp.zeros(B, jnp.float32),
        seed=jnp.zeros(B, jnp.uint32),
        sum_logprob=jnp.zeros(B, jnp.float32),
        no_speech_prob=jnp.zeros(B, jnp.float32),
        language_prob=jnp.zeros(B, jnp.float32),
    )
    return Slots(rows=rows, caches=layers(S), crosses=layers(dims.num_frames))


def admit(model: WhisperModel, slots: Slots, arrival: Arrival) -> Slots:
    """The slots with new windows in them, encoded. Donates slots."""
    mel = log_mel_batch(arrival.waveform, model.encoder.num_mels)
    crosses = model.decoder.put_frames(slots.crosses, model.encoder(mel), arrival.entry.slot)
    return slots._replace(rows=enter(slots.rows, arrival.entry), crosses=crosses)


def enter(rows: Rows, entry: Entry) -> Rows:
    """The rows with prompts at their beginning in some slots, whose windows are encoded. Donates rows."""
    slot = entry.slot

    def put(old: Array, new: Array | float | int | bool) -> Array:
        return old.at[slot].set(new)

    return Rows(
        tokens=put(rows.tokens, entry.tokens),
        position=put(rows.position, 0),
        prompt_len=put(rows.prompt_len, entry.prompt_len),
        limit=put(rows.limit, entry.limit),
        loop_length=put(rows.loop_length, entry.loop_length),
        runs=put(rows.runs, 0),
        num_frames=put(rows.num_frames, entry.num_frames),
        finished=put(rows.finished, False),
        with_timestamps=put(rows.with_timestamps, entry.with_timestamps),
        last_timestamp=put(rows.last_timestamp, -1),
        temperature=put(rows.temperature, 0.0),
        seed=put(rows.seed, entry.seed),
        sum_logprob=put(rows.sum_logprob, 0.0),
        no_speech_prob=put(rows.no_speech_prob, 0.0),
        language_prob=put(rows.language_prob, 1.0),
    )


def restart(rows: Rows, restart: Restart) -> Rows:
    """The rows with the chosen ones back at the end of their prompt. Donates rows."""
    chosen = restart.chosen
    return rows._replace(
        position=jnp.where(chosen, restart.prompt_len - 1, rows.position),
        prompt_len=jnp.where(chosen, restart.prompt_len, rows.prompt_len),
        with_timestamps=rows.with_timestamps | chosen,
        finished=rows.finished & ~chosen,
        runs=jnp.where(chosen[:, None], 0, rows.runs),
        last_timestamp=jnp.where(chosen, -1, rows.last_timestamp),
        temperature=jnp.where(chosen, restart.temperature, rows.temperature),
        sum_logprob=jnp.where(chosen, 0.0, rows.sum_logprob),
    )


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
