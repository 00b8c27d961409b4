"""Decoded audio on its way from the thread that decodes a recording to the engine, within a limit."""

import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from headrace.audio import Ending, Window

POLL_S = 1.0
"""How often a thread that waits for room looks whether its recording is still wanted."""


class UnwantedError(Exception):
    """The request has ended before its recording did; caught where the recording is decoded."""


class AudioRoom:
    """Samples that wait for the engine, of all recordings together, kept near a limit."""

    def __init__(self, limit: int) -> None:
        self.held = 0
        self.changed = threading.Condition()
        self._limit = limit

    def has_room(self) -> bool:
        return self.held < self._limit

    def wait(self) -> None:
        """Waits until a further recording may be begun."""
        with self.changed:
            self.changed.wait_for(self.has_room)


class Account:
    """What one recording holds of the room.

    Up to `least` it is never made to wait: so much is enough for the engine to go on with, so that
    recordings that wait for each other's room always have something to be worked on.
    """

    def __init__(self, room: AudioRoom, *, least: int, most: int) -> None:
        self._room = room
        self._least = least
        self._most = most
        self._held = 0

    def add(self, num_samples: int) -> None:
        """Counts samples that came (or, negative, went)."""
        with self._room.changed:
            self._held += num_samples
            self._room.held += num_samples
            self._room.changed.notify_all()

    def has_room(self) -> bool:
        return self._held <= self._least or (self._held <= self._most and self._room.has_room())

    def wait(self, is_wanted: Callable[[], bool]) -> None:
        """Waits for room.

        Raises:
          UnwantedError: nobody wants the recording any more.
        """
        with self._room.changed:
            while not self._room.changed.wait_for(self.has_room, timeout=POLL_S):
                if not is_wanted():
                    raise UnwantedError

    def close(self) -> None:
        """Gives back all that is held."""
        with self._room.changed:
            self.add(-self._held)


class Clip(NamedTuple):
    """What fills one window of the encoder."""

    window: Window
    """The stretch of the recording, from its first sample to its last."""
    waveform: np.ndarray | None
    """Its samples; None for digital silence."""
    pieces: tuple[tuple[int, int], ...] = ()
    """Where samples in between are left out: start and stop of the parts, in samples of the recording."""
    is_part: bool = False
    """Whether the recording has other windows."""


class ClipFeed:
    """Windows of a recording, cut by the thread that decodes it, in their order."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._clips: deque[Clip] = deque()
        self.ending: Ending | None = None
        self.dropped_s: float | None = None

    def put(self, clip: Clip) -> None:
        """Adds a window; called by the decoding thread."""
        self._account.add(_size(clip))
        self._clips.append(clip)

    def end(self, ending: Ending, dropped_s: float | None = None) -> None:
        """Says that no window follows, and how many seconds are in none because they hold no speech."""
        self.dropped_s = dropped_s
        self.ending = ending

    def peek(self) -> Clip | None:
        """The next window, if it has come."""
        return self._clips[0] if self._clips else None

    def pop(self) -> Clip:
        clip = self._clips.popleft()
        self._account.add(-_size(clip))
        return clip

    def close(self) -> None:
        """Frees what was not taken."""
        self._clips.clear()
        self._account.close()


class SampleFeed:
    """Samples of a recording, from a place that moves on to the newest."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._lock = threading.Lock()
        self._blocks: deque[np.ndarray] = deque()
        self._first = 0
        self._stop = 0
        self.ending: Ending | None = None

    def add(self, samples: np.ndarray) -> None:
        """Adds samples; called by the decoding thread."""
        self._account.add(len(samples))
        with self._lock:
            self._blocks.append(samples)
            self._stop += len(samples)

    def end(self, ending: Ending) -> None:
        """Says that no sample follows."""
        self.ending = ending

    @property
    def num_samples(self) -> int:
        """Samples that have come."""
        return self._stop

    def read(self, start: int, stop: int) -> np.ndarray:
        """The samples from start to stop, or to the newest; those before start are forgotten."""
        with self._lock:
            forgotten = 0
            while self._blocks and self._first + len(self._blocks[0]) <= start:
                size = len(self._blocks.popleft())
                self._first += size
                forgotten += size
            parts, offset = [], self._first
            for block in self._blocks:
                parts.append(block[max(start - offset, 0) : max(stop - offset, 0)])
                offset += len(block)
                if offset >= stop:
                    break
        self._account.add(-forgotten)
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    def close(self) -> None:
        """Frees what is held."""
        with self._lock:
            self._blocks.clear()
        self._account.close()


def _size(clip: Clip) -> int:
    return 0 if clip.waveform is None else len(clip.waveform)
