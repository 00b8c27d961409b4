"""Times of words: the path through the attention, pauses, punctuation, and the known times of real speech."""

import itertools
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import soundfile

from headrace.engines.whisper import TranscribeOptions, WhisperEngine, Word
from headrace.engines.whisper.alignment import MEDIAN_EXCHANGES, _smooth, alignment_heads
from headrace.engines.whisper.config import ModelDims
from headrace.engines.whisper.words import (
    Spoken,
    around_pauses,
    first_frames,
    token_times,
    with_punctuation,
)


def warp_by_cells(cost: np.ndarray) -> float:
    """Cost of the best path, cell by cell."""
    best = np.full((cost.shape[0] + 1, cost.shape[1] + 1), np.inf)
    best[0, 0] = 0
    for i, j in np.ndindex(*cost.shape):
        best[i + 1, j + 1] = cost[i, j] + min(best[i, j], best[i, j + 1], best[i + 1, j])
    return float(best[-1, -1])


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (4, 4), (5, 30), (7, 3)])
def test_the_path_is_the_cheapest(shape: tuple[int, int]):
    cost = np.random.default_rng(sum(shape)).normal(size=shape)
    first = first_frames(cost)
    assert first[0] == 0
    assert (np.diff(first) >= 0).all()
    # Any path with these first columns costs at least what the best one costs; the best of them is it.
    cells = [
        [(row, column) for column in range(start, max(start, stop) + 1)]
        for row, (start, stop) in enumerate(itertools.zip_longest(first, first[1:], fillvalue=shape[1] - 1))
    ]
    allowed = np.full(shape, np.inf)
    for cell in itertools.chain.from_iterable(cells):
        allowed[cell] = cost[cell]
    assert warp_by_cells(allowed) == pytest.approx(warp_by_cells(cost))


def test_tokens_are_timed_by_the_frames_that_they_look_at():
    frames = np.zeros((6, 1500), np.float32)
    for row, (start, stop) in enumerate([(0, 10), (10, 30), (30, 60), (60, 80)], start=1):
        frames[row, start:stop] = 1.0
    times = token_times(frames, np.full(6, 0.5, np.float32), num_prompt=2, num_text=3, length_s=1.6)
    assert times.edges_s == (0.0, 0.2, 0.6, 1.2)
    assert times.probability == (0.5, 0.5, 0.5)


def test_no_time_lies_past_the_audio():
    frames = np.zeros((4, 1500), np.float32)
    times = token_times(frames, np.ones(4, np.float32), num_prompt=1, num_text=2, length_s=0.05)
    assert max(times.edges_s) <= 0.05


def test_the_median_filter_takes_medians():
    for bits in itertools.product((0, 1), repeat=7):
        values = list(bits)
        for low, high in MEDIAN_EXCHANGES:
            values[low], values[high] = sorted((values[low], values[high]))
        assert values[3] == sorted(bits)[3]
    weights = np.random.default_rng(0).normal(size=(2, 3, 20)).astype(np.float32)
    smooth = _smooth(jnp.asarray(weights), jnp.int32(12))
    padded = np.pad(weights[..., :12], ((0, 0), (0, 0), (3, 3)), mode="reflect")
    want = np.median(np.lib.stride_tricks.sliding_window_view(padded, 7, axis=-1), axis=-1)
    np.testing.assert_array_equal(smooth[..., :12], want)


def test_a_pause_near_a_border_becomes_the_border():
    words = [Spoken(0.0, 1.0), Spoken(1.0, 2.0), Spoken(2.0, 3.0)]
    assert around_pauses(words, [(0.8, 0.95)]) == [Spoken(0.0, 0.8), Spoken(0.95, 2.0), Spoken(2.0, 3.0)]
    assert around_pauses(words, [(0.0, 0.2), (2.7, 3.0)]) == [
        Spoken(0.2, 1.0),
        Spoken(1.0, 2.0),
        Spoken(2.0, 2.7),
    ]
    # One that covers most of a word begins or ends it: the audio before the first word, a long pause.
    assert around_pauses(words, [(0.0, 0.9), (1.8, 2.8)]) == [
        Spoken(0.9, 1.0),
        Spoken(1.0, 1.8),
        Spoken(2.8, 3.0),
    ]
    # In the middle of a word is not between words.
    assert around_pauses(words, [(1.45, 1.55)]) == words
    assert around_pauses([], [(0.0, 1.0)]) == []


