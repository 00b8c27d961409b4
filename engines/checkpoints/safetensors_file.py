"""Maps a safetensors file: its header is checked, its tensors are views of the file.

The package's own numpy face has no bfloat16, which most checkpoints are stored in; the format is a uint64
header length, a JSON header with dtype, shape and byte range of each tensor, then the data.
"""

import json
import mmap
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from headrace.engines.errors import ModelError

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
    "U8": np.uint8,
    "BOOL": np.bool_,
}
_MAX_HEADER_BYTES = 100_000_000


class SafetensorsFile:
    """One mapped file.

    Raises:
      ModelError: the file is cut short or no safetensors file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            if path.stat().st_size < 8:
                raise ModelError(
                    f"{str(path)!r} is cut short: it has {path.stat().st_size} bytes; fetch it again"
                )
            self._buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._header, self._start = self._read_header()

    def names(self) -> list[str]:
        return list(self._header)

    def read(self, name: str) -> np.ndarray:
        facts = self._header[name]
        if facts["dtype"] not in _DTYPES:
            raise ModelError(f"{str(self._path)!r}: {name!r} has the unsupported data type {facts['dtype']}")
        dtype = np.dtype(_DTYPES[facts["dtype"]])
        shape, (begin, end) = facts["shape"], facts["data_offsets"]
        count = int(np.prod(shape, dtype=np.int64))
        if count * dtype.itemsize != end - begin:
            raise self._damaged(f"{name!r} of shape {shape} and {dtype} has {end - begin} bytes")
        return np.frombuffer(self._buffer, dtype, count, self._start + begin).reshape(shape)

    def _read_header(self) -> tuple[dict[str, Any], int]:
        (length,) = struct.unpack_from("<Q", self._buffer)
        if length > _MAX_HEADER_BYTES:
            raise self._damaged(f"its header would have {length} bytes")
        start = 8 + length
        if start > len(self._buffer):
            raise self._cut_short(start)
        try:
            header = json.loads(self._buffer[8:start])
            header.pop("__metadata__", None)
            end = max((facts["data_offsets"][1] for facts in header.values()), default=0)
            lowest = min((facts["data_offsets"][0] for facts in header.values()), default=0)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise self._damaged("its header is no list of tensors") from error
        if lowest < 0:
            raise self._damaged("a tensor begins before the data")
        if start + end > len(self._buffer):
            raise self._cut_short(start + end)
        return header, start

    def _cut_short(self, wanted: int) -> ModelError:
        return ModelError(
            f"{str(self._path)!r} is cut short: it has {len(self._buffer)} bytes, {wanted} are wanted; "
            "fetch it again"
        )

    def _damaged(self, what: str) -> ModelError:
        return ModelError(f"{str(self._path)!r} is damaged or no safetensors file: {what}")
