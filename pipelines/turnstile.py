"""Who may be in the engine: rows of all chunks of a process in turn, or those of one trial alone."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_POLL_S = 0.5


class Turn:
    """The place of a chunk in the line of those that have rows to bring."""

    def __init__(self, enough: int) -> None:
        self.enough = enough
        """Rows in the engine that keep it busy: while there are fewer, a chunk need not wait for its turn."""


class Turnstile:
    """Counts the rows in the engine, and says whose rows go in next.

    Chunks bring their rows one after another as long as the engine is busy: those that share it evenly
    would end together, and leave it empty until the next have begun.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._waiting = 0
        self._owner: int | None = None
        self._turns: list[Turn] = []

    @contextmanager
    def turn(self, enough: int) -> Iterator[Turn]:
        """A place at the end of the line, kept until the end of the block."""
        mine = Turn(enough)
        with self._changed:
            self._turns.append(mine)
        try:
            yield mine
        finally:
            with self._changed:
                self._turns.remove(mine)
                self._changed.notify_all()

    def enter(self, check: Callable[[], None], turn: Turn | None = None) -> None:
        """Counts a row that goes in, after waiting for its turn and for the end of a trial of another thread.

        `check` is called while it waits; what it raises is raised.
        """
        me = threading.get_ident()
        with self._changed:
            while not self._may_enter(me, turn):
                check()
                self._changed.wait(_POLL_S)
            self._inside += 1

    def _may_enter(self, me: int, turn: Turn | None) -> bool:
        if self._owner is not None or self._waiting:
            return self._owner == me
        return turn is None or self._turns[0] is turn or self._inside < turn.enough

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
