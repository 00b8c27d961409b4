"""What a run writes on stderr: headrace's own log lines, and errors of the libraries below it."""

import contextlib
import functools
import logging
import os
import re
import sys
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

QUIET = {
    "GRPC_VERBOSITY": "ERROR",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_VERBOSITY": "error",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}
"""Environment variables that keep libraries from writing on stderr by themselves; a set one is kept."""


_USER = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/\s@'\"]+@", re.IGNORECASE)
_QUERY = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s?#'\"]*)[?#][^\s'\"]*[^\s'\":;,.)]", re.IGNORECASE)


@functools.cache
def stderr_console() -> "Console":
    """The one console on stderr, shared by log lines and the progress line so that they do not mix."""
    from rich.console import Console

    class StderrConsole(Console):
        def on_broken_pipe(self) -> None:
            """Falls silent: rich would end the thread that prints, in the middle of whatever it is doing."""
            self.quiet = True

    return StderrConsole(stderr=True, highlight=False)


def print_line(text: str) -> None:
    """Prints a line on stderr; where nobody can read it (a closed pipe, a full disk) it is dropped."""
    with contextlib.suppress(OSError):
        stderr_console().print(text, markup=False, soft_wrap=True)


def open_standard_streams() -> None:
    """Takes the descriptors 0 to 2 where they are closed: a file of ours that got one would be written to."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def set_up_logging() -> None:
    """Sends log lines to stderr: of headrace from INFO, of everything else from ERROR."""
    quiet_libraries()
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    handler = ConsoleHandler()
    handler.setFormatter(LineFormatter("%(asctime)s %(message)s", "%H:%M:%S"))
    handler.addFilter(_is_wanted)
    root = logging.getLogger()
    root.handlers = [other for other in root.handlers if not isinstance(other, ConsoleHandler)]
    root.addHandler(handler)
    root.setLevel(logging.INFO)


def without_secrets(text: str) -> str:
    """The text with the query, the fragment and the user part of every URL in it cut out."""
    return _QUERY.sub(r"\1?...", _USER.sub(r"\1", text))


def quiet_libraries() -> None:
    """Keeps libraries that are imported from now on from writing on stderr by themselves."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)


class LineFormatter(logging.Formatter):
    """Names the level of warnings and errors, and of nothing else; hides the secret parts of URLs."""

    def format(self, record: logging.LogRecord) -> str:
        text = without_secrets(super().format(record))
        if record.levelno < logging.WARNING:
            return text
        time, _, message = text.partition(" ")
        return f"{time} {record.levelname.lower()}: {message}"


class ConsoleHandler(logging.Handler):
    """Prints above the progress line where there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            stderr_console().print(self.format(record), markup=False, soft_wrap=True)
        except Exception:  # noqa: BLE001 - logging's own rule: a handler never raises
            self.handleError(record)


def _is_wanted(record: logging.LogRecord) -> bool:
    is_ours = record.name == "headrace" or record.name.startswith("headrace.")
    return record.levelno >= (logging.INFO if is_ours else logging.ERROR)
