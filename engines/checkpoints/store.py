"""Entries of the model cache: made once, whole or not at all, whoever else is making them."""

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from headrace.engines.errors import ModelError

_MANIFEST = "manifest.json"
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A finished entry of the cache."""

    files: Path
    """Directory of the entry's files."""
    fingerprint: str
    """sha256 over the names and contents of the files."""


def ensure_entry(root: Path, key: str, fill: Callable[[Path], None]) -> Entry:
    """The entry of `key` under `root`; `fill` writes its files into an empty directory where there is none.

    Safe among processes (a lock beside the entry), restartable (an entry appears by one rename, with a
    manifest of sizes and digests; what a killed process left behind is removed by the next). An entry whose
    files no longer have the sizes of its manifest is made again.

    Raises:
      ModelError: the cache cannot be written.
    """
    entry = root / _entry_name(key)
    found = _read_entry(entry)
    if found is not None:
        return found
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f"{entry.name}.lock"):
            return _read_entry(entry) or _make_entry(entry, key, fill)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ModelError(
            f"cannot write the model cache {str(root)!r}: {reason}; set HEADRACE_CACHE to another folder"
        ) from error


def file_sha256(path: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint_of(digests: dict[str, str]) -> str:
    """One sha256 over the names of files and the sha256 of each."""
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def copy_stream(source, target: Path) -> None:
    """Appends what a binary stream still has to a file, and makes the file's directory."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("ab") as out:
        shutil.copyfileobj(source, out, _CHUNK_BYTES)


def write_atomically(path: Path, text: str) -> None:
    """Writes a small file that other processes see whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        file.write(text)
    os.replace(file.name, path)


def _entry_name(key: str) -> str:
    words = re.sub(r"[^A-Za-z0-9._-]+", "-", re.sub(r"#sha256=\w+", "", key)).strip("-.")
    return f"{words[:60].rstrip('-.')}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"


def _make_entry(entry: Path, key: str, fill: Callable[[Path], None]) -> Entry:
    for leftover in entry.parent.glob(f"{entry.name}.partial-*"):
        shutil.rmtree(leftover)
    if entry.exists():
        shutil.rmtree(entry)
    partial = Path(tempfile.mkdtemp(prefix=f"{entry.name}.partial-", dir=entry.parent))
    try:
        files = partial / "files"
        files.mkdir()
        fill(files)
        _write_manifest(partial, key)
        os.rename(partial, entry)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    made = _read_entry(entry)
    assert made is not None
    return made


def _write_manifest(partial: Path, key: str) -> None:
    names = sorted(path for path in (partial / "files").rglob("*") if path.is_file())
    files = {
        path.relative_to(partial / "files").as_posix(): {
            "size": path.stat().st_size,
            "sha256": file_sha256(path),
        }
        for path in names
    }
    write_atomically(partial / _MANIFEST, json.dumps({"spec": key, "files": files}, indent=1))


def _read_entry(entry: Path) -> Entry | None:
    try:
        manifest = json.loads((entry / _MANIFEST).read_text(encoding="utf-8"))
        files = manifest["files"]
        if any((entry / "files" / name).stat().st_size != facts["size"] for name, facts in files.items()):
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    digests = {name: facts["sha256"] for name, facts in files.items()}
    return Entry(files=entry / "files", fingerprint=fingerprint_of(digests))
