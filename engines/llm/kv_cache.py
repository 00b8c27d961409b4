"""KV pages on the device: how they are shaped, made and sized."""

import os
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jaxtyping import Array, Float, Int, Int8, Shaped

from headrace.engines import native
from headrace.engines.errors import ConfigError
from headrace.engines.llm.accelerator_pages import GpuPages, TpuPages
from headrace.engines.llm.config import ModelConfig
from headrace.engines.llm.engine_config import CacheConfig, EngineConfig
from headrace.engines.llm.hidden_pages import HiddenPages
from headrace.engines.llm.partition import largest_part
from headrace.engines.mesh import ParallelConfig, chosen_devices

NULL_PAGE = 0
"""Page that padding writes to and that no row owns."""
TYPICAL_ROW_TOKENS = 512
"""Tokens a row for which the pool is sized where the configuration names no number of pages."""


Backend = Literal["xla", "native", "pallas-gpu", "pallas-tpu"]
"""What attends; each has its own layout of the pages."""

INT8_MAX = 127
SCALE_BYTES = 4


class LayerCache(NamedTuple):
    """KV pages of one layer. Keys lie with their tokens side by side, so that scores come out as vectors.

    bfloat16 is kept as its bit patterns in uint16: on a CPU, XLA turns a bfloat16 scatter into a float32
    one, and so would convert all pages there and back at every write. int8 has a scale for each head of each
    token: 127 stands for the largest of its numbers. The native backend keeps both in orders of its own
    (paged_attention.cc).
    """

    keys: Shaped[Array, "pages K D page"]
    values: Shaped[Array, "pages K page D"]
    key_scales: Float[Array, "pages K page"] | None = None
    value_scales: Float[Array, "pages K page"] | None = None

    @property
    def num_kv_heads(self) -> int:
        return self.values.shape[1]

    @property
    def page_size(self) -> int:
        return self.values.shape[2]

    def read_keys(self, chosen: Int[Array, "N P"]) -> Shaped[Array, "N K D S"]:
        """Keys of chosen pages of each row, their tokens side by side; of int8 without their scales."""
        found = _from_storage(self.keys[chosen]).transpose(0, 2, 3, 1, 4)
        return found.reshape(*found.shape[:3], -1)

    def read_values(self, chosen: Int[Array, "N P"]) -> Shaped[Array, "N K S D"]:
        """Values of chosen pages of each row, likewise."""
        found = _from_storage(self.values[chosen]).transpose(0, 2, 1, 3, 4)
        return found.reshape(*found.shape[:2], -1, found.shape[-1])


LayerPages = LayerCache | GpuPages | TpuPages
"""KV pages of one layer in the layout of a backend."""
KVCache = tuple[LayerPages | HiddenPages, ...]
"""KV pages of all layers, and after them those of hidden states where an EAGLE head reads them."""


def make_pages(
    model: ModelConfig,
    num_pages: int,
    page_size: int,
    dtype: jnp.dtype,
    backend: Backend,
    sharding: NamedSharding | None = None,
) -> tuple[LayerPages, ...]:
    """Pages of a backend for every layer; `dtype` is bfloat16, float32 or int8."""
    if backend == "native":
        return reserve_cache(model, num_pages, page_size, dtype, sharding)
    return make_cache(model, num_pages, page_size, dtype, backend, sharding)


def make_cache(
    model: ModelConfig,
    num_pages: int,
    page_size: int,
    dtype: jnp.dtype,
    backend: Backend = "xla",
    sharding: NamedSharding | None = None,
) -> tuple[LayerPages, ...]:
    """Zeroed pages for every layer; `dtype` is bfloat16, float32 or int8."""
    shapes = _shapes(model, num_pages, page_size, dtype, backend)
    fill = lambda: jax.tree.map(lambda each: jnp.zeros(each.shape, each.dtype), shapes)  # noqa: E731
    make = jax.jit(fill, out_shardings=sharding)
    return tuple(make() for _ in range(model.num_layers))


def reserve_cache(
    model: ModelConfig,
    num_pages: int,
    page_size: int,
    dtype: jnp.dtype,
    sharding: NamedSharding | None = None,
) -> tuple[LayerPages, ...]:
    """Pages for the native backend: they take memory once they are written, and hold anything until then."""
    shapes = _shapes(model, num_pages, page_size, dtype, "native")

    def reserve(each: jax.ShapeDtypeStruct) -> jax.Array:
        return jax.ffi.ffi_call(native.RESERVE, each, has_side_effect=True)()

    make = jax.jit(lambda: jax.tree.map(reserve, shapes), out_shardings=sharding)
    return tuple(make() for _ in range(model.num_layers))


def _shapes(
    model: ModelConfig, num_pages: int, page_size: int, dtype: jnp.dtype, backend: Backend
) -> LayerPages:
    """Shapes of one layer's pages."""
    if backend == "pallas-gpu":
        return GpuPages.shapes(model, num_pages, page_size, dtype)
    if backend == "pallas-tpu":
        return TpuPages.shapes(model, num_pages, page_size, dtype)
    heads = (num_pages, model.num_kv_heads)
    storage = jnp.uint16 if dtype == jnp.bfloat16 else dtype
    shapes = [((*heads, model.head_dim, page_size), storage), ((*heads, page_size, model.head_dim), storage)]
    if dtype == jnp.int8:
        shapes += [((*heads, page_size), jnp.float32)] * 2
    pages: Any = [jax.ShapeDtypeStruct(*each) for each in shapes]
    return LayerCache(*pages)


