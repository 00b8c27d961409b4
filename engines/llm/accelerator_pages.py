"""KV pages as the Pallas kernels for GPUs and TPUs read them: how they are shaped, written and copied."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from headrace.engines.llm.config import ModelConfig

LANES = 128
"""Numbers of a vector register of a TPU: its pages hold heads that are padded to a multiple."""
SUBLANES = 8


class GpuPages(NamedTuple):
    """KV pages of one layer for GPUs: the tokens of a head's page lie one after another."""

    keys: Float[Array, "K pages page D"]
    values: Float[Array, "K pages page D"]

    @classmethod
    def shapes(cls, model: ModelConfig, num_pages: int, page_size: int, dtype: jnp.dtype) -> "GpuPages":
        """Shapes of one layer's pages."""
        shape: Any = jax.ShapeDtypeStruct((model.num_kv_heads, num_pages, page_size, model.head_dim), dtype)
        return cls(shape, shape)

    @property
    def num_kv_heads(self) -> int:
        return self.keys.shape[0]

    @property
    def page_size(self) -> int:
        return self.keys.shape[2]

    def write(
        self,
        keys: Float[Array, "T K D"],
        values: Float[Array, "T K D"],
        pages: Int[Array, " T"],
        offsets: Int[Array, " T"],
    ) -> "GpuPages":
        """With one key and one value a token at (page, offset)."""
        keys, values = (each.astype(self.keys.dtype).transpose(1, 0, 2) for each in (keys, values))
        return GpuPages(
            self.keys.at[:, pages, offsets].set(keys), self.values.at[:, pages, offsets].set(values)
        )

    def copy(self, pages: Int[Array, "2 N"]) -> "GpuPages":
        """With the pages of the first row copied to those of the second."""
        source, target = pages
        return GpuPages(*(stored.at[:, target].set(stored[:, source]) for stored in self))

    def read_keys(self, chosen: Int[Array, "N P"]) -> Float[Array, "N K D S"]:
        """Keys of chosen pages of each row, their tokens side by side."""
        return _rows_of(self.keys, chosen).swapaxes(2, 3)

    def read_values(self, chosen: Int[Array, "N P"]) -> Float[Array, "N K S D"]:
        """Values of chosen pages of each row."""
        return _rows_of(self.values, chosen)


class TpuPages(NamedTuple):
    """KV pages of one layer for TPUs: a token's keys and values by turns, padded to whole tiles.

    Head 0's key, head 0's value, head 1's key and so on. What is added as padding stays zero.
    """

    pairs: Float[Array, "pages page KV lanes"]

    @classmethod
    def shapes(cls, model: ModelConfig, num_pages: int, page_size: int, dtype: jnp.dtype) -> "TpuPages":
        """Shapes of one layer's pages."""
        heads, lanes = padded_heads(model.num_kv_heads, dtype), -(-model.head_dim // LANES) * LANES
        shape: Any = jax.ShapeDtypeStruct((num_pages, page_size, 2 * heads, lanes), dtype)
        return cls(shape)

    @property
    def page_size(self) -> int:
        return self.pairs.shape[1]

    def write(
        self,
        keys: Float[Array, "T K D"],
        values: Float[Array, "T K D"],
        pages: Int[Array, " T"],
        offsets: Int[Array, " T"],
    ) -> "TpuPages":
        """With one key and one value a token at (page, offset)."""
        num_tokens, num_heads, head_dim = keys.shape
        pairs = jnp.stack([keys, values], axis=2).reshape(num_tokens, 2 * num_heads, head_dim)
        return TpuPages(
            self.pairs.at[pages, offsets].set(pad_to(pairs, self.pairs.shape[2:], self.pairs.dtype))
        )

    def copy(self, pages: Int[Array, "2 N"]) -> "TpuPages":
        """With the pages of the first row copied to those of the second."""
        return TpuPages(self.pairs.at[pages[1]].set(self.pairs[pages[0]]))


def padded_heads(num_kv_heads: int, dtype: jnp.dtype) -> int:
    """Key heads of a TPU's pages: keys and values together have to fill whole tiles of 32-bit words.

    e.g. 3 heads -> 4 in float32 (8 keys and values) and in bfloat16 (4 words); 5 -> 8 in bfloat16
    """
    packing = 4 // dtype.itemsize
    count = num_kv_heads
    while 2 * count % packing or not (
        2 * count // packing in (1, 2, 4, SUBLANES) or 2 * count // packing % SUBLANES == 0
    ):
        count += 1
    return count


def pad_to(rows: Shaped[Array, "T N D"], sizes: tuple[int, ...], dtype: jnp.dtype) -> Shaped[Array, "T M L"]:
    """Heads and lanes filled up with zeros."""
    widths = [(0, wanted - had) for wanted, had in zip(sizes, rows.shape[1:], strict=True)]
    return jnp.pad(rows.astype(dtype), [(0, 0), *widths])


def _rows_of(pages: Float[Array, "K pages page D"], chosen: Int[Array, "N P"]) -> Float[Array, "N K S D"]:
    found = pages[:, chosen]
    num_heads, num_rows, count, page_size, head_dim = found.shape
    return found.swapaxes(0, 1).reshape(num_rows, num_heads, count * page_size, head_dim)
