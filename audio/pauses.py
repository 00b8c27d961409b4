"""The pauses between words and sentences, by loudness alone."""

import numpy as np

from headrace.audio.recording import SAMPLE_RATE

MIN_PAUSE_S = 0.08
"""Shorter silences are parts of sounds (the closure before a p, t or k)."""
PAUSE_DB = 30.0
"""Sound this much below the loud parts of a window is a pause."""
NOISY_PAUSE_DB = 20.0
"""The same where there is noise: sound so far below, and no louder than just above the window's noise."""
NOISE_DB = 8.0
"""How far above the window's noise a noisy pause may be."""
PAUSE_HOP = SAMPLE_RATE // 100
"""Samples from one measurement of loudness to the next: 10 ms."""
LEAST_CUT_S = 0.2
"""Shortest pause in which a recording is cut: shorter ones are often inside of a phrase, or of a word."""


def find_pauses(waveform: np.ndarray) -> tuple[tuple[float, float], ...]:
    """Start and end, in seconds, of the stretches of a window that are much quieter than its speech."""
    num_hops = len(waveform) // PAUSE_HOP
    if num_hops == 0:
        return ()
    power = np.mean(np.square(waveform[: num_hops * PAUSE_HOP].reshape(num_hops, PAUSE_HOP)), axis=1)
    noise, loud = np.percentile(power, [5, 90])
    noisy = min(noise * 10 ** (NOISE_DB / 10), loud * 10 ** (-NOISY_PAUSE_DB / 10))
    quiet = power < max(loud * 10 ** (-PAUSE_DB / 10), noisy)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], quiet, [False]]).astype(np.int8)))
    runs = edges.reshape(-1, 2) * (PAUSE_HOP / SAMPLE_RATE)
    return tuple((float(start), float(end)) for start, end in runs if end - start >= MIN_PAUSE_S)


def longest_pause(waveform: np.ndarray, first: int) -> int | None:
    """The sample in the middle of the longest pause from `first` on; None where none is fit for a cut."""
    first_s = first / SAMPLE_RATE
    pauses = [(max(start, first_s), end) for start, end in find_pauses(waveform)]
    start, end = max(pauses, key=lambda pause: pause[1] - pause[0], default=(0.0, 0.0))
    return round((start + end) / 2 * SAMPLE_RATE) if end - start >= LEAST_CUT_S else None
