"""Files on any file system that Beam knows: open, write whole files so that they appear at once, delete."""

import functools
import os
import posixpath
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast
from urllib.parse import urlsplit

import pyarrow.parquet as pq
from apache_beam.io.filesystem import BeamIOError, CompressionTypes
from apache_beam.io.filesystems import FileSystems

from headrace.audio import AudioError
from headrace.audio.fetching import fetch

_READ_BUFFER_BYTES = 1 << 20


def is_local(path: str) -> bool:
    """Whether a path is one of this machine's file system."""
    return "://" not in path


def is_http(path: str) -> bool:
    """Whether a path is an address that is fetched, not a path on a file system."""
    return path.startswith(("http://", "https://"))


def without_query(path: str) -> str:
    """A path whose query and fragment are cut where it is an http address: signatures lie there."""
    return urlsplit(path)._replace(query="", fragment="").geturl() if is_http(path) else path


def normalise(path: str) -> str:
    """An absolute local path, or the address as it is."""
    if path.startswith("file://"):
        path = path.removeprefix("file://")
    return os.path.abspath(os.path.expanduser(path)) if is_local(path) else path


def join(directory: str, *names: str) -> str:
    """A path below a directory."""
    return os.path.join(directory, *names) if is_local(directory) else posixpath.join(directory, *names)


def parent(path: str) -> str:
    """The directory that holds a path."""
    return os.path.dirname(path) if is_local(path) else path.rpartition("/")[0]


def open_input(path: str) -> BinaryIO:
    """A seekable file of a path's bytes as they are stored.

    Raises:
      OSError: there is no such file, or it cannot be read.
    """
    if is_local(path):
        return open(path, "rb")
    if is_http(path):
        return open(_fetched(path).name, "rb")
    return cast(BinaryIO, FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED))


@functools.lru_cache(maxsize=2)
def _fetched(address: str) -> Any:
    """A file of this machine with what an address gives; those of the last addresses are kept."""
    try:
        with fetch(address) as content:
            copy = tempfile.NamedTemporaryFile()  # noqa: SIM115 - it goes with the last who holds it
            shutil.copyfileobj(content, copy)
    except AudioError as error:
        raise OSError(str(error)) from None
    copy.flush()
    return copy


@contextmanager
def open_parquet(path: str) -> Iterator[pq.ParquetFile]:
    """A Parquet file, read piece by piece.

    Raises:
      OSError: there is no such file, or it cannot be read.
      pyarrow.ArrowException: it is not a Parquet file.
    """
    if is_local(path) and _is_utf8(path):
        with pq.ParquetFile(path, buffer_size=_READ_BUFFER_BYTES) as parquet:
            yield parquet
    else:
        with open_input(path) as file, pq.ParquetFile(file, buffer_size=_READ_BUFFER_BYTES) as parquet:
            yield parquet


def _is_utf8(path: str) -> bool:
    """Whether Arrow can open a path by its name: a file's name may hold any bytes, which Python keeps."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_bytes(path: str) -> bytes:
    """The whole content of a file."""
    with open_input(path) as file:
        return file.read()


def file_size(path: str) -> int:
    """Size of a file in bytes.

    Raises:
      OSError: there is no such file.
    """
    if is_local(path):
        return os.path.getsize(path)
    return FileSystems.match([path])[0].metadata_list[0].size_in_bytes


def exists(path: str) -> bool:
    """Whether there is a file (or, on this machine, a directory) at a path."""
    return os.path.exists(path) if is_local(path) else FileSystems.exists(path)


def make_directory(path: str) -> None:
    """Makes a directory and those above it; does nothing where there are none to make."""
    if is_local(path):
        os.makedirs(path, exist_ok=True)


def list_directory(path: str, prefix: str = "") -> list[str]:
    """Sorted names of the files directly in a directory whose names start with `prefix`."""
    if is_local(path):
        if not os.path.isdir(path):
            return []
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if entry.name.startswith(prefix))
    matches = FileSystems.match([join(path, f"{prefix}*")])[0].metadata_list
    return sorted(entry.path.rpartition("/")[2] for entry in matches)


def delete(path: str) -> None:
    """Deletes a file; one that is not there is no error."""
    if is_local(path):
        if os.path.exists(path):
            os.remove(path)
    elif FileSystems.exists(path):
        FileSystems.delete([path])


def write_whole(path: str, content: bytes | memoryview, *, scratch: str) -> None:
    """Writes a file under the directory `scratch`, then renames it to `path`, durable when this returns.

    A reader of `path` sees the old content or the new one, never a part of either.

    Raises:
      OSError: the file cannot be written; `path` is as it was.
    """
    name = path.rpartition("/")[2]
    unfinished = join(scratch, f"{name}.{uuid.uuid4().hex[:12]}")
    if is_local(path):
        _write_local(path, content, unfinished)
    else:
        _write_remote(path, content, unfinished)


def _write_local(path: str, content: bytes | memoryview, unfinished: str) -> None:
    os.makedirs(os.path.dirname(unfinished), exist_ok=True)
    try:
        with open(unfinished, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        if os.path.exists(unfinished):
            os.remove(unfinished)
        raise
    _sync_directory(os.path.dirname(path))


def _sync_directory(path: str) -> None:
    """Makes a rename in a directory survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_remote(path: str, content: bytes | memoryview, unfinished: str) -> None:
    try:
        with FileSystems.create(unfinished, compression_type=CompressionTypes.UNCOMPRESSED) as file:
            file.write(bytes(content))
        if FileSystems.exists(path):
            FileSystems.delete([path])
        FileSystems.rename([unfinished], [path])
    except BeamIOError as error:
        raise OSError(f"cannot write {path}: {error}") from error
