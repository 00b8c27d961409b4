"""What the reader of every layout gives."""

import json
from collections.abc import Callable, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from headrace.engines.checkpoints.artifact_record import ArtifactRecord
from headrace.engines.checkpoints.fast_tokenizer import FastTokenizer
from headrace.engines.errors import ModelError


@runtime_checkable
class Tensors(Protocol):
    """Tensors under Hugging Face names, read when they are asked for."""

    def names(self) -> Set[str]: ...

    def read(self, name: str) -> np.ndarray:
        """One tensor, in Hugging Face's orientation. Raises KeyError for a name that is not there."""
        ...

    def unload(self) -> None:
        """Takes the files' pages out of the process's memory; what is read later comes from the files."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """A checkpoint's parts, whatever the layout."""

    config: dict[str, Any]
    """In the form of Hugging Face's config.json."""
    generation_config: dict[str, Any]
    """In the form of generation_config.json; {} where the checkpoint has none."""
    preprocessor_config: dict[str, Any]
    """In the form of preprocessor_config.json; {} where the checkpoint has none."""
    tensors: Tensors
    """The weights."""
    make_tokenizer: Callable[[], FastTokenizer]
    """Builds the tokenizer; may import transformers when called."""
    artifact: ArtifactRecord | None = None
    """What an artifact says of itself; its tensors are an engine's own. None for every other layout."""


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, {} where there is no such file.

    Raises:
      ModelError: the file is not a JSON object.
    """
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"not JSON: {str(path)!r} (cut short?)") from error
    if not isinstance(value, dict):
        raise ModelError(f"{str(path)!r} holds a {type(value).__name__}, wanted a JSON object")
    return value
