"""The token loop on the device: slots that hold one window each, and the programs that move them on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, Float32, Int32, PyTree, Shaped, UInt32

from headrace.audio import log_mel_batch
from headrace.engines.whisper.alignment import Attended, Heads, Known, attend_to_frames
from headrace.engines.whisper.config import ModelDims
from headrace.engines.whisper.logit_rules import History, LogitRule, OnlyLanguages
from headrace.engines.whisper.model import Context, LayerKV, WhisperModel
from headrace.engines.whisper.storage import from_storage, storage_dtype, to_storage
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


class StoredKV(NamedTuple):
    """Keys and values of one layer, as they are stored."""

    k: Shaped[Array, "B D S"]
    v: Shaped[Array, "B D S"]


class Slots(NamedTuple):
    """All of the decoder's state. It is donated to the programs that move it on."""

    rows: Rows
    caches: tuple[StoredKV, ...]
    """Self-attention keys and values, a layer each."""
    crosses: tuple[tuple[LayerKV, ...], ...]
    """Cross-attention keys and values: for each group of slots, a layer each."""


class Arrival(NamedTuple):
    """Windows that enter slots of one group, E at a time; the same window twice fills the batch up."""

    waveform: Float32[Array, "E samples"]
    slot: Int32[Array, " E"]
    tokens: Int32[Array, "E S"]
    prompt_len: Int32[Array, " E"]
    limit: Int32[Array, " E"]
    with_timestamps: Bool[Array, " E"]
    seed: UInt32[Array, " E"]


class Restart(NamedTuple):
    """Slots that decode their window again, with timestamps; the encoder's work stays."""

    chosen: Bool[Array, " B"]
    temperature: Float32[Array, " B"]
    prompt_len: Int32[Array, " B"]
    """The prompt up to the task: what follows there (<|notimestamps|>) is dropped."""


class Burst(NamedTuple):
    """What the steps of a burst change."""

    rows: Rows
    recent: tuple[LayerKV, ...]
    """Keys and values of the burst's tokens, a layer each: [B, burst, D]."""
    step: Int32[Array, ""]


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """What the programs are compiled for."""

    dims: ModelDims
    special: SpecialTokens
    rules: Sequence[LogitRule]
    """Applied in their order to the logits of every generated token."""
    num_slots: int
    group_size: int
    """Slots whose frames lie in one array: a divisor of num_slots and of every row size."""
    row_sizes: Sequence[int]
    """Numbers of rows that a burst may have, from the fewest to all slots."""
    max_length: int
    """Most tokens of a row."""
    burst: int
    """Most steps of one dispatch."""
    seed: int
    languages: tuple[int, ...]
    """Language tokens that detection chooses from."""
    alignment_heads: Heads
    """(layer, head) pairs whose cross-attention follows the audio."""


