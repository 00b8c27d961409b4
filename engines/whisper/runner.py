"""Moves the decoder's slots on the device: admits windows, runs bursts, reads back what has finished."""

import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.stages import Compiled

from headrace.engines.buckets import growing_buckets, pick_bucket
from headrace.engines.whisper.alignment import Attended, Known
from headrace.engines.whisper.decode import (
    Arrival,
    Decoding,
    Restart,
    Rows,
    Slots,
    empty_slots,
    programs,
)
from headrace.engines.whisper.model import WhisperModel
from headrace.engines.whisper.repetition import LOOP_TOKENS_PER_S

logger = logging.getLogger(__name__)

FRAME_SAMPLES = 320
"""Samples of one frame of the encoder's output: 20 ms."""
MARGIN_FRAMES = 150
"""Silence after a short window's audio, 3 s: without it the decoder repeats the last words."""
SPARE_TOKENS = 32
"""Tokens that a window may have beside those that its seconds allow."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A window that enters a slot."""

    slot: int
    """Which slot."""
    waveform: np.ndarray
    """float32 samples at 16 kHz, at most a window's."""
    prompt: tuple[int, ...]
    """Tokens to start with."""
    with_timestamps: bool
    """Whether the timestamp rules hold."""
    number: int
    """Number of the window in its recording: the seed of a sampled retry."""
    may_fit: bool = False
    """Whether the encoder may take less than 30 s where the audio is short."""

    @property
    def num_forced(self) -> int:
        """Tokens of the prompt without <|notimestamps|>, which comes last."""
        return len(self.prompt) - (not self.with_timestamps)


class Finished(NamedTuple):
    """What a window came to."""

    job: Job
    token_ids: tuple[int, ...]
    """Generated tokens without the end token."""
    num_tokens: int
    """Generated tokens with the end token."""
    ended: bool
    """False where the limit ended the row."""
    sum_logprob: float
    no_speech_prob: float
    language_token: int
    """The prompt's token after <|startoftranscript|>."""
    language_prob: float
    temperature: float
    with_timestamps: bool