def write_pages(
    cache: LayerPages,
    keys: Float[Array, "T K D"],
    values: Float[Array, "T K D"],
    pages: Int[Array, " T"],
    offsets: Int[Array, " T"],
) -> LayerPages:
    """The cache with one key and one value a token written at (page, offset)."""
    if not isinstance(cache, LayerCache):
        return cache.write(keys, values, pages, offsets)
    if cache.key_scales is not None and cache.value_scales is not None:
        keys, key_scales = _quantize(keys)
        values, value_scales = _quantize(values)
        return LayerCache(
            cache.keys.at[pages, :, :, offsets].set(keys),
            cache.values.at[pages, :, offsets].set(values),
            cache.key_scales.at[pages, :, offsets].set(key_scales),
            cache.value_scales.at[pages, :, offsets].set(value_scales),
        )
    return LayerCache(
        cache.keys.at[pages, :, :, offsets].set(_to_storage(keys, cache)),
        cache.values.at[pages, :, offsets].set(_to_storage(values, cache)),
    )


def copy_pages(cache: KVCache, pages: Int[Array, "2 N"]) -> KVCache:
    """The cache with the pages of the first row copied to those of the second. Donates cache."""
    return tuple(_copy_layer(layer, pages) for layer in cache)


def _copy_layer(cache: LayerPages | HiddenPages, pages: Int[Array, "2 N"]) -> LayerPages | HiddenPages:
    if not isinstance(cache, LayerCache):
        return cache.copy(pages)
    return jax.tree.map(lambda stored: stored.at[pages[1]].set(stored[pages[0]]), cache)


def _to_storage(values: Float[Array, "T K D"], cache: LayerCache) -> Shaped[Array, "T K D"]:
    if cache.keys.dtype == jnp.uint16:
        return jax.lax.bitcast_convert_type(values.astype(jnp.bfloat16), jnp.uint16)
    return values.astype(cache.keys.dtype)


def _from_storage(bits: Shaped[Array, "N P K A B"]) -> Shaped[Array, "N P K A B"]:
    return jax.lax.bitcast_convert_type(bits, jnp.bfloat16) if bits.dtype == jnp.uint16 else bits


def read_scales(scales: Float[Array, "pages K page"], chosen: Int[Array, "N P"]) -> Float[Array, "N K S"]:
    """Scales of chosen pages of each row, their tokens side by side."""
    found = scales[chosen].transpose(0, 2, 1, 3)
    return found.reshape(*found.shape[:2], -1)


def _quantize(values: Float[Array, "T K D"]) -> tuple[Int8[Array, "T K D"], Float[Array, "T K"]]:
    values = values.astype(jnp.float32)
    scales = jnp.max(jnp.abs(values), axis=-1) / INT8_MAX
    divisors = jnp.where(scales == 0.0, 1.0, scales)
    return jnp.round(values / divisors[..., None]).astype(jnp.int8), scales


def choose_num_pages(
    model: ModelConfig, config: EngineConfig, max_model_len: int, dtype: jnp.dtype, draft_page_bytes: int = 0
) -> int:
    """Pages, the null page included, that fit the memory and are of use.

    `draft_page_bytes` are those of a draft model, which has as many.

    Raises:
      ConfigError: not even one row of max_model_len fits.
    """
    pages_per_row = -(-max_model_len // config.cache.page_size)
    if config.cache.num_pages is not None:
        return config.cache.num_pages
    parallel = config.parallel
    page_bytes = count_page_bytes(largest_part(model, parallel), config.cache, dtype) + draft_page_bytes
    # The devices of a CPU have one memory.
    share = config.cache.hbm_utilization / (parallel.num_devices if jax.default_backend() == "cpu" else 1)
    affordable = int(free_memory_bytes(parallel) * share) // page_bytes
    if affordable <= pages_per_row:
        raise ConfigError(
            f"a row of {max_model_len} tokens needs {pages_per_row * page_bytes >> 20} MiB of KV pages, "
            f"{affordable * page_bytes >> 20} MiB may be used: lower max_model_len "
            "or raise hbm_utilization"
        )
    typical_row = -(-min(max_model_len, TYPICAL_ROW_TOKENS) // config.cache.page_size)
    useful = max(config.scheduler.max_num_seqs * typical_row, pages_per_row)
    return min(useful + 1, max(pages_per_row + 1, _steady(affordable)))


def count_page_bytes(model: ModelConfig, cache: CacheConfig, dtype: jnp.dtype) -> int:
    """Bytes of a page over all layers."""
    head_bytes = model.head_dim * dtype.itemsize
    if cache.kv_cache_dtype == "int8":
        head_bytes = model.head_dim + SCALE_BYTES
    return 2 * model.num_layers * model.num_kv_heads * head_bytes * cache.page_size


def count_draft_page_bytes(
    draft: ModelConfig, cache: CacheConfig, dtype: jnp.dtype, *, keeps_hidden: bool
) -> int:
    """Bytes that a page has more with a draft model, or an EAGLE head, for which hidden states are kept."""
    hidden_bytes = draft.hidden_size * dtype.itemsize * cache.page_size
    return count_page_bytes(draft, cache, dtype) + (hidden_bytes if keeps_hidden else 0)


def _steady(count: int) -> int:
    """Rounded down by at most an eighth: the same from start to start, so that compiled programs fit.

    e.g. 1000 -> 960, 1023 -> 960, 1024 -> 1024
    """
    step = 1 << max(count.bit_length() - 4, 0)
    return count // step * step


def free_memory_bytes(parallel: ParallelConfig | None = None) -> int:
    """Memory that the first device in use can still give: its own, or the host's for a CPU."""
    stats = chosen_devices(parallel or ParallelConfig())[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats["bytes_in_use"]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
