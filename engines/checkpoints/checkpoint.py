"""An open checkpoint: config, tensors under Hugging Face names, tokenizer, whatever the layout."""

import threading
from collections.abc import Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.engines.checkpoints.artifact import PROGRAMS, open_artifact
from headrace.engines.checkpoints.artifact_record import ArtifactRecord
from headrace.engines.checkpoints.contents import Contents, Tensors
from headrace.engines.checkpoints.ctranslate2 import open_ctranslate2
from headrace.engines.checkpoints.fast_tokenizer import FastTokenizer
from headrace.engines.checkpoints.gguf_reader import open_gguf
from headrace.engines.checkpoints.huggingface import open_huggingface
from headrace.engines.checkpoints.resolve import LocalModel, resolve_model
from headrace.engines.checkpoints.spec import PathSpec, parse_spec
from headrace.engines.errors import ModelError

if TYPE_CHECKING:
    import transformers

_OPENERS = {
    "huggingface": open_huggingface,
    "ctranslate2": open_ctranslate2,
    "gguf": open_gguf,
    "artifact": open_artifact,
}


class Checkpoint:
    """A model's config, weights and tokenizer, in Hugging Face's terms. Made by `open_checkpoint`."""

    def __init__(self, model: LocalModel, contents: Contents) -> None:
        self.model = model
        self._contents = contents
        self._tokenizer: FastTokenizer | None = None
        self._tokenizer_lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Checkpoint({self.model.spec!r}, {self.model.format}, {self.config.get('model_type')})"

    def with_config(self, config: dict[str, Any]) -> "Checkpoint":
        """The same checkpoint under another config."""
        return Checkpoint(self.model, replace(self._contents, config=config))

    def with_tensors(self, tensors: Mapping[str, np.ndarray]) -> "Checkpoint":
        """The same checkpoint with other weights under some of its names, in the orientation of `tensor`.

        Raises:
          ModelError: no weight was given, or one that the checkpoint has not or has in another shape.
        """
        if self.artifact is not None:
            raise ModelError("an artifact's weights have no names: give a whole checkpoint")
        if not tensors:
            raise ModelError("no weights were given: name at least one")
        for name, tensor in tensors.items():
            if name not in self.tensor_names():
                raise ModelError(f"model {self.model.spec!r} has no tensor {name!r}")
            wanted = self.tensor(name).shape
            if np.shape(tensor) != wanted:
                raise ModelError(f"{name} has shape {np.shape(tensor)}, the model's has {wanted}")
        overlaid = _Overlaid(self._contents.tensors, dict(tensors))
        return Checkpoint(self.model, replace(self._contents, tensors=overlaid))

    @property
    def config(self) -> dict[str, Any]:
        """In the form of config.json; derived from the tensors where the layout has none."""
        return self._contents.config

    @property
    def generation_config(self) -> dict[str, Any]:
        """In the form of generation_config.json; {} where the checkpoint has none."""
        return self._contents.generation_config

    @property
    def preprocessor_config(self) -> dict[str, Any]:
        """In the form of preprocessor_config.json; {} where the checkpoint has none."""
        return self._contents.preprocessor_config

    @property
    def artifact(self) -> ArtifactRecord | None:
        """What an artifact says of itself: its tensors are those of an engine's modules; None for models."""
        return self._contents.artifact

    @property
    def programs_directory(self) -> Path | None:
        """Where an artifact has its compiled programs; None where it was fetched: none are run from there."""
        is_local = isinstance(parse_spec(self.model.spec), PathSpec)
        return self.model.path / PROGRAMS if is_local and self.artifact is not None else None

    def tensor_names(self) -> Set[str]:
        """Names as in a Hugging Face checkpoint; a tied output projection has no name of its own."""
        return self._contents.tensors.names()

    def tensor(self, name: str) -> np.ndarray:
        """One tensor in Hugging Face's orientation ([out, in]), in the stored precision.

        float32, float16 or bfloat16 (ml_dtypes); weights that are stored in fewer bits come as float32. Read
        when called: it may be a read-only view of the file.

        Raises:
          ModelError: there is no such tensor.
        """
        try:
            return self._contents.tensors.read(name)
        except KeyError:
            raise ModelError(f"model {self.model.spec!r} has no tensor {name!r}") from None

    def unload(self) -> None:
        """Takes the weights' pages out of the process's memory; what is read later comes from the files."""
        self._contents.tensors.unload()

    def tokenizer(self) -> "transformers.PreTrainedTokenizerFast":
        """The tokenizer, built at the first call, with chat template and special tokens where there are some.

        Raises:
          ModelError: the checkpoint has no tokenizer that can be built without running its code.
        """
        return self.fast_tokenizer().wrapped

    def fast_tokenizer(self) -> FastTokenizer:
        """The same tokenizer for plain texts, without transformers where the layout allows it.

        Raises:
          ModelError: the checkpoint has no tokenizer that can be built without running its code.
        """
        with self._tokenizer_lock:
            if self._tokenizer is None:
                self._tokenizer = self._contents.make_tokenizer()
            return self._tokenizer


class _Overlaid:
    """Tensors some of which were replaced."""

    def __init__(self, stored: Tensors, replaced: dict[str, np.ndarray]) -> None:
        self._stored = stored
        self._replaced = replaced

    def names(self) -> Set[str]:
        return self._stored.names()

    def read(self, name: str) -> np.ndarray:
        return np.asarray(self._replaced[name]) if name in self._replaced else self._stored.read(name)

    def unload(self) -> None:
        self._stored.unload()


def open_checkpoint(model: LocalModel | str) -> Checkpoint:
    """A model's checkpoint; a spec is resolved first. Weights are mapped, not read.

    Raises:
      ModelError: one line that says what is wrong with the spec or the files.
    """
    local = resolve_model(model) if isinstance(model, str) else model
    return Checkpoint(local, _OPENERS[local.format](local.path))


def open_without_weights(directory: Path) -> Checkpoint:
    """The config and the tokenizer of a directory in the Hugging Face layout; weights need not be there.

    Raises:
      ModelError: there is no config.json, or the architecture would need its own code.
    """
    contents = open_huggingface(directory, with_weights=False)
    local = LocalModel(
        spec=str(directory), path=directory, format="huggingface", revision=None, fingerprint="no weights"
    )
    return Checkpoint(local, contents)
