"""Loads a recording from any source."""

import io
import os
import re
from collections.abc import Mapping
from typing import Any, cast

from headrace.audio.arrays import from_array
from headrace.audio.decoding import decode
from headrace.audio.errors import AudioError
from headrace.audio.fetching import DEFAULT_LIMITS, FetchLimits, fetch, spool
from headrace.audio.naming import display_name
from headrace.audio.recording import SAMPLE_RATE, ArrayLike, AudioSource, ReadableFile, Recording
from headrace.audio.streams import ByteStream, SeekableFile


def load_audio(
    source: AudioSource, *, sampling_rate: int | None = None, limits: FetchLimits = DEFAULT_LIMITS
) -> Recording:
    """The recording that `source` holds, mono at 16 kHz.

    Channels are averaged. Files are recognised by their content, never by their name; of a video the first
    audio track is taken. A file that is damaged or cut off gives what can be decoded and the flag
    `decode_truncated`. `sampling_rate` is that of a bare array, 16 kHz where it is None.

    Raises:
      AudioError: there is no recording to be had; `kind` says why, the text what to do.
    """
    if isinstance(source, Mapping):
        return _load_mapping(source, sampling_rate, limits)
    if isinstance(source, str) and re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*://", source):
        return _load_url(source, limits)
    if isinstance(source, str | os.PathLike):
        return _load_path(os.fsdecode(source), limits)
    if isinstance(source, bytes | bytearray | memoryview):
        return _load_bytes(source, "bytes")
    if isinstance(source, ReadableFile):
        return _load_file(source, limits)
    if isinstance(source, ArrayLike):
        return from_array(source, SAMPLE_RATE if sampling_rate is None else sampling_rate)
    raise AudioError(
        f"got {type(source).__name__}, wanted a path, URL, bytes, binary file, array, or a mapping with "
        "array and sampling_rate, or with bytes or path",
        kind="empty" if source is None else "source",
    )


def _load_mapping(source: Mapping[str, Any], sampling_rate: int | None, limits: FetchLimits) -> Recording:
    """From {"array", "sampling_rate"}, or from {"bytes", "path"}, of which either can be None."""
    path = source.get("path")
    name = display_name(path) if path else None
    if source.get("array") is not None:
        rate = source.get("sampling_rate", sampling_rate)
        return from_array(source["array"], rate, name or "array")
    if source.get("bytes") is not None:
        return _load_bytes(source["bytes"], name or "bytes")
    if path:
        return load_audio(path, limits=limits)
    raise AudioError("the row has no audio: array, bytes and path are all missing or null", kind="empty")


def _load_bytes(content: Any, name: str) -> Recording:
    try:
        file = io.BytesIO(content)
    except TypeError:
        raise AudioError(f"{name}: its bytes are of type {type(content).__name__}", kind="source") from None
    return decode(ByteStream(file), name)


def _load_url(url: str, limits: FetchLimits) -> Recording:
    scheme = url.partition("://")[0].lower()
    name = display_name(url)
    if scheme not in ("http", "https"):
        raise AudioError(
            f"{name}: {scheme}:// is not opened here, only local paths and http(s): pass the file's bytes "
            "or the open file",
            kind="source",
        )
    with fetch(url, limits) as file:
        return decode(ByteStream(cast(SeekableFile, file)), name)


def _load_path(path: str, limits: FetchLimits) -> Recording:
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
        return _load_file(file, limits, name)


def _load_file(file: ReadableFile, limits: FetchLimits, name: str | None = None) -> Recording:
    """From a binary file, from its position on; stays open. One that cannot seek is copied first."""
    if name is None:
        given = getattr(file, "name", None)
        name = display_name(given) if isinstance(given, str | os.PathLike) else "file object"
    if isinstance(file, io.TextIOBase):
        raise AudioError(
            f"{name}: the file is open for text, wanted a binary file: open it with mode 'rb'", kind="source"
        )
    if _can_seek(file):
        return decode(ByteStream(cast(SeekableFile, file)), name)
    with spool(file, name, limits.max_bytes) as copy:
        return decode(ByteStream(copy), name)


def _can_seek(file: ReadableFile) -> bool:
    """Whether the file can seek; streams that have no `seekable` are asked to."""
    try:
        if not getattr(file, "seekable", lambda: True)():
            return False
        cast(SeekableFile, file).seek(cast(SeekableFile, file).tell())
    except (AttributeError, OSError, ValueError):
        return False
    return True
