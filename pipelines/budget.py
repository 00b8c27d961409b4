"""Limits on a run that goes wrong: the share of failed rows, and hours."""

import time

from headrace.audio import HeadraceError
from headrace.pipelines.config import RunConfig
from headrace.pipelines.in_flight import IN_FLIGHT

# Rows of one process before their share of errors counts for anything.
_MIN_ROWS = 100


class StoppedError(HeadraceError, RuntimeError):
    """The run was told to stop; the chunk is not committed."""


class HaltedError(HeadraceError, RuntimeError):
    """The run is over one of its limits; the chunk is not committed, nor is any after it begun."""


def check_budget(config: RunConfig, deadline: float | None, output: str) -> None:
    """Lets a chunk begin.

    Raises:
      StoppedError: the run was told to stop.
      HaltedError: the run is over a limit.
    """
    if deadline is not None and time.time() >= deadline:
        raise HaltedError(f"max_hours, {config.max_hours:g}, are over")
    check_halt(config, output)


def check_halt(config: RunConfig, output: str) -> None:
    """Lets a chunk go on.

    Raises:
      StoppedError: the run was told to stop.
      HaltedError: more rows of this process failed than the run allows.
    """
    if IN_FLIGHT.is_stopped(output):
        raise StoppedError("the run was told to stop")
    if config.max_error_rate is not None:
        total = IN_FLIGHT.total(output)
        if total.rows >= _MIN_ROWS and total.failed > config.max_error_rate * total.rows:
            IN_FLIGHT.halt(
                output,
                f"{total.failed} of {total.rows} rows failed, more than max_error_rate "
                f"{config.max_error_rate:g} allows",
            )
    reason = IN_FLIGHT.halted(output)
    if reason is not None:
        raise HaltedError(reason)
