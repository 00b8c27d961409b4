"""The faster-whisper layout: a CTranslate2 model.bin with config.json and tokenizer beside it."""

from collections.abc import Set
from pathlib import Path

import numpy as np

from headrace.engines.checkpoints.contents import Contents, read_json
from headrace.engines.checkpoints.ctranslate2_file import Ct2File, read_ct2_file
from headrace.engines.checkpoints.ctranslate2_names import Source, whisper_sources
from headrace.engines.checkpoints.tokenizer_files import read_whisper_tokenizer, whisper_vocabulary
from headrace.engines.checkpoints.whisper_config import (
    whisper_config,
    whisper_generation_config,
    whisper_preprocessor_config,
)
from headrace.engines.errors import ModelError


class _Ct2Tensors:
    def __init__(self, file: Ct2File, sources: dict[str, Source]) -> None:
        self._file = file
        self._sources = sources

    def names(self) -> Set[str]:
        return self._sources.keys()

    def read(self, name: str) -> np.ndarray:
        source = self._sources[name]
        return self._file.read(source.variable, rows=source.rows)

    def unload(self) -> None:
        self._file.file.unload()


def open_ctranslate2(directory: Path) -> Contents:
    """The contents of a faster-whisper directory.

    Raises:
      ModelError: model.bin is cut short or not a Whisper model, or a file beside it is damaged.
    """
    file = read_ct2_file(directory / "model.bin")
    if file.spec_name != "WhisperSpec":
        raise ModelError(
            f"{str(file.path)!r} is a CTranslate2 {file.spec_name}, only WhisperSpec can be read"
        )
    sources = whisper_sources(file)
    ids = whisper_vocabulary(directory)
    config = whisper_config(file, ids)
    return Contents(
        config=config,
        generation_config=whisper_generation_config(config, read_json(directory / "config.json"), ids),
        preprocessor_config=read_json(directory / "preprocessor_config.json")
        or whisper_preprocessor_config(config),
        tensors=_Ct2Tensors(file, sources),
        make_tokenizer=lambda: read_whisper_tokenizer(directory, config["vocab_size"]),
    )
