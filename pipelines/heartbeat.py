"""__run/heartbeat.json: who runs the run, how far it is, and when that was last known.

It keeps launchers of other machines out, where no lock of a file system can, and shows anybody who reads the
output directory whether the run goes on. Besides the writer (`host`, `pid`) and the time (`at`) it holds
`moved_at`, the time at which a row was last finished, `state` (running, ended) and the fields of `Progress`.
"""

import json
import logging
import os
import socket
import time
from dataclasses import asdict
from typing import Any

from headrace.pipelines.commit import run_directory, scratch_directory
from headrace.pipelines.errors import OutputError
from headrace.pipelines.files import exists, is_local, read_bytes, write_whole
from headrace.pipelines.summary import Progress

logger = logging.getLogger(__name__)

_LOCAL_INTERVAL_S = 5.0
_REMOTE_INTERVAL_S = 30.0
# A heartbeat older than this is of a run that has died.
STALE_S = 180.0


class Heartbeat:
    """Writes the heartbeat of a run, as often as is worth it."""

    def __init__(self, output: str) -> None:
        self._output = output
        self._interval_s = _LOCAL_INTERVAL_S if is_local(output) else _REMOTE_INTERVAL_S
        self._written_s = float("-inf")
        self._moved_at = time.time()
        self._last: Progress | None = None

    def __call__(self, progress: Progress) -> None:
        if self._last is None or progress.rows_done != self._last.rows_done:
            self._moved_at = time.time()
        self._last = progress
        if time.monotonic() - self._written_s >= self._interval_s:
            self._written_s = time.monotonic()
            self.write("running")

    def write(self, state: str) -> None:
        """Writes it now; a disk that is full or a network that is down is no reason to end."""
        content = {
            "state": state,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "at": time.time(),
            "moved_at": self._moved_at,
            **(asdict(self._last) if self._last else {}),
        }
        try:
            path = run_directory(self._output, "heartbeat.json")
            write_whole(path, json.dumps(content).encode(), scratch=scratch_directory(self._output))
        except OSError as error:
            logger.warning("cannot write the heartbeat: %s", error.strerror or type(error).__name__)


def read_heartbeat(output: str) -> dict[str, Any] | None:
    """The heartbeat in an output directory, None where there is none or it cannot be read."""
    path = run_directory(output, "heartbeat.json")
    try:
        content = json.loads(read_bytes(path)) if exists(path) else None
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def refuse_living_run(output: str) -> None:
    """Refuses an output that a launcher of another machine writes to, or did a moment ago.

    Raises:
      OutputError: it names the machine.
    """
    found = read_heartbeat(output)
    if found is None or found.get("state") != "running":
        return
    age_s = time.time() - found.get("at", 0)
    # On this machine the lock decides, which a dead process has let go.
    if age_s < STALE_S and not (is_local(output) and found.get("host") == socket.gethostname()):
        raise OutputError(
            f"another run is writing to {output}, on {found.get('host')}, {age_s:.0f} s ago: "
            f"wait for its end, or {STALE_S:g} s where it has died, or choose another output directory"
        )
