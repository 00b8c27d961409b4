"""Reads GGUF files: metadata, and tensors that are dequantized when they are asked for.

The header is walked here instead of by the `gguf` package's reader, which makes an array for each token and
each merge of the tokenizer: 3 s for 49,152 tokens, and no end for some damaged files. Block types and
dequantizing are the package's.

The format, little-endian: b"GGUF", uint32 version, uint64 number of tensors and of metadata; each metadata: a
name, uint32 type, the value; each tensor: a name, uint32 rank, uint64 per dimension (fastest first), uint32
block type, uint64 offset in the data, which begin at the next multiple of general.alignment.
"""

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from headrace.engines.checkpoints.layout import GGUF_MAGIC
from headrace.engines.checkpoints.mapped_file import MappedFile
from headrace.engines.errors import ModelError

_VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_RANK = 8
_MAX_DEPTH = 4
_DEQUANTIZED_AT_ONCE = 1 << 16


class StoredTensor(NamedTuple):
    shape: tuple[int, ...]  # slowest dimension first, as numpy has it
    block_type: int
    offset: int  # from the beginning of the file


@dataclass(frozen=True, kw_only=True, slots=True)
class GgufFile:
    """The header of a GGUF file."""

    file: MappedFile
    """The mapped file."""
    metadata: dict[str, Any]
    """Numbers, strings and lists by key."""
    tensors: dict[str, StoredTensor]
    """What the file stores."""

    @property
    def path(self) -> Path:
        return self.file.path

    def read(self, name: str) -> np.ndarray:
        """A tensor as float32, float16 or bfloat16; blocks of fewer bits come as float32.

        Raises:
          ModelError: the `gguf` package cannot dequantize the block type.
        """
        from gguf import GGMLQuantizationType as Type

        tensor = self.tensors[name]
        views = {
            Type.F32: np.float32,
            Type.F16: np.float16,
            Type.BF16: ml_dtypes.bfloat16,
            Type.F64: np.float64,
        }
        kind = Type(tensor.block_type)
        if kind in views:
            count = math.prod(tensor.shape)
            values = np.frombuffer(self.file.buffer, views[kind], count, tensor.offset).reshape(tensor.shape)
            return values.astype(np.float32) if kind == Type.F64 else values
        try:
            return self._dequantize(tensor, kind.name)
        except (AttributeError, NotImplementedError):
            raise ModelError(
                f"{str(self.path)!r}: {name!r} has the block type {kind.name}, which cannot be dequantized"
            ) from None

    def _dequantize(self, tensor: StoredTensor, kind: str) -> np.ndarray:
        """Some rows at a time: all of them leave the cache, and of a few the calls cost more.

        Raises AttributeError or NotImplementedError for a block type that the package does not know.
        """
        from gguf import quants

        blocks = getattr(quants, kind)
        blocks.init_grid()
        *leading, num_columns = tensor.shape
        num_rows = math.prod(leading)
        raw = np.frombuffer(self.file.buffer, np.uint8, tensor_bytes(tensor), tensor.offset)
        raw = raw.reshape(num_rows, -1)
        values = np.empty((num_rows, num_columns), np.float32)
        step = max(1, _DEQUANTIZED_AT_ONCE // num_columns)
        for first in range(0, num_rows, step):
            values[first : first + step] = blocks.dequantize_rows(raw[first : first + step])
        return values.reshape(tensor.shape)


def read_gguf(path: Path) -> GgufFile:
    """The header of a .gguf file; the data stay on the disk.

    Raises:
      ModelError: the file is cut short, is something else, or of a version or block type that is not known.
    """
    file = MappedFile(path)
    if file.take(4) != GGUF_MAGIC:
        raise file.damaged("it does not begin with GGUF")
    (version,) = file.unpack("<I")
    if version not in _VERSIONS:
        raise ModelError(f"{str(path)!r} is GGUF of version {version}, versions 2 and 3 can be read")
    num_tensors, num_metadata = file.unpack("<QQ")
    metadata: dict[str, Any] = {}
    for _ in range(num_metadata):
        key = _string(file)
        (kind,) = file.unpack("<I")
        metadata[key] = _value(file, kind)
    stored = dict(_tensor(file) for _ in range(num_tensors))
    count = metadata.get("split.count", 1)
    if count > 1:
        raise ModelError(
            f"{str(path)!r} is one of {count} GGUF splits: merge them with llama.cpp's gguf-split"
        )
    tensors = _place(file, stored, metadata.get("general.alignment", 32))
    return GgufFile(file=file, metadata=metadata, tensors=tensors)


def tensor_bytes(tensor: StoredTensor) -> int:
    """Bytes that a tensor takes in the file."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    block, size = GGML_QUANT_SIZES[GGMLQuantizationType(tensor.block_type)]
    return math.prod(tensor.shape) // block * size


def _place(file: MappedFile, stored: dict[str, StoredTensor], alignment: Any) -> dict[str, StoredTensor]:
    """The tensors with offsets from the beginning of the file, each checked to lie inside it."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    if not isinstance(alignment, int) or alignment <= 0:
        raise file.damaged(f"general.alignment is {alignment}")
    start = -(-file.offset // alignment) * alignment
    placed = {}
    for name, tensor in stored.items():
        try:
            block, _ = GGML_QUANT_SIZES[GGMLQuantizationType(tensor.block_type)]
        except (ValueError, KeyError):
            raise file.damaged(f"{name!r} has the unknown block type {tensor.block_type}") from None
        if tensor.shape[-1] % block:
            raise file.damaged(f"rows of {name!r} have {tensor.shape[-1]} values, no multiple of {block}")
        placed[name] = tensor._replace(offset=start + tensor.offset)
        file.require(placed[name].offset + tensor_bytes(tensor))
    return placed


def _tensor(file: MappedFile) -> tuple[str, StoredTensor]:
    name = _string(file)
    (rank,) = file.unpack("<I")
    if not 1 <= rank <= _MAX_RANK:
        raise file.damaged(f"{name!r} has {rank} dimensions")
    shape = file.unpack(f"<{rank}Q")
    if 0 in shape:
        raise file.damaged(f"{name!r} has no values")
    block_type, offset = file.unpack("<IQ")
    return name, StoredTensor(tuple(reversed(shape)), block_type, offset)


def _value(file: MappedFile, kind: int, depth: int = 0) -> Any:
    if kind in _SCALARS:
        return file.unpack(f"<{_SCALARS[kind]}")[0]
    if kind == _STRING:
        return _string(file)
    if kind != _ARRAY or depth > _MAX_DEPTH:
        raise file.damaged(f"a metadata value has the unknown type {kind}")
    item, count = file.unpack("<IQ")
    if item in _SCALARS:
        file.require(file.offset + count)  # before the format of a huge count is made
        return list(file.unpack(f"<{count}{_SCALARS[item]}"))
    if item == _STRING:
        return _strings(file, count)
    return [_value(file, item, depth + 1) for _ in range(count)]


def _strings(file: MappedFile, count: int) -> list[str]:
    """The next strings, in one loop: a vocabulary has hundreds of thousands."""
    buffer, place, end = file.buffer, file.offset, len(file.buffer)
    lengths, found = struct.Struct("<Q"), []
    try:
        for _ in range(count):
            start = place + 8
            if start > end:
                file.require(start)
            place = start + lengths.unpack_from(buffer, place)[0]
            if place > end:
                file.require(place)
            found.append(buffer[start:place].decode())
    except UnicodeDecodeError:
        raise file.damaged("a string is not text") from None
    file.offset = place
    return found


def _string(file: MappedFile) -> str:
    return _strings(file, 1)[0]
