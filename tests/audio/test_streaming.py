"""Recordings that are passed on while they are decoded."""

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile

from headrace.audio import AudioError, Reading, load_audio, stream_audio


def collect(source, options: Reading = Reading()) -> tuple[list[np.ndarray], float]:  # noqa: B008
    blocks: list[np.ndarray] = []
    ending = stream_audio(source, blocks.append, options=options)
    return blocks, ending.duration_s


def encoded(samples: np.ndarray, rate: int, kind: str = "WAV") -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind)
    return file.getvalue()


def test_a_long_recording_comes_in_blocks():
    sound = np.random.default_rng(0).uniform(-0.5, 0.5, 44_100 * 60).astype(np.float32)
    content = encoded(sound, 44_100, "FLAC")
    blocks, duration_s = collect(content)
    assert duration_s == pytest.approx(60.0)
    assert len(blocks) > 8
    assert max(block.size for block in blocks) < 16_000 * 10
    np.testing.assert_array_equal(np.concatenate(blocks), load_audio(content).waveform)


def test_one_channel_can_be_taken():
    left = np.linspace(-0.5, 0.5, 16_000, dtype=np.float32)
    stereo = np.stack([left, -left[::-1]], axis=1)
    for source in (encoded(stereo, 16_000, "FLAC"), {"array": stereo.T, "sampling_rate": 16_000}):
        for channel in (0, 1):
            blocks, _ = collect(source, Reading(channel=channel))
            np.testing.assert_allclose(np.concatenate(blocks), stereo[:, channel], atol=1e-4)
    with pytest.raises(AudioError, match="has 2 channels") as caught:
        collect(encoded(stereo, 16_000), Reading(channel=2))
    assert caught.value.kind == "channel"
    with pytest.raises(AudioError, match="has 1 channels"):
        collect(left, Reading(channel=1))


def test_an_error_can_come_after_samples():
    sound = np.zeros(600_000, np.float32)
    sound[-1] = np.nan
    blocks: list[np.ndarray] = []
    with pytest.raises(AudioError, match="NaN"):
        stream_audio(sound, blocks.append)
    assert sum(block.size for block in blocks) > 200_000


def test_damage_in_the_middle_is_gone_on_from(shared_data: Path):
    content = bytearray((shared_data / "speech" / "longform__LJ001_01-32.flac").read_bytes())
    content[2_000_000:2_000_400] = bytes(400)
    blocks, duration_s = collect(bytes(content))
    recording = load_audio(bytes(content))
    assert recording.flags == ("decode_truncated",)
    assert duration_s > 200
    assert sum(block.size for block in blocks) / 16_000 == pytest.approx(duration_s, abs=0.01)
