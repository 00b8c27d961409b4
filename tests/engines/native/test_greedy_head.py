"""The native output head against a product and an argmax in NumPy, for each instruction set."""

import jax.numpy as jnp
import numpy as np
import pytest

from headrace.engines import native
from headrace.engines.native import BEST_LEVEL, can_run_greedy_head, greedy_head

pytestmark = pytest.mark.skipif(
    not native.is_available(native.GREEDY_HEAD), reason="the native kernels are not built"
)
LEVELS = range(BEST_LEVEL + 1)  # those that the machine lacks fall back to the best it has


def make_head(num_rows, width=64, vocab_size=1100, seed=0, dtype=jnp.bfloat16):
    rng = np.random.default_rng(seed)
    hidden = jnp.asarray(rng.normal(size=(num_rows, width)), dtype)
    table = jnp.asarray(rng.normal(size=(vocab_size, width)), dtype)
    return hidden, table


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("num_rows", "width"), [(1, 64), (16, 64), (17, 64), (40, 64), (40, 160)])
def test_tokens_and_logprobs_are_those_of_the_logits(num_rows, width, level, dtype):
    """A width of 160 is more than the 128 numbers that have a scale in common; logits spread as its root."""
    hidden, table = make_head(num_rows, width, dtype=dtype)
    tokens, logprobs = greedy_head(hidden, table, level)
    logits = np.asarray(hidden, np.float64) @ np.asarray(table, np.float64).T
    peaks = logits.max(axis=1)
    expected = -np.log(np.exp(logits - peaks[:, None]).sum(axis=1))
    assert np.asarray(tokens).tolist() == logits.argmax(axis=1).tolist()
    is_exact = dtype == jnp.bfloat16 and native.multiplies_bfloat16(level)
    atol = 2e-5 if is_exact else 5e-3 * (width / 64) ** 0.5
    np.testing.assert_allclose(logprobs, expected, atol=atol)


@pytest.mark.parametrize("vocab_size", [1, 15, 32, 511, 513, 1055])
def test_every_size_of_vocabulary_is_searched_to_its_end(vocab_size):
    hidden, table = make_head(3, vocab_size=vocab_size)
    # Logits below zero, so that the padding's zero must not win; the last token the best.
    hidden, table = jnp.abs(hidden), -jnp.abs(table)
    table = table.at[-1].multiply(0.001)
    tokens, _ = greedy_head(hidden, table)
    assert np.asarray(tokens).tolist() == [vocab_size - 1] * 3


def test_the_first_of_equals_is_chosen():
    hidden, table = make_head(2, vocab_size=900)
    best = int(greedy_head(hidden[:1], table)[0][0])
    table = table.at[jnp.asarray([best, 3, 899])].set(table[best])
    assert int(greedy_head(hidden[:1], table)[0][0]) == min(best, 3)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_a_row_gives_the_same_bits_alone_and_in_any_company(dtype):
    hidden, table = make_head(50, dtype=dtype)
    tokens, logprobs = greedy_head(hidden, table)
    for row in (0, 17, 49):
        alone = greedy_head(hidden[row : row + 1], table)
        assert (int(alone[0][0]), float(alone[1][0])) == (int(tokens[row]), float(logprobs[row]))


def test_a_head_that_the_kernel_cannot_take_is_known():
    assert can_run_greedy_head(jnp.zeros((8, 64), jnp.bfloat16))
    assert not can_run_greedy_head(jnp.zeros((8, 48), jnp.bfloat16))
    assert can_run_greedy_head(jnp.zeros((8, 64), jnp.float32))
    assert not can_run_greedy_head(jnp.zeros((8, 64), jnp.float16))
