"""Windows tile a recording, and the last one is the last."""

import random

import numpy as np
import pytest

from headrace.audio import SAMPLE_RATE, Window, WindowStream, cut_at_pause, cut_windows


def seconds(windows: list[Window]) -> list[tuple[float, ...]]:
    return [tuple(value / SAMPLE_RATE for value in window) for window in windows]


@pytest.mark.parametrize("length_s", [0.05, 1, 24, 25, 29, 30])
def test_a_recording_that_fits_is_one_window_without_strides(length_s):
    assert seconds(cut_windows(round(length_s * SAMPLE_RATE))) == [(0, length_s, 0, 0)]


def test_no_window_follows_the_one_that_reaches_the_end():
    assert seconds(cut_windows(45 * SAMPLE_RATE)) == [(0, 30, 0, 5), (20, 45, 5, 0)]
    assert seconds(cut_windows(50 * SAMPLE_RATE)) == [(0, 30, 0, 5), (20, 50, 5, 0)]
    assert seconds(cut_windows(51 * SAMPLE_RATE)) == [(0, 30, 0, 5), (20, 50, 5, 5), (40, 51, 5, 0)]


def test_one_sample_more_than_a_chunk_makes_a_second_window():
    windows = cut_windows(30 * SAMPLE_RATE + 1)
    assert windows[1] == Window(20 * SAMPLE_RATE, 30 * SAMPLE_RATE + 1, 5 * SAMPLE_RATE, 0)


def test_left_and_right_stride_can_differ():
    assert seconds(cut_windows(25 * SAMPLE_RATE, 10.0, (4.0, 2.0))) == [
        (0, 10, 0, 2),
        (4, 14, 4, 2),
        (8, 18, 4, 2),
        (12, 22, 4, 2),
        (16, 25, 4, 0),
    ]


def test_stride_zero_gives_windows_side_by_side():
    assert seconds(cut_windows(25 * SAMPLE_RATE, 10.0, 0.0)) == [
        (0, 10, 0, 0),
        (10, 20, 0, 0),
        (20, 25, 0, 0),
    ]


def test_an_empty_recording_has_no_windows():
    assert cut_windows(0) == []


def test_windows_without_their_strides_tile_the_recording():
    rng = random.Random(0)
    for _ in range(2000):
        chunk_s = rng.uniform(0.01, 30)
        left_s = rng.uniform(0, chunk_s * 0.6)
        right_s = rng.uniform(0, (chunk_s - left_s) * 0.9)
        num_samples = rng.randint(1, 200 * round(chunk_s * SAMPLE_RATE))
        windows = cut_windows(num_samples, chunk_s, (left_s, right_s))
        chunk, left, right = (round(value * SAMPLE_RATE) for value in (chunk_s, left_s, right_s))
        position = 0
        for window in windows:
            assert window.start + window.stride_left == position
            assert window.stride_left + window.stride_right < window.stop - window.start <= chunk
            position = window.stop - window.stride_right
        assert position == num_samples
        assert [window.stride_left for window in windows] == [0] + [left] * (len(windows) - 1)
        assert [window.stride_right for window in windows] == [right] * (len(windows) - 1) + [0]
        assert all(window.stop - window.start == chunk for window in windows[:-1])


@pytest.mark.parametrize(
    ("chunk_s", "stride"),
    [
        (0, None), (-1, None), (30.1, None), (float("nan"), None), (30, 15), (30, (20, 10)), (30, (25, 6)),
        (30, -1), (30, (-1, 5)), (30, float("nan")), (30, float("inf")), (1e-6, 0), (30, (1, 2, 3)),
    ],
)  # fmt: skip
def test_impossible_chunks_and_strides_are_refused(chunk_s, stride):
    with pytest.raises(ValueError, match=r"chunk_length_s|stride_length_s"):
        cut_windows(SAMPLE_RATE, chunk_s, stride)


def test_a_negative_length_is_refused():
    with pytest.raises(ValueError, match="num_samples"):
        cut_windows(-1)


@pytest.mark.parametrize("num_samples", [0, 1, 479_999, 480_000, 480_001, 800_000, 1_000_000, 1_600_001])
@pytest.mark.parametrize("stride", [None, 0.0, (2.0, 4.0)])
def test_a_stream_is_cut_like_a_whole_recording(num_samples: int, stride):
    sound = np.arange(num_samples, dtype=np.float32)
    windows = WindowStream(30.0, stride)
    cut = [
        each for start in range(0, num_samples, 70_000) for each in windows.add(sound[start : start + 70_000])
    ]
    cut += windows.finish()
    assert [window for window, _ in cut] == cut_windows(num_samples, 30.0, stride)
    for window, waveform in cut:
        np.testing.assert_array_equal(waveform, sound[window.start : window.stop])


@pytest.mark.parametrize("block", [7_000, 480_000, 3_000_000])
def test_a_stream_is_cut_in_pauses_and_overlaps_where_there_are_none(block: int):
    """Pauses at 4 to 5, 22 to 22.4, 28 to 29 and 54 s, noise else: two cuts, then overlaps."""
    sound = np.random.default_rng(0).normal(size=110 * SAMPLE_RATE).astype(np.float32)
    for start_s, stop_s in ((4, 5), (22, 22.4), (28, 29), (54, 54.5)):
        sound[round(start_s * SAMPLE_RATE) : round(stop_s * SAMPLE_RATE)] *= 0.001
    windows = WindowStream(find_cut=cut_at_pause)
    cut = [
        each for start in range(0, len(sound), block) for each in windows.add(sound[start : start + block])
    ]
    cut += windows.finish()
    assert [tuple(np.round(np.array(window) / SAMPLE_RATE, 1)) for window, _ in cut] == [
        (0, 28.5, 0, 0),
        (28.5, 54.2, 0, 0),
        (54.2, 84.2, 0, 5),
        (74.2, 104.2, 5, 5),
        (94.2, 110, 5, 0),
    ]
    for window, waveform in cut:
        np.testing.assert_array_equal(waveform, sound[window.start : window.stop])
