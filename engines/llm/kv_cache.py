"""KV pages on the device: how they are shaped, made and sized."""

import os
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from headrace.engines.errors import ConfigError
from headrace.engines.llm.config import ModelConfig
from headrace.engines.llm.engine_config import EngineConfig

NULL_PAGE = 0
"""Page that padding writes to and that no row owns."""
TYPICAL_ROW_TOKENS = 512
"""Tokens a row for which the pool is sized where the configuration names no number of pages."""


class LayerCache(NamedTuple):
    """KV pages of one layer. Keys lie with their tokens side by side, so that scores come out as vectors.

    bfloat16 is kept as its bit patterns in uint16: on a CPU, XLA turns a bfloat16 scatter into a float32
    one, and so would convert all pages there and back at every write.
    """

    keys: Shaped[Array, "pages K D page"]
    values: Shaped[Array, "pages K page D"]


KVCache = tuple[LayerCache, ...]


def make_cache(model: ModelConfig, num_pages: int, page_size: int, dtype: jnp.dtype) -> KVCache:
    """Zeroed pages for every layer."""
    heads = (num_pages, model.num_kv_heads)
    storage = jnp.uint16 if dtype == jnp.bfloat16 else dtype
    make = jax.jit(
        lambda: LayerCache(
            jnp.zeros((*heads, model.head_dim, page_size), storage),
            jnp.zeros((*heads, page_size, model.head_dim), storage),
        )
    )
    return tuple(make() for _ in range(model.num_layers))


def write_pages(
    cache: LayerCache,
    keys: Float[Array, "T K D"],
    values: Float[Array, "T K D"],
    pages: Int[Array, " T"],
    offsets: Int[Array, " T"],
) -> LayerCache:
    """The cache with one key and one value a token written at (page, offset)."""
    return LayerCache(
        cache.keys.at[pages, :, :, offsets].set(_to_storage(keys, cache)),
        cache.values.at[pages, :, offsets].set(_to_storage(values, cache)),
    )


def copy_pages(cache: KVCache, pages: Int[Array, "2 N"]) -> KVCache:
    """The cache with the pages of the first row copied to those of the second. Donates cache."""
    return jax.tree.map(lambda stored: stored.at[pages[1]].set(stored[pages[0]]), cache)


def read_pages(pages: Shaped[Array, "pages K A B"], chosen: Int[Array, "N P"]) -> Float[Array, "N P K A B"]:
    """Chosen pages of each row, as numbers."""
    return _from_storage(pages[chosen])


def _to_storage(values: Float[Array, "T K D"], cache: LayerCache) -> Shaped[Array, "T K D"]:
    if cache.keys.dtype == jnp.uint16:
        return jax.lax.bitcast_convert_type(values.astype(jnp.bfloat16), jnp.uint16)
    return values.astype(cache.keys.dtype)


def _from_storage(bits: Shaped[Array, "N P K A B"]) -> Float[Array, "N P K A B"]:
    return jax.lax.bitcast_convert_type(bits, jnp.bfloat16) if bits.dtype == jnp.uint16 else bits


def choose_num_pages(model: ModelConfig, config: EngineConfig, max_model_len: int, dtype: jnp.dtype) -> int:
    """Pages, the null page included, that fit the memory and are of use.

    Raises:
      ConfigError: not even one row of max_model_len fits.
    """
    pages_per_row = -(-max_model_len // config.cache.page_size)
    if config.cache.num_pages is not None:
        return config.cache.num_pages
    page_bytes = (
        2 * model.num_layers * model.num_kv_heads * model.head_dim * config.cache.page_size * dtype.itemsize
    )
    affordable = int(free_memory_bytes() * config.cache.hbm_utilization) // page_bytes
    if affordable <= pages_per_row:
        raise ConfigError(
            f"a row of {max_model_len} tokens needs {pages_per_row * page_bytes >> 20} MiB of KV pages, "
            f"{affordable * page_bytes >> 20} MiB may be used: lower max_model_len "
            "or raise hbm_utilization"
        )
    typical_row = -(-min(max_model_len, TYPICAL_ROW_TOKENS) // config.cache.page_size)
    useful = max(config.scheduler.max_num_seqs * typical_row, pages_per_row)
    return min(useful + 1, affordable)


def free_memory_bytes() -> int:
    """Memory that the first device can still give: its own, or the host's for a CPU."""
    stats = jax.devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats["bytes_in_use"]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
