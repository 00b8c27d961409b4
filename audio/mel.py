"""Log-mel spectrograms in JAX, equal to the ones that Whisper was trained on."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32

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
    mel = jnp.einsum("bfk,km->bmf", power, _mel_filters(num_mels), precision=jax.lax.Precision.HIGHEST)
    decades = jnp.log10(jnp.maximum(mel, 1e-10))
    floor = jnp.max(decades, axis=(1, 2), keepdims=True) - 8.0
    return (jnp.maximum(decades, jnp.broadcast_to(floor, decades.shape)) + 4.0) / 4.0


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
def _mel_filters(num_mels: int) -> np.ndarray:
    """Slaney mel filters from 0 to 8 kHz, [201, mels]."""
    from librosa.filters import mel

    return np.ascontiguousarray(mel(sr=SAMPLE_RATE, n_fft=NUM_FFT, n_mels=num_mels).T, np.float32)
