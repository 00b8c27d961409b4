"""The engine's int8 product beside qwix's (weights in int8, inputs in bfloat16): error and time.

    pip install qwix
    python benchmarks/int8_products.py

Both keep a float32 scale for each output. The error is that of the product against float64, by the root mean
square of the result; times are medians of alternating runs, by the time of the bfloat16 product.
"""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import qwix  # pyright: ignore[reportMissingImports]  # of this benchmark alone

from headrace.engines.quantization import quantize_int8

SHAPES = [(8, 576, 3072), (128, 576, 3072), (128, 1536, 576), (512, 576, 3072)]
ROUNDS = 60


def main() -> None:
    print("| rows x in x out | error: ours, qwix | time by bfloat16: ours, qwix |")
    print("| --- | --- | --- |")
    for shape in SHAPES:
        print(compare(shape))


def compare(shape: tuple[int, int, int]) -> str:
    rows, num_in, num_out = shape
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((num_in, num_out), np.float32) * num_in**-0.5
    inputs = jnp.asarray(rng.standard_normal((rows, num_in), np.float32), jnp.bfloat16)
    exact = np.asarray(inputs, np.float64) @ weight.astype(np.float64)
    products = make_products(weight)
    results = {name: np.asarray(product(inputs), np.float64) for name, product in products.items()}
    size = np.sqrt(np.mean(exact**2))
    errors = {name: np.sqrt(np.mean((found - exact) ** 2)) / size for name, found in results.items()}
    times = measure(products, inputs)
    ours, other = (times[name] / times["bfloat16"] for name in ("ours", "qwix"))
    name = f"{rows} x {num_in} x {num_out}"
    return f"| {name} | {errors['ours']:.2%}, {errors['qwix']:.2%} | {ours:.2f}, {other:.2f} |"


def make_products(weight: np.ndarray) -> dict[str, Callable[[jax.Array], jax.Array]]:
    kernel, scale = map(jnp.asarray, quantize_int8(weight))
    small = qwix.quantize(jnp.asarray(weight), jnp.int8, channelwise_axes=(1,))
    plain = jnp.asarray(weight, jnp.bfloat16)

    def ours(inputs: jax.Array, kernel: jax.Array, scale: jax.Array) -> jax.Array:
        return jnp.dot(inputs, kernel.astype(inputs.dtype), preferred_element_type=jnp.float32) * scale

    def theirs(inputs: jax.Array, small: qwix.QArray) -> jax.Array:
        return qwix.dot(inputs, small, preferred_element_type=jnp.float32)

    def bfloat16(inputs: jax.Array, plain: jax.Array) -> jax.Array:
        return jnp.dot(inputs, plain, preferred_element_type=jnp.float32)

    compiled = [jax.jit(each) for each in (bfloat16, ours, theirs)]
    return {
        "bfloat16": lambda inputs: compiled[0](inputs, plain),
        "ours": lambda inputs: compiled[1](inputs, kernel, scale),
        "qwix": lambda inputs: compiled[2](inputs, small),
    }


def measure(products: dict[str, Callable[[jax.Array], jax.Array]], inputs: jax.Array) -> dict[str, float]:
    """Median seconds of each product."""
    seconds: dict[str, list[float]] = {name: [] for name in products}
    for _ in range(ROUNDS):
        for name, product in products.items():
            started_s = time.perf_counter()
            jax.block_until_ready(product(inputs))
            seconds[name].append(time.perf_counter() - started_s)
    return {name: float(np.median(each)) for name, each in seconds.items()}


if __name__ == "__main__":
    main()