def empty_slots(decoding: Decoding, dtype: jnp.dtype) -> Slots:
    """Slots that hold nothing: all rows are finished."""
    dims, B, S = decoding.dims, decoding.num_slots, decoding.max_length

    def layers(num_rows: int, length: int, dtype: jnp.dtype, kind: type) -> tuple:
        shape = (num_rows, dims.width, length)
        return tuple(
            kind(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)) for _ in range(dims.decoder_layers)
        )

    rows = Rows(
        tokens=jnp.zeros((B, S), jnp.int32),
        position=jnp.zeros(B, jnp.int32),
        prompt_len=jnp.ones(B, jnp.int32),
        limit=jnp.zeros(B, jnp.int32),
        finished=jnp.ones(B, bool),
        with_timestamps=jnp.zeros(B, bool),
        last_timestamp=jnp.full(B, -1, jnp.int32),
        temperature=jnp.zeros(B, jnp.float32),
        seed=jnp.zeros(B, jnp.uint32),
        sum_logprob=jnp.zeros(B, jnp.float32),
        no_speech_prob=jnp.zeros(B, jnp.float32),
        language_prob=jnp.zeros(B, jnp.float32),
    )
    size = decoding.group_size
    return Slots(
        rows=rows,
        caches=layers(B, S, storage_dtype(dtype), StoredKV),
        crosses=tuple(layers(size, dims.num_frames, dtype, LayerKV) for _ in range(B // size)),
    )


def admit(
    model: WhisperModel, rows: Rows, group: tuple[LayerKV, ...], arrival: Arrival
) -> tuple[Rows, tuple[LayerKV, ...]]:
    """The rows, and one group's keys and values, with new windows in them, encoded. Donates rows and group.

    All of the windows' slots are in that group.
    """
    mel = log_mel_batch(arrival.waveform, model.encoder.conv1.weight.shape[1] // 3)
    new = model.decoder.keys_values(model.encoder(mel))
    for i in range(arrival.slot.shape[0]):
        place = arrival.slot[i] % group[0].k.shape[0]
        group = jax.tree.map(partial(_put_row, row=i, place=place), group, new)
    return _enter(rows, arrival), group


def restart(rows: Rows, restart: Restart) -> Rows:
    """The rows with the chosen ones back at the end of their prompt. Donates rows."""
    chosen = restart.chosen
    return rows._replace(
        position=jnp.where(chosen, restart.prompt_len - 1, rows.position),
        prompt_len=jnp.where(chosen, restart.prompt_len, rows.prompt_len),
        with_timestamps=rows.with_timestamps | chosen,
        finished=rows.finished & ~chosen,
        last_timestamp=jnp.where(chosen, -1, rows.last_timestamp),
        temperature=jnp.where(chosen, restart.temperature, rows.temperature),
        sum_logprob=jnp.where(chosen, 0.0, rows.sum_logprob),
    )


def decode_burst(
    model: WhisperModel, slots: Slots, min_active: Int32[Array, ""], num_rows: int, decoding: Decoding
) -> Slots:
    """The slots after some steps of the first num_rows rows: the burst's number of steps, or fewer, once less
    than min_active of them go on. Donates slots.

    What the rows attend to is read once; the burst's own keys and values are kept apart until its end.
    """
    rows: Rows = jax.tree.map(lambda x: x[:num_rows], slots.rows)
    context = Context(
        past=tuple(LayerKV(*(from_storage(x[:num_rows]) for x in layer)) for layer in slots.caches),
        past_len=rows.position,
        crosses=slots.crosses[: num_rows // decoding.group_size],
    )
    empty = jnp.zeros((num_rows, decoding.burst, decoding.dims.width), model.decoder.dtype)
    recent = tuple(LayerKV(empty, empty) for _ in context.past)

    def unfinished(burst: Burst) -> Bool[Array, ""]:
        active = jnp.sum(~burst.rows.finished, dtype=jnp.int32)
        return (burst.step < decoding.burst) & (active >= jnp.maximum(min_active, 1))

    def advance(burst: Burst) -> Burst:
        return decode_step(model, context, burst, decoding)

    done = lax.while_loop(unfinished, advance, Burst(rows, recent, jnp.int32(0)))
    return _write_back(slots, done, context.past_len)


def decode_step(model: WhisperModel, context: Context, burst: Burst, decoding: Decoding) -> Burst:
    """The burst one token later; finished rows stay as they are."""
    rows = burst.rows
    token = _at(rows.tokens, rows.position)
    logits, recent = model.decoder.step(token, context, burst.recent, burst.step)
    at_sot = (token == decoding.special.sot) & (rows.position < rows.prompt_len) & ~rows.finished
    rows = lax.cond(
        jnp.any(at_sot),
        lambda rows: _read_sot(logits, rows, at_sot, decoding),
        lambda rows: rows,
        rows,
    )
    sampled, logprob = _sample(logits, rows, decoding)
    return Burst(_append(rows, sampled, logprob, decoding.special), recent, burst.step + 1)


def programs(model: WhisperModel, decoding: Decoding) -> "Programs":
    """The jitted programs, over the model's parameters as a plain pytree."""
    graph, params = nnx.split(model)

    def admit_program(params: PyTree, rows: Rows, group: tuple[LayerKV, ...], arrival: Arrival) -> tuple:
        return admit(nnx.merge(graph, params), rows, group, arrival)

    def burst_program(params: PyTree, slots: Slots, min_active: Int32[Array, ""], num_rows: int) -> Slots:
        return decode_burst(nnx.merge(graph, params), slots, min_active, num_rows, decoding)

    def align_program(params: PyTree, group: tuple[LayerKV, ...], known: Known) -> Attended:
        decoder = nnx.merge(graph, params).decoder
        return attend_to_frames(decoder, group, known, decoding.alignment_heads, decoding.special.eot)

    return Programs(
        params=params,
        admit=jax.jit(admit_program, donate_argnums=(1, 2)),
        burst=jax.jit(burst_program, donate_argnums=1, static_argnums=3),
        restart=jax.jit(restart, donate_argnums=0),
        align=jax.jit(align_program),
    )


class Programs(NamedTuple):
    params: PyTree
    admit: Callable
    burst: Callable
    restart: Callable
    align: Callable


def _put_row(
    old: Float[Array, "G D F"], new: Float[Array, "E D F"], row: int, place: Int32[Array, ""]
) -> Float[Array, "G D F"]:
    """The group's array with one window's row at its place."""
    return lax.dynamic_update_slice_in_dim(old, new[row][None], place, axis=0)


def _write_back(slots: Slots, burst: Burst, past_len: Int32[Array, " N"]) -> Slots:
    """The slots with the rows of a burst, and with the keys and values of the tokens that they took."""
    num_rows, num_steps = burst.recent[0].k.shape[:2]
    step = jnp.arange(num_steps, dtype=jnp.int32)[None]
    taken = step < (burst.rows.position - past_len)[:, None]
    column = jnp.where(taken, past_len[:, None] + step, slots.caches[0].k.shape[2])
    row = jnp.broadcast_to(jnp.arange(num_rows, dtype=jnp.int32)[:, None], column.shape)

    def write(old: Shaped[Array, "B D S"], new: Float[Array, "N K D"]) -> Shaped[Array, "B D S"]:
        return old.at[row, :, column].set(to_storage(new), mode="drop")

    caches = tuple(
        StoredKV(write(old.k, new.k), write(old.v, new.v))
        for old, new in zip(slots.caches, burst.recent, strict=True)
    )
    rows = jax.tree.map(lambda old, new: old.at[:num_rows].set(new), slots.rows, burst.rows)
    return Slots(rows=rows, caches=caches, crosses=slots.crosses)


def _enter(rows: Rows, arrival: Arrival) -> Rows:
    slot = arrival.slot

    def put(old: Array, new: Array | float | int | bool) -> Array:
        return old.at[slot].set(new)

    return Rows(
        tokens=put(rows.tokens, arrival.tokens),
        position=put(rows.position, 0),
        prompt_len=put(rows.prompt_len, arrival.prompt_len),
        limit=put(rows.limit, arrival.limit),
        finished=put(rows.finished, False),
        with_timestamps=put(rows.with_timestamps, arrival.with_timestamps),
        last_timestamp=put(rows.last_timestamp, -1),
        temperature=put(rows.temperature, 0.0),
        seed=put(rows.seed, arrival.seed),
        sum_logprob=put(rows.sum_logprob, 0.0),
        no_speech_prob=put(rows.no_speech_prob, 0.0),
        language_prob=put(rows.language_prob, 1.0),
    )


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


def _append(
    rows: Rows, sampled: Int32[Array, " B"], logprob: Float32[Array, " B"], special: SpecialTokens
) -> Rows:
    """The rows with one more token each: the prompt's where it goes on, else the sampled one."""
    active = ~rows.finished
    generates = rows.position + 1 >= rows.prompt_len
    token = jnp.where(generates, sampled, _at(rows.tokens, rows.position + 1))
    is_timestamp = (token >= special.timestamp_begin) & (token < special.timestamp_end)
    ended = generates & ((token == special.eot) | (rows.position + 2 >= rows.limit))
    return rows._replace(
        tokens=_put(rows.tokens, rows.position + 1, token, active),
        position=jnp.where(active, rows.position + 1, rows.position),
        finished=rows.finished | ended,
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
