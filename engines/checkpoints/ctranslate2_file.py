"""Reads the CTranslate2 binary: named variables, mapped, with int8 and int16 weights scaled back.

The format, little-endian: uint32 version; name and revision of the spec; uint32 number of variables, each
a name, uint8 rank, uint32 per dimension, uint8 data type, uint32 bytes, the data; uint32 number of aliases,
each an alias and a variable name. A string is a uint16 length that counts a closing zero byte, then the
bytes.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np

from headrace.engines.checkpoints.mapped_file import MappedFile
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
    file: MappedFile
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
        scale = self._view(f"{self.aliases.get(name, name)}_scale").astype(np.float32)
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
        count = math.prod(found.shape)
        return np.frombuffer(self.file.buffer, found.dtype, count, found.offset).reshape(found.shape)


def read_ct2_file(path: Path) -> Ct2File:
    """The table of contents of a model.bin; the data stay on the disk.

    Raises:
      ModelError: the file is cut short, is something else, or is of a version that is not known.
    """
    file = MappedFile(path)
    (version,) = file.unpack("<I")
    if version not in _VERSIONS:
        known = f"{_VERSIONS[0]} to {_VERSIONS[-1]}"
        raise ModelError(
            f"{str(path)!r} is no CTranslate2 model of version {known} (its first number is {version}): "
            "convert it again with a current ctranslate2"
        )
    spec_name = _string(file)
    file.unpack("<I")  # the spec's own revision: what differs shows in the variables
    (num_variables,) = file.unpack("<I")
    variables = dict(_variable(file) for _ in range(num_variables))
    (num_aliases,) = file.unpack("<I")
    aliases = {_string(file): _string(file) for _ in range(num_aliases)}
    return Ct2File(path=path, spec_name=spec_name, variables=variables, aliases=aliases, file=file)


def _string(file: MappedFile) -> str:
    (length,) = file.unpack("<H")
    raw = file.take(length)
    if not raw.endswith(b"\0"):
        raise file.damaged("a name does not end where it should")
    try:
        return raw[:-1].decode()
    except UnicodeDecodeError:
        raise file.damaged("a name is not text") from None


def _variable(file: MappedFile) -> tuple[str, Variable]:
    name = _string(file)
    (rank,) = file.unpack("<B")
    if rank > _MAX_RANK:
        raise file.damaged(f"{name!r} has {rank} dimensions")
    shape = file.unpack(f"<{rank}I")
    type_id, num_bytes = file.unpack("<BI")
    if type_id >= len(_DTYPES):
        raise file.damaged(f"{name!r} has the unknown data type {type_id}")
    dtype = np.dtype(_DTYPES[type_id])
    if math.prod(shape) * dtype.itemsize != num_bytes:
        raise file.damaged(f"{name!r} of shape {list(shape)} and {dtype} has {num_bytes} bytes")
    return name, Variable(shape, dtype, file.skip(num_bytes))
