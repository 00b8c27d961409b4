"""The files of an input: globs, directories and addresses on any file system that Beam knows."""

import itertools
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from apache_beam.io.filesystem import BeamIOError
from apache_beam.io.filesystems import FileSystems

from headrace.pipelines.errors import InputError
from headrace.pipelines.files import is_http, is_local, join, normalise, parent, without_query

_GLOB_CHARACTERS = re.compile(r"[*?\[]")


@dataclass(frozen=True, kw_only=True, slots=True)
class InputFile:
    """One file of the input."""

    path: str
    """Where to read it."""
    source: str
    """Path relative to the common root of the input: the name that results are keyed by."""
    size: int | None
    """Size in bytes; None for an http address, which is only asked when it is fetched."""
    modified: float | None = None
    """When it was last modified, in seconds since 1970, where the file system tells."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """The files of an input, sorted by source."""

    root: str
    """Directory that every source is relative to; empty where the inputs have none in common."""
    files: tuple[InputFile, ...]
    """The files, each once, sorted by source."""


def list_inputs(inputs: Sequence[str], *, leave_out: str, root: str | None = None) -> Listing:
    """The files that the inputs name, without hidden ones and without those below the directory `leave_out`.

    The common root is taken from the inputs as they were given (for a glob, the directory before its first
    wildcard), so that files which come later do not rename those that were there. `root` is the root of an
    earlier run over the same inputs: it is kept where it lies below the new one.

    Raises:
      InputError: an input matches no file, or cannot be listed.
    """
    patterns = [normalise(each) for each in inputs]
    found: dict[str, _State] = {}
    for given, pattern in zip(inputs, patterns, strict=True):
        matched = {
            path: state for path, state in _match(pattern) if not _is_left_out(path, pattern, leave_out)
        }
        if not matched:
            raise InputError(f"no input file matches {without_query(given)}: check the path or the glob")
        found.update(matched)
    common = _common_directory([_fixed_directory(each) for each in patterns])
    if root and common and _is_below(root, common):
        common = root
    files = [
        InputFile(path=path, source=_source(path, common), size=state.size, modified=state.modified)
        for path, state in found.items()
    ]
    files.sort(key=lambda file: file.source)
    _refuse_equal_sources(files)
    return Listing(root=common, files=tuple(files))


class _State(NamedTuple):
    size: int | None
    modified: float | None


def _match(pattern: str) -> Iterable[tuple[str, _State]]:
    if is_http(pattern):
        return [(pattern, _State(None, None))]
    if is_local(pattern) and os.path.isfile(pattern):
        return [(pattern, _state(pattern))]
    if is_local(pattern) and os.path.isdir(pattern):
        return _walk(pattern)
    if pattern.endswith("/"):
        pattern = join(pattern, "**")
    try:
        matches = FileSystems.match([pattern])[0].metadata_list
    except (BeamIOError, ValueError) as error:
        raise InputError(f"cannot list {pattern}: {' '.join(str(error).split())}") from error
    # A file system that does not know the time gives 0.
    return [
        (entry.path, _State(entry.size_in_bytes, entry.last_updated_in_seconds or None)) for entry in matches
    ]


def _state(path: str) -> _State:
    found = os.stat(path)
    return _State(found.st_size, found.st_mtime)


def _walk(directory: str) -> Iterable[tuple[str, _State]]:
    """The files below a directory, whose name a glob could not always quote."""
    for base, _, names in os.walk(directory):
        for path in (os.path.join(base, name) for name in names):
            if os.path.isfile(path):
                yield path, _state(path)


def _is_left_out(path: str, pattern: str, leave_out: str) -> bool:
    if _is_below(path, leave_out):
        return True
    fixed = _fixed_directory(pattern)
    names = path.removeprefix(fixed).split("/") if path != pattern else []
    return any(name.startswith(".") or name == "__run" for name in names)


def _is_below(path: str, directory: str) -> bool:
    return path.startswith(directory.rstrip("/") + "/")


def _fixed_directory(pattern: str) -> str:
    """The directory of a pattern before its first wildcard: /a/b of /a/b/*.wav, of /a/b and of /a/b/c.wav."""
    pattern = without_query(pattern)
    if is_local(pattern) and os.path.isdir(pattern):
        return pattern
    if is_local(pattern) and os.path.isfile(pattern):
        return parent(pattern)
    wildcard = _GLOB_CHARACTERS.search(pattern)
    return pattern[: wildcard.start() if wildcard else len(pattern)].rpartition("/")[0]


def _common_directory(directories: Sequence[str]) -> str:
    split = [each.split("/") for each in directories]
    shared = []
    for names in zip(*split, strict=False):
        if len(set(names)) > 1:
            break
        shared.append(names[0])
    common = "/".join(shared)
    # Of s3://a and s3://b only "s3:/" is left, which is no directory.
    return "" if common in ("", "/") or re.fullmatch(r"[a-z0-9+]+:/?", common) else common


def _source(path: str, root: str) -> str:
    path = without_query(path)
    if root:
        path = path[len(root) + 1 :] if _is_below(path, root) else os.path.relpath(path, root)
    # A file name of this machine may hold bytes that are not UTF-8; a result cannot.
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _refuse_equal_sources(files: Sequence[InputFile]) -> None:
    for before, after in itertools.pairwise(files):
        if before.source == after.source:
            raise InputError(
                f"two inputs are the same address but for the query: {after.source}: "
                "list them in a table with an id column instead"
            )
