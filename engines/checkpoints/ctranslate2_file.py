"""Reads the CTranslate2 binary: named variables, mapped, with int8 and int16 weights scaled back.

The format, little-endian: uint32 version; name and revision of the spec; uint32 number of variables, each
a name, uint8 rank, uint32 per dimension, uint8 data type, uint32 bytes, the data; uint32 number of aliases,
each an alias and a variable name. A string is a uint16 length that counts a closing zero byte, then the
bytes.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np

from headrace.engines.errors import ModelError

_VERSIONS = (4, 5, 6)  # these share the layout above; earlier ones store item sizes instead of data types
_DTYPES = (np.float32, np.int8, np.int16, np.int32, np.float16, ml_dtypes.bfloat16)
_QUANTIZED = (np.dtype(np.int8), np.dtype(np.int16))
_MAX_RANK = 8


class Variable(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype
    offset: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Ct2File:
    """The table of contents of a model.bin."""

    path: Path
    """The file."""
    spec_name: str
    """Class of the model, such as WhisperSpec."""
    variables: dict[str, Variable]
    """What the file stores, without the aliases."""
    aliases: dict[str, str]
    """Further names of stored variables."""
    buffer: mmap.mmap
    """The mapped file."""

    def __contains__(self, name: str) -> bool:
        return name in self.variables or name in self.aliases

    def shape(self, name: str) -> tuple[int, ...]:
        return self._find(name).shape

    def scalar(self, name: str, default: int) -> int:
        """A stored number, or `default` where the file has none of this name."""
        return int(self._view(name).reshape(-1)[0]) if name in self else default

    def read(self, name: str, *, rows: slice = slice(None)) -> np.ndarray:
        """A variable or a range of its rows; quantized weights come as float32, others as a view of the file.

        A stored q stands for q / scale, with one scale for each row (int8) or one for all (int16).
        """
        stored = self._view(name)[rows]
        if stored.dtype not in _QUANTIZED:
            return stored
        scale = self._view(f"{name}_scale").astype(np.float32)
        if scale.ndim == 1:
            scale = scale[rows].reshape(-1, *([1] * (stored.ndim - 1)))
        return stored.astype(np.float32) / scale

    def _find(self, name: str) -> Variable:
        target = self.aliases.get(name, name)
        if target not in self.variables:
            raise ModelError(
                f"{str(self.path)!r} has no variable {name!r}: not a model that can be read here"
            )
        return self.variables[target]

    def _view(self, name: str) -> np.ndarray:
        found = self._find(name)
        count = int(np.prod(found.shape, dtype=np.int64))
        return np.frombuffer(self.buffer, found.dtype, count, found.offset).reshape(found.shape)


def read_ct2_file(path: Path) -> Ct2File:
    """The table of contents of a model.bin; the data stay on the disk.

    Raises:
      ModelError: the file is cut short, is something else, or is of a version that is not known.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else None
    if buffer is None:
        raise ModelError(f"{str(path)!r} is empty")
    cursor = _Cursor(buffer, path)
    (version,) = cursor.unpack("<I")
    if version not in _VERSIONS:
        known = f"{_VERSIONS[0]} to {_VERSIONS[-1]}"
        raise ModelError(
            f"{str(path)!r} is no CTranslate2 model of version {known} (its first number is {version}): "
            "convert it again with a current ctranslate2"
        )
    spec_name = cursor.string()
    cursor.unpack("<I")  # the spec's own revision: what differs shows in the variables
    (num_variables,) = cursor.unpack("<I")
    variables = dict(cursor.variable() for _ in range(num_variables))
    (num_aliases,) = cursor.unpack("<I")
    aliases = {cursor.string(): cursor.string() for _ in range(num_aliases)}
    return Ct2File(path=path, spec_name=spec_name, variables=variables, aliases=aliases, buffer=buffer)


class _Cursor:
    """Walks over the file, and names it when it ends too early."""

    def __init__(self, buffer: mmap.mmap, path: Path) -> None:
        self._buffer = buffer
        self._path = path
        self._offset = 0

    def unpack(self, form: str) -> tuple:
        start = self._skip(struct.calcsize(form))
        return struct.unpack_from(form, self._buffer, start)

    def string(self) -> str:
        (length,) = self.unpack("<H")
        start = self._skip(length)
        raw = self._buffer[start : start + length]
        if not raw.endswith(b"\0"):
            raise self._damaged("a name does not end where it should")
        try:
            return raw[:-1].decode()
        except UnicodeDecodeError:
            raise self._damaged("a name is not text") from None

    def variable(self) -> tuple[str, Variable]:
        name = self.string()
        (rank,) = self.unpack("<B")
        if rank > _MAX_RANK:
            raise self._damaged(f"{name!r} has {rank} dimensions")
        shape = self.unpack(f"<{rank}I")
        type_id, num_bytes = self.unpack("<BI")
        if type_id >= len(_DTYPES):
            raise ModelError(f"{str(self._path)!r}: {name!r} has the unknown data type {type_id}")
        dtype = np.dtype(_DTYPES[type_id])
        if int(np.prod(shape, dtype=np.int64)) * dtype.itemsize != num_bytes:
            raise self._damaged(f"{name!r} of shape {list(shape)} and {dtype} has {num_bytes} bytes")
        return name, Variable(shape, dtype, self._skip(num_bytes))

    def _skip(self, count: int) -> int:
        start = self._offset
        if start + count > len(self._buffer):
            raise ModelError(
                f"{str(self._path)!r} is cut short: it has {len(self._buffer)} bytes, "
                f"byte {start + count} is wanted; fetch it again"
            )
        self._offset = start + count
        return start

    def _damaged(self, what: str) -> ModelError:
        return ModelError(f"{str(self._path)!r} is damaged or no CTranslate2 model: {what}")
