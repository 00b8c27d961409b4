"""Packs the speech of a recording into windows, as voice activity detection finds it."""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from headrace.audio.recording import SAMPLE_RATE
from headrace.audio.silero import FRAME, LARGE, Judge
from headrace.audio.windows import MAX_CHUNK_S, Seconds

BLOCK = LARGE * FRAME
"""Samples that the detector is given at a time: 33 s."""
BEGIN_PROBABILITY = 0.5
"""Speech begins at a frame that is likelier speech than this,"""
GO_ON_PROBABILITY = 0.35
"""and goes on through frames that are likelier than this."""
MIN_PAUSE = 2 * SAMPLE_RATE
"""A shorter pause is part of the speech around it, or of that after the beginning or before the end: 2 s."""
PADDING = SAMPLE_RATE * 4 // 10
"""Samples that are kept before and after speech: 0.4 s."""
LOUD_DBFS = -40.0
"""A second without speech that is at least this loud is kept whatever the detector says,"""
NEAR_SPEECH_DB = 10.0
"""unless it is so much quieter than the speech that was found so far."""
CUT_SHARE = 0.3
"""Speech that fills a window is cut in the last part of it: in the middle of the longest pause, or where it
is quietest."""


class PackedSpeech(NamedTuple):
    """A window packed from speech."""

    pieces: tuple[tuple[int, int], ...]
    """Start and stop of its parts, in samples of the recording, in order."""
    waveform: np.ndarray
    """The parts one after another."""


