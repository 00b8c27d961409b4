"""Number formats of samples, and the one stream that every decoder writes to."""

import enum
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import soxr

from headrace.audio.errors import AudioError
from headrace.audio.recording import SAMPLE_RATE

MIN_RATE, MAX_RATE = 1_000, 768_000
"""Sampling rates that a recording can have, in Hz."""
MAX_AMPLITUDE = 2.0**31
"""No sample format exceeds it; the power of larger values leaves float32."""
BLOCK = 1 << 18
"""Samples that are converted at a time."""


class Outcome(enum.Enum):
    """How far a decoder came."""

    UNKNOWN = enum.auto()
    """the decoder does not take this format"""
    COMPLETE = enum.auto()
    """everything that the file declares was decoded"""
    CUT = enum.auto()
    """the file ends before its declared end, or holds more than it declares"""
    BROKEN = enum.auto()
    """the decoder met damage"""


Sink = Callable[[np.ndarray], None]
"""Takes the next float32 samples of a recording, mono, 16 kHz."""


class Pick(NamedTuple):
    """What becomes of the channels of a recording."""

    channel: int | None = None
    """the one to take, counted from 0; None: the mean of all"""
    on_count: Callable[[int], None] | None = None
    """told the number of channels with the first block; again by each further decoder of a damaged file"""


MEAN = Pick()


class MonoStream:
    """Passes samples on, block by block, as 16 kHz mono.

    Holds one block, however long the recording and whatever its rate. Channels are averaged, or one of them
    is picked. Leaves out the first `skip` samples of its output.
    """

    def __init__(self, name: str, sink: Sink, *, pick: Pick = MEAN, skip: int = 0) -> None:
        self._name = name
        self._sink = sink
        self._channel = pick.channel
        self._on_count = pick.on_count
        self._skip = skip
        self._pending: list[np.ndarray] = []
        self._rate = 0
        self._resampler: soxr.ResampleStream | None = None
        self._num_samples: dict[int, int] = {}
        self.num_made = 0

    @property
    def duration_s(self) -> float:
        """Seconds of what was added."""
        return sum((size / rate for rate, size in self._num_samples.items()), 0.0)

    def add(self, samples: np.ndarray, rate: int) -> None:
        """Takes a block, [samples] or [channels, samples], of any number format; the rate may change.

        Raises:
          AudioError: a sample is not finite (`non_finite`), the rate is impossible (`sampling_rate`), or
            there is no such channel (`channel`).
        """
        if rate != self._rate:
            self._flush(last=True)
            self._start(rate)
        mono = self._mono(to_float32(samples))
        self._check(mono)
        self._num_samples[rate] = self._num_samples.get(rate, 0) + mono.size
        self._pending.append(mono)
        if sum(block.size for block in self._pending) >= BLOCK:
            self._flush(last=False)

    def close(self) -> None:
        """Passes on what is left."""
        self._flush(last=True)

    def _mono(self, samples: np.ndarray) -> np.ndarray:
        channels = samples[None] if samples.ndim == 1 else samples
        if self._on_count is not None:
            self._on_count(len(channels))
            self._on_count = None
        if self._channel is not None:
            if self._channel >= len(channels):
                raise AudioError(
                    f"{self._name}: has {len(channels)} channels, channel {self._channel} (from 0) was "
                    "wanted: mix the channels instead",
                    kind="channel",
                )
            return channels[self._channel]
        with np.errstate(over="ignore", invalid="ignore"):
            return channels[0] if len(channels) == 1 else channels.mean(axis=0)

    def _start(self, rate: int) -> None:
        self._rate = rate = check_rate(rate, self._name)
        self._resampler = None
        if rate != SAMPLE_RATE:
            self._resampler = soxr.ResampleStream(rate, SAMPLE_RATE, 1, dtype="float32", quality="HQ")

    def _flush(self, *, last: bool) -> None:
        if not self._rate:
            return
        block = np.concatenate(self._pending) if self._pending else np.zeros(0, np.float32)
        self._pending.clear()
        if self._resampler is not None:
            block = self._resampler.resample_chunk(block, last=last)
        left_out = min(max(self._skip - self.num_made, 0), block.size)
        self.num_made += block.size
        if block.size > left_out:
            self._sink(np.ascontiguousarray(block[left_out:], np.float32))

    def _check(self, mono: np.ndarray) -> None:
        within = np.abs(mono) <= MAX_AMPLITUDE
        if within.all():
            return
        index = int(np.argmin(within))
        value = float(mono[index])
        where = f"{self._name}: the sample at {self.duration_s + index / self._rate:.3f} s"
        if math.isfinite(value):
            raise AudioError(f"{where} is {value:.3g}, wanted -1 to 1: scale the samples", kind="non_finite")
        what = "NaN" if math.isnan(value) else "infinite"
        raise AudioError(
            f"{where} is {what}, wanted finite ones: repair the recording, or set such samples to 0",
            kind="non_finite",
        )


def no_samples(name: str) -> AudioError:
    """The error for a recording that holds nothing."""
    return AudioError(f"{name}: has no samples: it was not recorded, or cut to nothing", kind="empty")


def to_float32(array: np.ndarray) -> np.ndarray:
    """Samples as float32; integers are divided by their range, unsigned ones centred first."""
    kind, bits = array.dtype.kind, array.dtype.itemsize * 8
    if kind == "f":
        with np.errstate(over="ignore"):
            return array.astype(np.float32, copy=False)
    half = float(2 ** (bits - 1))
    if kind == "u":
        return ((array.astype(np.float64) - half) / half).astype(np.float32)
    if bits <= 16:
        return array.astype(np.float32) / np.float32(half)
    return (array / half).astype(np.float32)


def check_rate(rate: Any, name: str) -> int:
    """The sampling rate as an int.

    Raises:
      AudioError: it is not a whole number of Hz from 1,000 to 768,000 (`sampling_rate`).
    """
    is_number = isinstance(rate, int | float | np.integer | np.floating) and not isinstance(rate, bool)
    if is_number and MIN_RATE <= rate <= MAX_RATE and int(rate) == rate:
        return int(rate)
    shown = f"{rate} Hz" if is_number else type(rate).__name__
    raise AudioError(
        f"{name}: the sampling rate is {shown}, wanted a whole number from {MIN_RATE} to {MAX_RATE} Hz: "
        "correct the rate, or the file's damaged header",
        kind="sampling_rate",
    )