def test_punctuation_belongs_to_a_word():
    words = [Word(text, i, i + 1.0, 0.5) for i, text in enumerate(["你", "好", "，", "“", "天", "”", "。"])]
    assert [word.word for word in with_punctuation(words)] == ["你", "好，", "“天”。"]
    assert with_punctuation(words)[1][1:] == (1, 2.0, 0.5)


def test_heads_come_from_the_checkpoint_or_are_the_upper_half():
    dims = ModelDims(
        num_mels=80, num_vocab=51_865, width=16, encoder_layers=1, encoder_heads=2, decoder_layers=2,
        decoder_heads=2, num_frames=1500, max_tokens=448,
    )  # fmt: skip
    assert alignment_heads([[0, 1]], dims) == ((0, 1),)
    assert alignment_heads(None, dims) == ((1, 0), (1, 1))
    assert alignment_heads([[2, 0]], dims) == ((1, 0), (1, 1))


def test_words_of_a_recording_have_times(tiny_en: WhisperEngine, shared_data: Path):
    result = tiny_en.transcribe(str(shared_data / "speech" / "whisper__jfk.flac"), return_timestamps="word")
    words = [word for segment in result["segments"] for word in segment["words"]]
    assert "".join(word.word for word in words).strip() == result["text"]
    times = [time for word in words for time in (word.start_s, word.end_s)]
    assert times == sorted(times)
    assert times[-1] <= result["duration_s"]
    assert all(0 < word.probability <= 1 for word in words)
    country = [word for word in words if word.word.strip(" .,") == "country"]
    assert [word.start_s for word in country] == pytest.approx([6.0, 10.2], abs=0.15)
    assert [chunk["timestamp"] for chunk in result["chunks"]] == [
        (segment["words"][0].start_s, segment["words"][-1].end_s) for segment in result["segments"]
    ]


def test_a_blip_and_a_word_are_timed(tiny_en: WhisperEngine, shared_data: Path):
    speech, _ = soundfile.read(shared_data / "speech" / "pocketsphinx__001.wav", dtype="float32")
    for sound in (speech, speech[:1600]):
        result = tiny_en.transcribe(sound, return_timestamps="word")
        words = [word for segment in result["segments"] for word in segment["words"]]
        assert all(0 <= word.start_s <= word.end_s <= result["duration_s"] for word in words)


@pytest.mark.slow
def test_words_lie_at_the_known_borders_of_the_long_form(tiny_en: WhisperEngine, shared_data: Path):
    """The long form is 32 clips in a row: where each clip's sound begins and ends is known."""
    begins, ends, offset_s = [], [], 0.0
    for number in range(1, 33):
        clip, rate = soundfile.read(shared_data / "speech" / f"TTS__LJ001-{number:04d}.wav")
        loud = np.flatnonzero(np.abs(clip) > 0.02)
        begins.append(offset_s + loud[0] / rate)
        ends.append(offset_s + loud[-1] / rate)
        offset_s += len(clip) / rate
    path = shared_data / "speech" / "longform__LJ001_01-32.flac"
    result = tiny_en.submit(path, TranscribeOptions(return_timestamps="word"), request_id="lj").result()
    words = [word for segment in result.segments for word in segment.words]
    times = [time for word in words for time in (word.start_s, word.end_s)]
    assert times == sorted(times)
    assert result.duration_s is not None
    assert times[-1] <= result.duration_s
    for known, found in ((begins, times[::2]), (ends, times[1::2])):
        errors = np.abs(np.subtract.outer(known, found)).min(axis=1)
        assert np.median(errors) < 0.10
