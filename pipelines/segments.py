"""A stretch of a recording, as a manifest names it by `offset` and `duration` in seconds."""

from typing import Any

import numpy as np
import soundfile

from headrace.audio import SAMPLE_RATE, AudioError, load_audio


def cut_segment(audio: str | bytes, offset_s: float, duration_s: float | None) -> dict[str, Any]:
    """The samples from `offset_s` on, for `duration_s` or to the end, with their rate.

    Only the stretch is read where the file can seek by samples (wav, flac); another is decoded as a whole.

    Raises:
      AudioError: the recording cannot be decoded, or ends before the stretch begins.
    """
    if offset_s < 0 or (duration_s is not None and duration_s <= 0):
        raise AudioError(f"the segment of {duration_s} s from {offset_s} s is none", kind="segment")
    found = _read_stretch(audio, offset_s, duration_s) if isinstance(audio, str) else None
    samples, rate = found or _decode_stretch(audio, offset_s, duration_s)
    if not len(samples):
        raise AudioError(f"the recording ends before the segment from {offset_s:g} s", kind="segment")
    return {"array": samples, "sampling_rate": rate}


def _read_stretch(path: str, offset_s: float, duration_s: float | None) -> tuple[np.ndarray, int] | None:
    try:
        with soundfile.SoundFile(path) as file:
            if file.format not in ("WAV", "FLAC", "AIFF"):
                return None
            file.seek(min(round(offset_s * file.samplerate), file.frames))
            frames = -1 if duration_s is None else round(duration_s * file.samplerate)
            samples = file.read(frames, dtype="float32", always_2d=True)
            return samples.mean(axis=1), file.samplerate
    except (OSError, RuntimeError):  # an address, or a format that only FFmpeg knows
        return None


def _decode_stretch(audio: str | bytes, offset_s: float, duration_s: float | None) -> tuple[np.ndarray, int]:
    begin = round(offset_s * SAMPLE_RATE)
    end = None if duration_s is None else begin + round(duration_s * SAMPLE_RATE)
    return load_audio(audio).waveform[begin:end], SAMPLE_RATE
