"""Log-mel spectrograms equal those of the published feature extractor."""

import jax
import jax.numpy as jnp
import librosa
import numpy as np
import pytest
import scipy.signal
from transformers import WhisperFeatureExtractor

from headrace.audio import SAMPLE_RATE, fill_with_zeros, load_audio, log_mel, log_mel_batch
from headrace.audio.mel import NUM_FFT, mel_filters

TOLERANCE = 1e-4
COMPILED = jax.jit(log_mel, static_argnums=1)


@pytest.fixture(scope="module", params=[80, 128])
def extractor(request: pytest.FixtureRequest) -> WhisperFeatureExtractor:
    return WhisperFeatureExtractor(feature_size=request.param)


def reference(extractor: WhisperFeatureExtractor, waveform: np.ndarray) -> np.ndarray:
    features = extractor(waveform, sampling_rate=SAMPLE_RATE, padding="longest", return_tensors="np")
    return features.input_features[0]


def assert_equals_reference(extractor: WhisperFeatureExtractor, waveform: np.ndarray) -> None:
    ours = np.asarray(COMPILED(jnp.asarray(waveform), extractor.feature_size))
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, reference(extractor, waveform), rtol=0, atol=TOLERANCE)


def made(kind: str, num_samples: int) -> np.ndarray:
    rng = np.random.default_rng(num_samples)
    waveform = {
        "silence": np.zeros(num_samples),
        "noise": rng.normal(scale=0.1, size=num_samples),
        "faint noise": rng.normal(scale=1e-5, size=num_samples),
        "full-scale tone": np.sin(np.arange(num_samples) / 3),
        "square wave": np.sign(np.sin(np.arange(num_samples) / 7)),
        "click": np.eye(1, num_samples, num_samples // 2)[0],
        "offset": np.full(num_samples, 0.5),
        "tone, then silence": np.where(
            np.arange(num_samples) < num_samples // 2, np.sin(np.arange(num_samples)), 0
        ),
    }[kind]
    return waveform.astype(np.float32)


@pytest.mark.parametrize(
    "kind",
    [
        "silence", "noise", "faint noise", "full-scale tone", "square wave", "click", "offset",
        "tone, then silence",
    ],
)  # fmt: skip
def test_log_mel_of_made_sounds_equals_the_feature_extractor(extractor, kind):
    assert_equals_reference(extractor, made(kind, 3 * SAMPLE_RATE))


@pytest.mark.parametrize("seconds", [1, 2.5, 7.33, 15, 29.99, 30])
def test_log_mel_of_noise_equals_the_feature_extractor_at_every_length(extractor, seconds):
    assert_equals_reference(extractor, made("noise", round(seconds * 100) * 160))


@pytest.mark.parametrize("num_samples", [160, 320, 480])
def test_log_mel_of_less_than_a_frame_equals_the_feature_extractor(extractor, num_samples):
    assert_equals_reference(extractor, made("noise", num_samples))


@pytest.mark.parametrize("seconds", [1, 5, 11, 20, 30])
def test_log_mel_of_speech_equals_the_feature_extractor(extractor, seconds, shared_data):
    waveform = load_audio(shared_data / "speech" / "longform__LJ001_01-32.flac").waveform
    assert_equals_reference(extractor, waveform[40 * SAMPLE_RATE :][: seconds * SAMPLE_RATE])


def test_log_mel_of_a_padded_window_equals_the_feature_extractor(extractor):
    waveform = np.zeros(30 * SAMPLE_RATE, np.float32)
    waveform[: 4 * SAMPLE_RATE] = made("noise", 4 * SAMPLE_RATE)
    features = extractor(
        waveform[: 4 * SAMPLE_RATE], sampling_rate=SAMPLE_RATE, return_tensors="np"
    ).input_features[0]
    ours = np.asarray(log_mel(jnp.asarray(waveform), extractor.feature_size))
    np.testing.assert_allclose(ours, features, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("num_samples", [4 * SAMPLE_RATE, 64_059, 64_159, 159])
def test_a_window_filled_with_zeros_equals_the_rule_of_openai(num_samples):
    """The spectrogram of the recording and 30 s of silence, cut at its last whole frame, then zeros."""
    speech = made("noise", num_samples)
    # The frames of librosa.stft, which compiles with Numba for 20 s where librosa is new.
    padded = np.pad(np.pad(speech, (0, 30 * SAMPLE_RATE)), 200, mode="reflect").astype(np.float64)
    frames = np.lib.stride_tricks.sliding_window_view(padded, 400)[::160]
    power = np.abs(np.fft.rfft(frames[:-1] * scipy.signal.get_window("hann", 400))).T ** 2
    decades = np.log10(np.maximum(librosa.filters.mel(sr=16_000, n_fft=400, n_mels=80) @ power, 1e-10))
    scaled = (np.maximum(decades, decades.max() - 8) + 4) / 4
    wanted = np.zeros((80, 3_000))
    wanted[:, : num_samples // 160] = scaled[:, : num_samples // 160]
    window = jnp.asarray(np.pad(speech, (0, 30 * SAMPLE_RATE - num_samples)))
    ours = fill_with_zeros(log_mel(window, 80)[None], jnp.array([num_samples]))[0]
    np.testing.assert_allclose(np.asarray(ours), wanted, rtol=0, atol=TOLERANCE)


def test_silence_is_minus_one_and_a_half_everywhere():
    assert np.all(np.asarray(log_mel(jnp.zeros(SAMPLE_RATE, jnp.float32), 80)) == -1.5)


def test_each_row_of_a_batch_has_its_own_peak():
    loud, quiet = made("full-scale tone", SAMPLE_RATE), made("faint noise", SAMPLE_RATE)
    batch = np.asarray(log_mel_batch(jnp.asarray(np.stack([loud, quiet])), 80))
    for row, waveform in zip(batch, (loud, quiet), strict=True):
        np.testing.assert_allclose(row, np.asarray(log_mel(jnp.asarray(waveform), 80)), rtol=0, atol=1e-5)


def test_log_mel_can_be_compiled():
    waveform = jnp.asarray(made("noise", SAMPLE_RATE))
    compiled = jax.jit(log_mel, static_argnums=1)(waveform, 80)
    np.testing.assert_allclose(np.asarray(compiled), np.asarray(log_mel(waveform, 80)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("num_mels", [0, 64, 81])
def test_other_numbers_of_mels_are_refused(num_mels):
    with pytest.raises(ValueError, match="num_mels"):
        log_mel(jnp.zeros(SAMPLE_RATE, jnp.float32), num_mels)


@pytest.mark.parametrize("num_samples", [0, 1, 16_001])
def test_lengths_that_are_not_whole_frames_are_refused(num_samples):
    with pytest.raises(ValueError, match="multiple of 160"):
        log_mel(jnp.zeros(num_samples, jnp.float32), 80)


@pytest.mark.parametrize("num_mels", [80, 128])
def test_filters_are_those_of_librosa_to_the_bit(num_mels):
    wanted = librosa.filters.mel(sr=SAMPLE_RATE, n_fft=NUM_FFT, n_mels=num_mels)
    np.testing.assert_array_equal(mel_filters(num_mels), wanted.T)
