"""A stretch of a recording, as a manifest names it by `offset` and `duration` in seconds."""

from typing import Any

import numpy as np
import soundfile

from headrace.audio import SAMPLE_RATE, AudioError, load_audio

Stretch = tuple[float, float | None]
"""Seconds where a stretch begins, and seconds that it lasts; None: to the end."""


def cut_segment(audio: str | bytes, stretch: Stretch, *, channels: bool = False) -> dict[str, Any]:
    """The samples of a stretch with their rate: their mean, or with `channels` all as [channels, samples].

    Only the stretch is read where the file can seek by samples (wav, flac); another is decoded as a whole.

    Raises:
      AudioError: the recording cannot be decoded, or ends before the stretch begins.
    """
    offset_s, duration_s = stretch
    if offset_s < 0 or (duration_s is not None and duration_s <= 0):
        raise AudioError(f"the segment of {duration_s} s from {offset_s} s is none", kind="segment")
    found = _read_stretch(audio, stretch) if isinstance(audio, str) else None
    samples, rate = found or _decode_stretch(audio, stretch, channels=channels)
    if not samples.size:
        raise AudioError(f"the recording ends before the segment from {offset_s:g} s", kind="segment")
    return {"array": samples if channels else samples.mean(axis=0), "sampling_rate": rate}


def _read_stretch(path: str, stretch: Stretch) -> tuple[np.ndarray, int] | None:
    offset_s, duration_s = stretch
    try:
        with soundfile.SoundFile(path) as file:
            if file.format not in ("WAV", "FLAC", "AIFF"):
                return None
            file.seek(min(round(offset_s * file.samplerate), file.frames))
            frames = -1 if duration_s is None else round(duration_s * file.samplerate)
            samples = file.read(frames, dtype="float32", always_2d=True)
            return samples.T, file.samplerate
    except (OSError, RuntimeError):  # an address, or a format that only FFmpeg knows
        return None


def _decode_stretch(audio: str | bytes, stretch: Stretch, *, channels: bool) -> tuple[np.ndarray, int]:
    offset_s, duration_s = stretch
    begin = round(offset_s * SAMPLE_RATE)
    end = None if duration_s is None else begin + round(duration_s * SAMPLE_RATE)
    if not channels:
        return load_audio(audio).waveform[None, begin:end], SAMPLE_RATE
    counts: list[int] = []
    each = [load_audio(audio, channel=0, on_channels=counts.append)]
    each += [load_audio(audio, channel=channel) for channel in range(1, counts[0])]
    length = min(len(recording.waveform) for recording in each)
    return np.stack([recording.waveform[:length] for recording in each])[:, begin:end], SAMPLE_RATE
