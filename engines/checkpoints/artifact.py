"""The artifact: a directory with a model's weights as an engine keeps them, its files, and compiled programs.

artifact.json says what is in it, with the size and sha256 of every file. All files but the programs lie
side by side, and are data; the programs, in a folder of their own, are machine code (see `program_store`).
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from headrace.engines.cache import cache_home
from headrace.engines.checkpoints.artifact_record import FORMAT_VERSION, ArtifactRecord, FileRecord
from headrace.engines.checkpoints.contents import Contents, read_json
from headrace.engines.checkpoints.fingerprint import digest_file
from headrace.engines.checkpoints.layout import ARTIFACT
from headrace.engines.checkpoints.safetensors_file import SafetensorsFile, write_safetensors
from headrace.engines.checkpoints.tokenizer_files import read_saved_tokenizer
from headrace.engines.errors import ConfigError, ModelError

WEIGHTS = "weights.safetensors"
PROGRAMS = "programs"
REMEDY = "make it again with headrace compile"


class MappedWeights:
    """Weights under their paths in the engine's modules, as views of the file."""

    def __init__(self, path: Path) -> None:
        self._file = SafetensorsFile(path)

    def names(self) -> Set[str]:
        return set(self._file.names())

    def read(self, name: str) -> np.ndarray:
        return self._file.read(name)

    def unload(self) -> None:
        self._file.unload()


def open_artifact(directory: Path) -> Contents:
    """The contents of an artifact; its tensors are those of the engine's modules.

    Raises:
      ModelError: a file is missing, cut short, or not the one that was saved.
    """
    record = read_artifact(directory)
    _check_files(directory, record)
    return Contents(
        config=read_json(directory / "config.json"),
        generation_config=read_json(directory / "generation_config.json"),
        preprocessor_config=read_json(directory / "preprocessor_config.json"),
        tensors=MappedWeights(directory / WEIGHTS),
        make_tokenizer=lambda: read_saved_tokenizer(directory, decodes_only=record.decodes_only),
        artifact=record,
    )


def read_artifact(directory: Path) -> ArtifactRecord:
    """What artifact.json of a directory says; no other file is looked at.

    Raises:
      ModelError: it is damaged, or of another version.
    """
    values = read_json(directory / ARTIFACT)
    version = values.get("format_version")
    if version != FORMAT_VERSION:
        raise ModelError(
            f"the artifact {str(directory)!r} has format version {version}, wanted {FORMAT_VERSION}: {REMEDY}"
        )
    try:
        return ArtifactRecord.from_dict(values)
    except ConfigError as error:
        raise ModelError(f"{ARTIFACT} in {str(directory)!r} is damaged: {error}; {REMEDY}") from error


def _check_files(directory: Path, record: ArtifactRecord) -> None:
    """All but the programs, which are checked when they are read."""
    for name, facts in record.files.items():
        if name.startswith(f"{PROGRAMS}/"):
            continue
        path = directory / name
        size = path.stat().st_size if path.is_file() else None
        if size is None:
            raise ModelError(f"the artifact {str(directory)!r} lacks {name}: copy it whole, or {REMEDY}")
        if size < facts.size:
            raise ModelError(
                f"{name} of the artifact {str(directory)!r} is cut short: it has {size} bytes, "
                f"{facts.size} are wanted; copy it again"
            )
        if size > facts.size or digest_file(path, cache_home() / "fingerprints") != facts.sha256:
            raise ModelError(
                f"{name} of the artifact {str(directory)!r} is not the file that was saved, by its sha256: "
                f"copy it again, or {REMEDY}"
            )


@contextmanager
def new_artifact(directory: Path) -> Iterator[Path]:
    """An empty directory to fill, which takes its place when it is full; nothing is left behind by an error.

    Raises:
      ConfigError: there is something at this place.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(f"{str(directory)!r} is there already: name a new directory, or remove it")
    directory.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        yield made
        os.chmod(made, 0o755)
        if directory.exists():
            directory.rmdir()
        made.rename(directory)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def write_files(
    directory: Path, configs: Mapping[str, Mapping[str, Any]], tokenizer: Any, chat_template: Any
) -> None:
    """Writes a model's JSON files, by their names, and the files of its tokenizer.

    `chat_template` is a text, several by their names, or None.
    """
    tokenizer.save_pretrained(directory)
    # What the tokenizer of transformers has come to, with every token that it added.
    (directory / "tokenizer.json").write_text(tokenizer.backend_tokenizer.to_str(), encoding="utf-8")
    (directory / "chat_template.jinja").unlink(missing_ok=True)
    shutil.rmtree(directory / "additional_chat_templates", ignore_errors=True)
    if isinstance(chat_template, dict):
        chat_template = [{"name": name, "template": text} for name, text in chat_template.items()]
    settings = read_json(directory / "tokenizer_config.json") | {"chat_template": chat_template}
    for name, values in {**configs, "tokenizer_config.json": settings}.items():
        (directory / name).write_text(json.dumps(dict(values)), encoding="utf-8")


def write_record(directory: Path, record: ArtifactRecord) -> None:
    """Writes artifact.json with the digests of all files, the last one of an artifact."""
    for path in (directory / PROGRAMS, *(directory / PROGRAMS).iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)  # another user may read what root has made
    whole = record.replace(files=_list_files(directory))
    (directory / ARTIFACT).write_text(json.dumps(whole.to_dict(), indent=1), encoding="utf-8")


def write_weights(directory: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes weights under their paths in the engine's modules."""
    write_safetensors(directory / WEIGHTS, arrays)


def _list_files(directory: Path) -> dict[str, FileRecord]:
    """Every file below a directory."""
    memory = cache_home() / "fingerprints"
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    return {
        path.relative_to(directory).as_posix(): FileRecord(
            size=path.stat().st_size, sha256=digest_file(path, memory)
        )
        for path in paths
    }
