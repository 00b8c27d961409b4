"""The one place that turns the name of a precision into a dtype."""

import jax.numpy as jnp
import numpy as np

from headrace.engines.errors import ConfigError

PRECISIONS = ("auto", "bfloat16", "float32")


def resolve_dtype(name: str) -> np.dtype:
    """The dtype of weights and activations that `--dtype` names; `auto` is bfloat16.

    Raises:
      ConfigError: the name is none of PRECISIONS.
    """
    if name not in PRECISIONS:
        raise ConfigError(f"dtype is {name!r}, the engines take {', '.join(PRECISIONS)}")
    return jnp.dtype(jnp.float32 if name == "float32" else jnp.bfloat16)
