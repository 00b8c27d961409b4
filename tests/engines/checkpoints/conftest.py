"""Writers of tiny checkpoints in every layout, and of wheels that a local pip index serves."""

import hashlib
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

_CT2_TYPES = {
    np.dtype(np.float32): 0,
    np.dtype(np.int8): 1,
    np.dtype(np.int16): 2,
    np.dtype(np.int32): 3,
    np.dtype(np.float16): 4,
    np.dtype(ml_dtypes.bfloat16): 5,
}


@pytest.fixture(autouse=True)
def headrace_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for each test; session fixtures of real models are made before it and keep their own."""
    cache = tmp_path / "headrace-cache"
    monkeypatch.setenv("HEADRACE_CACHE", str(cache))
    return cache


@pytest.fixture
def write_ct2() -> Callable[..., None]:
    """Writes a CTranslate2 binary, of version 6 unless told otherwise."""

    def write(
        path: Path,
        variables: Mapping[str, np.ndarray],
        *,
        aliases: Mapping[str, str] | None = None,
        version: int = 6,
        spec: str = "WhisperSpec",
    ) -> None:
        def string(text: str) -> bytes:
            raw = text.encode() + b"\0"
            return struct.pack("<H", len(raw)) + raw

        parts = [struct.pack("<I", version), string(spec), struct.pack("<II", 3, len(variables))]
        for name, value in variables.items():
            value = np.asarray(value)
            parts += [string(name), struct.pack(f"<B{value.ndim}I", value.ndim, *value.shape)]
            parts += [struct.pack("<BI", _CT2_TYPES[value.dtype], value.nbytes), value.tobytes()]
        parts.append(struct.pack("<I", len(aliases or {})))
        parts += [string(alias) + string(name) for alias, name in (aliases or {}).items()]
        path.write_bytes(b"".join(parts))

    return write


@pytest.fixture
def wheel_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Puts a wheel into a folder that pip takes instead of any index; returns the wheel's sha256."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))

    def add(project: str, version: str, files: Mapping[str, bytes]) -> str:
        name = project.replace("-", "_")
        wheel = folder / f"{name}-{version}-py3-none-any.whl"
        info = f"{name}-{version}.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\nRequires-Dist: not-there\n"
        tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        with zipfile.ZipFile(wheel, "w") as archive:
            for path, content in files.items():
                archive.writestr(path, content)
            archive.writestr(f"{info}/METADATA", metadata)
            archive.writestr(f"{info}/WHEEL", tags)
            archive.writestr(f"{info}/RECORD", "")
        return hashlib.sha256(wheel.read_bytes()).hexdigest()

    return add
