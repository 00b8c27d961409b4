"""Attention over KV pages: a backend in plain XLA and a native one; accelerator_attention.py has two more.

The one in plain XLA runs everywhere and is the reference of the others. It reads the context in segments of
fixed length with a running softmax, and the number of segments follows the longest row of the call. One
compiled program therefore serves every context length, and a row's result does not depend on how long its
companions are: a segment that is masked in full adds an exact zero.
"""

import logging
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from headrace.engines import native
from headrace.engines.errors import ConfigError
from headrace.engines.llm.accelerator_pages import GpuPages
from headrace.engines.llm.engine_config import EngineConfig
from headrace.engines.llm.kv_cache import Backend, LayerCache, read_scales
from headrace.engines.llm.rope import rotate
from headrace.engines.precision import resolve_dtype

logger = logging.getLogger(__name__)

SEGMENT_TOKENS = 256
"""Context tokens read at a time (measured on a CPU: 64, 128 and 256 within 10 %, fewer steps win)."""
MASKED = -1e30


Rotation = Float[Array, "2 T half"] | None
"""Cosines and sines that turn queries and keys; None: they are not turned."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionRule:
    """How the queries of a layer weigh its keys."""

    scale: float
    """Factor of the scores, before the cap."""
    window: int | None = None
    """Tokens that a query sees, itself included; all before it where None."""
    soft_cap: float | None = None
    """Scores become soft_cap * tanh(score / soft_cap); as they are where None."""


LANES = 16
"""The native kernel takes page sizes that are multiples of this, and head sizes."""
PAIRED_LANES = 32
"""With pages of bfloat16 its head sizes are multiples of this."""
BYTE_LANES = 64
"""With pages of int8 its head sizes are multiples of this."""


def choose_backend(config: EngineConfig, head_dim: int) -> Backend:
    """The backend for a model: the wanted one, or the fastest that can run it where that is `auto`.

    Raises:
      ConfigError: one is wanted where it cannot run.
    """
    wanted, page_size = config.attention_backend, config.cache.page_size
    if config.parallel.num_devices > 1:
        if wanted not in ("auto", "xla"):
            raise ConfigError(
                f"the {wanted} attention runs on one device, and the model is spread over "
                f"{config.parallel.num_devices}: use attention_backend auto or xla"
            )
        return "xla"
    if wanted in ("pallas-gpu", "pallas-tpu"):
        return _checked_pallas(wanted, config, head_dim)
    step = _head_step(config)
    is_fit = head_dim % step == 0 and page_size % LANES == 0
    if wanted == "xla" or (wanted == "auto" and not (is_fit and native.is_available())):
        return "xla"
    if not is_fit:
        raise ConfigError(
            f"the native attention takes head sizes that are multiples of {step} and page sizes of {LANES}: "
            f"head size is {head_dim}, page size {page_size}"
        )
    if not native.is_available():
        raise ConfigError("the native attention is not built here, or the device is no CPU: use auto or xla")
    return "native"


def _head_step(config: EngineConfig) -> int:
    """What the head sizes of the native kernel are multiples of."""
    if config.cache.kv_cache_dtype == "int8":
        return BYTE_LANES
    return LANES if resolve_dtype(config.dtype) == jnp.float32 else PAIRED_LANES


def _checked_pallas(wanted: Backend, config: EngineConfig, head_dim: int) -> Backend:
    """The same, if it can run.

    Raises:
      ConfigError: it cannot.
    """
    platform, page_size = jax.default_backend(), config.cache.page_size
    if config.cache.kv_cache_dtype == "int8":
        raise ConfigError(f"{wanted} reads no int8 pages: use attention_backend xla")
    if wanted == "pallas-tpu" and platform != "tpu":
        raise ConfigError(f"pallas-tpu runs on TPUs, the device is a {platform}: use attention_backend auto")
    if wanted == "pallas-gpu" and platform not in ("gpu", "cpu"):
        raise ConfigError(f"pallas-gpu runs on GPUs, the device is a {platform}: use attention_backend auto")
    if wanted == "pallas-gpu" and (head_dim & (head_dim - 1) or min(head_dim, page_size) < LANES):
        raise ConfigError(
            f"pallas-gpu takes head sizes that are powers of two from {LANES} and page sizes from {LANES}: "
            f"head size is {head_dim}, page size {page_size}; use attention_backend xla"
        )
    if platform == "cpu":
        logger.warning("the attention for GPUs runs in interpret mode on this CPU: right, and very slow")
    return wanted


class Projected(NamedTuple):
    """What a layer's projection gives: queries and keys are still to be normed and turned."""

    qkv: Float[Array, "T heads D"]  # float32: queries, then keys, then values
    rotation: Rotation
    norms: Float[Array, "2 D"] | None  # scales of the RMS norms of queries and of keys
    norm_eps: float
    num_kv_heads: int
    dtype: jnp.dtype  # of queries, keys and values where they meet
    num_shards: int = 1  # the heads lie shard by shard: of each its queries, keys and values

    def split(self) -> tuple[Float[Array, "T H D"], Float[Array, "T K D"], Float[Array, "T K D"]]:
        """Queries, keys and values as they enter the attention."""
        num_tokens, num_heads, head_dim = self.qkv.shape
        by_shard = self.qkv.reshape(num_tokens, self.num_shards, num_heads // self.num_shards, head_dim)
        num_keys = self.num_kv_heads // self.num_shards
        num_queries = by_shard.shape[2] - 2 * num_keys
        queries, keys, values = (
            heads.reshape(num_tokens, -1, head_dim)
            for heads in jnp.split(by_shard, (num_queries, num_queries + num_keys), axis=2)
        )
        if self.norms is not None:
            queries, keys = (
                _rms_norm(heads, scale, self.norm_eps)
                for heads, scale in zip((queries, keys), self.norms, strict=True)
            )
        if self.rotation is not None:
            queries, keys = rotate(queries, self.rotation), rotate(keys, self.rotation)
        return queries.astype(self.dtype), keys.astype(self.dtype), values.astype(self.dtype)


class TokenRows(NamedTuple):
    """Which row each token belongs to, and where in it; tokens of one row lie together, positions rising."""

    page_table: Int[Array, "R P"]
    token_row: Int[Array, " T"]
    positions: Int[Array, " T"]  # -1: padding


FIRST_PAGES = 3
"""The place of the keys among the kernel's arguments; after them lie the values and the scales of both."""
NO_SCALES = (np.zeros((0, 0, 0), np.float32),) * 2


def write_and_attend(
    projected: Projected,
    cache: LayerCache,
    rows: TokenRows,
    rule: AttentionRule,
    level: int = native.BEST_LEVEL,
) -> tuple[Float[Array, "T H D"], LayerCache]:
    """The native backend: keys and values go into the pages, then each token attends over its row.

    Norms, rotation, the writes and the attention are one call. Padding writes nothing and gives zeros. Pages
    of bfloat16 and int8 lie in the kernel's own orders (paged_attention.cc), which nothing else reads.
    """
    num_tokens, num_heads, head_dim = projected.qkv.shape
    mixed = (num_tokens, num_heads - 2 * projected.num_kv_heads, head_dim)
    scales = [each for each in cache[2:] if each is not None]
    stored = [cache.keys, cache.values, *(scales or NO_SCALES)]
    results = [jax.ShapeDtypeStruct(mixed, projected.dtype)]
    results += [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in stored]
    written = range(2 + len(scales))
    aliases = {FIRST_PAGES + place: 1 + place for place in written}
    call = jax.ffi.ffi_call(native.PAGED_ATTENTION, results, input_output_aliases=aliases)
    mixed, *pages = call(
        projected.qkv,
        native.NOTHING if projected.rotation is None else projected.rotation,
        native.NOTHING if projected.norms is None else projected.norms,
        *stored,
        *rows,
        scale=np.float32(rule.scale),
        window=np.int64(rule.window or 0),
        soft_cap=np.float32(rule.soft_cap or 0.0),
        epsilon=np.float32(projected.norm_eps),
        level=np.int64(level),
    )
    return mixed, LayerCache(*(pages[place] for place in written))


def _rms_norm(heads: Float[Array, "T N D"], scale: Float[Array, " D"], eps: float) -> Float[Array, "T N D"]:
    mean_square = jnp.mean(jnp.square(heads), axis=-1, keepdims=True)
    return heads * jax.lax.rsqrt(mean_square + eps) * scale[None, None, :]


def attend_pages(
    queries: Float[Array, "N C H D"],
    cache: LayerCache | GpuPages,
    page_table: Int[Array, "N P"],
    positions: Int[Array, "N C"],
    rule: AttentionRule,
) -> Float[Array, "N C H D"]:
    """Causal attention of N blocks of C query tokens, each block over the pages of its own row.

    `page_table` holds the row's pages in order of position; P times the page size is a multiple of the
    segment length. `positions` are those of the queries in their rows, rising within a block but for
    padding, which is at -1 and gives zeros. The keys and values of the queries themselves must be in the
    cache already. Returns float32.
    """
    num_blocks, block_len, num_heads, head_dim = queries.shape
    num_kv_heads, segment_pages = cache.num_kv_heads, SEGMENT_TOKENS // cache.page_size
    key_scales, value_scales = (
        (cache.key_scales, cache.value_scales) if isinstance(cache, LayerCache) else (None,) * 2
    )
    group = num_heads // num_kv_heads
    # [N, C, K*G, D] -> [N, K, G*C, D]: the queries of one kv head side by side.
    grouped = queries.reshape(num_blocks, block_len, num_kv_heads, group, head_dim).transpose(0, 2, 3, 1, 4)
    grouped = grouped.reshape(num_blocks, num_kv_heads, group * block_len, head_dim)
    row_positions = jnp.tile(positions, (1, group))

    def segment_of(index: Int[Array, ""]) -> Int[Array, "N pages"]:
        return jax.lax.dynamic_slice_in_dim(page_table, index * segment_pages, segment_pages, axis=1)

    # Of int8 the numbers enter the products, and the scales their results.
    def add_segment(index, carry):
        peak, total, weighted = carry
        keys = cache.read_keys(segment_of(index))
        keys = keys if key_scales is None else keys.astype(queries.dtype)
        scores = jnp.einsum("nkqd,nkds->nkqs", grouped, keys, preferred_element_type=jnp.float32)
        if key_scales is not None:
            scores = scores * read_scales(key_scales, segment_of(index))[:, :, None]
        context = index * SEGMENT_TOKENS + jnp.arange(SEGMENT_TOKENS, dtype=jnp.int32)
        distance = row_positions[:, :, None] - context[None, None, :]
        visible = distance >= 0 if rule.window is None else (distance >= 0) & (distance < rule.window)
        visible = visible[:, None]
        scores = scores * rule.scale
        if rule.soft_cap is not None:
            scores = rule.soft_cap * jnp.tanh(scores / rule.soft_cap)
        scores = jnp.where(visible, scores, MASKED)
        new_peak = jnp.maximum(peak, jnp.max(scores, axis=-1))
        weights = jnp.where(visible, jnp.exp(scores - new_peak[..., None]), 0.0)
        decay = jnp.exp(peak - new_peak)
        values, mixing = cache.read_values(segment_of(index)), weights
        if value_scales is not None:
            values = values.astype(queries.dtype)
            mixing = weights * read_scales(value_scales, segment_of(index))[:, :, None]
        added = jnp.einsum(
            "nkqs,nksd->nkqd", mixing.astype(values.dtype), values, preferred_element_type=jnp.float32
        )
        return (
            new_peak,
            total * decay + jnp.sum(weights, axis=-1),
            weighted * decay[..., None] + added,
        )

    num_segments = jnp.max(positions) // SEGMENT_TOKENS + 1
    shape = grouped.shape[:3]
    start = (
        jnp.full(shape, MASKED, jnp.float32),
        jnp.zeros(shape, jnp.float32),
        jnp.zeros((*shape, head_dim), jnp.float32),
    )
    _, total, weighted = jax.lax.fori_loop(_first_segment(positions, rule), num_segments, add_segment, start)
    mixed = weighted / jnp.maximum(total, jnp.finfo(jnp.float32).tiny)[..., None]
    mixed = mixed.reshape(num_blocks, num_kv_heads, group, block_len, head_dim).transpose(0, 3, 1, 2, 4)
    return mixed.reshape(num_blocks, block_len, num_heads, head_dim)


def _first_segment(positions: Int[Array, "N C"], rule: AttentionRule) -> Int[Array, ""]:
    """The first segment that any query sees."""
    if rule.window is None:
        return jnp.int32(0)
    lowest = jnp.min(jnp.where(positions < 0, jnp.iinfo(jnp.int32).max, positions))
    return jnp.maximum(lowest - rule.window + 1, 0) // SEGMENT_TOKENS
