"""Which window of a recording is decoded next: all of them as they come, or one after another by seeking."""

from collections import deque
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from headrace.audio import SAMPLE_RATE, Ending, Window
from headrace.engines.whisper.feed import ClipFeed, SampleFeed
from headrace.engines.whisper.longform import WindowText
from headrace.engines.whisper.quality import Attempt, is_digital_silence
from headrace.engines.whisper.seeking import next_seek, unsaid_from
from headrace.engines.whisper.tokenizer import SpecialTokens
from headrace.engines.whisper.words import TokenTimes

RESET_TEMPERATURE = 0.5
"""Text that was sampled hotter than this is no prompt for what follows (openai/whisper)."""
LEAST_SAMPLES = 160
"""A rest shorter than a frame of the spectrogram is no window."""
LEAST_UNSAID = SAMPLE_RATE
"""Least samples of a text after which, and of a recording's end which, is decoded on its own: 1 s."""


class Turn(NamedTuple):
    """A window that is to be decoded."""

    number: int
    """Its number in the recording."""
    window: Window
    waveform: np.ndarray
    previous: tuple[int, ...]
    """Tokens that count as said before."""
    is_part: bool
    """Whether the recording has other windows: timestamps tell how texts are joined, and if one is whole."""


class Outcome(NamedTuple):
    """What a turn came to."""

    attempt: Attempt | None
    """The best try; None where there is no speech."""
    times: TokenTimes | None = None
    translation: Attempt | None = None


