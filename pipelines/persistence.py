"""Writing where a disk may be full or a network down: tries again, and says why it was in vain."""

import time
from collections.abc import Callable

from headrace.pipelines.commit import run_directory, scratch_directory
from headrace.pipelines.files import delete, write_whole
from headrace.pipelines.in_flight import IN_FLIGHT

_WAITS_S = (0.5, 2.0)
# What a probe writes: a disk that has less room than this has none for a part.
_PROBE_BYTES = 1 << 16


def persist(write: Callable[[], None], output: str) -> None:
    """Writes, again after a short wait where that fails.

    Raises:
      OSError: it failed each time.
    """
    for wait_s in (*_WAITS_S, None):
        try:
            write()
            IN_FLIGHT.note_writing(output, failed=False)
            return
        except OSError:
            if wait_s is None:
                IN_FLIGHT.note_writing(output, failed=True)
                raise
            time.sleep(wait_s)


def refuse_full_disk(output: str) -> None:
    """Tries to write where the last write failed, so that no chunk is computed for nothing.

    Raises:
      OSError: it still fails.
    """
    if IN_FLIGHT.writing_failed(output):
        path = run_directory(output, "probe")
        write_whole(path, bytes(_PROBE_BYTES), scratch=scratch_directory(output))
        delete(path)


def failure_reason(error: Exception) -> str:
    """Why something could not be read or written, in one line without a path that may be secret."""
    strerror = getattr(error, "strerror", None)
    text = strerror or f"{type(error).__name__}: {' '.join(str(error).split())}"
    return text[:300]
