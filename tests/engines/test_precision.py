"""Names of precisions."""

import jax.numpy as jnp
import pytest

from headrace.engines.errors import ConfigError
from headrace.engines.precision import resolve_dtype


@pytest.mark.parametrize(
    ("name", "dtype"), [("auto", jnp.bfloat16), ("bfloat16", jnp.bfloat16), ("float32", jnp.float32)]
)
def test_names_give_their_dtype(name: str, dtype: type):
    assert resolve_dtype(name) == jnp.dtype(dtype)


def test_unknown_precision_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"'float16'.*auto, bfloat16, float32"):
        resolve_dtype("float16")
