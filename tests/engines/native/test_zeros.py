"""Zeros that are not written: what they hold, and what they do not take."""

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest

from headrace.engines import native

pytestmark = pytest.mark.skipif(
    not native.is_available(native.ZEROS), reason="the native kernels are not built"
)


def test_they_are_zeros_where_something_else_was():
    shapes = [(3, 5), (1_000, 1_001), (1 << 20,), (1,)]
    make = jax.jit(lambda: [native.zeros(shape, jnp.uint8) for shape in shapes])
    spoil = jax.jit(lambda arrays: [each + jnp.uint8(7) for each in arrays], donate_argnums=0)
    for _ in range(3):
        arrays = make()
        for array, shape in zip(arrays, shapes, strict=True):
            np.testing.assert_array_equal(array, np.zeros(shape, np.uint8))
        spoil(arrays)


def test_they_take_memory_once_they_are_written():
    size = 256 << 20
    make = jax.jit(lambda: native.zeros((4, size // 4), jnp.uint8))
    write = jax.jit(lambda array: array.at[2].set(jnp.uint8(1)), donate_argnums=0)
    before = psutil.Process().memory_info().rss
    array = jax.block_until_ready(make())
    assert psutil.Process().memory_info().rss - before < size / 8
    array = jax.block_until_ready(write(array))
    assert size / 8 < psutil.Process().memory_info().rss - before < size / 2
    assert int(array[2, -1]) == 1
