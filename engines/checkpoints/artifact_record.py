"""What an artifact says of itself, in its artifact.json."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.engines.serialization import Serializable

FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class FileRecord(Serializable):
    """One file of an artifact."""

    size: int
    """Bytes."""
    sha256: str
    """Of its content, in hexadecimal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ArtifactRecord(Serializable):
    """What artifact.json says."""

    kind: Literal["text", "whisper"]
    """Which engine it is for."""
    format_version: int = FORMAT_VERSION
    """Version of the directory's layout."""
    model: str
    """Spec of the model that it was made of."""
    model_fingerprint: str
    """And that model's fingerprint."""
    engine_config: Mapping[str, Any]
    """How the engine was set up."""
    num_pages: int | None = None
    """KV pages of a text engine; programs are compiled for their number."""
    tensor_shapes: Mapping[str, tuple[int, ...]] | None = None
    """Shapes of the tensors of a Whisper checkpoint, by which its modules are laid out."""
    made_from: Mapping[str, str]
    """All that the programs depend on, by parts."""
    decodes_only: bool = False
    """Whether the model's tokenizer has no rule to encode text."""
    files: Mapping[str, FileRecord] = field(default_factory=dict)
    """Every other file, by its path in the directory."""
