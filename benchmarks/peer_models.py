"""The demo models in the formats of other engines."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from headrace.engines.checkpoints import Checkpoint, open_checkpoint


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


def folder_name(spec: str) -> str:
    """A spec as the name of a folder."""
    return "".join(letter if letter.isalnum() else "-" for letter in spec)


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
