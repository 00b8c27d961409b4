"""Snapshots of Hugging Face hub repositories: weights that need no unpickling, configs and tokenizers."""

import errno
from pathlib import Path

from headrace.engines.checkpoints.layout import MODEL_FILES
from headrace.engines.errors import ModelError

_IGNORED = ("*/*", "consolidated*", "*.fp32-*", "*.fp32.*", "*.fp16-*", "*.fp16.*", "flax_*", "tf_*")
"""Second copies of the weights in other precisions or for other programs."""


def fetch_snapshot(repo_id: str, revision: str | None, cache_dir: Path | None) -> Path:
    """The directory of a repository's snapshot, named by its commit.

    A snapshot that is in the hub's cache is used when the hub cannot be reached or HF_HUB_OFFLINE is set.

    Raises:
      ModelError: unknown repository or revision, no access, or no connection and no snapshot.
    """
    import huggingface_hub

    try:
        path = huggingface_hub.snapshot_download(
            repo_id,
            revision=revision,
            cache_dir=cache_dir,
            allow_patterns=list(MODEL_FILES),
            ignore_patterns=list(_IGNORED),
        )
    except Exception as error:
        raise ModelError(_why_not(error, repo_id, revision)) from error
    return Path(path)


def _why_not(error: Exception, repo_id: str, revision: str | None) -> str:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return f"hub model {repo_id!r} is gated: accept its terms on the hub and log in with `hf auth login`"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"no hub model {repo_id!r} (or it is private: log in with `hf auth login`)"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"hub model {repo_id!r} has no revision {revision!r}"
    if isinstance(error, errors.HFValidationError):
        return f"{repo_id!r} is not a hub id (owner/name)"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EDQUOT):
        return f"cannot store hub model {repo_id!r}: {error.strerror}; set HF_HOME to another folder"
    at = f" at revision {revision!r}" if revision else ""
    return (
        f"hub model {repo_id!r}{at} is not in the local cache and the hub cannot be reached "
        f"({type(error).__name__}): check the connection, or give a local directory"
    )
