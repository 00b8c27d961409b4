"""What the decoder's slots hold, and how windows come into them and start again; donated between programs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int32, UInt32

from headrace.engines.whisper.alignment import Heads
from headrace.engines.whisper.attention import REORDERED, LayerKV
from headrace.engines.whisper.beams import EndedTexts, no_texts
from headrace.engines.whisper.config import ModelDims
from headrace.engines.whisper.logit_rules import LogitRule
from headrace.engines.whisper.model import WhisperModel
from headrace.engines.whisper.repetition import MAX_PERIOD
from headrace.engines.whisper.tokenizer import SpecialTokens


class Rows(NamedTuple):
    """The state of every row but its keys and values; a slot has one row, or one a beam, side by side."""

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
    """Folded into the job's key: the number of the window in its recording, and of the draw."""
    sum_logprob: Float32[Array, " B"]
    """Of the generated tokens, the end included, after the rules."""
    no_speech_prob: Float32[Array, " B"]
    language_prob: Float32[Array, " B"]
    """Of the language token, among the languages; 1 where the prompt named it."""


class Slots(NamedTuple):
    """All of the decoder's state. It is donated to the programs that move it on."""

    rows: Rows
    ended: EndedTexts
    """Texts that beam search has ended; there is room for none without it."""
    caches: tuple[LayerKV, ...]
    """Self-attention keys and values, a layer each, of every row."""
    crosses: tuple[LayerKV, ...]
    """Cross-attention keys and values, a layer each, of every slot: the beams of a window share them."""


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
    zeros_from: Int32[Array, " E"]
    """Sample after which the spectrogram is zeros; a window's last for silence."""
    entry: Entry


class Restart(NamedTuple):
    """Rows that decode their window again, with timestamps; the encoder's work stays."""

    chosen: Bool[Array, " B"]
    temperature: Float32[Array, " B"]
    seed: UInt32[Array, " B"]
    prompt_len: Int32[Array, " B"]
    """The prompt up to the task: what follows there (<|notimestamps|>) is dropped."""


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """What the programs are compiled for."""

    dims: ModelDims
    special: SpecialTokens
    rules: Sequence[LogitRule]
    """Applied in their order to the logits of every generated token."""
    num_slots: int
    slot_sizes: Sequence[int]
    """Numbers of slots that a burst may have, from the fewest to all."""
    beam_size: int
    """Rows of a slot; 1: no beam search."""
    num_candidates: int
    """Ended texts that end a window's beam search."""
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
    dims, S = decoding.dims, decoding.max_length
    B = decoding.num_slots * decoding.beam_size
    of_layer = (dims.width, model.decoder.dtype)
    backends = [layer.backend for layer in model.decoder.layers]
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
    if decoding.beam_size == 1:
        ended, room = no_texts(decoding.num_slots, 0, S), S
    else:
        ended = no_texts(decoding.num_slots, decoding.num_candidates, S)
        room = -(-S // REORDERED) * REORDERED
    return Slots(
        rows=rows,
        ended=ended,
        caches=tuple(backend.empty_tokens(B, room, *of_layer) for backend in backends),
        crosses=tuple(
            backend.empty_frames(decoding.num_slots, dims.num_frames, *of_layer) for backend in backends
        ),
    )


def enter(rows: Rows, entry: Entry, beam_size: int) -> Rows:
    """The rows with prompts at their beginning in some slots, whose windows are encoded. Donates rows."""
    entry = jax.tree.map(lambda x: jnp.repeat(x, beam_size, axis=0), entry)
    row = entry.slot * beam_size + jnp.arange(len(entry.slot), dtype=jnp.int32) % beam_size

    def put(old: Array, new: Array | float | int | bool) -> Array:
        return old.at[row].set(new)

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
        seed=jnp.where(chosen, restart.seed, rows.seed),
        sum_logprob=jnp.where(chosen, 0.0, rows.sum_logprob),
    )
