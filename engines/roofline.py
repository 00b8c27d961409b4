"""What the machine could do, and how near a phase of an engine's work comes to it."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headrace.engines import native

MATRIX_SHAPES = ((512, 1024, 4096), (1024, 1024, 1024), (256, 576, 1536))
"""Rows, inputs and outputs of the products that look for the peak."""
ACCELERATOR_SHAPES = ((4096, 4096, 4096), (8192, 8192, 8192))
"""The same for GPUs and TPUs, which smaller ones leave idle between launches."""
SUMS = {"float32": jnp.float32, "bfloat16": jnp.float32, "int8": jnp.int32}
"""What products of each type are summed in."""
COPY_BYTES = 256 * 2**20
ACCELERATOR_COPY_BYTES = 2 * 2**30


class MachineLimits(NamedTuple):
    """The best rates that were seen."""

    matrix: dict[str, float]
    """Operations a second of products, by the type of their inputs; a multiply-add counts as two."""
    copy: float
    """Bytes read and written a second by a copy that no cache holds."""


class Phase(NamedTuple):
    """One kind of work of an engine, timed."""

    name: str
    unit: str
    """What is counted: tokens, windows."""
    count: int
    flops: float
    """Useful operations of its products, padding left out."""
    num_bytes: float
    """Bytes of weights that it must have read at least; 0 where that is not counted."""
    seconds: float

    def utilisation(self, peak: float) -> float:
        """Share of the time that the products would take at the peak rate."""
        return self.flops / peak / self.seconds


def measure_limits(seconds: float = 0.5) -> MachineLimits:
    """The machine's limits, looked for during `seconds` for each type, shape and for the copy."""
    is_cpu = jax.default_backend() == "cpu"
    shapes, num_bytes = (
        (MATRIX_SHAPES, COPY_BYTES) if is_cpu else (ACCELERATOR_SHAPES, ACCELERATOR_COPY_BYTES)
    )
    matrix = {name: max(_matrix_rate(shape, name, seconds) for shape in shapes) for name in SUMS}
    if native.is_available(native.LINEAR):
        own = max(_native_rate(shape, seconds) for shape in shapes)
        matrix["bfloat16"] = max(matrix["bfloat16"], own)
    return MachineLimits(matrix, _copy_rate(num_bytes, seconds))


def device_name() -> str:
    """The first device and how many there are, e.g. `cpu (cpu, 1 device)`."""
    devices = jax.devices()
    return (
        f"{devices[0].device_kind} ({jax.default_backend()}, {len(devices)} device{'s' * (len(devices) > 1)})"
    )


def _matrix_rate(shape: tuple[int, int, int], dtype: str, seconds: float) -> float:
    rows, depth, width = shape
    left, right = jnp.ones((rows, depth), dtype), jnp.ones((depth, width), dtype)
    product = jax.jit(lambda a, b: jnp.dot(a, b, preferred_element_type=SUMS[dtype]))
    return 2 * rows * depth * width / _best_time(lambda: product(left, right), seconds)


def _native_rate(shape: tuple[int, int, int], seconds: float) -> float:
    """That of the native kernel, which may be faster than XLA's product."""
    rows, depth, width = shape
    pack = native.pack_linear if native.multiplies_bfloat16(native.BEST_LEVEL) else native.round_linear
    x, packed = jnp.ones((rows, depth), jnp.bfloat16), pack(np.ones((width, depth), np.float32), None)
    product = jax.jit(lambda x, packed: native.linear(x, packed, width))
    return 2 * rows * depth * width / _best_time(lambda: product(x, packed), seconds)


def _copy_rate(num_bytes: int, seconds: float) -> float:
    values = [jnp.zeros(num_bytes // 4, jnp.float32)]
    step = jax.jit(lambda x: x + 1.0, donate_argnums=0)  # in place: fresh memory would be timed too

    def run() -> jax.Array:
        values[0] = step(values[0])
        return values[0]

    return 2 * num_bytes / _best_time(run, seconds)


def _best_time(run: Callable[[], Any], seconds: float) -> float:
    """Seconds of the fastest call."""
    jax.block_until_ready(run())
    best, until = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < until:
        started = time.perf_counter()
        jax.block_until_ready(run())
        best = min(best, time.perf_counter() - started)
    return best
