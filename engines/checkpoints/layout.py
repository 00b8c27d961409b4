"""Which of the known layouts lies at a path; checkpoints that would have to be unpickled are refused."""

from pathlib import Path
from typing import Literal, NamedTuple

from headrace.engines.errors import ModelError

Format = Literal["huggingface", "ctranslate2", "gguf", "artifact"]

ARTIFACT = "artifact.json"
"""The file that an artifact of `headrace compile` is known by; it holds the digests of the others."""

MODEL_FILES = (
    "*.safetensors",
    "*.safetensors.index.json",
    "*.json",
    "*.txt",
    "*.jinja",
    "*.model",
    "model.bin",
)
"""Names that a directory of either directory layout may need; nothing else is fetched or hashed."""

GGUF_MAGIC = b"GGUF"
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_OTHER_FRAMEWORKS = (".h5", ".msgpack", ".onnx", ".tflite", ".ot")


class Layout(NamedTuple):
    format: Format
    path: Path


def detect_layout(path: Path) -> Layout:
    """The layout at a path, and the path of its directory or .gguf file.

    Raises:
      ModelError: there is nothing, or nothing that can be read without unpickling it.
    """
    if path.is_dir():
        return _detect_directory(path)
    if not path.is_file():
        raise ModelError(f"no model at {str(path)!r}: no such file or directory")
    if _starts_with(path, GGUF_MAGIC):
        return Layout("gguf", path)
    if path.suffix == ".gguf":
        raise ModelError(
            f"not a GGUF file: {str(path)!r} does not begin with GGUF (cut short, or another file)"
        )
    if path.suffix == ".safetensors" or path.name in ("model.bin", "config.json"):
        raise ModelError(f"{str(path)!r} is one file of a model: give its directory {str(path.parent)!r}")
    raise ModelError(f"not a model: {str(path)!r} is neither a .gguf file nor a directory")


def model_files(layout: Layout) -> list[Path]:
    """The files that make up a model, sorted by name; of an artifact the one that has the others' digests."""
    if layout.path.is_file():
        return [layout.path]
    if layout.format == "artifact":
        return [layout.path / ARTIFACT]
    found = {file for pattern in MODEL_FILES for file in layout.path.glob(pattern) if file.is_file()}
    return sorted(found)


def _detect_directory(path: Path) -> Layout:
    names = sorted(file.name for file in path.iterdir())
    if ARTIFACT in names:
        return Layout("artifact", path)
    if any(name.endswith((".safetensors", ".safetensors.index.json")) for name in names):
        return Layout("huggingface", path)
    if "model.bin" in names and not _starts_with(path / "model.bin", b"PK"):
        return Layout("ctranslate2", path)
    gguf = [name for name in names if name.endswith(".gguf")]
    if len(gguf) == 1:
        return detect_layout(path / gguf[0])
    if gguf:
        raise ModelError(f"{len(gguf)} .gguf files in {str(path)!r}: name one of {', '.join(gguf[:4])}")
    raise ModelError(_why_not(path, names))


def _why_not(path: Path, names: list[str]) -> str:
    pickled = [name for name in names if name.endswith(_PICKLED)]
    if pickled:
        return (
            f"only pickled weights ({pickled[0]}) in {str(path)!r}: they can run code when read "
            "and are refused; convert the model to safetensors"
        )
    other = [name for name in names if name.endswith(_OTHER_FRAMEWORKS)]
    if other:
        return f"no safetensors in {str(path)!r}, only {other[0]}: convert the model to safetensors"
    return f"no model in {str(path)!r}: wanted *.safetensors, model.bin (CTranslate2) or one .gguf file"


def _starts_with(path: Path, magic: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(magic)) == magic
