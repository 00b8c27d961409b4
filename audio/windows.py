"""Cuts a recording into windows that end in pauses or overlap by strides."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from headrace.audio.pauses import longest_pause
from headrace.audio.recording import SAMPLE_RATE

Seconds = float | int
MAX_CHUNK_S = 30.0
"""The longest window that Whisper's encoder takes."""
LEAST_CHUNK_SHARE = 2 / 3
"""Share of a window's longest length before which it is not ended in a pause."""


class Window(NamedTuple):
    """A stretch of a recording, in samples; `start` and `stop` include the strides."""

    start: int
    stop: int
    stride_left: int
    stride_right: int


def cut_windows(
    num_samples: int,
    chunk_length_s: Seconds = MAX_CHUNK_S,
    stride_length_s: Seconds | Sequence[Seconds] | None = None,
) -> list[Window]:
    """Windows that cover samples 0 to num_samples; none for an empty recording.

    Neighbours overlap by the right stride of the first plus the left stride of the second, so that the
    windows without their strides tile the recording. The first window has no left stride. The window
    that reaches the end is the last and has no right stride. A stride of None is chunk_length_s / 6.

    Worked example, seconds: 45 s at chunk 30, stride 5 gives (0, 30, left 0, right 5), (20, 45, 5, 0).

    Raises:
      ValueError: not 0 < chunk_length_s <= 30, or the two strides are not shorter than the chunk.
    """
    chunk, left, right = _lengths(chunk_length_s, stride_length_s)
    if num_samples < 0:
        raise ValueError(f"num_samples is {num_samples}, wanted 0 or more")
    windows = []
    start = 0
    while start < num_samples:
        stop = min(start + chunk, num_samples)
        is_last = stop == num_samples
        windows.append(Window(start, stop, left if start else 0, 0 if is_last else right))
        if is_last:
            break
        start += chunk - left - right
    return windows


def _lengths(
    chunk_length_s: Seconds, stride_length_s: Seconds | Sequence[Seconds] | None
) -> tuple[int, int, int]:
    """Chunk, left and right stride in samples."""
    if not 0 < chunk_length_s <= MAX_CHUNK_S:
        raise ValueError(
            f"chunk_length_s is {chunk_length_s}, wanted more than 0 and at most {MAX_CHUNK_S:g}"
        )
    if stride_length_s is None:
        stride_length_s = chunk_length_s / 6
    sides = stride_length_s if isinstance(stride_length_s, Sequence) else (stride_length_s, stride_length_s)
    chunk = round(chunk_length_s * SAMPLE_RATE)
    if len(sides) == 2 and all(0 <= side < chunk_length_s for side in sides):
        left, right = (round(side * SAMPLE_RATE) for side in sides)
        if left + right < chunk:
            return chunk, left, right
    raise ValueError(
        f"stride_length_s is {stride_length_s}, wanted seconds or (left, right), 0 or more and with a sum "
        f"below chunk_length_s ({chunk_length_s:g}): shorten the strides"
    )


FindCut = Callable[[np.ndarray], int | None]
"""Where samples, as many as a window can have, are cut; None where they overlap by strides."""


def cut_nowhere(samples: np.ndarray) -> None:
    """All windows are as long as can be, and overlap."""


def cut_at_pause(samples: np.ndarray) -> int | None:
    """A window ends in the longest pause of its last third, if there is one."""
    return longest_pause(samples, round(len(samples) * LEAST_CHUNK_SHARE))


class WindowStream:
    """Cuts samples that come block by block into the windows of `cut_windows`, each with its samples.

    Where `find_cut` finds a place a window ends there and has no stride: nothing is decoded twice. Holds one
    window and the newest block.

    Raises:
      ValueError: as `cut_windows`.
    """

    def __init__(
        self,
        chunk_length_s: Seconds = MAX_CHUNK_S,
        stride_length_s: Seconds | Sequence[Seconds] | None = None,
        find_cut: FindCut = cut_nowhere,
    ) -> None:
        self._chunk, self._left, self._right = _lengths(chunk_length_s, stride_length_s)
        self._find_cut = find_cut
        self._start = 0
        self._stride_left = 0  # of the next window
        self._held = np.zeros(0, np.float32)

    def add(self, samples: np.ndarray) -> Iterator[tuple[Window, np.ndarray]]:
        """The windows that the samples complete; one that may be the last waits for `finish`."""
        self._held = np.concatenate([self._held, samples])
        while len(self._held) > self._chunk:
            cut = self._find_cut(self._held[: self._chunk])
            if cut is not None:
                yield self._window(cut, 0)
                self._go_on(cut, 0)
            else:
                yield self._window(self._chunk, self._right)
                self._go_on(self._chunk - self._left - self._right, self._left)

    def finish(self) -> Iterator[tuple[Window, np.ndarray]]:
        """The last window, if there is one."""
        if len(self._held):
            yield self._window(len(self._held), 0)

    def _window(self, length: int, stride_right: int) -> tuple[Window, np.ndarray]:
        window = Window(self._start, self._start + length, self._stride_left, stride_right)
        return window, self._held[:length].copy()

    def _go_on(self, step: int, stride_left: int) -> None:
        self._start += step
        self._stride_left = stride_left
        self._held = self._held[step:]
