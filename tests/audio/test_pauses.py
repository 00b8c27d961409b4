"""Pauses and loud sound in a waveform."""

import numpy as np
import pytest

from headrace.audio import SAMPLE_RATE, find_pauses
from headrace.audio.pauses import longest_pause


def test_pauses_are_found_in_clean_and_in_noisy_speech():
    rng = np.random.default_rng(0)
    speech = rng.normal(size=32_000).astype(np.float32) * 0.1
    for noise in (0.0, 0.006):
        sound = speech.copy()
        sound[8_000:12_000] = 0
        sound += rng.normal(size=32_000).astype(np.float32) * noise
        ((start_s, end_s),) = find_pauses(sound)
        assert (start_s, end_s) == pytest.approx((0.5, 0.75), abs=0.011)
    assert find_pauses(speech) == ()
    assert find_pauses(np.zeros(0, np.float32)) == ()


def test_the_longest_pause_of_a_part_is_cut_in_its_middle():
    sound = np.random.default_rng(1).normal(size=10 * SAMPLE_RATE).astype(np.float32) * 0.1
    for start_s, stop_s in ((1.0, 3.0), (5.8, 6.4), (8.0, 8.3), (9.0, 9.1)):
        sound[round(start_s * SAMPLE_RATE) : round(stop_s * SAMPLE_RATE)] = 0
    for first_s, want_s in ((0, 2.0), (2.5, 6.1), (4.0, 6.1), (6.3, 8.15)):
        assert longest_pause(sound, round(first_s * SAMPLE_RATE)) == pytest.approx(
            want_s * SAMPLE_RATE, abs=160
        )
    assert longest_pause(sound, round(8.5 * SAMPLE_RATE)) is None
    assert longest_pause(np.zeros(SAMPLE_RATE, np.float32), 0) is None
