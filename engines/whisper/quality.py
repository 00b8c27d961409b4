"""Whether a window holds speech, and whether its text can be trusted."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.audio import SAMPLE_RATE
from headrace.engines.whisper.config import WhisperConfig

FRAME_SAMPLES = SAMPLE_RATE * 30 // 1000
"""Samples of one frame of the energy gate: 30 ms."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """What one decoding of one window gave."""

    token_ids: tuple[int, ...]
    """Generated tokens, timestamps included, without the end token."""
    text: str
    """Their text."""
    avg_logprob: float
    """Mean log-probability of the tokens, end token included."""
    no_speech_prob: float
    """Probability of the no-speech token."""
    temperature: float
    """0 for greedy."""
    language: str | None
    """Code of the language that the prompt names."""
    language_probability: float | None
    """Of the detected language; None where it was given."""
    with_timestamps: bool
    """Whether it was decoded with timestamps."""
    ended: bool
    """Whether the model ended the text itself, before the limit."""

    @property
    def compression_ratio(self) -> float:
        return compression_ratio(self.text)


def compression_ratio(text: str) -> float:
    """UTF-8 bytes of a text to their size after zlib; loops are above 2.4."""
    data = text.strip().encode()
    return len(data) / len(zlib.compress(data)) if data else 0.0


def is_digital_silence(waveform: np.ndarray, silence_dbfs: float) -> bool:
    """Whether no 30 ms of a waveform are louder than the level."""
    num_frames = -(-len(waveform) // FRAME_SAMPLES)
    if num_frames == 0:
        return True
    frames = np.zeros(num_frames * FRAME_SAMPLES, np.float32)
    frames[: len(waveform)] = waveform
    power = np.mean(np.square(frames.reshape(num_frames, FRAME_SAMPLES)), axis=1)
    return bool(power.max() < 10 ** (silence_dbfs / 10))


def is_loop(attempt: Attempt, config: WhisperConfig) -> bool:
    """Whether a text repeats itself or would not end."""
    return attempt.compression_ratio > config.compression_ratio_threshold or not attempt.ended


def is_silent(attempt: Attempt, config: WhisperConfig) -> bool:
    """Whether there is no word in the text, or the model itself says that the text stands on no speech."""
    if not any(char.isalnum() for char in attempt.text):
        return True
    unlikely = attempt.avg_logprob < config.logprob_threshold
    return unlikely and attempt.no_speech_prob > config.no_speech_threshold


def is_trusted(attempt: Attempt, config: WhisperConfig) -> bool:
    """Whether a text is likely, does not repeat itself, and stands on speech."""
    is_likely = attempt.avg_logprob >= config.logprob_threshold
    return is_likely and not is_loop(attempt, config) and not is_silent(attempt, config)


def next_temperature(attempts: Sequence[Attempt], config: WhisperConfig) -> float | None:
    """How a window is tried again (with timestamps) after these tries; None where the last one stands.

    A text of low probability without timestamps is often one that ended after a word or two: with timestamps
    the model goes on to the end of the audio, and no chance is needed.
    """
    last = attempts[-1]
    is_unlikely = last.avg_logprob < config.logprob_threshold
    if is_unlikely and last.no_speech_prob > config.no_speech_threshold:
        return None
    if not is_loop(last, config) and not is_unlikely:
        return None
    if not is_loop(last, config) and not last.with_timestamps:
        return last.temperature
    hotter = [temperature for temperature in config.temperatures if temperature > last.temperature]
    return min(hotter, default=None)


def best_attempt(attempts: Sequence[Attempt], config: WhisperConfig) -> Attempt:
    """The likeliest try that does not loop; where all do, the one that loops least."""
    sound = [attempt for attempt in attempts if not is_loop(attempt, config)]
    if sound:
        return max(sound, key=lambda attempt: attempt.avg_logprob)
    return min(attempts, key=lambda attempt: attempt.compression_ratio)


def quality_flags(attempts: Sequence[Attempt], best: Attempt, config: WhisperConfig) -> list[str]:
    """What is doubtful about the text of a window that was taken from its tries."""
    flags = []
    if is_loop(best, config):
        flags.append("repetition")
    if best.no_speech_prob > config.no_speech_threshold:
        flags.append("no_speech")
    if best.avg_logprob < config.logprob_threshold:
        flags.append("low_confidence")
    if best.language_probability is not None and best.language_probability < config.language_threshold:
        flags.append("language_uncertain")
    if len(attempts) > 1:
        flags.append("retried")
    return flags
