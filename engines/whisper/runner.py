"""Moves the decoder's slots on the device: admits windows, runs bursts, reads back what has finished."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from headrace.engines.buckets import growing_buckets, pick_bucket
from headrace.engines.checkpoints.artifact import PROGRAMS, write_weights
from headrace.engines.compilation_config import AUTO, CompilationConfig
from headrace.engines.prepared import named_arrays
from headrace.engines.program_store import ProgramStore, ReadyPrograms, open_program_store
from headrace.engines.programs import ProgramKey, Programs
from headrace.engines.whisper.alignment import Attended, Known
from headrace.engines.whisper.beams import EndedTexts, Text, likeliest
from headrace.engines.whisper.config import WindowFill
from headrace.engines.whisper.lowering import FRAME_SAMPLES, Lowering
from headrace.engines.whisper.model import WhisperModel
from headrace.engines.whisper.repetition import LOOP_TOKENS_PER_S
from headrace.engines.whisper.slots import Arrival, Decoding, Entry, Restart, Rows, Slots

MARGIN_FRAMES = 150
"""Silence after a short window's audio, 3 s: without it the decoder repeats the last words."""
DRAW_SEEDS = np.uint32(0x9E3779B1)
"""Between the seeds of one window's draws: far apart, so that they are no other window's."""
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
    window_fill: WindowFill = "silence"
    """What the encoder takes after the audio."""

    @property
    def num_forced(self) -> int:
        """Tokens of the prompt without <|notimestamps|>, which comes last."""
        return len(self.prompt) - (not self.with_timestamps)


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How far a window is decoded, and how many of its texts are chosen from."""

    max_tokens_per_s: float
    """Most tokens a second of audio may give, SPARE_TOKENS more allowed."""
    best_of: int
    """Texts that are drawn at a temperature above 0."""
    length_penalty: float | None
    """As in the config."""


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
        self,
        model: WhisperModel,
        decoding: Decoding,
        *,
        encoder_batch: int,
        limits: Limits,
        ready: ReadyPrograms | None = None,
    ) -> None:
        self.encoder_batch = encoder_batch
        self.counters: dict[str, float] = dict.fromkeys(
            ("dispatches", "encoder_padding", "encoded_frames"), 0.0
        )
        self._decoding = decoding
        self._limits = limits
        self._restarts: dict[int, float] = {}
        self._jobs: dict[int, Job] = {}
        self._drawn: dict[int, list[Text]] = {}
        lowering = Lowering(model, decoding, encoder_batch)
        self._graph, self._params = lowering.graph, lowering.params
        plan = lowering.plan()
        self._programs = Programs(
            CompilationConfig(num_compile_workers=len(plan)),
            plan,
            lowering.lower,
            lowering.example,
            open_program_store(AUTO, lowering.made_from(), ready),
        )
        self._programs.precompile()
        self._slots: Slots = self._programs.get(ProgramKey("empty", decoding.num_slots), {})()

    @property
    def num_slots(self) -> int:
        return self._decoding.num_slots

    @property
    def num_compiles(self) -> int:
        """Programs that were compiled, and not read from the store."""
        return self._programs.num_compiles

    @property
    def num_loads(self) -> int:
        """Programs that were read, from the store or an artifact."""
        return self._programs.num_loads

    def export(self, directory: Path) -> dict[str, str]:
        """Writes weights and all programs into an artifact; by parts, all that programs depend on."""
        write_weights(directory, named_arrays(self._params))
        model = nnx.merge(self._graph, self._params)
        lowering = Lowering(model, self._decoding, self.encoder_batch)
        store = ProgramStore(directory / PROGRAMS, lowering.made_from())
        aligns = [ProgramKey("align", size) for size in self._align_buckets()]
        keys = [*lowering.plan(), ProgramKey("enter", 1), *aligns]
        self._programs.export(store, keys, lowering.lower)
        return store.made_from

    def close(self) -> None:
        """Frees the threads that compile."""
        self._programs.close()

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
            arguments = {"arrival": self._arrival(filled, context)}
            program = self._programs.get(ProgramKey("admit", context), arguments)
            self._slots = program(self._params, self._slots, **arguments)
            self._jobs.update((job.slot, job) for job in group)

    def begin_again(self, job: Job) -> None:
        """Decodes the window of a slot, which stays encoded, after another prompt, from the next burst on."""
        key = ProgramKey("enter", 1)
        self._programs.expect([key])  # only jobs that want two texts of a window need it
        arguments = {"entry": self._entry([job])}
        rows = self._programs.get(key, arguments)(self._slots.rows, **arguments)
        self._slots = self._slots._replace(rows=rows)
        self._jobs[job.slot] = job
        self.counters["dispatches"] += 1

    def restart(self, job: Job, temperature: float) -> None:
        """Decodes the window of a slot again, with timestamps, from the next burst on."""
        self._restarts[job.slot] = temperature
        self._jobs[job.slot] = job
        self._drawn[job.slot] = []

    def align(self, job: Job, tokens: Sequence[int]) -> Attended:
        """What known tokens look at in the window of a slot, which must not have been filled anew."""
        padded = np.zeros(pick_bucket(self._align_buckets(), len(tokens)), np.int32)
        padded[: len(tokens)] = tokens
        positions = -(-len(job.waveform) // 320)
        known = Known(
            tokens=jnp.asarray(padded),
            num_tokens=jnp.int32(len(tokens)),
            num_frames=jnp.int32(min(max(positions, 1), self._decoding.dims.num_frames)),
            context=jnp.int32(self.context(job)),
            slot=jnp.int32(job.slot),
        )
        key = ProgramKey("align", len(padded))
        self._programs.expect([key])  # only jobs that want words' times need it
        self.counters["dispatches"] += 1
        program = self._programs.get(key, {"known": known})
        return jax.device_get(program(self._params, self._slots.crosses, known=known))

    def stop(self, slot: int) -> None:
        """Forgets a slot's row; it may run on until a new one takes its place."""
        for of_slots in (self._restarts, self._jobs, self._drawn):
            of_slots.pop(slot, None)

    def decode(self, *, can_refill: bool) -> list[Finished]:
        """One burst, and the rows that have finished.

        With `can_refill` the burst ends as soon as an eighth of the slots are free for windows that wait.
        """
        if self._restarts:
            self._dispatch_restarts()
        spare = max(1, self.num_slots // 8) if can_refill else self.num_slots
        min_active = max(1, len(self._jobs) - spare + 1)
        size = next(size for size in self._decoding.slot_sizes if size > max(self._jobs))
        arguments = {"min_active": np.int32(min_active)}
        program = self._programs.get(ProgramKey("burst", size), arguments)
        self._slots = program(self._params, self._slots, **arguments)
        self.counters["dispatches"] += 1
        rows, ended = jax.device_get((self._slots.rows, self._slots.ended))
        finished = rows.finished.reshape(self.num_slots, -1).all(axis=1)
        results = []
        for slot in (slot for slot in sorted(self._jobs) if finished[slot]):
            texts = self._texts(rows, ended, slot)
            if texts is not None:
                results.append(self._read(rows, self._jobs.pop(slot), texts))
        return results

    def _dispatch_restarts(self) -> None:
        shape = (self.num_slots, self._decoding.beam_size)
        chosen, temperature = np.zeros(shape, bool), np.zeros(shape, np.float32)
        seed, prompt_len = np.zeros(shape, np.uint32), np.zeros(shape, np.int32)
        for slot, value in self._restarts.items():
            chosen[slot], temperature[slot] = True, value
            prompt_len[slot] = self._jobs[slot].num_forced
            draws = len(self._drawn[slot]) + np.arange(shape[1], dtype=np.uint32)
            seed[slot] = np.uint32(self._jobs[slot].number) + draws * DRAW_SEEDS
        self._restarts.clear()
        fields = (jnp.asarray(each.reshape(-1)) for each in (chosen, temperature, seed, prompt_len))
        arguments = {"restart": Restart(*fields)}
        program = self._programs.get(ProgramKey("restart", self.num_slots), arguments)
        rows = program(self._slots.rows, **arguments)
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

    def _align_buckets(self) -> tuple[int, ...]:
        return growing_buckets(min(32, self._decoding.max_length), self._decoding.max_length)

    def _arrival(self, jobs: Sequence[Job], num_frames: int) -> Arrival:
        waveform = np.zeros((len(jobs), num_frames * FRAME_SAMPLES), np.float32)
        zeros_from = np.full(len(jobs), waveform.shape[1], np.int32)
        for row, job in enumerate(jobs):
            waveform[row, : len(job.waveform)] = job.waveform
            if job.window_fill == "zeros":
                zeros_from[row] = len(job.waveform)
        return Arrival(jnp.asarray(waveform), jnp.asarray(zeros_from), self._entry(jobs))

    def _entry(self, jobs: Sequence[Job]) -> Entry:
        tokens = np.zeros((len(jobs), self._decoding.max_length), np.int32)
        for row, job in enumerate(jobs):
            tokens[row, : len(job.prompt)] = job.prompt
        return Entry(
            slot=jnp.array([job.slot for job in jobs], jnp.int32),
            tokens=jnp.asarray(tokens),
            prompt_len=jnp.array([len(job.prompt) for job in jobs], jnp.int32),
            limit=jnp.array([self._limit(job) for job in jobs], jnp.int32),
            loop_length=jnp.array([self._loop_length(job) for job in jobs], jnp.int32),
            num_frames=jnp.array([self.context(job) for job in jobs], jnp.int32),
            with_timestamps=jnp.array([job.with_timestamps for job in jobs], bool),
            seed=jnp.array([job.number for job in jobs], jnp.uint32),
        )

    def _limit(self, job: Job) -> int:
        seconds = len(job.waveform) / 16_000
        allowed = len(job.prompt) + SPARE_TOKENS + int(seconds * self._limits.max_tokens_per_s)
        return min(allowed, self._decoding.max_length)

    def _loop_length(self, job: Job) -> int:
        return SPARE_TOKENS + int(len(job.waveform) / 16_000 * LOOP_TOKENS_PER_S)

    def _texts(self, rows: Rows, ended: EndedTexts, slot: int) -> list[Text] | None:
        """What the text of a slot is chosen from; None where more of them are to be drawn first."""
        size = self._decoding.beam_size
        first = slot * size
        going = [self._text(rows, row) for row in range(first, first + size)]
        if rows.temperature[first] > 0:
            drawn = self._drawn[slot]
            drawn += going
            if len(drawn) >= self._limits.best_of:
                return self._drawn.pop(slot)[: self._limits.best_of]
            self._restarts[slot] = float(rows.temperature[first])
            return None
        if size == 1:
            return going
        start, count = int(rows.prompt_len[first]), int(ended.count[slot])
        places = [(slot, number) for number in range(count)]
        texts = [
            Text(
                tuple(ended.tokens[place][start : ended.position[place]].tolist()),
                float(ended.sum_logprob[place]),
                ended=True,
            )
            for place in places
        ]
        # Where the limit came first, the best beams stand beside what has ended (openai/whisper).
        best = sorted(going, key=lambda text: -text.sum_logprob)
        return texts + best[: max(size - count, 0)]

    def _text(self, rows: Rows, row: int) -> Text:
        """The text of a row as it stands."""
        generated = rows.tokens[row, rows.prompt_len[row] : rows.position[row] + 1].tolist()
        ended = bool(generated) and generated[-1] == self._decoding.special.eot
        return Text(tuple(generated[:-1] if ended else generated), float(rows.sum_logprob[row]), ended)

    def _read(self, rows: Rows, job: Job, texts: Sequence[Text]) -> Finished:
        text = likeliest(texts, self._limits.length_penalty)
        row = job.slot * self._decoding.beam_size
        return Finished(
            job=job,
            token_ids=text.token_ids,
            num_tokens=len(text.token_ids) + text.ended,
            ended=text.ended,
            sum_logprob=text.sum_logprob,
            no_speech_prob=float(rows.no_speech_prob[row]),
            language_token=int(rows.tokens[row, job.prompt.index(self._decoding.special.sot) + 1]),
            language_prob=float(rows.language_prob[row]),
            temperature=round(float(rows.temperature[row]), 6),
            with_timestamps=bool(rows.with_timestamps[row]),
        )
