"""Fingerprints of local files, kept in the cache so that large files are hashed once."""

import contextlib
import hashlib
import json
from pathlib import Path

from headrace.engines.checkpoints.store import file_sha256, fingerprint_of, write_atomically


def fingerprint_files(files: list[Path], memory: Path) -> str:
    """A sha256 over the names and contents of files.

    The digest of each file is remembered under the directory `memory` by path, size and modification time. A
    memory that cannot be read or written only costs the time to hash again.
    """
    return fingerprint_of({file.name: digest_file(file, memory) for file in files})


def digest_file(file: Path, memory: Path) -> str:
    """The sha256 of a file's content, remembered as `fingerprint_files` does."""
    facts = file.stat()
    stamp = {"path": str(file.resolve()), "size": facts.st_size, "mtime_ns": facts.st_mtime_ns}
    note = memory / f"{hashlib.sha256(stamp['path'].encode()).hexdigest()[:32]}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        known = json.loads(note.read_text(encoding="utf-8"))
        if {key: known[key] for key in stamp} == stamp:
            return known["sha256"]
    digest = file_sha256(file)
    with contextlib.suppress(OSError):
        write_atomically(note, json.dumps(stamp | {"sha256": digest}))
    return digest
