"""Decoding, resampling, log-mel and windows of audio; knows nothing of models, rows or Beam.

What is named here is imported when it is first used: the errors must be had without waiting for JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOMES = {
    "SAMPLE_RATE": "recording",
    "AudioError": "errors",
    "AudioSource": "recording",
    "FetchLimits": "fetching",
    "HeadraceError": "errors",
    "Recording": "recording",
    "Window": "windows",
    "cut_windows": "windows",
    "load_audio": "loading",
    "log_mel": "mel",
    "log_mel_batch": "mel",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
