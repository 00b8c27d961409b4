"""GGUF files: config, tensors and tokenizer out of one file."""

from collections.abc import Callable, Set
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from headrace.engines.checkpoints.contents import Contents
from headrace.engines.checkpoints.gguf_families import family_of, gguf_config, tensor_sources
from headrace.engines.checkpoints.gguf_tokenizer import build_gguf_tokenizer
from headrace.engines.errors import ModelError


class GgufFile(NamedTuple):
    """The parts of a GGUF file that its users need."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, Any]  # gguf.ReaderTensor by name


class _GgufTensors:
    def __init__(self, file: GgufFile, sources: dict[str, tuple[str, Callable | None]]) -> None:
        self._file = file
        self._sources = sources

    def names(self) -> Set[str]:
        return self._sources.keys()

    def read(self, name: str) -> np.ndarray:
        stored, reorder = self._sources[name]
        values = _values(self._file, stored)
        return values if reorder is None else reorder(values)


def open_gguf(path: Path) -> Contents:
    """The contents of a .gguf file.

    Raises:
      ModelError: the file is cut short, or its architecture or tokenizer is not known.
    """
    file = read_gguf(path)
    family = family_of(path, file.metadata)
    config = gguf_config(file.path, file.metadata, file.tensors, family)
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in config}
    return Contents(
        config=config,
        generation_config=ids,
        preprocessor_config={},
        tensors=_GgufTensors(file, tensor_sources(path, file.tensors, config, family)),
        make_tokenizer=lambda: build_gguf_tokenizer(path, file.metadata),
    )


def read_gguf(path: Path) -> GgufFile:
    """The metadata and tensors of a .gguf file; the tensors' data stay on the disk.

    Raises:
      ModelError: the file is cut short or no GGUF file.
    """
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
        metadata = {key: field.contents() for key, field in reader.fields.items()}
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError) as error:
        raise ModelError(
            f"{str(path)!r} of {path.stat().st_size} bytes is cut short, damaged or of an unknown version "
            f"({' '.join(str(error).split())}); fetch it again"
        ) from error
    count = metadata.get("split.count", 1)
    if count > 1:
        raise ModelError(
            f"{str(path)!r} is one of {count} GGUF splits: merge them with llama.cpp's gguf-split"
        )
    return GgufFile(path, metadata, {tensor.name: tensor for tensor in reader.tensors})


def _values(file: GgufFile, name: str) -> np.ndarray:
    """A stored tensor as float32, float16 or bfloat16; blocks of fewer bits are dequantized to float32."""
    from gguf import GGMLQuantizationType as Type
    from gguf.quants import dequantize

    tensor = file.tensors[name]
    if tensor.tensor_type in (Type.F32, Type.F16):
        return np.asarray(tensor.data)
    if tensor.tensor_type == Type.F64:
        return np.asarray(tensor.data, np.float32)
    if tensor.tensor_type == Type.BF16:
        return np.asarray(tensor.data).view(ml_dtypes.bfloat16)
    try:
        return np.asarray(dequantize(tensor.data, tensor.tensor_type))
    except NotImplementedError:
        raise ModelError(
            f"{str(file.path)!r}: {name!r} has the block type {tensor.tensor_type.name}, "
            "which cannot be dequantized"
        ) from None
