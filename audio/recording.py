"""What a decoded recording is, and what it can be loaded from."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

SAMPLE_RATE = 16_000
"""Samples a second of every waveform in headrace."""


@runtime_checkable
class ReadableFile(Protocol):
    """A binary file object or stream."""

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes, none at the end."""
        ...


@runtime_checkable
class ArrayLike(Protocol):
    """What NumPy takes for an array: its own, JAX's and others'."""

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray: ...


AudioSource = (
    str | os.PathLike | bytes | bytearray | memoryview | ReadableFile | ArrayLike | Mapping[str, Any]
)
"""A path, an http(s) URL, a file's bytes, a binary file object, an array of samples, a mapping with `array`
and `sampling_rate`, or one with `bytes` and `path` as the datasets library stores audio."""


@dataclass(frozen=True, slots=True)
class Recording:
    """Decoded audio, mono, 16 kHz."""

    waveform: np.ndarray
    """float32 [samples], nominally within -1 and 1, always finite"""
    duration_s: float
    """seconds of audio that were decoded"""
    flags: tuple[str, ...] = ()
    """`decode_truncated` where only a part of the file could be decoded"""


class Ending(NamedTuple):
    """What is known of a recording once its last sample is decoded."""

    duration_s: float
    """seconds of audio that were decoded"""
    flags: tuple[str, ...] = ()
    """as those of a Recording"""
