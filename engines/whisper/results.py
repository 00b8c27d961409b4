"""What a transcription gives back."""

from dataclasses import dataclass
from typing import NamedTuple

from headrace.engines.errors import RowError


class Word(NamedTuple):
    """One word with its times in seconds from the recording's start."""

    word: str
    start_s: float
    end_s: float
    probability: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """A stretch of a recording and its text."""

    start_s: float
    """Start in seconds from the recording's start."""
    end_s: float
    """End in seconds, never past the recording's end."""
    text: str
    """Text as the tokenizer gives it, leading space included."""
    avg_logprob: float
    """Mean log-probability of the window's tokens, end token included."""
    no_speech_prob: float
    """Probability of the window's no-speech token, before any rule."""
    compression_ratio: float
    """UTF-8 bytes of the window's text to its zlib size."""
    temperature: float
    """Sampling temperature of the window's text, 0 for greedy."""
    words: tuple[Word, ...] = ()
    """Words with times, where they were asked for."""
    token_ids: tuple[int, ...] = ()
    """Tokens, timestamps included."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Transcription:
    """The result of one recording."""

    request_id: str
    """As submitted."""
    text: str = ""
    """Text of the whole recording, stripped; "" for silence and where `error` is set."""
    language: str | None = None
    """Code of the language spoken, most of the recording."""
    language_probability: float | None = None
    """Probability of the detected language; None where it was given."""
    duration_s: float | None = None
    """Seconds of decoded audio; None where decoding failed."""
    segments: tuple[Segment, ...] = ()
    """The text in parts: by timestamps where asked for, else one a window."""
    translation: str | None = None
    """Text of the whole recording in English, with task "both"; else None."""
    translation_segments: tuple[Segment, ...] = ()
    """The translation in parts, without words."""
    num_tokens: int = 0
    """Tokens decoded for this recording, retries and end tokens included."""
    vad_dropped_s: float | None = None
    """Seconds that voice activity detection left out; None where it was off."""
    quality_flags: tuple[str, ...] = ()
    """What a reader should know: decode_truncated, no_speech, low_confidence, repetition, ..."""
    error: RowError | None = None
    """Why the row failed, else None."""
    queue_s: float = 0.0
    """Seconds from submit to the first window in the encoder."""
    latency_s: float = 0.0
    """Seconds from submit to the finish."""

    @property
    def finished(self) -> bool:
        """True: a recording has one result, at its end."""
        return True
