"""The native draw against the one in plain XLA: the same noise, the same filters, the same tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headrace.engines import native
from headrace.engines.native.draw import draw
from headrace.engines.sampling import SamplingRows, sample_in_xla

pytestmark = pytest.mark.skipif(
    not native.is_available(native.DRAW), reason="the native kernels are not built"
)
NUM_ROWS = 96


def make_rows(rng: np.random.Generator, vocab_size: int, filters: str) -> SamplingRows:
    def either(off, on):
        return np.where(rng.random(NUM_ROWS) < 0.2, off, on)

    has = {name: name in filters for name in ("k", "p", "m")}
    top_k = either(0, rng.integers(1, vocab_size, NUM_ROWS)) if has["k"] else np.zeros(NUM_ROWS)
    top_p = either(1.0, rng.uniform(0.01, 0.999, NUM_ROWS)) if has["p"] else np.ones(NUM_ROWS)
    min_p = either(0.0, rng.uniform(0.001, 0.9, NUM_ROWS)) if has["m"] else np.zeros(NUM_ROWS)
    return SamplingRows(
        temperature=jnp.asarray(either(0.0, rng.uniform(0.2, 3.0, NUM_ROWS)), jnp.float32),
        top_k=jnp.asarray(top_k, jnp.int32),
        top_p=jnp.asarray(top_p, jnp.float32),
        min_p=jnp.asarray(min_p, jnp.float32),
        seed=jnp.asarray(rng.integers(0, 2**32, (NUM_ROWS, 2)), jnp.uint32),
        output_index=jnp.asarray(rng.integers(0, 5000, NUM_ROWS), jnp.int32),
    )


def draw_natively(logits: jax.Array, rows: SamplingRows, level: int) -> np.ndarray:
    filters, noise = (rows.top_k, rows.top_p, rows.min_p), (rows.seed, rows.output_index)
    return np.asarray(jax.jit(draw, static_argnums=4)(logits, rows.temperature, filters, noise, level))


@pytest.mark.parametrize("level", range(native.BEST_LEVEL + 1))
@pytest.mark.parametrize("filters", ["", "k", "p", "m", "kpm"])
@pytest.mark.parametrize("vocab_size", [37, 5003])
def test_tokens_are_those_of_plain_xla(level: int, filters: str, vocab_size: int):
    rng = np.random.default_rng([vocab_size, len(filters)])
    rows = make_rows(rng, vocab_size, filters)
    logits = rng.normal(0, 4, (NUM_ROWS, vocab_size)).astype(np.float32)
    logits[:, rng.integers(0, vocab_size, 3)] = -np.inf
    logits[::3] = np.round(logits[::3])  # ties
    want = np.asarray(jax.jit(sample_in_xla)(jnp.asarray(logits), rows))
    np.testing.assert_array_equal(draw_natively(jnp.asarray(logits), rows, level), want)


def test_a_flat_distribution_is_drawn_from_in_full():
    """No token is far behind: the noise of all of them has a say."""
    rng = np.random.default_rng(5)
    rows = make_rows(rng, 4096, "")._replace(temperature=jnp.ones(NUM_ROWS, jnp.float32))
    logits = jnp.asarray(rng.uniform(-0.5, 0.5, (NUM_ROWS, 4096)), jnp.float32)
    want = np.asarray(jax.jit(sample_in_xla)(logits, rows))
    np.testing.assert_array_equal(draw_natively(logits, rows, native.BEST_LEVEL), want)


def test_logits_that_are_not_numbers_give_some_token():
    rows = make_rows(np.random.default_rng(0), 64, "kpm")
    for value in (np.nan, -np.inf, np.inf):
        tokens = draw_natively(jnp.full((NUM_ROWS, 64), value, jnp.float32), rows, native.BEST_LEVEL)
        assert ((tokens >= 0) & (tokens < 64)).all()
