"""One recording of speech in odd and damaged files: a result each, and what is lost is named."""

import io
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile
import soxr

from headrace.audio import load_audio
from headrace.engines.whisper import WhisperEngine

pytestmark = pytest.mark.slow
SHARES = [tenths / 11 for tenths in range(1, 11)]
BEGINNING = "and so my fellow americans"
END = "ask what you can do for your country"


@pytest.fixture(scope="module")
def speech(shared_data: Path) -> np.ndarray:
    return load_audio(shared_data / "speech" / "whisper__jfk.flac").waveform


@pytest.fixture(scope="module")
def media(speech: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., bytes]:
    """The speech in a container of FFmpeg; an mp4's index lies at its end unless `options` say otherwise."""

    def make(container: str, codec: str, **options: str) -> bytes:
        path, sound = tmp_path_factory.mktemp("media") / "file", soxr.resample(speech, 16_000, 48_000)
        with av.open(str(path), "w", format=container, options=options) as output:
            stream = output.add_stream(codec, rate=48_000, layout="mono")
            resampler = av.AudioResampler(format=stream.format, layout="mono", rate=48_000)
            for start in range(0, len(sound), 1024):
                frame = av.AudioFrame.from_ndarray(sound[None, start : start + 1024], "flt", "mono")
                frame.sample_rate, frame.pts = 48_000, start
                output.mux([packet for part in resampler.resample(frame) for packet in stream.encode(part)])
            output.mux(stream.encode(None))
        return path.read_bytes()

    return make


def plain(text: str) -> str:
    return "".join(char for char in text.lower() if char.isalpha() or char == " ")


@pytest.mark.parametrize(
    ("container", "codec", "options"),
    [
        ("webm", "libopus", {}),
        ("mp3", "libmp3lame", {}),
        ("flac", "flac", {}),
        ("mp4", "aac", {"movflags": "faststart"}),
        ("mp4", "aac", {"movflags": "frag_keyframe+empty_moov", "frag_duration": "500000"}),
    ],
    ids=["webm", "mp3", "flac", "mp4", "mp4 in fragments"],
)
def test_what_a_cut_file_holds_is_transcribed_and_the_loss_named(
    tiny_en: WhisperEngine, media, container: str, codec: str, options: dict[str, str]
):
    content = media(container, codec, **options)
    results = tiny_en.transcribe([content[: int(len(content) * share)] for share in SHARES])
    for share, result in zip(SHARES, results, strict=True):
        assert result["error"] is None
        assert "decode_truncated" in result["quality_flags"]
        assert result["duration_s"] == pytest.approx(11.0 * share, abs=1.5)
        if share > 0.4:
            assert plain(result["text"]).startswith(BEGINNING)
    assert tiny_en.transcribe(content)["quality_flags"] == []


def test_an_mp4_that_is_cut_before_its_index_is_a_row_that_says_so(tiny_en: WhisperEngine, media):
    content = media("mp4", "aac")
    results = tiny_en.transcribe([content[: int(len(content) * share)] for share in SHARES])
    for result in results:
        assert result["text"] is None or result["text"] == ""
        assert "cut" in result["error"] or "index" in result["error"]


def test_formats_rates_and_channels_keep_the_text(tiny_en: WhisperEngine, media, speech: np.ndarray):
    def sound_file(rate: int, subtype: str, channels: int = 1) -> bytes:
        file, sound = io.BytesIO(), soxr.resample(speech, 16_000, rate)
        soundfile.write(file, np.stack([sound] * channels, axis=1), rate, format="WAV", subtype=subtype)
        return file.getvalue()

    pipe = io.BytesIO(media("ipod", "aac"))  # its index lies at the end
    pipe.seekable = lambda: False
    files = [
        sound_file(16_000, "PCM_16", 8),
        sound_file(8_000, "ULAW"),
        sound_file(8_000, "PCM_16"),
        sound_file(44_100, "PCM_24"),
        sound_file(96_000, "PCM_24"),
        pipe,
    ]
    for result in tiny_en.transcribe(files):
        assert (result["error"], result["quality_flags"]) == (None, [])
        assert plain(result["text"]).startswith(BEGINNING[:-2])  # at 8 kHz the model hears "America"
        assert END in plain(result["text"])


def test_a_header_that_lies_about_its_length_is_flagged(tiny_en: WhisperEngine, speech: np.ndarray):
    file = io.BytesIO()
    soundfile.write(file, speech, 16_000, format="WAV", subtype="PCM_16")
    content = file.getvalue()
    at = content.index(b"data") + 4
    lies = content[:at] + (2 * len(content)).to_bytes(4, "little") + content[at + 4 :]
    result = tiny_en.transcribe(lies)
    assert result["quality_flags"] == ["decode_truncated"]
    assert END in plain(result["text"])
