"""Runs a job in a process of its own, watches it, and starts it again where a row ends it."""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from headrace.pipelines.config import GenerateConfig, TranscribeConfig
from headrace.pipelines.errors import RunError
from headrace.pipelines.messages import Failed, Logged, Order
from headrace.pipelines.processes import death_of
from headrace.pipelines.summary import Progress, RunSummary

logger = logging.getLogger(__name__)

TARGETS = {
    GenerateConfig: "headrace.pipelines.run:run_generate",
    TranscribeConfig: "headrace.pipelines.run:run_transcribe",
}
"""The function that runs each kind of config."""

# Deaths in a row without a new part before the run is given up: a row for which the system kills the process
# each time, out of memory, is found after seven. One with nothing in the engine counts more: no row did it.
_MAX_DEATHS = 9
_WEIGHT_WITHOUT_ROWS = 4
_LEAVE_S = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Death:
    pid: int
    code: int


def supervise(
    config: GenerateConfig | TranscribeConfig,
    beam_args: Sequence[str] = (),
    on_progress: Callable[[Progress], None] | None = None,
    *,
    target: str | None = None,
) -> RunSummary:
    """Summary of a run of the job, as `run_generate` or `run_transcribe` give it, in a process of its own.

    A process that dies or hangs is started again: the rows that were in the engine are then tried with the
    engine to themselves, and the one that ends it again gets an error. Neither JAX nor Beam is imported here.
    `target` is the function to call, as module:name, where it is another one.

    Raises:
      RunError: the process died again and again without a new part, or the run broke off in another way.
      HeadraceError: as `run_generate` and `run_transcribe` do.
    """
    order = Order(
        target=target or TARGETS[type(config)],
        arguments=(config, tuple(beam_args)),
        log_level=logging.getLogger().level,
        wants_progress=on_progress is not None,
    )
    deaths, parts = 0, -1
    while True:
        outcome = _run(order, on_progress)
        if isinstance(outcome, RunSummary):
            return outcome
        how, cause = death_of(outcome.code)
        now, had_rows = _look_at_output(config.output, outcome.pid, cause)
        deaths = (0 if now > parts else deaths) + (1 if had_rows else _WEIGHT_WITHOUT_ROWS)
        parts = now
        if deaths >= _MAX_DEATHS:
            raise RunError(
                f"the process of the run died again and again without a new part, the last time it {how} "
                "(the same command goes on from there)"
            )
        logger.warning("the process of the run %s: it is started again", how)


def _run(order: Order, on_progress: Callable[[Progress], None] | None) -> RunSummary | _Death:
    ours, theirs = Pipe()
    with ours:
        process = _start(theirs)
        theirs.close()
        try:
            found = _listen(ours, order, on_progress)
            if found is None:
                process.wait()
            else:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_LEAVE_S)
        finally:
            # The process leads a group of its own: its workers go with it.
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return found or _Death(pid=process.pid, code=process.returncode)


def _start(theirs: Connection) -> subprocess.Popen[bytes]:
    quiet = [] if sys.warnoptions or "PYTHONWARNINGS" in os.environ else ["-W", "ignore"]
    descriptor = theirs.fileno()
    return subprocess.Popen(
        [sys.executable, *quiet, "-m", "headrace.pipelines.supervised", str(descriptor)],
        pass_fds=[descriptor],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


def _listen(
    line: Connection, order: Order, on_progress: Callable[[Progress], None] | None
) -> RunSummary | None:
    """The summary that the process sends, None where it dies before."""
    try:
        line.send(order)
        while True:
            message = line.recv()
            if isinstance(message, RunSummary):
                return message
            if isinstance(message, Failed):
                raise message.error
            if isinstance(message, Logged):
                logging.getLogger(message.record.name).handle(message.record)
            elif on_progress is not None:
                on_progress(message)
    except (EOFError, ConnectionError):
        return None


def _look_at_output(output: str, pid: int, cause: str | None) -> tuple[int, bool]:
    """The parts that are there, and whether rows were in an engine; the journal gets how it ended."""
    from headrace.pipelines.files import list_directory, normalise  # Beam, which is not needed until now
    from headrace.pipelines.journal import past_attempts, settle

    output = normalise(output)
    try:
        if cause is not None:
            settle(output, pid, cause)
        had_rows = any(attempt.in_flight for attempt in past_attempts(output))
        return len(list_directory(output, "part-")), had_rows
    except OSError as error:
        raise RunError(f"cannot read the output {output}: {error.strerror or error}") from error
