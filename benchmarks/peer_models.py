"""The demo models in the formats of other engines."""

import json
import math
import shutil
import subprocess
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import save_file

from headrace.engines.checkpoints import Checkpoint, open_checkpoint
from headrace.engines.checkpoints.gguf_file import GgufFile, read_gguf


class FormatError(Exception):
    """A model cannot be had in an engine's format; the message says why."""


WRITTEN_ANEW = ("general.architecture", "general.file_type")
"""By the writer, of a GGUF file's metadata."""


def huggingface(spec: str, folder: Path) -> Path:
    """A directory in the Hugging Face layout, weights in float32, from any layout that headrace reads."""
    target = folder / f"{folder_name(spec)}-huggingface"
    if not target.exists():
        partial = target.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _save(open_checkpoint(spec), partial)
        partial.rename(target)
    return target


def openvino(source: Path, python: Path, task: str, weight_format: str) -> Path:
    """OpenVINO's form of a Hugging Face directory, by optimum-intel of the peer's own environment."""
    target = source.with_name(source.name.replace("huggingface", f"openvino-{weight_format}"))
    if not target.exists():
        partial = target.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        command = [python.parent / "optimum-cli", "export", "openvino", "--model", source, "--task", task]
        command += [
            "--weight-format",
            weight_format,
            "--framework",
            "pt",
            "--library",
            "transformers",
            partial,
        ]
        subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
        partial.rename(target)
    return target


def ctranslate2(spec: str, folder: Path) -> Path:
    """The directory of a model that is in the faster-whisper layout already, its parts joined."""
    target = folder / f"{folder_name(spec)}-ctranslate2"
    if not target.exists():
        model = open_checkpoint(spec).model
        partial = target.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(model.path if model.path.is_dir() else model.path.parent, partial)
        partial.rename(target)
    return target


def stored_gguf(spec: str) -> Path:
    """The .gguf file of a model that is one.

    Raises:
      FormatError: it is in another layout.
    """
    model = open_checkpoint(spec).model
    if model.format != "gguf":
        raise FormatError(f"{spec!r} is in the layout {model.format}, llama.cpp wants a GGUF file")
    return model.path


def float32_gguf(spec: str, folder: Path) -> Path:
    """A .gguf file with the metadata of the model's own and its weights in float32.

    Raises:
      FormatError: the model is in another layout.
    """
    source = stored_gguf(spec)
    target = folder / f"{folder_name(spec)}-f32.gguf"
    if not target.exists():
        partial = target.with_suffix(".partial")
        _write_float32(read_gguf(source), partial)
        partial.rename(target)
    return target


def folder_name(spec: str) -> str:
    """A spec as the name of a folder."""
    return "".join(letter if letter.isalnum() else "-" for letter in spec)


def _write_float32(source: GgufFile, target: Path) -> None:
    """One tensor at a time, as headrace dequantizes it."""
    fields = gguf.GGUFReader(source.path).fields
    writer = gguf.GGUFWriter(target, source.metadata["general.architecture"])
    for name, field in fields.items():
        if not name.startswith("GGUF.") and name not in WRITTEN_ANEW:
            element = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=element)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for name, stored in source.tensors.items():
        size = 4 * math.prod(stored.shape)
        writer.add_tensor_info(name, stored.shape, np.dtype(np.float32), size)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name in source.tensors:
        writer.write_tensor_data(source.read(name).astype(np.float32))
    writer.close()


def _save(checkpoint: Checkpoint, folder: Path) -> None:
    tensors = {
        name: np.ascontiguousarray(checkpoint.tensor(name), np.float32)
        for name in sorted(checkpoint.tensor_names())
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(dict(checkpoint.config)))
    for name in ("generation_config", "preprocessor_config"):
        if content := getattr(checkpoint, name):
            (folder / f"{name}.json").write_text(json.dumps(dict(content)))
    checkpoint.tokenizer().save_pretrained(folder)
