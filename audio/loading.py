"""Loads a recording from any source."""

import io
from typing import Any, cast

import numpy as np
import soundfile
import soxr

from headrace.audio.errors import AudioError
from headrace.audio.fetching import DEFAULT_LIMITS, FetchLimits
from headrace.audio.recording import SAMPLE_RATE, AudioSource, Recording


def load_audio(
    source: AudioSource, *, sampling_rate: int | None = None, limits: FetchLimits = DEFAULT_LIMITS
) -> Recording:
    """The recording that `source` holds, down-mixed to mono at 16 kHz."""
    if isinstance(source, np.ndarray):
        samples, rate = source, sampling_rate or SAMPLE_RATE
    elif isinstance(source, dict) and source.get("array") is not None:
        samples, rate = np.asarray(source["array"]), source["sampling_rate"]
    else:
        if isinstance(source, dict):
            source = source.get("bytes") or source["path"]
        if isinstance(source, bytes):
            source = io.BytesIO(source)
        samples, rate = soundfile.read(cast(Any, source), dtype="float32")
    samples = np.asarray(samples, np.float32)
    if samples.ndim == 2:
        samples = samples.mean(axis=int(np.argmin(samples.shape)))
    if not samples.size:
        raise AudioError("recording has no samples", kind="empty")
    waveform = soxr.resample(samples, rate, SAMPLE_RATE).astype(np.float32)
    return Recording(waveform=waveform, duration_s=samples.size / rate)
