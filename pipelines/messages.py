"""What a supervisor and the process that it watches say to each other, over a pair of sockets."""

import logging
from dataclasses import dataclass
from typing import Any

from headrace.pipelines.summary import Progress, RunSummary


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """What the process is to do, sent once."""

    target: str
    """The function to call, as module:name; it takes the arguments, then a callback for progress."""
    arguments: tuple[Any, ...]
    """Its arguments."""
    log_level: int
    """Level from which on log records are wanted."""
    wants_progress: bool
    """Whether anybody looks at the progress."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Logged:
    """A log record, without arguments and traceback objects."""

    record: logging.LogRecord
    """The record."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """The function raised; nobody starts it again."""

    error: Exception
    """What it raised."""


Message = Progress | RunSummary | Logged | Failed
"""What the process sends; a summary or a failure is its last word."""
