"""The largest logits without a sort, against a sort."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headrace.engines.top_tokens import top_tokens


@pytest.mark.parametrize(("vocab_size", "count"), [(64, 64), (100, 8), (1000, 128), (50, 50)])
@pytest.mark.parametrize("num_values", [3, 10**6])
def test_they_are_the_largest_in_order_and_equal_ones_come_by_token_id(vocab_size, count, num_values):
    values = np.random.default_rng(vocab_size).integers(0, num_values, (40, vocab_size))
    found = top_tokens(jnp.asarray(values.astype(np.float32)), count)
    values_of, tokens = jax.lax.top_k(jnp.asarray(values.astype(np.float32)), count)
    np.testing.assert_array_equal(found.tokens, tokens)
    np.testing.assert_array_equal(found.logits, values_of)


def test_where_a_row_has_no_more_finite_ones_the_logits_are_minus_infinity():
    logits = jnp.full((1, 200), -jnp.inf).at[0, jnp.asarray([7, 150])].set(jnp.asarray([1.0, 2.0]))
    found = top_tokens(logits, 4)
    assert found.tokens[0, :2].tolist() == [150, 7]
    assert found.logits[0].tolist() == [2.0, 1.0, -np.inf, -np.inf]
