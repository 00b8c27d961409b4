"""Recordings that come as arrays: shapes, channels, number formats."""

from typing import Any

import numpy as np

from headrace.audio.errors import AudioError
from headrace.audio.recording import Ending
from headrace.audio.samples import BLOCK, MEAN, MonoStream, Pick, Sink, check_rate, no_samples

MAX_CHANNELS = 64
"""More rows or columns than this are not channels."""


def stream_array(array: Any, rate: Any, sink: Sink, *, name: str = "array", pick: Pick = MEAN) -> Ending:
    """Passes on an array of samples, or of samples and channels in either order.

    Integers are divided by their range (unsigned ones are centred first). No sample format has 64 bits, so
    64-bit integers count as the 16-bit or 32-bit ones that they fit in.

    Raises:
      AudioError: kinds `empty`, `shape`, `sampling_rate`, `non_finite`, `channel`.
    """
    rate = check_rate(rate, name)
    samples = _numeric(array, name)
    if samples.size == 0:
        raise AudioError(f"{name}: has no samples (shape {_shape_text(samples)})", kind="empty")
    samples = channels_first(samples, name)
    mono = MonoStream(name, sink, pick=pick)
    for start in range(0, samples.shape[-1], BLOCK):
        mono.add(samples[..., start : start + BLOCK], rate)
    mono.close()
    if not mono.num_made:
        raise no_samples(name)
    return Ending(mono.duration_s)


def channels_first(array: np.ndarray, name: str) -> np.ndarray:
    """The array as [samples] or [channels, samples]; the shorter axis holds the channels.

    Raises:
      AudioError: which axis holds the channels cannot be told (`shape`).
    """
    if array.ndim > 2:
        array = array.squeeze()
    if array.ndim == 1:
        return array
    if array.ndim == 2:
        if array.shape[0] > array.shape[1]:
            array = array.T
        channels, length = array.shape
        if channels <= 1 or (channels <= MAX_CHANNELS and length >= 4 * channels):
            return array
    raise AudioError(
        f"{name}: the array is {_shape_text(array)}, wanted samples, frames x channels or channels x frames "
        f"with at most {MAX_CHANNELS} channels: average the channels first",
        kind="shape",
    )


def _numeric(array: Any, name: str) -> np.ndarray:
    """The array with a number format that `to_float32` takes."""
    try:
        samples = np.asarray(array)
    except (TypeError, ValueError):
        raise AudioError(
            f"{name}: its rows differ in length, wanted one array of samples", kind="shape"
        ) from None
    if samples.dtype.kind == "V" and samples.dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        return samples.astype(np.float32)
    if samples.dtype.kind not in "iuf":
        if samples.size == 0:
            return np.zeros(0, np.float32)
        raise AudioError(
            f"{name}: holds {samples.dtype.name}, wanted integer or floating-point samples: convert it first",
            kind="shape",
        )
    if samples.dtype.itemsize == 8 and samples.dtype.kind in "iu" and samples.size:
        return _narrowed(samples)
    return samples


def _narrowed(samples: np.ndarray) -> np.ndarray:
    """64-bit integers in the narrowest of 16, 32 and 64 bits that holds them."""
    low, high = int(samples.min()), int(samples.max())
    for bits in ("16", "32"):
        limits = np.iinfo(samples.dtype.name.replace("64", bits))
        if limits.min <= low and high <= limits.max:
            return samples.astype(limits.dtype)
    return samples


def _shape_text(array: np.ndarray) -> str:
    return "x".join(str(size) for size in array.shape) or "a single number"