@runtime_checkable
class Plan(Protocol):
    """The windows of one recording. All methods are called from the engine's thread alone."""

    @property
    def texts(self) -> list[WindowText]:
        """What the windows say, in their order; no attempt where there is silence."""
        ...

    @property
    def ending(self) -> Ending | None:
        """What the decoding thread said at the end."""
        ...

    @property
    def dropped_s(self) -> float | None:
        """Seconds without speech that are in no window; None without voice activity detection."""
        ...

    def is_ready(self) -> bool:
        """Whether a window can be decoded now."""
        ...

    def take(self) -> Turn:
        """The next window; only where there is one."""
        ...

    def put(self, turn: Turn, outcome: Outcome) -> None:
        """Takes the result of a turn."""
        ...

    def is_finished(self) -> bool:
        """Whether every window has its result, and no further one will come."""
        ...

    def close(self) -> None:
        """Frees the audio."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunking:
    """How windows are gone through that do not depend on each other."""

    special: SpecialTokens
    """Of the model."""
    silence_dbfs: float
    """Level of digital silence, as in the config."""
    previous: tuple[int, ...] = ()
    """Tokens that count as said before every window."""


class ChunkedPlan:
    """Windows that do not depend on each other, as they are cut.

    A text that says itself that speech goes on after it leaves out what no other window may hold: that part
    of its window is decoded once more, as a window of its own.
    """

    def __init__(self, feed: ClipFeed, chunking: Chunking) -> None:
        self._texts: list[WindowText] = []
        self._feed = feed
        self._chunking = chunking
        self._unsaid: deque[Turn] = deque()
        self._num_decoding = 0

    @property
    def texts(self) -> list[WindowText]:
        return sorted(self._texts, key=lambda text: text.window.start)

    @property
    def ending(self) -> Ending | None:
        return self._feed.ending

    @property
    def dropped_s(self) -> float | None:
        return self._feed.dropped_s

    def is_ready(self) -> bool:
        while (clip := self._feed.peek()) is not None and clip.waveform is None:
            self._feed.pop()
            self._texts.append(WindowText(clip.window, None))
        return clip is not None or bool(self._unsaid)

    def take(self) -> Turn:
        self._num_decoding += 1
        if self._unsaid:
            return self._unsaid.popleft()
        clip = self._feed.pop()
        assert clip.waveform is not None, "a silent window is not decoded"
        self._texts.append(WindowText(clip.window, None, pieces=clip.pieces))
        previous = self._chunking.previous
        return Turn(len(self._texts) - 1, clip.window, clip.waveform, previous, clip.is_part)

    def put(self, turn: Turn, outcome: Outcome) -> None:
        text = self._texts[turn.number]._replace(**outcome._asdict())
        start = self._unsaid_start(turn, outcome.attempt)
        if start is not None:
            text, rest = split_window(text, start)
            self._texts.append(rest)
            number, waveform = len(self._texts) - 1, turn.waveform[start:]
            self._unsaid.append(turn._replace(number=number, window=rest.window, waveform=waveform))
        self._texts[turn.number] = text
        self._num_decoding -= 1

    def is_finished(self) -> bool:
        has_ended = self.ending is not None  # before the queue is looked at, which grows until then
        return has_ended and not self._num_decoding and not self.is_ready()

    def close(self) -> None:
        self._unsaid.clear()
        self._feed.close()

    def _unsaid_start(self, turn: Turn, attempt: Attempt | None) -> int | None:
        """The sample of the window from which on neither its text nor the next window has what is said.

        A next window that overlaps begins in the middle of a word: any part of the speech before it is
        missed. Else less than a second is not worth a window, nor is any rest after no second of text.
        """
        unsaid = None if attempt is None else unsaid_from(attempt.token_ids, self._chunking.special)
        if unsaid is None:
            return None
        start, goes_on = unsaid
        left, right = turn.window.stride_left, turn.window.stride_right
        wanted = len(turn.waveform) - (right + max(left, right) if right else LEAST_UNSAID)
        if start < LEAST_UNSAID or goes_on >= wanted:
            return None
        return None if is_digital_silence(turn.waveform[start:], self._chunking.silence_dbfs) else start


def split_window(text: WindowText, start: int) -> tuple[WindowText, WindowText]:
    """The window as far as a sample of it, with its text, and the rest, without."""
    front: list[tuple[int, int]] = []
    rest: list[tuple[int, int]] = []
    for begin, stop in text.pieces or ((text.window.start, text.window.stop),):
        cut = min(max(begin + start, begin), stop)
        front += [(begin, cut)] if begin < cut else []
        rest += [(cut, stop)] if cut < stop else []
        start -= cut - begin
    whole = text.window
    first = Window(whole.start, front[-1][1], whole.stride_left, 0)
    second = Window(rest[0][0], whole.stop, 0, whole.stride_right)
    if not text.pieces:
        return text._replace(window=first, decoded=whole), WindowText(second, None)
    return (
        text._replace(window=first, decoded=whole, pieces=tuple(front)),
        WindowText(second, None, pieces=tuple(rest)),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Seeking:
    """How a recording is gone through by seeking."""

    special: SpecialTokens
    """Of the model."""
    window_samples: int
    """Samples of a window."""
    silence_dbfs: float
    """Level of digital silence, as in the config."""
    first_previous: tuple[int, ...] = ()
    """Tokens that count as said before the recording."""
    always_previous: tuple[int, ...] = ()
    """Tokens that count as said before every window, in front of the text before."""
    condition_on_previous: bool = False
    """Whether a window is told the text before it."""
    max_previous: int = 223
    """Most tokens that count as said before."""


class SequentialPlan:
    """One window after another: each begins where the last one's text ended (openai/whisper)."""

    def __init__(self, feed: SampleFeed, seeking: Seeking) -> None:
        self.texts: list[WindowText] = []
        self.dropped_s: float | None = None
        self._feed = feed
        self._seeking = seeking
        self._seek = 0
        self._previous = seeking.first_previous
        self._waveform: np.ndarray | None = None
        self._is_decoding = False

    @property
    def ending(self) -> Ending | None:
        return self._feed.ending

    def is_ready(self) -> bool:
        while self._waveform is None and not self._is_decoding and self._has_window():
            waveform = self._feed.read(self._seek, self._seek + self._seeking.window_samples)
            if is_digital_silence(waveform, self._seeking.silence_dbfs):
                self._go_on(len(waveform), Outcome(None))
            else:
                self._waveform = waveform
        return self._waveform is not None

    def take(self) -> Turn:
        waveform, self._waveform = self._waveform, None
        assert waveform is not None, "there is no window"
        self._is_decoding = True
        window = Window(self._seek, self._seek + len(waveform), 0, 0)
        always = self._seeking.always_previous
        history = self._previous[-max(self._seeking.max_previous - len(always), 1) :]
        return Turn(len(self.texts), window, waveform, (*always, *history), True)

    def put(self, turn: Turn, outcome: Outcome) -> None:
        self._is_decoding = False
        attempt, step = outcome.attempt, len(turn.waveform)
        if attempt is not None:
            kept, step = next_seek(attempt.token_ids, self._seeking.special, step)
            has_text = any(self._seeking.special.is_text(token) for token in kept)
            cut = replace(attempt, token_ids=kept)
            outcome = outcome._replace(attempt=cut) if has_text else Outcome(None)
            is_prompt = self._seeking.condition_on_previous and attempt.temperature <= RESET_TEMPERATURE
            self._previous = (*self._previous, *kept) if is_prompt else ()
        self._go_on(step, outcome, turn.window)

    def is_finished(self) -> bool:
        return self.ending is not None and not self._is_decoding and not self.is_ready()

    def close(self) -> None:
        self._feed.close()

    def _has_window(self) -> bool:
        has_ended = self.ending is not None  # before the samples are counted, which grow until then
        left = self._feed.num_samples - self._seek
        return left >= (LEAST_SAMPLES if has_ended else self._seeking.window_samples)

    def _go_on(self, step: int, outcome: Outcome, decoded: Window | None = None) -> None:
        window = Window(self._seek, self._seek + step, 0, 0)
        self.texts.append(WindowText(window, *outcome, decoded))
        self._seek += step
