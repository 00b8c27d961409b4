"""Maps a safetensors file: its header is checked, its tensors are views of the file. Writes one, too.

The package's own numpy face has no bfloat16, which most checkpoints are stored in; the format is a uint64
header length, a JSON header with dtype, shape and byte range of each tensor, then the data.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from headrace.engines.checkpoints.mapped_file import MappedFile

_DTYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U16": np.uint16,
    "U8": np.uint8,
    "BOOL": np.bool_,
}
_NAMES = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}
_MAX_HEADER_BYTES = 100_000_000
_ALIGNMENT = 64
"""Bytes at a multiple of which an array must begin for JAX to take it as it lies in memory."""


class SafetensorsFile:
    """One mapped file.

    Raises:
      ModelError: the file is cut short or no safetensors file.
    """

    def __init__(self, path: Path) -> None:
        self._file = MappedFile(path)
        self._header = self._read_header()
        self._start = self._file.offset
        self._file.require(self._start + self._data_bytes())

    def names(self) -> list[str]:
        return list(self._header)

    def read(self, name: str) -> np.ndarray:
        facts = self._header[name]
        if facts["dtype"] not in _DTYPES:
            raise self._file.damaged(f"{name!r} has the unknown data type {facts['dtype']}")
        dtype = np.dtype(_DTYPES[facts["dtype"]])
        shape, (begin, end) = facts["shape"], facts["data_offsets"]
        count = math.prod(shape)
        if count * dtype.itemsize != end - begin:
            raise self._file.damaged(f"{name!r} of shape {shape} and {dtype} has {end - begin} bytes")
        return np.frombuffer(self._file.buffer, dtype, count, self._start + begin).reshape(shape)

    def unload(self) -> None:
        self._file.unload()

    def _read_header(self) -> dict[str, Any]:
        (length,) = self._file.unpack("<Q")
        if length > _MAX_HEADER_BYTES:
            raise self._file.damaged(f"its header would have {length} bytes")
        text = self._file.take(length)
        try:
            header = json.loads(text)
            header.pop("__metadata__", None)
        except (ValueError, TypeError, AttributeError):
            raise self._file.damaged("its header is not a JSON object") from None
        return header

    def _data_bytes(self) -> int:
        try:
            ranges = [
                (begin, end) for begin, end in (facts["data_offsets"] for facts in self._header.values())
            ]
            in_order = all(0 <= begin <= end for begin, end in ranges)
        except (KeyError, TypeError, ValueError):
            raise self._file.damaged("its header is no list of tensors") from None
        if not in_order:
            raise self._file.damaged("a tensor begins before the data or after its end")
        return max((end for _, end in ranges), default=0)


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes arrays in this format, aligned so that a device of this host takes most of them as mapped.

    The format has no gaps: arrays whose size is no multiple of 64 bytes come last, and their own place is
    what it is.
    """
    ordered = sorted(tensors, key=lambda name: tensors[name].nbytes % _ALIGNMENT != 0)
    header, end = {}, 0
    for name in ordered:
        begin, end = end, end + tensors[name].nbytes
        dtype, shape = _NAMES[tensors[name].dtype], list(tensors[name].shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in ordered:
            file.write(np.ascontiguousarray(tensors[name]).reshape(-1).view(np.uint8).data)
