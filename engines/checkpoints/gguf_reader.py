"""GGUF files: config, tensors and tokenizer out of one file."""

from collections.abc import Callable, Set
from pathlib import Path

import numpy as np

from headrace.engines.checkpoints.contents import Contents
from headrace.engines.checkpoints.gguf_families import family_of, gguf_config, tensor_sources
from headrace.engines.checkpoints.gguf_file import GgufFile, read_gguf
from headrace.engines.checkpoints.gguf_tokenizer import build_gguf_tokenizer


class _GgufTensors:
    def __init__(self, file: GgufFile, sources: dict[str, tuple[str, Callable | None]]) -> None:
        self._file = file
        self._sources = sources

    def names(self) -> Set[str]:
        return self._sources.keys()

    def read(self, name: str) -> np.ndarray:
        stored, reorder = self._sources[name]
        values = self._file.read(stored)
        return values if reorder is None else reorder(values)

    def unload(self) -> None:
        self._file.file.unload()


def open_gguf(path: Path) -> Contents:
    """The contents of a .gguf file.

    Raises:
      ModelError: the file is cut short, or its architecture or tokenizer is not known.
    """
    file = read_gguf(path)
    family = family_of(file)
    config = gguf_config(file, family)
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in config}
    return Contents(
        config=config,
        generation_config=ids,
        preprocessor_config={},
        tensors=_GgufTensors(file, tensor_sources(file, config, family)),
        make_tokenizer=lambda: build_gguf_tokenizer(path, file.metadata),
    )
