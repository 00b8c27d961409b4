"""Recordings of every kind, made as the tests need them."""

import io
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile


@pytest.fixture(scope="session")
def chirp() -> Callable[..., np.ndarray]:
    """Makes float32 samples of a rising tone with a little noise, the same every time."""

    def make(seconds: float, rate: int = 16_000) -> np.ndarray:
        times = np.arange(round(seconds * rate)) / rate
        noise = np.random.default_rng(0).normal(scale=0.01, size=times.size)
        return (0.3 * np.sin(2 * np.pi * (200 + 100 * times) * times) + noise).astype(np.float32)

    return make


@pytest.fixture(scope="session")
def sound_file(chirp: Callable[..., np.ndarray]) -> Callable[..., bytes]:
    """Makes the bytes of a chirp in a format of libsndfile."""

    def make(
        container: str, subtype: str, *, seconds: float = 2.0, rate: int = 16_000, channels: int = 1
    ) -> bytes:
        file = io.BytesIO()
        samples = np.repeat(chirp(seconds, rate)[:, None], channels, axis=1)
        soundfile.write(file, samples, rate, format=container, subtype=subtype)
        return file.getvalue()

    return make


@pytest.fixture(scope="session")
def media_file(
    chirp: Callable[..., np.ndarray], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., bytes]:
    """Makes the bytes of a chirp in a format of FFmpeg, stereo, 48 kHz, on request behind a video track."""

    def make(
        container: str,
        codec: str,
        *,
        seconds: float = 2.0,
        options: dict[str, str] | None = None,
        video: bool = False,
        layout: str = "stereo",
    ) -> bytes:
        path = tmp_path_factory.mktemp("media") / "file"
        with av.open(str(path), "w", format=container, options=options or {}) as output:
            # The first packet writes the header: every track must be there by then.
            pictures = add_video(output) if video else None
            sound = output.add_stream(codec, rate=48_000, layout=layout)
            if pictures is not None:
                encode_video(output, pictures, round(seconds * 5))
            encode_audio(output, sound, chirp(seconds, 48_000))
        return Path(path).read_bytes()

    return make


@pytest.fixture(scope="session")
def video_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of an MP4 without an audio track."""
    path = tmp_path_factory.mktemp("media") / "silent.mp4"
    with av.open(str(path), "w") as output:
        encode_video(output, add_video(output), 5)
    return path.read_bytes()


def add_video(output: av.container.OutputContainer) -> av.VideoStream:
    stream = output.add_stream("mpeg4", rate=5)
    stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
    return stream


def encode_video(output: av.container.OutputContainer, stream: av.VideoStream, num_frames: int) -> None:
    for _ in range(num_frames):
        output.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8), format="rgb24")))
    output.mux(stream.encode(None))


def encode_audio(output: av.container.OutputContainer, stream: av.AudioStream, samples: np.ndarray) -> None:
    layout = stream.layout
    resampler = av.AudioResampler(format=stream.format, layout=layout, rate=48_000)
    for start in range(0, samples.size, 1024):
        block = np.repeat(samples[start : start + 1024], layout.nb_channels)[None]
        frame = av.AudioFrame.from_ndarray(block, format="flt", layout=layout)
        frame.sample_rate, frame.pts = 48_000, start
        for converted in resampler.resample(frame):
            output.mux(stream.encode(converted))
    for converted in resampler.resample(None):
        output.mux(stream.encode(converted))
    output.mux(stream.encode(None))
