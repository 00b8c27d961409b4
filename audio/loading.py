"""Loads a recording from any source, whole or as a stream."""

import io
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from headrace.audio.arrays import stream_array
from headrace.audio.decoding import decode
from headrace.audio.errors import AudioError
from headrace.audio.fetching import DEFAULT_LIMITS, FetchLimits, fetch, spool
from headrace.audio.naming import display_name
from headrace.audio.recording import SAMPLE_RATE, ArrayLike, AudioSource, Ending, ReadableFile, Recording
from headrace.audio.samples import Pick, Sink
from headrace.audio.streams import ByteStream, SeekableFile


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """How a recording is read."""

    sampling_rate: int | None = None
    """Hz of a bare array; None: 16,000"""
    channel: int | None = None
    """the one channel to take, counted from 0; None: the mean of all"""
    on_channels: Callable[[int], None] | None = None
    """told the number of channels once the first samples are decoded"""
    limits: FetchLimits = DEFAULT_LIMITS
    """what may be fetched"""

    @property
    def pick(self) -> Pick:
        return Pick(self.channel, self.on_channels)


DEFAULT_OPTIONS = Reading()


def load_audio(
    source: AudioSource,
    *,
    sampling_rate: int | None = None,
    channel: int | None = None,
    on_channels: Callable[[int], None] | None = None,
    limits: FetchLimits = DEFAULT_LIMITS,
) -> Recording:
    """The recording that `source` holds, mono at 16 kHz.

    Channels are averaged, or one of them is taken. Files are recognised by their content, never by their
    name; of a video the first audio track is taken. A file that is damaged or cut off gives what can be
    decoded and the flag `decode_truncated`. `sampling_rate` is that of a bare array, 16 kHz where it is None;
    the other arguments are those of `Reading`.

    Raises:
      AudioError: there is no recording to be had; `kind` says why, the text what to do.
    """
    data = bytearray()

    def keep(samples: np.ndarray) -> None:
        nonlocal data
        data += samples.data.cast("B")  # extend() would go byte by byte

    reading = Reading(sampling_rate=sampling_rate, channel=channel, on_channels=on_channels, limits=limits)
    ending = stream_audio(source, keep, options=reading)
    return Recording(np.frombuffer(data, np.float32), ending.duration_s, ending.flags)


def stream_audio(source: AudioSource, sink: Sink, *, options: Reading = DEFAULT_OPTIONS) -> Ending:
    """Passes on the recording that `source` holds as it is decoded, as `load_audio` gives it.

    Memory does not grow with the recording, where the source itself does not lie in memory. An error can
    come after samples were passed on.

    Raises:
      AudioError: as `load_audio`.
    """
    if isinstance(source, Mapping):
        return _stream_mapping(source, sink, options)
    if isinstance(source, str) and re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*://", source):
        return _stream_url(source, sink, options)
    if isinstance(source, str | os.PathLike):
        return _stream_path(os.fsdecode(source), sink, options)
    if isinstance(source, bytes | bytearray | memoryview):
        return _stream_bytes(source, "bytes", sink, options)
    if isinstance(source, ReadableFile):
        return _stream_file(source, sink, options)
    if isinstance(source, ArrayLike):
        rate = SAMPLE_RATE if options.sampling_rate is None else options.sampling_rate
        return stream_array(source, rate, sink, pick=options.pick)
    raise AudioError(
        f"got {type(source).__name__}, wanted a path, URL, bytes, binary file, array, or a mapping with "
        "array and sampling_rate, or with bytes or path",
        kind="empty" if source is None else "source",
    )


def _stream_mapping(source: Mapping[str, Any], sink: Sink, options: Reading) -> Ending:
    """From {"array", "sampling_rate"}, or from {"bytes", "path"}, of which either can be None."""
    path = source.get("path")
    name = display_name(path) if path else None
    if source.get("array") is not None:
        rate = source.get("sampling_rate", options.sampling_rate)
        return stream_array(source["array"], rate, sink, name=name or "array", pick=options.pick)
    if source.get("bytes") is not None:
        return _stream_bytes(source["bytes"], name or "bytes", sink, options)
    if path:
        return stream_audio(path, sink, options=options)
    raise AudioError("the row has no audio: array, bytes and path are all missing or null", kind="empty")


def _stream_bytes(content: Any, name: str, sink: Sink, options: Reading) -> Ending:
    try:
        file = io.BytesIO(content)
    except TypeError:
        raise AudioError(f"{name}: its bytes are of type {type(content).__name__}", kind="source") from None
    return decode(ByteStream(file), name, sink, options.pick)


def _stream_url(url: str, sink: Sink, options: Reading) -> Ending:
    scheme = url.partition("://")[0].lower()
    name = display_name(url)
    if scheme not in ("http", "https"):
        raise AudioError(
            f"{name}: {scheme}:// is not opened here, only local paths and http(s): pass the file's bytes "
            "or the open file",
            kind="source",
        )
    with fetch(url, options.limits) as file:
        return decode(ByteStream(cast(SeekableFile, file)), name, sink, options.pick)


def _stream_path(path: str, sink: Sink, options: Reading) -> Ending:
    name = display_name(path)
    try:
        file = open(path, "rb")  # noqa: SIM115 (opening fails in other ways than reading)
    except (FileNotFoundError, NotADirectoryError):
        raise AudioError(
            f"{name}: there is no such file: check the path and where it is relative to", kind="not_found"
        ) from None
    except IsADirectoryError:
        raise AudioError(
            f"{name}: is a directory, wanted a file: give the files in it", kind="not_found"
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a valid path"
        raise AudioError(f"{name}: cannot be opened: {reason}", kind="unreadable") from None
    with file:
        return _stream_file(file, sink, options, name)


def _stream_file(file: ReadableFile, sink: Sink, options: Reading, name: str | None = None) -> Ending:
    """From a binary file, from its position on; stays open. One that cannot seek is copied first."""
    if name is None:
        given = getattr(file, "name", None)
        name = display_name(given) if isinstance(given, str | os.PathLike) else "file object"
    if isinstance(file, io.TextIOBase):
        raise AudioError(
            f"{name}: the file is open for text, wanted a binary file: open it with mode 'rb'", kind="source"
        )
    if _can_seek(file):
        return decode(ByteStream(cast(SeekableFile, file)), name, sink, options.pick)
    with spool(file, name, options.limits.max_bytes) as copy:
        return decode(ByteStream(copy), name, sink, options.pick)


def _can_seek(file: ReadableFile) -> bool:
    """Whether the file can seek; streams that have no `seekable` are asked to."""
    try:
        if not getattr(file, "seekable", lambda: True)():
            return False
        cast(SeekableFile, file).seek(cast(SeekableFile, file).tell())
    except (AttributeError, OSError, ValueError):
        return False
    return True
