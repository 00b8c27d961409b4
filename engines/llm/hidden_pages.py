"""Hidden states of a model's tokens, in pages under the numbers of those of its keys and values.

An EAGLE head is given them. They are shared, copied and freed with the pages of keys and values, so that they
are there for every token whose keys and values are there, whoever computed it: a prefill, a plain step, a
check of proposals, an earlier prompt.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped


class HiddenPages(NamedTuple):
    """Normed hidden states after the last layer. bfloat16 is kept as its bits, as in LayerCache."""

    states: Shaped[Array, "pages page E"]

    @property
    def page_size(self) -> int:
        return self.states.shape[1]

    def write(
        self, pages: Int[Array, " T"], offsets: Int[Array, " T"], hidden: Float[Array, "T E"]
    ) -> "HiddenPages":
        """The pages with one state a token written at (page, offset)."""
        if self.states.dtype == jnp.uint16:
            return HiddenPages(self.states.at[pages, offsets].set(_to_bits(hidden)))
        return HiddenPages(self.states.at[pages, offsets].set(hidden))

    def read(self, pages: Int[Array, " T"], offsets: Int[Array, " T"]) -> Float[Array, "T E"]:
        """The states (float32) at these places."""
        found = self.states[pages, offsets]
        if found.dtype == jnp.uint16:
            found = jax.lax.bitcast_convert_type(found, jnp.bfloat16)
        return found.astype(jnp.float32)

    def copy(self, pages: Int[Array, "2 N"]) -> "HiddenPages":
        """The pages of the first row copied to those of the second."""
        return HiddenPages(self.states.at[pages[1]].set(self.states[pages[0]]))


def make_hidden_pages(hidden_size: int, num_pages: int, page_size: int, dtype: jnp.dtype) -> HiddenPages:
    """Zeroed pages; `dtype` is bfloat16 or float32."""
    storage = jnp.uint16 if dtype == jnp.bfloat16 else dtype
    return HiddenPages(jnp.zeros((num_pages, page_size, hidden_size), storage))


def _to_bits(hidden: Float[Array, "T E"]) -> Shaped[Array, "T E"]:
    return jax.lax.bitcast_convert_type(hidden.astype(jnp.bfloat16), jnp.uint16)
