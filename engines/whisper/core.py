"""The engine that a driver owns: windows of many recordings in the decoder's slots."""

import heapq
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from headrace.audio import SAMPLE_RATE, Recording, Window
from headrace.engines.whisper.config import Timestamps, WhisperConfig
from headrace.engines.whisper.longform import WindowText, segments_of, text_of
from headrace.engines.whisper.quality import (
    Attempt,
    best_attempt,
    is_silent,
    quality_flags,
    retry_temperature,
)
from headrace.engines.whisper.results import Transcription
from headrace.engines.whisper.runner import Finished, Job, Runner
from headrace.engines.whisper.tokenizer import WhisperTokenizer
from headrace.engines.whisper.words import TokenTimes, find_pauses, token_times


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowedRequest:
    """A decoded recording, cut into windows, with its options resolved."""

    request_id: str
    """As submitted."""
    recording: Recording
    """The audio."""
    windows: Sequence[Window]
    """Its windows, in order."""
    silent: frozenset[int]
    """Numbers of the windows that hold digital silence: they are not decoded."""
    language: str | None
    """Code; None: to be detected."""
    task: str
    """"transcribe" or "translate"."""
    timestamps: Timestamps
    """"none", "segment" or "word"."""
    submitted_at: float
    """time.monotonic() of the submit."""


@dataclass(slots=True)
class Progress:
    """A request inside the engine."""

    request: WindowedRequest
    texts: list[WindowText]
    """What each window says; no attempt until there is one, and where there is silence."""
    num_left: int
    """Windows that are not done."""
    started_at: float | None = None
    num_tokens: int = 0
    flags: set[str] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class Decode:
    """One window on its way through the slots."""

    progress: Progress
    index: int
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def window(self) -> Window:
        return self.progress.request.windows[self.index]

    @property
    def waveform(self) -> np.ndarray:
        return self.progress.request.recording.waveform[self.window.start : self.window.stop]


class WhisperCore:
    """Fills slots with windows, runs bursts, and puts the texts of a recording together.

    A window that loops is decoded once more, hotter, in the slot that it has: its encoder output stays.
    """

    def __init__(self, runner: Runner, tokenizer: WhisperTokenizer, config: WhisperConfig) -> None:
        self._runner = runner
        self._tokenizer = tokenizer
        self._config = config
        self._requests: dict[str, Progress] = {}
        self._waiting: deque[Decode] = deque()
        self._silent: list[Progress] = []
        self._slots: dict[int, Decode] = {}
        self._free = list(range(runner.num_slots))  # a heap: low slots first, so that small bursts do
        self.counters: dict[str, float] = dict.fromkeys(
            ("requests", "audio_seconds", "windows", "silent_windows", "decoded_tokens", "retries"), 0.0
        )

    def add(self, request: WindowedRequest) -> None:
        texts = [WindowText(window, None) for window in request.windows]
        progress = Progress(request, texts, len(request.windows))
        self._requests[request.request_id] = progress
        self.counters["requests"] += 1
        self.counters["audio_seconds"] += request.recording.duration_s
        for index in range(len(request.windows)):
            if index not in request.silent:
                self._waiting.append(Decode(progress, index))
        progress.num_left -= len(request.silent)
        self.counters["silent_windows"] += len(request.silent)
        if progress.num_left == 0:
            self._silent.append(progress)

    def step(self) -> list[Transcription]:
        """One round: empty slots filled, one burst, finished windows taken out."""
        done, self._silent = self._silent, []
        self._fill_slots()
        if self._slots:
            finished = self._runner.decode(can_refill=bool(self._waiting))
            done += [progress for item in finished if (progress := self._take(item)) is not None]
        return [self._finish(progress) for progress in done if self._forget(progress)]

    def abort(self, request_id: str) -> None:
        progress = self._requests.pop(request_id, None)
        if progress is None:
            return
        self._waiting = deque(decode for decode in self._waiting if decode.progress is not progress)
        for slot in [slot for slot, decode in self._slots.items() if decode.progress is progress]:
            self._runner.stop(slot)
            self._release(slot)

    def has_work(self) -> bool:
        return bool(self._waiting or self._slots or self._silent)

    @property
    def num_used_slots(self) -> int:
        """Slots with a window."""
        return len(self._slots)

    def _fill_slots(self) -> None:
        while self._free and self._waiting:
            group = []
            while self._waiting and self._fits(group):
                slot, decode = heapq.heappop(self._free), self._waiting.popleft()
                self._slots[slot] = decode
                group.append(self._job(slot, decode))
            self._runner.admit(group)

    def _fits(self, jobs: Sequence[Job]) -> bool:
        """Whether the next free slot can be filled together with these."""
        if not self._free or len(jobs) == self._runner.encoder_batch:
            return False
        return not jobs or self._runner.group_of(jobs[0].slot) == self._runner.group_of(self._free[0])

    def _job(self, slot: int, decode: Decode) -> Job:
        request = decode.progress.request
        if decode.progress.started_at is None:
            decode.progress.started_at = time.monotonic()
        self.counters["windows"] += 1
        # Where windows overlap their texts are joined by time.
        with_timestamps = request.timestamps != "none" or len(request.windows) > 1
        prompt = self._tokenizer.special.prompt(
            request.language, request.task, with_timestamps=with_timestamps
        )
        return Job(
            slot=slot,
            waveform=decode.waveform,
            prompt=tuple(prompt),
            with_timestamps=with_timestamps,
            number=decode.index,
        )

    def _take(self, finished: Finished) -> Progress | None:
        """The request that a finished slot completes, if it does."""
        slot = finished.job.slot
        decode = self._slots[slot]
        attempt = self._attempt(finished, decode.progress.request)
        decode.attempts.append(attempt)
        decode.progress.num_tokens += finished.num_tokens
        self.counters["decoded_tokens"] += finished.num_tokens
        temperature = retry_temperature(attempt, self._config) if len(decode.attempts) == 1 else None
        if temperature is not None:
            self.counters["retries"] += 1
            self._runner.restart(finished.job, temperature)
            return None
        best = best_attempt(decode.attempts, self._config)
        if not is_silent(best, self._config):
            words = decode.progress.request.timestamps == "word"
            times = self._token_times(decode, finished.job, best) if words else None
            decode.progress.texts[decode.index] = WindowText(decode.window, best, times)
            decode.progress.flags.update(quality_flags(decode.attempts, best, self._config))
        decode.progress.num_left -= 1
        self._release(slot)
        return decode.progress if decode.progress.num_left == 0 else None

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
        task = decode.progress.request.task
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

    def _forget(self, progress: Progress) -> bool:
        return self._requests.pop(progress.request.request_id, None) is not None

    def _finish(self, progress: Progress) -> Transcription:
        request, now = progress.request, time.monotonic()
        attempts = [text.attempt for text in progress.texts if text.attempt is not None]
        language, probability = _language(attempts, request)
        segments = segments_of(progress.texts, self._tokenizer)
        return Transcription(
            request_id=request.request_id,
            text=text_of(segments, language),
            language=language,
            language_probability=probability,
            duration_s=request.recording.duration_s,
            segments=segments,
            num_tokens=progress.num_tokens,
            quality_flags=(*request.recording.flags, *sorted(progress.flags)),
            queue_s=(progress.started_at or now) - request.submitted_at,
            latency_s=now - request.submitted_at,
        )


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
