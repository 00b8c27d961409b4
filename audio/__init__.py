"""Decoding, resampling, log-mel and windows of audio; knows nothing of models, rows or Beam.

What is named here is imported when it is first used: the errors must be had without waiting for JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.audio.errors import AudioError, HeadraceError
    from headrace.audio.fetching import FetchLimits
    from headrace.audio.loading import Reading, load_audio, stream_audio
    from headrace.audio.mel import log_mel, log_mel_batch
    from headrace.audio.recording import SAMPLE_RATE, AudioSource, Ending, Recording
    from headrace.audio.vad import PackedSpeech, SpeechPacker, VadError, silero_judge
    from headrace.audio.windows import MAX_CHUNK_S, Window, WindowStream, cut_windows

__all__ = [
    "MAX_CHUNK_S",
    "SAMPLE_RATE",
    "AudioError",
    "AudioSource",
    "Ending",
    "FetchLimits",
    "HeadraceError",
    "PackedSpeech",
    "Reading",
    "Recording",
    "SpeechPacker",
    "VadError",
    "Window",
    "WindowStream",
    "cut_windows",
    "load_audio",
    "log_mel",
    "log_mel_batch",
    "silero_judge",
    "stream_audio",
]

_HOMES = {
    "MAX_CHUNK_S": "windows",
    "SAMPLE_RATE": "recording",
    "AudioError": "errors",
    "AudioSource": "recording",
    "Ending": "recording",
    "FetchLimits": "fetching",
    "HeadraceError": "errors",
    "PackedSpeech": "vad",
    "Reading": "loading",
    "Recording": "recording",
    "SpeechPacker": "vad",
    "VadError": "vad",
    "Window": "windows",
    "WindowStream": "windows",
    "cut_windows": "windows",
    "load_audio": "loading",
    "log_mel": "mel",
    "log_mel_batch": "mel",
    "silero_judge": "vad",
    "stream_audio": "loading",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