class SpeechPacker:
    """Packs samples that come block by block into windows of speech.

    Holds the window that is being packed, the newest two seconds, and at most 33 s that the detector has not
    seen, however long the recording.
    """

    def __init__(self, judge: Judge, window_s: Seconds = MAX_CHUNK_S) -> None:
        self._judge = judge
        self._window = round(window_s * SAMPLE_RATE)
        self._coming: list[np.ndarray] = []  # not judged yet
        self._held, self._held_start = np.zeros(0, np.float32), 0
        self._judged = 0  # samples of the recording whose frames were judged
        self._begun: int | None = None  # where the present speech begins
        self._active_stop = 0  # where the newest active frame ends
        self._pauses: list[tuple[int, int]] = []  # within the present speech
        self._kept_stop = 0  # no sample before this is packed again
        self._second: list[float] = []  # power of the frames of the present second
        self._speech_power: deque[float] = deque(maxlen=1000)
        self._pieces: list[tuple[int, int]] = []
        self._parts: list[np.ndarray] = []
        self._packed: deque[PackedSpeech] = deque()
        self._num_kept = 0

    def add(self, samples: np.ndarray) -> Iterator[PackedSpeech]:
        """The windows that the samples complete."""
        self._coming.append(samples)
        num_coming = sum(map(len, self._coming))
        if num_coming >= BLOCK:
            coming = np.concatenate(self._coming)
            whole = num_coming // BLOCK * BLOCK
            self._coming = [coming[whole:]]
            for start in range(0, whole, BLOCK):
                self._judge_block(coming[start : start + BLOCK])
                yield from self._take_packed()

    def finish(self) -> Iterator[PackedSpeech]:
        """The last windows; the recording's last samples count as the frame before them."""
        rest = np.concatenate([np.zeros(0, np.float32), *self._coming])
        self._coming.clear()
        self._judge_block(rest)
        if self._begun is not None:
            self._end_speech(self._held_start + len(self._held))
        if self._parts:
            self._pack()
        yield from self._take_packed()

    @property
    def kept_s(self) -> float:
        """Seconds that were packed so far."""
        return self._num_kept / SAMPLE_RATE

    def _judge_block(self, samples: np.ndarray) -> None:
        self._held = np.concatenate([self._held, samples])
        missing = -len(samples) % FRAME
        frames = (np.pad(samples, (0, missing)) if missing else samples).reshape(-1, FRAME)
        powers = np.vecdot(frames, frames) / FRAME
        for probability, power in zip(self._judge(frames).tolist(), powers.tolist(), strict=True):
            self._judge_frame(probability, power)
        if self._begun is None:
            self._forget(max(self._kept_stop, self._judged - MIN_PAUSE - FRAME))

    def _judge_frame(self, probability: float, power: float) -> None:
        start, self._judged = self._judged, self._judged + FRAME
        if probability >= (BEGIN_PROBABILITY if self._begun is None else GO_ON_PROBABILITY):
            self._speech_power.append(power)
            self._go_on(start, self._judged)
        self._second.append(power)
        if len(self._second) * FRAME >= SAMPLE_RATE:
            second = self._judged - len(self._second) * FRAME
            if self._active_stop <= second and self._is_loud():
                self._go_on(second, self._judged)
            self._second.clear()
        if self._begun is not None and self._judged - self._active_stop >= MIN_PAUSE:
            self._end_speech(self._active_stop + PADDING)

    def _is_loud(self) -> bool:
        power = sum(self._second) / len(self._second)
        if power < 10 ** (LOUD_DBFS / 10):
            return False
        speech = sum(self._speech_power) / max(len(self._speech_power), 1)
        return power > speech * 10 ** (-NEAR_SPEECH_DB / 10)

    def _go_on(self, start: int, stop: int) -> None:
        """Notes an active stretch; speech that fills a window is cut."""
        if self._begun is None:
            is_near_the_beginning = self._kept_stop == 0 and start < MIN_PAUSE
            wanted = 0 if is_near_the_beginning else start - PADDING
            self._begun = max(wanted, self._kept_stop, self._held_start)
            self._pauses.clear()
        elif start > self._active_stop:
            self._pauses.append((self._active_stop, start))
        self._active_stop = max(self._active_stop, stop)
        while self._active_stop - self._begun > self._window:
            self._end_speech(self._cut(self._begun), goes_on=True)

    def _cut(self, begun: int) -> int:
        """Where a full window of speech that begins there is best ended."""
        first, last = begun + round(self._window * (1 - CUT_SHARE)), begun + self._window
        inside = [(max(start, first), min(stop, last)) for start, stop in self._pauses]
        longest = max(inside, key=lambda pause: pause[1] - pause[0], default=(0, 0))
        if longest[0] < longest[1]:
            return sum(longest) // 2
        hop = SAMPLE_RATE // 10
        samples = self._samples(first, last)
        power = np.mean(np.square(samples[: len(samples) // hop * hop].reshape(-1, hop)), axis=1)
        return first + int(np.argmin(power)) * hop + hop // 2

    def _end_speech(self, stop: int, *, goes_on: bool = False) -> None:
        """Packs the present speech up to a sample."""
        assert self._begun is not None, "there is speech"
        start, stop = self._begun, min(stop, self._begun + self._window, self._held_start + len(self._held))
        if sum(map(len, self._parts)) + stop - start > self._window:
            self._pack()
        self._pieces.append((start, stop))
        self._parts.append(self._samples(start, stop).copy())
        self._num_kept += stop - start
        self._begun, self._kept_stop = (stop if goes_on else None), stop
        self._pauses = [pause for pause in self._pauses if pause[1] > stop]
        self._forget(stop)

    def _pack(self) -> None:
        self._packed.append(PackedSpeech(tuple(self._pieces), np.concatenate(self._parts)))
        self._pieces, self._parts = [], []

    def _take_packed(self) -> Iterator[PackedSpeech]:
        while self._packed:
            yield self._packed.popleft()

    def _samples(self, start: int, stop: int) -> np.ndarray:
        return self._held[start - self._held_start : stop - self._held_start]

    def _forget(self, before: int) -> None:
        before = min(before, self._judged)
        if before > self._held_start:
            self._held = self._held[before - self._held_start :]
            self._held_start = before
