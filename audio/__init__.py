"""Decoding, resampling, log-mel and windows of audio; knows nothing of models, rows or Beam."""

from headrace.audio.errors import AudioError, HeadraceError
from headrace.audio.fetching import FetchLimits
from headrace.audio.loading import load_audio
from headrace.audio.mel import log_mel, log_mel_batch
from headrace.audio.recording import SAMPLE_RATE, AudioSource, Recording
from headrace.audio.windows import Window, cut_windows

__all__ = [
    "SAMPLE_RATE",
    "AudioError",
    "AudioSource",
    "FetchLimits",
    "HeadraceError",
    "Recording",
    "Window",
    "cut_windows",
    "load_audio",
    "log_mel",
    "log_mel_batch",
]
