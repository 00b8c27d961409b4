"""Arrays of any shape and number format become the same recording."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from headrace.audio import SAMPLE_RATE, AudioError, load_audio


def kind_of(source, **options) -> str:
    with pytest.raises(AudioError) as caught:
        load_audio(source, **options)
    return caught.value.kind


def test_a_float32_array_at_16_khz_is_taken_as_it_is(chirp):
    recording = load_audio(chirp(1.0))
    np.testing.assert_array_equal(recording.waveform, chirp(1.0))
    assert recording.duration_s == 1.0
    assert recording.flags == ()


def test_the_recording_does_not_share_memory_with_the_array(chirp):
    samples = chirp(0.1)
    recording = load_audio(samples)
    samples[:] = 0
    np.testing.assert_array_equal(recording.waveform, chirp(0.1))


@pytest.mark.parametrize("channels", [1, 2, 3, 6, 8, 32])
def test_channels_are_averaged_in_either_order(chirp, channels):
    mono = chirp(0.5)
    gains = np.linspace(0.5, 1.5, channels, dtype=np.float32)
    stacked = gains[:, None] * mono
    for array in (stacked, stacked.T, np.asfortranarray(stacked.T), stacked[None]):
        np.testing.assert_allclose(load_audio(array).waveform, mono * gains.mean(), atol=1e-6)


def test_a_tone_on_the_left_does_not_hide_speech_on_the_right(chirp):
    speech = chirp(0.5)
    tone = np.full_like(speech, 0.25)
    np.testing.assert_allclose(load_audio(np.stack([tone, speech])).waveform, (tone + speech) / 2, atol=1e-6)


@pytest.mark.parametrize("shape", [(2, 2), (3, 5), (80, 3000), (100, 100), (2, 3, 1000), ()])
def test_shapes_without_a_clear_channel_axis_are_refused(shape):
    assert kind_of(np.zeros(shape, np.float32)) == "shape"


@pytest.mark.parametrize("shape", [(0,), (0, 2), (2, 0)])
def test_arrays_without_samples_are_empty(shape):
    assert kind_of(np.zeros(shape, np.float32)) == "empty"


@pytest.mark.parametrize(
    "dtype", [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]
)
def test_integers_are_scaled_by_their_range(chirp, dtype):
    bits = np.iinfo(dtype).bits
    centre = 2 ** (bits - 1) if np.iinfo(dtype).min == 0 else 0
    values = np.floor(chirp(0.2).astype(np.float64) * 2.0 ** (bits - 1)) + centre
    waveform = load_audio(values.astype(dtype)).waveform
    np.testing.assert_allclose(waveform, chirp(0.2), atol=2.0 ** -(bits - 1) + 1e-7)


def test_the_ends_of_the_integer_range_are_the_ends_of_full_scale():
    ends = load_audio(np.array([-32768, 0, 32767], np.int16)).waveform
    np.testing.assert_allclose(ends, [-1, 0, 32767 / 32768])
    ends = load_audio(np.array([0, 128, 255], np.uint8)).waveform
    np.testing.assert_allclose(ends, [-1, 0, 127 / 128])


@pytest.mark.parametrize("narrow", [np.int16, np.int32])
def test_64_bit_integers_count_as_the_narrower_ones_that_they_hold(chirp, narrow):
    values = (chirp(0.2).astype(np.float64) * np.iinfo(narrow).max).astype(narrow)
    wide = load_audio(values.astype(np.int64)).waveform
    np.testing.assert_array_equal(wide, load_audio(values).waveform)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble, ml_dtypes.bfloat16])
def test_every_float_format_is_taken(chirp, dtype):
    waveform = load_audio(chirp(0.2).astype(dtype)).waveform
    assert waveform.dtype == np.float32
    np.testing.assert_allclose(waveform, chirp(0.2), atol=2e-3)


def test_big_endian_and_strided_arrays_are_taken(chirp):
    np.testing.assert_array_equal(load_audio(chirp(0.2).astype(">f4")).waveform, chirp(0.2))
    np.testing.assert_array_equal(load_audio(np.repeat(chirp(0.2), 2)[::2]).waveform, chirp(0.2))


def test_jax_arrays_and_lists_are_taken(chirp):
    np.testing.assert_array_equal(load_audio(jnp.asarray(chirp(0.2))).waveform, chirp(0.2))
    listed = {"array": chirp(0.2).tolist(), "sampling_rate": SAMPLE_RATE}
    np.testing.assert_array_equal(load_audio(listed).waveform, chirp(0.2))


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(100, bool),
        np.zeros(100, np.complex64),
        np.array(["a"] * 100),
        np.array([None] * 100),
        [[1.0], [1.0, 2.0]],
    ],
)
def test_arrays_of_other_things_are_refused(array):
    assert kind_of({"array": array, "sampling_rate": 16_000}) == "shape"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_samples_that_are_not_finite_are_refused_with_their_time(chirp, value):
    samples = chirp(1.0)
    samples[8_000] = value
    with pytest.raises(AudioError, match=r"sample at 0\.500 s is (NaN|infinite)") as caught:
        load_audio(samples)
    assert caught.value.kind == "non_finite"


@pytest.mark.parametrize("value", [1e300, 1e20])
def test_samples_beyond_every_format_are_refused(chirp, value):
    samples = chirp(1.0).astype(np.float64)
    samples[3] = value
    assert kind_of(samples) == "non_finite"


def test_infinities_of_opposite_sign_on_two_channels_are_refused(chirp):
    samples = np.stack([chirp(1.0), chirp(1.0)])
    samples[:, 5] = np.inf, -np.inf
    assert kind_of(samples) == "non_finite"


@pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 22_050, 44_100, 48_000, 96_000, 192_000])
def test_resampling_keeps_the_length_and_the_sound(rate):
    tone = np.sin(2 * np.pi * 440 * np.arange(2 * rate) / rate).astype(np.float32)
    recording = load_audio({"array": tone, "sampling_rate": rate})
    assert recording.duration_s == 2.0
    assert abs(recording.waveform.size - 2 * SAMPLE_RATE) <= 1
    expected = np.sin(2 * np.pi * 440 * np.arange(recording.waveform.size) / SAMPLE_RATE)
    inner = slice(800, -800)
    np.testing.assert_allclose(recording.waveform[inner], expected[inner], atol=1e-3)


def test_resampling_removes_what_16_khz_cannot_hold():
    tone = np.sin(2 * np.pi * 10_000 * np.arange(48_000) / 48_000).astype(np.float32)
    assert np.abs(load_audio(tone, sampling_rate=48_000).waveform[800:-800]).max() < 1e-3


def test_long_arrays_are_resampled_without_seams():
    import soxr

    tone = np.sin(np.arange(1_000_000) * 0.05).astype(np.float32)
    whole = soxr.resample(tone, 44_100, SAMPLE_RATE, quality="HQ")
    np.testing.assert_allclose(load_audio(tone, sampling_rate=44_100).waveform, whole, atol=1e-6)


@pytest.mark.parametrize("rate", [0, -1, 999, 1e9, 16_000.5, float("nan"), True, "16000", None])
def test_impossible_sampling_rates_are_refused(rate):
    assert kind_of({"array": np.zeros(100, np.float32), "sampling_rate": rate}) == "sampling_rate"


def test_numpy_numbers_are_sampling_rates():
    for rate in (np.int64(8_000), np.float32(8_000), 8_000.0):
        assert load_audio({"array": np.zeros(800, np.float32), "sampling_rate": rate}).waveform.size == 1_600


def test_an_array_shorter_than_one_sample_at_16_khz_is_empty():
    assert kind_of(np.zeros(1, np.float32), sampling_rate=96_000) == "empty"
