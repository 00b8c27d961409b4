"""Weights as whole numbers, as both engines keep them."""

from typing import Literal

import numpy as np
from jaxtyping import Float32, Int8

Quantization = Literal["int8"]
TextQuantization = Literal["int8", "int16"]
"""int16 has 13 bits, and is for CPUs with the native kernels."""


def quantize_int8(
    kernel: Float32[np.ndarray, "I O"],
) -> tuple[Int8[np.ndarray, "I O"], Float32[np.ndarray, " O"]]:
    """A kernel in 8 bits, and the scale of each output that its column is to be multiplied by.

    The largest weight of a column becomes 127. qwix 0.1.8 rounds alike (benchmarks/int8_products.py: the same
    error), and installs beside our pins; but its product took 2 to 5 times as long on a busy AVX-512 CPU as
    these lines and a cast in `Linear`, and its arrays are no plain weights to load, swap and count.
    """
    scale = np.maximum(np.abs(kernel).max(axis=0), np.finfo(np.float32).tiny) / np.float32(127)
    return np.rint(kernel / scale[None, :]).astype(np.int8), scale