class Runner:
    """Owns the slots and the compiled programs; one dispatch reads back once."""

    def __init__(
        self, model: WhisperModel, decoding: Decoding, *, encoder_batch: int, max_tokens_per_s: float
    ) -> None:
        self.encoder_batch = encoder_batch
        self.counters: dict[str, float] = dict.fromkeys(
            ("dispatches", "compiles", "encoder_padding", "encoded_frames"), 0.0
        )
        self._decoding = decoding
        self._max_tokens_per_s = max_tokens_per_s
        self._slots = empty_slots(model, decoding)
        self._restarts: dict[int, float] = {}
        self._jobs: dict[int, Job] = {}
        self._aligns: dict[int, Compiled] = {}
        self._compile(model)

    @property
    def num_slots(self) -> int:
        return self._decoding.num_slots

    def admit(self, jobs: Sequence[Job]) -> None:
        """Encodes at most `encoder_batch` windows into their slots, those of one context in one dispatch."""
        by_context: dict[int, list[Job]] = {}
        for job in jobs:
            by_context.setdefault(self.context(job), []).append(job)
        for context, group in by_context.items():
            filled = [*group, *[group[-1]] * (self.encoder_batch - len(group))]
            self.counters["encoder_padding"] += len(filled) - len(group)
            self.counters["encoded_frames"] += context * len(filled)
            self.counters["dispatches"] += 1
            self._slots = self._admits[context](self._params, self._slots, self._arrival(filled, context))
            self._jobs.update((job.slot, job) for job in group)

    def restart(self, job: Job, temperature: float) -> None:
        """Decodes the window of a slot again, with timestamps, from the next burst on."""
        self._restarts[job.slot] = temperature
        self._jobs[job.slot] = job

    def align(self, job: Job, tokens: Sequence[int]) -> Attended:
        """What known tokens look at in the window of a slot, which must not have been filled anew."""
        buckets = growing_buckets(min(32, self._decoding.max_length), self._decoding.max_length)
        padded = np.zeros(pick_bucket(buckets, len(tokens)), np.int32)
        padded[: len(tokens)] = tokens
        positions = -(-len(job.waveform) // 320)
        known = Known(
            tokens=jnp.asarray(padded),
            num_tokens=jnp.int32(len(tokens)),
            num_frames=jnp.int32(min(max(positions, 1), self._decoding.dims.num_frames)),
            context=jnp.int32(self.context(job)),
            slot=jnp.int32(job.slot),
        )
        crosses = self._slots.crosses
        if len(padded) not in self._aligns:
            self._aligns[len(padded)] = self._jitted.align.lower(self._params, crosses, known).compile()
            self.counters["compiles"] += 1
        self.counters["dispatches"] += 1
        return jax.device_get(self._aligns[len(padded)](self._params, crosses, known))

    def stop(self, slot: int) -> None:
        """Forgets a slot's row; it may run on until a new one takes its place."""
        self._restarts.pop(slot, None)
        self._jobs.pop(slot, None)

    def decode(self, *, can_refill: bool) -> list[Finished]:
        """One burst, and the rows that have finished.

        With `can_refill` the burst ends as soon as an eighth of the slots are free for windows that wait.
        """
        if self._restarts:
            self._dispatch_restarts()
        spare = max(1, self.num_slots // 8) if can_refill else self.num_slots
        min_active = max(1, len(self._jobs) - spare + 1)
        burst = next(self._bursts[size] for size in self._decoding.row_sizes if size > max(self._jobs))
        self._slots = burst(self._params, self._slots, jnp.int32(min_active))
        self.counters["dispatches"] += 1
        rows = jax.device_get(self._slots.rows)
        finished = [slot for slot in sorted(self._jobs) if rows.finished[slot]]
        return [self._read(rows, self._jobs.pop(slot)) for slot in finished]

    def _dispatch_restarts(self) -> None:
        chosen = np.zeros(self.num_slots, bool)
        temperature = np.zeros(self.num_slots, np.float32)
        prompt_len = np.zeros(self.num_slots, np.int32)
        for slot, value in self._restarts.items():
            chosen[slot], temperature[slot] = True, value
            prompt_len[slot] = self._jobs[slot].num_forced
        self._restarts.clear()
        restart = Restart(jnp.asarray(chosen), jnp.asarray(temperature), jnp.asarray(prompt_len))
        rows = self._restart(self._slots.rows, restart)
        self._slots = self._slots._replace(rows=rows)
        self.counters["dispatches"] += 1

    def is_fitted(self, job: Job) -> bool:
        """Whether the encoder took less than 30 s of a window."""
        return self.context(job) < self._decoding.dims.num_frames

    def context(self, job: Job) -> int:
        """Frames that the encoder takes of a window: all, or its own and a margin of silence."""
        if not job.may_fit:
            return self._decoding.dims.num_frames
        wanted = -(-len(job.waveform) // FRAME_SAMPLES) + MARGIN_FRAMES
        return next((size for size in self._decoding.contexts if size >= wanted), self._decoding.contexts[-1])

    def _arrival(self, jobs: Sequence[Job], num_frames: int) -> Arrival:
        waveform = np.zeros((len(jobs), num_frames * FRAME_SAMPLES), np.float32)
        tokens = np.zeros((len(jobs), self._decoding.max_length), np.int32)
        for row, job in enumerate(jobs):
            waveform[row, : len(job.waveform)] = job.waveform
            tokens[row, : len(job.prompt)] = job.prompt
        return Arrival(
            waveform=jnp.asarray(waveform),
            slot=jnp.array([job.slot for job in jobs], jnp.int32),
            tokens=jnp.asarray(tokens),
            prompt_len=jnp.array([len(job.prompt) for job in jobs], jnp.int32),
            limit=jnp.array([self._limit(job) for job in jobs], jnp.int32),
            loop_length=jnp.array([self._loop_length(job) for job in jobs], jnp.int32),
            num_frames=jnp.full(len(jobs), num_frames, jnp.int32),
            with_timestamps=jnp.array([job.with_timestamps for job in jobs], bool),
            seed=jnp.array([job.number for job in jobs], jnp.uint32),
        )

    def _limit(self, job: Job) -> int:
        seconds = len(job.waveform) / 16_000
        allowed = len(job.prompt) + SPARE_TOKENS + int(seconds * self._max_tokens_per_s)
        return min(allowed, self._decoding.max_length)

    def _loop_length(self, job: Job) -> int:
        return SPARE_TOKENS + int(len(job.waveform) / 16_000 * LOOP_TOKENS_PER_S)

    def _read(self, rows: Rows, job: Job) -> Finished:
        slot = job.slot
        prompt_len, end = int(rows.prompt_len[slot]), int(rows.position[slot]) + 1
        generated = [int(token) for token in rows.tokens[slot, prompt_len:end]]
        ended = bool(generated) and generated[-1] == self._decoding.special.eot
        return Finished(
            job=job,
            token_ids=tuple(generated[:-1] if ended else generated),
            num_tokens=len(generated),
            ended=ended,
            sum_logprob=float(rows.sum_logprob[slot]),
            no_speech_prob=float(rows.no_speech_prob[slot]),
            language_token=int(rows.tokens[slot, job.prompt.index(self._decoding.special.sot) + 1]),
            language_prob=float(rows.language_prob[slot]),
            temperature=round(float(rows.temperature[slot]), 6),
            with_timestamps=bool(rows.with_timestamps[slot]),
        )

    def _compile(self, model: WhisperModel) -> None:
        """Compiles every program for its one shape, side by side; a later compile is not possible."""
        started = time.monotonic()
        self._jitted = jitted = programs(model, self._decoding)
        self._params = jitted.params
        silence = Job(slot=0, waveform=np.zeros(0, np.float32), prompt=(0,), with_timestamps=False, number=0)
        contexts = self._decoding.contexts
        arrivals = [self._arrival([silence] * self.encoder_batch, context) for context in contexts]
        number = jnp.zeros(self.num_slots, jnp.int32)
        nothing = Restart(number > 0, number.astype(jnp.float32), number)
        slots: Slots = self._slots
        sizes = self._decoding.row_sizes
        lowered = (
            jitted.restart.lower(slots.rows, nothing),
            *(jitted.admit.lower(self._params, slots, arrival) for arrival in arrivals),
            *(jitted.burst.lower(self._params, slots, jnp.int32(1), size) for size in sizes),
        )
        with ThreadPoolExecutor(len(lowered)) as pool:
            self._restart, *compiled = pool.map(lambda program: program.compile(), lowered)
        self._admits = dict(zip(contexts, compiled[: len(contexts)], strict=True))
        self._bursts = dict(zip(sizes, compiled[len(contexts) :], strict=True))
        self.counters["compiles"] += len(lowered)
        logger.info("whisper programs compiled in: %.1f s", time.monotonic() - started)
