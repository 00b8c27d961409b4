"""The engine that a driver owns: windows of many recordings in the decoder's slots."""

import heapq
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from headrace.audio import SAMPLE_RATE, find_pauses
from headrace.engines.whisper.config import Timestamps, WhisperConfig
from headrace.engines.whisper.longform import segments_of, text_of, translated
from headrace.engines.whisper.plans import Outcome, Plan, Turn
from headrace.engines.whisper.quality import (
    Attempt,
    best_attempt,
    is_silent,
    is_trusted,
    next_temperature,
    quality_flags,
)
from headrace.engines.whisper.results import Transcription
from headrace.engines.whisper.runner import Finished, Job, Runner
from headrace.engines.whisper.tokenizer import WhisperTokenizer
from headrace.engines.whisper.words import TokenTimes, token_times

OF_TRANSLATIONS = ("repetition", "low_confidence")
"""Flags of a translation that are not those of the transcription beside it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowedRequest:
    """A recording that comes in windows, with its options resolved."""

    request_id: str
    """As submitted."""
    plan: Plan
    """Its windows."""
    language: str | None
    """Code; None: to be detected."""
    task: str
    """"transcribe", "translate", or "both": each window is transcribed, then translated."""
    timestamps: Timestamps
    """"none", "segment" or "word"."""
    submitted_at: float
    """time.monotonic() of the submit."""


@dataclass(slots=True, eq=False)
class Progress:
    """A request inside the engine."""

    request: WindowedRequest
    started_at: float | None = None
    num_tokens: int = 0
    flags: set[str] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class Decode:
    """One window in a slot."""

    progress: Progress
    turn: Turn
    attempts: list[Attempt] = field(default_factory=list)
    outcome: Outcome | None = None
    """The transcription, once the window is being translated too."""


class WhisperCore:
    """Fills slots with windows, runs bursts, and puts the texts of a recording together.

    A window whose text is not trusted is decoded again, hotter, in the slot that it has: its encoder output
    stays.
    """

    def __init__(self, runner: Runner, tokenizer: WhisperTokenizer, config: WhisperConfig) -> None:
        self._runner = runner
        self._tokenizer = tokenizer
        self._config = config
        self._requests: dict[str, Progress] = {}
        self._slots: dict[int, Decode] = {}
        self._free = list(range(runner.num_slots))  # a heap: low slots first, so that small bursts do
        self.counters: dict[str, float] = dict.fromkeys(
            (
                "requests",
                "audio_seconds",
                "windows",
                "decoded_tokens",
                "retries",
                "context_retries",
                "translations",
            ),
            0.0,
        )

    def add(self, request: WindowedRequest) -> None:
        self._requests[request.request_id] = Progress(request)
        self.counters["requests"] += 1

    def step(self) -> list[Transcription]:
        """One round: empty slots filled, one burst, finished windows taken out."""
        self._fill_slots()
        if self._slots:
            for finished in self._runner.decode(can_refill=self._next_ready() is not None):
                self._take(finished)
        done = [progress for progress in self._requests.values() if progress.request.plan.is_finished()]
        return [self._finish(progress) for progress in done]

    def abort(self, request_id: str) -> None:
        progress = self._requests.pop(request_id, None)
        if progress is None:
            return
        for slot in [slot for slot, decode in self._slots.items() if decode.progress is progress]:
            self._runner.stop(slot)
            self._release(slot)
        progress.request.plan.close()

    def has_work(self) -> bool:
        plans = [progress.request.plan for progress in self._requests.values()]
        return bool(self._slots) or any(plan.is_ready() or plan.is_finished() for plan in plans)

    @property
    def num_used_slots(self) -> int:
        """Slots with a window."""
        return len(self._slots)

    def _fill_slots(self) -> None:
        while self._free:
            group = []
            while self._fits(group) and (progress := self._next_ready()) is not None:
                slot, decode = heapq.heappop(self._free), Decode(progress, progress.request.plan.take())
                self._slots[slot] = decode
                group.append(self._job(slot, decode))
            if not group:
                return
            self._runner.admit(group)

    def _next_ready(self) -> Progress | None:
        """The oldest request that has a window to decode."""
        ready = (progress for progress in self._requests.values() if progress.request.plan.is_ready())
        return next(ready, None)

    def _fits(self, jobs: Sequence[Job]) -> bool:
        """Whether the next free slot can be filled together with these."""
        return bool(self._free) and len(jobs) < self._runner.encoder_batch

    def _job(self, slot: int, decode: Decode) -> Job:
        request, turn = decode.progress.request, decode.turn
        if decode.progress.started_at is None:
            decode.progress.started_at = time.monotonic()
        self.counters["windows"] += 1
        with_timestamps = request.timestamps != "none" or turn.is_part
        prompt = self._tokenizer.special.prompt(
            request.language, _first_task(request), with_timestamps=with_timestamps, previous=turn.previous
        )
        return Job(
            slot=slot,
            waveform=turn.waveform,
            prompt=tuple(prompt),
            with_timestamps=with_timestamps,
            number=turn.number,
            may_fit=self._config.encoder_context == "fit" and not turn.is_part,
            window_fill=self._config.window_fill,
        )

    def _take(self, finished: Finished) -> None:
        """Takes the text out of a slot, or starts the slot again where the text is not trusted."""
        slot = finished.job.slot
        decode = self._slots[slot]
        progress = decode.progress
        decode.attempts.append(self._attempt(finished, progress.request))
        progress.num_tokens += finished.num_tokens
        self.counters["decoded_tokens"] += finished.num_tokens
        is_first = decode.outcome is None
        is_doubtful = not is_trusted(decode.attempts[-1], self._config)
        if is_first and is_doubtful and self._runner.is_fitted(finished.job):
            decode.attempts.clear()
            self.counters["context_retries"] += 1
            self._runner.admit([replace(finished.job, may_fit=False)])
            return
        temperature = next_temperature(decode.attempts, self._config)
        if temperature is not None:
            self.counters["retries"] += 1
            self._runner.restart(finished.job, temperature)
            return
        best = best_attempt(decode.attempts, self._config)
        outcome = self._outcome(decode, finished.job, best)
        if is_first and outcome.attempt is not None and progress.request.task == "both":
            self._translate(decode, finished.job, outcome)
            return
        self._release(slot)
        progress.request.plan.put(decode.turn, outcome)

    def _outcome(self, decode: Decode, job: Job, best: Attempt) -> Outcome:
        """What a window came to, once a try stands."""
        request, flags = decode.progress.request, decode.progress.flags
        found = () if is_silent(best, self._config) else quality_flags(decode.attempts, best, self._config)
        if decode.outcome is not None:
            flags.update(f"translation_{flag}" for flag in found if flag in OF_TRANSLATIONS)
            return decode.outcome._replace(translation=None if is_silent(best, self._config) else best)
        flags.update(found)
        if is_silent(best, self._config):
            return Outcome(None)
        words = request.timestamps == "word"
        return Outcome(best, self._token_times(decode, job, best) if words else None)

    def _translate(self, decode: Decode, job: Job, outcome: Outcome) -> None:
        """Decodes the window once more, as a translation, from the encoder output that it has.

        The text before is left out of the prompt: it is in the language spoken.
        """
        assert outcome.attempt is not None, "silence is not translated"
        decode.outcome, decode.attempts = outcome, []
        request = decode.progress.request
        with_timestamps = request.timestamps != "none" or decode.turn.is_part
        prompt = self._tokenizer.special.prompt(
            outcome.attempt.language, "translate", with_timestamps=with_timestamps
        )
        self.counters["translations"] += 1
        self._runner.begin_again(replace(job, prompt=tuple(prompt), with_timestamps=with_timestamps))

    def _attempt(self, finished: Finished, request: WindowedRequest) -> Attempt:
        language = request.language or self._tokenizer.language_of(finished.language_token)
        if not self._tokenizer.special.is_multilingual:
            language = "en"
        detected = self._tokenizer.special.is_multilingual and request.language is None
        return Attempt(
            token_ids=finished.token_ids,
            text=self._tokenizer.text(finished.token_ids),
            avg_logprob=finished.sum_logprob / max(finished.num_tokens, 1),
            no_speech_prob=finished.no_speech_prob,
            temperature=finished.temperature,
            language=language,
            language_probability=finished.language_prob if detected else None,
            with_timestamps=finished.with_timestamps,
            ended=finished.ended,
        )

    def _token_times(self, decode: Decode, job: Job, attempt: Attempt) -> TokenTimes:
        """Times of an attempt's tokens of text; the window's encoder output is still in its slot."""
        special = self._tokenizer.special
        task = _first_task(decode.progress.request)
        prompt = special.prompt(attempt.language, task, with_timestamps=False)
        text = [token for token in attempt.token_ids if special.is_text(token)]
        attended = self._runner.align(job, [*prompt, *text, special.eot])
        length_s = len(job.waveform) / SAMPLE_RATE
        frames, probability = np.asarray(attended.frames), np.asarray(attended.probability)
        times = token_times(frames, probability, len(prompt), len(text), length_s)
        return times._replace(pauses_s=find_pauses(job.waveform))

    def _release(self, slot: int) -> None:
        del self._slots[slot]
        heapq.heappush(self._free, slot)

    def _finish(self, progress: Progress) -> Transcription:
        request, now = progress.request, time.monotonic()
        del self._requests[request.request_id]
        texts, ending = request.plan.texts, request.plan.ending
        assert ending is not None, "a plan is finished after its last sample"
        request.plan.close()
        self.counters["audio_seconds"] += ending.duration_s
        attempts = [text.attempt for text in texts if text.attempt is not None]
        language, probability = _language(attempts, request)
        segments = segments_of(texts, self._tokenizer)
        translation = segments_of(translated(texts), self._tokenizer) if request.task == "both" else ()
        return Transcription(
            request_id=request.request_id,
            text=text_of(segments, language),
            language=language,
            language_probability=probability,
            duration_s=ending.duration_s,
            segments=segments,
            translation=text_of(translation, "en") if request.task == "both" else None,
            translation_segments=translation,
            num_tokens=progress.num_tokens,
            vad_dropped_s=request.plan.dropped_s,
            quality_flags=(*ending.flags, *sorted(progress.flags)),
            queue_s=(progress.started_at or now) - request.submitted_at,
            latency_s=now - request.submitted_at,
        )


def _first_task(request: WindowedRequest) -> str:
    """What a window is decoded as first."""
    return "translate" if request.task == "translate" else "transcribe"


def _language(attempts: Sequence[Attempt], request: WindowedRequest) -> tuple[str | None, float | None]:
    """The language with most of the windows' confidence, and its mean probability where it was found."""
    if request.language is not None:
        return request.language, None
    weights: dict[str, list[float]] = {}
    for attempt in attempts:
        if attempt.language is not None:
            weights.setdefault(attempt.language, []).append(attempt.language_probability or 0.0)
    if not weights:
        return None, None
    language = max(weights, key=lambda code: sum(weights[code]))
    return language, float(np.mean(weights[language]))
