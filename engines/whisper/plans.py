"""Which window of a recording is decoded next: all of them as they come, or one after another by seeking."""

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from headrace.audio import Ending, Window
from headrace.engines.whisper.feed import ClipFeed, SampleFeed
from headrace.engines.whisper.longform import WindowText
from headrace.engines.whisper.quality import Attempt, is_digital_silence
from headrace.engines.whisper.seeking import next_seek
from headrace.engines.whisper.tokenizer import SpecialTokens
from headrace.engines.whisper.words import TokenTimes

RESET_TEMPERATURE = 0.5
"""Text that was sampled hotter than this is no prompt for what follows (openai/whisper)."""
LEAST_SAMPLES = 160
"""A rest shorter than a frame of the spectrogram is no window."""


class Turn(NamedTuple):
    """A window that is to be decoded."""

    number: int
    """Its number in the recording."""
    window: Window
    waveform: np.ndarray
    previous: tuple[int, ...]
    """Tokens that count as said before."""
    is_joined: bool
    """Whether its text is joined to its neighbours' by time, for which timestamps are needed."""


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


class ChunkedPlan:
    """Windows that do not depend on each other, as they are cut."""

    def __init__(self, feed: ClipFeed, previous: tuple[int, ...] = ()) -> None:
        self.texts: list[WindowText] = []
        self._feed = feed
        self._previous = previous
        self._num_decoding = 0

    @property
    def ending(self) -> Ending | None:
        return self._feed.ending

    @property
    def dropped_s(self) -> float | None:
        return self._feed.dropped_s

    def is_ready(self) -> bool:
        while (clip := self._feed.peek()) is not None and clip.waveform is None:
            self._feed.pop()
            self.texts.append(WindowText(clip.window, None))
        return clip is not None

    def take(self) -> Turn:
        clip = self._feed.pop()
        assert clip.waveform is not None, "a silent window is not decoded"
        self.texts.append(WindowText(clip.window, None, pieces=clip.pieces))
        self._num_decoding += 1
        is_joined = bool(clip.window.stride_left or clip.window.stride_right)
        return Turn(len(self.texts) - 1, clip.window, clip.waveform, self._previous, is_joined)

    def put(self, turn: Turn, outcome: Outcome) -> None:
        self.texts[turn.number] = self.texts[turn.number]._replace(**outcome._asdict())
        self._num_decoding -= 1

    def is_finished(self) -> bool:
        has_ended = self.ending is not None  # before the queue is looked at, which grows until then
        return has_ended and not self._num_decoding and not self.is_ready()

    def close(self) -> None:
        self._feed.close()


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
