"""The attention backends against a dense softmax in float64, and against each other."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from headrace.engines import native
from headrace.engines.errors import ConfigError
from headrace.engines.llm.attend import attend_single
from headrace.engines.llm.attention import (
    SEGMENT_TOKENS,
    AttentionRule,
    Projected,
    TokenRows,
    attend_pages,
    choose_backend,
    write_and_attend,
)
from headrace.engines.llm.engine_config import EngineConfig
from headrace.engines.llm.kv_cache import LayerCache, write_pages

NUM_PAGES = 1700
MAX_LENGTH = 600
needs_native = pytest.mark.skipif(not native.is_available(), reason="the native kernels are not built")
BACKENDS = ["xla", pytest.param("native", marks=needs_native)]

# blocks, query tokens a block, query heads, kv heads, head size, page size
SHAPES = [(6, 1, 9, 3, 64, 16), (4, 32, 4, 2, 16, 16), (3, 7, 8, 1, 128, 32), (3, 5, 8, 2, 80, 64)]
HALVES = [(6, 1, 9, 3, 64, 16), (4, 32, 6, 2, 32, 16), (3, 7, 8, 1, 128, 32), (3, 40, 2, 2, 96, 48)]
BYTES = [(6, 1, 9, 3, 64, 16), (3, 7, 8, 1, 128, 32), (3, 40, 2, 2, 64, 48), (4, 19, 6, 2, 64, 128)]


@functools.lru_cache(maxsize=1)
def make_case(shape, dtype, seed=0):
    """Rows of up to 600 tokens on shuffled pages; block 0 ends in padding, block 1 is nothing else."""
    num_blocks, block_len, num_heads, num_kv, dim, page_size = shape
    rng = np.random.default_rng(seed)
    width = 3 * SEGMENT_TOKENS // page_size
    lengths = rng.integers(block_len, MAX_LENGTH, num_blocks)
    storage = jnp.uint16 if dtype == jnp.bfloat16 else dtype
    table = np.zeros((num_blocks, width), np.int32)
    pages = rng.permutation(np.arange(1, NUM_PAGES))
    keys = rng.normal(size=(num_blocks, width * page_size, num_kv, dim))
    values = rng.normal(size=(num_blocks, width * page_size, num_kv, dim))
    scales = [jnp.zeros((NUM_PAGES, num_kv, page_size), jnp.float32)] * 2 if dtype == jnp.int8 else []
    dtype = jnp.float32 if dtype == jnp.int8 else dtype
    keys, values = (np.asarray(jnp.asarray(x, dtype).astype(jnp.float32)) for x in (keys, values))
    cache = LayerCache(
        jnp.zeros((NUM_PAGES, num_kv, dim, page_size), storage),
        jnp.zeros((NUM_PAGES, num_kv, page_size, dim), storage),
        *scales,
    )
    slots = np.zeros((2, num_blocks, MAX_LENGTH), np.int32)  # pages and offsets; padding goes to page 0
    for block, length in enumerate(lengths):
        count = -(-int(length) // page_size)
        table[block, :count], pages = pages[:count], pages[count:]
        tokens = np.arange(length)
        slots[:, block, :length] = table[block, tokens // page_size], tokens % page_size
    written = (rows[:, :MAX_LENGTH].reshape(-1, num_kv, dim) for rows in (keys, values))
    cache = jax.jit(write_pages)(
        cache, *(jnp.asarray(rows, dtype) for rows in written), *slots.reshape(2, -1)
    )
    positions = (lengths[:, None] - block_len + np.arange(block_len)).astype(np.int32)
    positions[0, block_len // 2 :] = -1
    positions[1] = -1
    queries = rng.normal(size=(num_blocks, block_len, num_heads, dim))
    queries = np.asarray(jnp.asarray(queries, dtype).astype(jnp.float32))
    return queries, keys, values, cache, jnp.asarray(table), jnp.asarray(positions)


@functools.partial(jax.jit, static_argnums=(4, 5))
def attend(queries, cache, table, positions, rule, backend):
    """The attention that is tested, as one program."""
    if backend == "xla":
        return attend_pages(queries, cache, table, positions, rule)
    return attend_natively(queries, cache, table, positions, rule)


def attend_natively(queries, cache, table, positions, rule, level=native.BEST_LEVEL, is_int8=False):
    """All keys and values go through the kernel into pages of its own, of int8 or like those of `cache`."""
    num_blocks, block_len, num_heads, dim = queries.shape
    num_kv, page_size = cache.keys.shape[1], cache.values.shape[2]
    is_halves = cache.keys.dtype == jnp.uint16
    keys, values = cache.keys[table].transpose(0, 1, 4, 2, 3), cache.values[table].transpose(0, 1, 3, 2, 4)
    if is_halves:
        keys, values = (jax.lax.bitcast_convert_type(each, jnp.bfloat16) for each in (keys, values))
    length = table.shape[1] * page_size
    parts = [part.reshape(num_blocks * length, num_kv, dim).astype(jnp.float32) for part in (keys, values)]
    empty = LayerCache(jnp.zeros_like(cache.keys), jnp.zeros_like(cache.values))
    if is_int8:
        # No token that was not written may count, whatever the scale that stands there.
        unwritten = jnp.full((NUM_PAGES, num_kv, page_size), jnp.nan)
        empty = LayerCache(*(each.astype(jnp.int8) for each in empty[:2]), unwritten, unwritten)
    is_there = jnp.max(positions, axis=1, keepdims=True) >= jnp.arange(length, dtype=jnp.int32)[None]
    every = jnp.where(is_there, jnp.arange(length, dtype=jnp.int32)[None], -1).reshape(-1)
    dtype = jnp.dtype(jnp.float32)

    def project(queries, *kv):
        qkv = jnp.concatenate([queries.astype(jnp.float32), *kv], axis=1)
        return Projected(qkv, None, None, 0.0, num_kv, dtype)

    def rows(count, positions):
        return TokenRows(table, jnp.repeat(jnp.arange(num_blocks, dtype=jnp.int32), count), positions)

    ones = jnp.ones((num_blocks * length, num_heads, dim))
    _, filled = write_and_attend(project(ones, *parts), empty, rows(length, every), rule, level)
    places = jnp.maximum(positions, 0) + jnp.arange(num_blocks, dtype=jnp.int32)[:, None] * length
    own = (part[places.reshape(-1)] for part in parts)
    projected = project(queries.reshape(-1, num_heads, dim), *own)
    mixed, _ = write_and_attend(projected, filled, rows(block_len, positions.reshape(-1)), rule, level)
    return mixed.reshape(queries.shape)


def rule_of(queries):
    return AttentionRule(scale=queries.shape[-1] ** -0.5)


def dense_attention(queries, keys, values, positions, window=None, soft_cap=None):
    num_blocks, block_len, num_heads, dim = queries.shape
    group = num_heads // keys.shape[2]
    result = np.zeros(queries.shape)
    for block in range(num_blocks):
        for token in range(block_len):
            length = int(positions[block, token]) + 1
            for head in range(num_heads):
                start = max(length - window, 0) if window else 0
                k = keys[block, start:length, head // group].astype(np.float64)
                scores = k @ queries[block, token, head] / np.sqrt(dim)
                scores = soft_cap * np.tanh(scores / soft_cap) if soft_cap else scores
                if length:
                    weights = np.exp(scores - scores.max())
                    result[block, token, head] = weights @ values[block, start:length, head // group]
                    result[block, token, head] /= weights.sum()
    return result


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_float32_attention_equals_a_dense_softmax(shape, backend):
    queries, keys, values, cache, table, positions = make_case(shape, jnp.float32)
    mixed = attend(jnp.asarray(queries), cache, table, positions, rule_of(queries), backend)
    np.testing.assert_allclose(mixed, dense_attention(queries, keys, values, positions), atol=3e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [HALVES[0], HALVES[1]], ids=str)
def test_bfloat16_pages_are_read_as_they_were_written(shape, backend):
    queries, keys, values, cache, table, positions = make_case(shape, jnp.bfloat16)
    mixed = attend(jnp.asarray(queries, jnp.bfloat16), cache, table, positions, rule_of(queries), backend)
    # The weights are rounded to bfloat16 (8 bits) before the second product.
    np.testing.assert_allclose(mixed, dense_attention(queries, keys, values, positions), atol=2e-2)


@needs_native
@pytest.mark.parametrize("level", range(native.BEST_LEVEL + 1))
@pytest.mark.parametrize("shape", HALVES, ids=str)
def test_every_instruction_set_reads_bfloat16_pages(level, shape):
    queries, keys, values, cache, table, positions = make_case(shape, jnp.bfloat16)
    rule = AttentionRule(scale=queries.shape[-1] ** -0.5, window=100, soft_cap=20.0)
    run = jax.jit(attend_natively, static_argnums=(4, 5))
    mixed = run(jnp.asarray(queries, jnp.bfloat16), cache, table, positions, rule, level)
    expected = dense_attention(queries, keys, values, positions, window=100, soft_cap=20.0)
    np.testing.assert_allclose(mixed, expected, atol=2e-2)


def rounded(values: np.ndarray) -> np.ndarray:
    """Each head of each token as 127 steps up to its largest number."""
    steps = np.abs(values).max(-1, keepdims=True) / np.float32(127)
    return np.round(values / steps) * steps


def turned(dim: int) -> np.ndarray:
    """The Hadamard matrix of 64 along the diagonal: its own inverse."""
    return np.kron(np.eye(dim // 64), scipy.linalg.hadamard(64) / 8)


@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_int8_pages_are_read_as_they_were_rounded(shape):
    queries, keys, values, cache, table, positions = make_case(shape, jnp.int8)
    mixed = attend(jnp.asarray(queries), cache, table, positions, rule_of(queries), "xla")
    expected = dense_attention(queries, rounded(keys), rounded(values), positions)
    # A number between two steps may be rounded to either: of 300 tokens, that moves a mean by 1e-4.
    np.testing.assert_allclose(mixed, expected, atol=5e-4)
    assert np.abs(mixed - expected).mean() < 1e-5
    assert np.abs(mixed - dense_attention(queries, keys, values, positions)).max() < 0.03


@needs_native
@pytest.mark.parametrize("level", range(native.BEST_LEVEL + 1))
@pytest.mark.parametrize("shape", BYTES, ids=str)
def test_every_instruction_set_reads_int8_pages_alike(level, shape):
    queries, keys, values, cache, table, positions = make_case(shape, jnp.float32)
    rule = AttentionRule(scale=queries.shape[-1] ** -0.5, window=400, soft_cap=20.0)
    run = jax.jit(attend_natively, static_argnums=(4, 5, 6))
    mixed = run(jnp.asarray(queries), cache, table, positions, rule, level, True)
    turn = turned(queries.shape[-1])
    keys, values = (rounded(each @ turn) @ turn for each in (keys, values))
    expected = dense_attention(queries, keys, values, positions, window=400, soft_cap=20.0)
    # As above; queries and weights have 16 bits.
    np.testing.assert_allclose(mixed, expected, atol=1e-3)
    assert np.abs(mixed - expected).mean() < 3e-5


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("window", "soft_cap"), [(1, None), (20, None), (300, 5.0), (None, 2.0)])
def test_windows_and_soft_caps_equal_those_of_a_dense_softmax(window, soft_cap, backend):
    queries, keys, values, cache, table, positions = make_case(SHAPES[1], jnp.float32)
    rule = AttentionRule(scale=queries.shape[-1] ** -0.5, window=window, soft_cap=soft_cap)
    mixed = attend(jnp.asarray(queries), cache, table, positions, rule, backend)
    expected = dense_attention(queries, keys, values, positions, window, soft_cap)
    np.testing.assert_allclose(mixed, expected, atol=3e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_block_gives_the_same_bits_whatever_its_companions(backend):
    queries, _, _, cache, table, positions = make_case((6, 4, 4, 2, 16, 16), jnp.float32)
    order = jnp.asarray([5, 3, 0, 1, 4, 2])
    mixed = attend(jnp.asarray(queries), cache, table, positions, rule_of(queries), backend)
    shuffled = attend(
        jnp.asarray(queries)[order], cache, table[order], positions[order], rule_of(queries), backend
    )
    assert (np.asarray(mixed)[np.asarray(order)] == np.asarray(shuffled)).all()


@needs_native
def test_the_native_kernel_runs_inside_loops_and_on_many_threads():
    queries, keys, values, cache, table, positions = make_case((40, 3, 4, 2, 16, 16), jnp.float32)
    expected = dense_attention(queries, keys, values, positions)

    @jax.jit
    def run(queries):
        def step(_, total):
            return total + attend_natively(queries, cache, table, positions, rule_of(queries))

        return jax.lax.fori_loop(0, 50, step, jnp.zeros(queries.shape, jnp.float32))

    np.testing.assert_allclose(run(jnp.asarray(queries)) / 50, expected, atol=5e-6)


@needs_native
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("half", [0, 8, 32])
@pytest.mark.parametrize("has_norms", [False, True])
def test_the_kernel_norms_turns_and_writes_as_plain_xla_does(dtype, half, has_norms):
    _, _, _, cache, table, positions = make_case((5, 1, 4, 2, 64, 16), dtype)
    positions = jnp.where(positions < 0, -1, 0)  # each sees what it writes itself
    rng = np.random.default_rng(1)
    projected = Projected(
        qkv=jnp.asarray(rng.normal(size=(5, 8, 64)), jnp.float32),
        rotation=jnp.asarray(rng.normal(size=(2, 5, half)), jnp.float32) if half else None,
        norms=jnp.asarray(rng.normal(size=(2, 64)), jnp.float32) if has_norms else None,
        norm_eps=1e-6,
        num_kv_heads=2,
        dtype=jnp.dtype(dtype),
    )

    def run(backend):
        return jax.jit(
            lambda cache: attend_single(
                backend, table, positions[:, 0], projected, cache, AttentionRule(scale=0.1)
            )
        )(cache)

    (native_mixed, native_cache), (plain_mixed, plain_cache) = run("native"), run("xla")
    tolerance = {"atol": 3e-5} if dtype == jnp.float32 else {"atol": 0.05}
    np.testing.assert_allclose(native_mixed.astype(jnp.float32), plain_mixed, **tolerance)
    if dtype == jnp.float32:  # bfloat16 pages lie in the kernel's own order
        for native_pages, plain_pages in zip(native_cache[:2], plain_cache[:2], strict=True):
            # Plain XLA writes padding to the null page, the kernel nowhere.
            np.testing.assert_allclose(native_pages[1:], plain_pages[1:], rtol=1e-5, atol=1e-5)


def test_a_backend_that_cannot_run_is_refused_and_auto_finds_another():
    def choose(backend, head_dim, **options):
        return choose_backend(EngineConfig.of(attention_backend=backend, **options), head_dim)

    assert choose("auto", 12) == "xla"
    assert choose("xla", 64) == "xla"
    assert choose("auto", 96, kv_cache_dtype="int8") == "xla"
    assert choose("auto", 48) == "xla"
    with pytest.raises(ConfigError, match="multiples of 32"):
        choose("native", 48)
    with pytest.raises(ConfigError, match="multiples of 16"):
        choose("native", 12, dtype="float32")
    with pytest.raises(ConfigError, match="multiples of 64"):
        choose("native", 96, kv_cache_dtype="int8")


@needs_native
def test_the_native_kernel_is_chosen_for_int8_pages():
    assert choose_backend(EngineConfig.of(kv_cache_dtype="int8"), 64) == "native"


@needs_native
def test_half_the_head_size_will_do_in_float32():
    config = EngineConfig.of(attention_backend="native", dtype="float32")
    assert choose_backend(config, 48) == "native"
