"""Notices that a worker process has died, which FnApiRunner waits for without end."""

import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions

from headrace.pipelines.journal import Attempt, discard, past_attempts, settle
from headrace.pipelines.processes import death_of, descendants

logger = logging.getLogger(__name__)

# A worker that ends because the pipeline has, ends just before the pipeline returns.
_GRACE_S = 3.0
# Beam's threads at the ends of a worker's lines, which break with the worker.
_LINES = {"beam_control_read", "read_grpc_client_inputs"}
_DATA_PLANE = logging.getLogger("apache_beam.runners.worker.data_plane")
_EXITED = re.compile(r"Worker subprocess exited with return code (-?\d+)")


@contextmanager
def watching_workers(options: PipelineOptions, output: str) -> Iterator[None]:
    """Ends this process where a worker process of its FnApiRunner dies before the block ends.

    Beam waits for a worker in a thread, which raises where it has died, and nothing looks at that. The hook
    of `threading` does here. The process cannot go on, but it ends with one line, and whoever launched it
    can begin again.
    """
    if options.view_as(DirectOptions).direct_running_mode != "multi_processing":
        yield
        return
    before = threading.excepthook
    ended = threading.Event()

    def hook(arguments: threading.ExceptHookArgs, /) -> None:
        found = _EXITED.match(str(arguments.exc_value))
        if found is None and arguments.thread is not None and arguments.thread.name in _LINES:
            logger.debug("the line to a worker process broke: %s", arguments.exc_type.__name__)
        elif found is None:
            before(arguments)
        elif not ended.wait(_GRACE_S):
            _end_process(output, int(found.group(1)))

    threading.excepthook = hook
    _DATA_PLANE.addFilter(_without_traceback)
    try:
        yield
    finally:
        ended.set()
        threading.excepthook = before
        _DATA_PLANE.removeFilter(_without_traceback)


def _without_traceback(record: logging.LogRecord) -> bool:
    """Leaves out where in gRPC a line broke: what it meant is told when the worker's end is."""
    record.exc_info = None
    return True


def _end_process(output: str, code: int) -> None:
    how, death = death_of(code)
    with suppress(OSError):
        for attempt in past_attempts(output):
            if not _is_dead(attempt):
                discard(output, attempt)  # of a worker that is ended now
            elif death is not None:
                settle(output, attempt.pid, death)
    for pid in descendants(os.getpid()):
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    logger.error("a worker process %s: the run ends", how)
    os._exit(1)


def _is_dead(attempt: Attempt) -> bool:
    try:
        os.kill(attempt.pid, 0)
    except ProcessLookupError:
        return attempt.host == socket.gethostname()
    except OSError:
        return False
    return attempt.death is not None
