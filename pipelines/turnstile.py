"""Who may be in the engine: rows of all chunks of a process together, or those of one trial alone."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_POLL_S = 0.5


class Turnstile:
    """Counts the rows in the engine, and lets one thread have it to itself."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._waiting = 0
        self._owner: int | None = None

    def enter(self, check: Callable[[], None]) -> None:
        """Counts a row that goes in, after waiting for the end of a trial of another thread.

        `check` is called while it waits; what it raises is raised.
        """
        me = threading.get_ident()
        with self._changed:
            while self._owner != me and (self._owner is not None or self._waiting):
                check()
                self._changed.wait(_POLL_S)
            self._inside += 1

    def leave(self) -> None:
        """Counts a row that came out, from any thread."""
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    @contextmanager
    def alone(self, check: Callable[[], None]) -> Iterator[None]:
        """Keeps the rows of other threads out until the end of the block, once those that are in are out."""
        with self._changed:
            self._waiting += 1
            try:
                while self._owner is not None or self._inside:
                    check()
                    self._changed.wait(_POLL_S)
                self._owner = threading.get_ident()
            finally:
                self._waiting -= 1
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._owner = None
                self._changed.notify_all()


TURNSTILE = Turnstile()
"""That of this process."""
