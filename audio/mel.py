"""Log-mel spectrograms in JAX, equal to the ones that Whisper was trained on."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int32

from headrace.audio.recording import SAMPLE_RATE

NUM_FFT = 400
"""Samples of one analysis frame: 25 ms."""
HOP = 160
"""Samples from one frame to the next: 10 ms."""
MEL_SIZES = (80, 128)
"""Mel bands of the released Whisper models."""


def log_mel(waveform: Float32[Array, " samples"], num_mels: int) -> Float32[Array, "mels frames"]:
    """Log-mel spectrogram of a 16 kHz waveform, 100 frames a second.

    Values span at most 8 decades below the peak of the waveform (Radford et al. 2022, arXiv:2212.04356,
    sec. 2.2). Digital silence is -1.5 everywhere.

    Raises:
      ValueError: num_mels is neither 80 nor 128, or the length is not a multiple of 160 samples.
    """
    return log_mel_batch(waveform[None], num_mels)[0]


def log_mel_batch(waveforms: Float32[Array, "B samples"], num_mels: int) -> Float32[Array, "B mels frames"]:
    """Log-mel spectrograms of 16 kHz waveforms; the 8 decades count from each row's own peak.

    Raises:
      ValueError: num_mels is neither 80 nor 128, or the length is not a multiple of 160 samples.
    """
    if num_mels not in MEL_SIZES:
        raise ValueError(f"num_mels is {num_mels}, Whisper models have {MEL_SIZES[0]} or {MEL_SIZES[1]}")
    num_samples = waveforms.shape[-1]
    if num_samples == 0 or num_samples % HOP:
        raise ValueError(f"waveform has {num_samples} samples, wanted a multiple of {HOP}: pad it with zeros")
    frames = _frames(waveforms)
    spectrum = jnp.fft.rfft(frames * _window(), axis=-1)
    power = jnp.square(spectrum.real) + jnp.square(spectrum.imag)
    mel = jnp.einsum("bfk,km->bmf", power, mel_filters(num_mels), precision=jax.lax.Precision.HIGHEST)
    decades = jnp.log10(jnp.maximum(mel, 1e-10))
    floor = jnp.max(decades, axis=(1, 2), keepdims=True) - 8.0
    return (jnp.maximum(decades, jnp.broadcast_to(floor, decades.shape)) + 4.0) / 4.0


def fill_with_zeros(
    log_mels: Float32[Array, "B mels frames"], num_samples: Int32[Array, " B"]
) -> Float32[Array, "B mels frames"]:
    """Log-mel spectrograms with zeros after the frames that are centred on so many samples of each.

    As openai/whisper's `transcribe` fills a window: 0 is a faint noise, 4 decades below a power of 1.
    """
    frame = jnp.arange(log_mels.shape[-1], dtype=jnp.int32)
    stands = frame[None, None] < num_samples[:, None, None] // HOP
    return jnp.where(stands, log_mels, 0.0)


def _frames(waveforms: Float32[Array, "B samples"]) -> Float32[Array, "B frames 400"]:
    """Frames centred on every 160th sample; the one centred on the end is dropped."""
    half, num_frames = NUM_FFT // 2, waveforms.shape[-1] // HOP
    padded = jnp.pad(waveforms, ((0, 0), (half, half)), mode="reflect")
    padded = jnp.pad(padded, ((0, 0), (0, -NUM_FFT % HOP)))
    hops = padded.reshape(waveforms.shape[0], num_frames + 3, HOP)
    # A frame is 2.5 hops. Slices of whole hops are copied faster than single samples are gathered.
    thirds = [hops[:, :num_frames], hops[:, 1 : num_frames + 1], hops[:, 2 : num_frames + 2, : NUM_FFT % HOP]]
    return jnp.concatenate(thirds, axis=-1)


@cache
def _window() -> np.ndarray:
    """Periodic Hann window, [1, 1, 400]."""
    phase = 2 * np.pi * np.arange(NUM_FFT) / NUM_FFT
    return (0.5 - 0.5 * np.cos(phase)).astype(np.float32)[None, None]


@cache
def mel_filters(num_mels: int) -> np.ndarray:
    """Triangles of equal area, evenly spaced on Slaney's mel scale from 0 to 8 kHz, [201, mels]."""
    frequencies = np.fft.rfftfreq(NUM_FFT, 1 / SAMPLE_RATE)[None]
    edges = _mel_edges(num_mels)[:, None]
    rising = (frequencies - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - frequencies) / (edges[2:] - edges[1:-1])
    triangles = np.maximum(np.minimum(rising, falling), 0).astype(np.float32)
    return np.ascontiguousarray((triangles * (2 / (edges[2:] - edges[:-2]))).T, np.float32)


def _mel_edges(num_mels: int) -> np.ndarray:
    """Where the bands begin, peak and end, in Hz, by the scale of Slaney's Auditory Toolbox (1998).

    The first kHz has 15 mels, above it 27 mels are a factor of 6.4.
    """
    step = np.log(6.4) / 27
    mels = np.linspace(0, 15 + np.log(SAMPLE_RATE / 2 / 1000) / step, num_mels + 2)
    return np.where(mels < 15, mels * (200 / 3), 1000 * np.exp(step * (mels - 15)))
