"""Decoding, resampling, log-mel and windows of audio; knows nothing of models, rows or Beam.

What is named here is imported when it is first used: the errors must be had without waiting for JAX.
"""

from typing import TYPE_CHECKING

from headrace.audio.lazy import lazily

if TYPE_CHECKING:
    from headrace.audio.errors import AudioError, HeadraceError
    from headrace.audio.fetching import FetchLimits
    from headrace.audio.loading import Reading, load_audio, stream_audio
    from headrace.audio.mel import fill_with_zeros, log_mel, log_mel_batch
    from headrace.audio.pauses import find_pauses
    from headrace.audio.recording import SAMPLE_RATE, AudioSource, Ending, ReadableFile, Recording
    from headrace.audio.silero import VadError, silero_judge
    from headrace.audio.vad import PackedSpeech, SpeechPacker
    from headrace.audio.windows import (
        MAX_CHUNK_S,
        Window,
        WindowStream,
        cut_at_pause,
        cut_nowhere,
        cut_windows,
    )

__all__ = [
    "MAX_CHUNK_S",
    "SAMPLE_RATE",
    "AudioError",
    "AudioSource",
    "Ending",
    "FetchLimits",
    "HeadraceError",
    "PackedSpeech",
    "ReadableFile",
    "Reading",
    "Recording",
    "SpeechPacker",
    "VadError",
    "Window",
    "WindowStream",
    "cut_at_pause",
    "cut_nowhere",
    "cut_windows",
    "fill_with_zeros",
    "find_pauses",
    "load_audio",
    "log_mel",
    "log_mel_batch",
    "silero_judge",
    "stream_audio",
]

_HOMES = {
    "errors": ("AudioError", "HeadraceError"),
    "fetching": ("FetchLimits",),
    "loading": ("Reading", "load_audio", "stream_audio"),
    "mel": ("fill_with_zeros", "log_mel", "log_mel_batch"),
    "pauses": ("find_pauses",),
    "recording": ("SAMPLE_RATE", "AudioSource", "Ending", "ReadableFile", "Recording"),
    "silero": ("VadError", "silero_judge"),
    "vad": ("PackedSpeech", "SpeechPacker"),
    "windows": ("MAX_CHUNK_S", "Window", "WindowStream", "cut_at_pause", "cut_nowhere", "cut_windows"),
}
__getattr__ = lazily(__name__, _HOMES)
