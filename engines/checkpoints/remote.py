"""Models on other file systems (gs://, s3://, ...), copied once a machine and checked."""

import base64
import hashlib
import logging
import re
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from headrace.engines.checkpoints.layout import MODEL_FILES
from headrace.engines.checkpoints.spec import RemoteSpec
from headrace.engines.checkpoints.store import copy_stream
from headrace.engines.errors import ModelError

logger = logging.getLogger(__name__)

_EXTRAS = {"gs": "gcp", "gcs": "gcp", "s3": "aws", "s3a": "aws"}
_VERSION_FIELDS = ("ETag", "etag", "md5Hash", "generation", "content_md5", "LastModified", "mtime", "created")
_MAX_ERROR_LENGTH = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteListing:
    """The files of a remote model as they are now."""

    key: str
    """Changes when a file's name, size or version does."""
    url: str
    """What the user gave."""
    filesystem: Any
    """The fsspec file system."""
    files: dict[str, dict[str, Any]]
    """fsspec's facts of each file, by its name in the model."""


def list_remote(spec: RemoteSpec) -> RemoteListing:
    """The files of a remote model: one file, or those of a directory that a model may need.

    Raises:
      ModelError: the protocol is unknown or its package missing, or there is no model at the path.
    """
    shown = _shown(spec.url)
    filesystem, path = _open_filesystem(spec.url)
    try:
        facts = filesystem.info(path)
        found = [facts] if facts["type"] == "file" else filesystem.ls(path, detail=True)
    except FileNotFoundError as error:
        raise ModelError(f"no model at {shown!r}: no such file or directory") from error
    except Exception as error:
        raise ModelError(f"cannot list {shown!r}: {_one_line(error)}") from error
    files = {_base_name(item["name"]): item for item in found if item["type"] == "file"}
    if facts["type"] != "file":
        files = {name: item for name, item in files.items() if _is_wanted(name)}
    if not files:
        raise ModelError(
            f"no model at {shown!r}: wanted *.safetensors, model.bin (CTranslate2) or a .gguf file"
        )
    stamps = sorted((name, item.get("size"), _version(item)) for name, item in files.items())
    digest = hashlib.sha256(repr((spec.url, stamps)).encode()).hexdigest()
    return RemoteListing(key=f"{shown}@{digest}", url=spec.url, filesystem=filesystem, files=files)


def copy_remote(listing: RemoteListing, target: Path) -> None:
    """Copies a remote model into the empty directory `target`, and compares sizes and MD5s where known."""
    for name, facts in sorted(listing.files.items()):
        logger.info("copying model file: %s", name)
        try:
            with listing.filesystem.open(facts["name"], "rb") as source:
                copy_stream(source, target / name)
        except Exception as error:
            raise ModelError(
                f"cannot copy {name!r} of {_shown(listing.url)!r}: {_one_line(error)}"
            ) from error
        _verify(target / name, facts, listing.url)


def _verify(path: Path, facts: dict[str, Any], url: str) -> None:
    size, wanted = path.stat().st_size, facts.get("size")
    if wanted is not None and size != wanted:
        raise ModelError(
            f"{path.name!r} of {_shown(url)!r} came with {size} bytes, its listing says {wanted}: try again"
        )
    md5 = _md5(facts)
    if md5 is None:
        return
    with path.open("rb") as file:
        got = hashlib.file_digest(file, "md5").hexdigest()
    if got != md5:
        raise ModelError(
            f"{path.name!r} of {_shown(url)!r} came with MD5 {got}, its listing says {md5}: try again"
        )


def _md5(facts: dict[str, Any]) -> str | None:
    if facts.get("md5Hash"):  # Google storage: base64
        return base64.b64decode(facts["md5Hash"]).hex()
    etag = str(facts.get("ETag", "")).strip('"')
    # S3: the MD5 of a file that was put in one piece without a key; others have a dash or differ.
    if re.fullmatch(r"[0-9a-f]{32}", etag) and not facts.get("ServerSideEncryption"):
        return etag
    return None


def _open_filesystem(url: str) -> tuple[Any, str]:
    import fsspec

    protocol = url.split("://", 1)[0]
    try:
        return fsspec.core.url_to_fs(url)
    except ImportError as error:
        extra = _EXTRAS.get(protocol)
        remedy = f"pip install 'headrace[{extra}]'" if extra else str(error)
        raise ModelError(f"{protocol}:// needs a package that is not installed: {remedy}") from error
    except ValueError as error:
        raise ModelError(f"unknown protocol {protocol}:// of the model {_shown(url)!r}") from error
    except Exception as error:
        raise ModelError(f"cannot open {_shown(url)!r}: {_one_line(error)}") from error


def _base_name(path: str) -> str:
    if path.startswith(("http://", "https://")):
        path = path.split("?", 1)[0]
    return path.rstrip("/").rsplit("/", 1)[-1]


def _is_wanted(name: str) -> bool:
    return name.endswith(".gguf") or any(fnmatch(name, pattern) for pattern in MODEL_FILES)


def _version(facts: dict[str, Any]) -> str:
    return "|".join(str(facts[field]) for field in _VERSION_FIELDS if facts.get(field) is not None)


def _shown(url: str) -> str:
    """The URL without user, password and query, which may hold credentials."""
    return re.sub(r"//[^/@]*@", "//", url).split("?", 1)[0]


def _one_line(error: Exception) -> str:
    """The error's first words, without the queries of URLs, which may hold signatures."""
    words = re.sub(r"\?\S+", "", " ".join(f"{type(error).__name__}: {error}".split()))
    return words if len(words) <= _MAX_ERROR_LENGTH else f"{words[:_MAX_ERROR_LENGTH]}..."
