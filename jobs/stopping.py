"""Ctrl-C and SIGTERM: the process and its workers end at once, with one line."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from headrace.pipelines.processes import descendants

RESUME = "run the same command again to resume"


@contextmanager
def stopping_at_once() -> Iterator[None]:
    """Ends the process at once at Ctrl-C or SIGTERM.

    Parts are committed by rename, so there is nothing to wind down, and a KeyboardInterrupt would wait in
    Beam for the chunks that its threads have begun.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(number: int, frame: object) -> None:
    for child in descendants(os.getpid()):
        with suppress(OSError):
            os.kill(child, signal.SIGKILL)
    show_cursor = "\x1b[?25h\n" if os.isatty(2) else ""
    os.write(2, f"{show_cursor}stopped: {RESUME}\n".encode())
    os._exit(128 + number)
