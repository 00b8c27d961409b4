"""The Pallas kernels of GPUs and TPUs against plain XLA, on a CPU, and lowered for their devices.

The kernel for GPUs runs in Pallas' interpret mode as it is. Of the one for TPUs, the interpreters of jax
0.10.2 know two steps not: the reshape of a buffer that is read in parts (`ReshapeTransform` has no
`indices`), and masked stores into a part of an array ("Out-of-bounds masked swap"; with `interpret=True`,
`TypedInt` has no `shape`). `interpretable_steps` writes those two in other words, for this file alone.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import kernel as tpu_kernel
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from headrace.engines.errors import ConfigError
from headrace.engines.llm import LLM
from headrace.engines.llm.accelerator_attention import attend_ragged, attend_singles, even_spans
from headrace.engines.llm.accelerator_pages import GpuPages, padded_heads
from headrace.engines.llm.attend import attend_blocks, attend_even, attend_single
from headrace.engines.llm.attention import AttentionRule, Projected, attend_pages, choose_backend
from headrace.engines.llm.batch import PackedPrefill, PrefillBatch, max_blocks, pack_prefill, unpack_prefill
from headrace.engines.llm.engine_config import EngineConfig
from headrace.engines.llm.families import read_model_config
from headrace.engines.llm.kv_cache import copy_pages, make_cache
from headrace.engines.llm.request import LLMRequest, Sequence
from headrace.engines.llm.sampling_params import SamplingParams
from tests.engines.llm.conftest import FLOAT32, open_golden, tiny_config

BFLOAT16 = jnp.dtype(jnp.bfloat16)
HEADS, KV_HEADS, HEAD_DIM = 6, 3, 16
PAGE_SIZE, NUM_PAGES = 32, 24
LENGTHS = (40, 3, 70)
SIZES = PackedPrefill(4, 128, max_blocks(128, 4), 256 // PAGE_SIZE)
RULE = AttentionRule(scale=0.3)


def model_of(num_kv_heads=KV_HEADS, head_dim=HEAD_DIM):
    config = read_model_config(open_golden("gqa").config)
    return dataclasses.replace(
        config, num_heads=3 * num_kv_heads, num_kv_heads=num_kv_heads, head_dim=head_dim
    )


def projected_of(num_tokens, seed, dtype=FLOAT32):
    qkv = np.random.default_rng(seed).normal(size=(num_tokens, HEADS + 2 * KV_HEADS, HEAD_DIM))
    return Projected(jnp.asarray(qkv, jnp.float32), None, None, 0.0, KV_HEADS, dtype)


def prefilled(backend, rule):
    """Three rows of prompts that were attended to, on shuffled pages; also their tables and the pages."""
    pages = iter(np.random.default_rng(0).permutation(np.arange(1, NUM_PAGES)).tolist())
    sequences = []
    for index, length in enumerate(LENGTHS):
        prompt = tuple(range(length))
        request = LLMRequest(
            request_id=str(index), prompt_token_ids=prompt, params=SamplingParams(), seed=0, submit_time_s=0.0
        )
        own = [next(pages) for _ in range(-(-length // PAGE_SIZE) + 1)]
        sequences.append(Sequence(request=request, tokens=list(prompt), max_total=200, pages=own))
    batch = PrefillBatch(sequences, list(LENGTHS), [True] * 3)
    rows, chunks = unpack_prefill(jnp.asarray(pack_prefill(batch, [()] * 3, SIZES, 0)), SIZES)
    cache = make_cache(model_of(), NUM_PAGES, PAGE_SIZE, FLOAT32, backend)[0]
    run = jax.jit(lambda cache: attend_blocks(backend, rows, chunks, projected_of(128, 1), cache, rule))
    mixed, cache = run(cache)
    return np.asarray(mixed)[: sum(LENGTHS)], rows.page_table, cache


def attended(backend, rule):
    """What prompts, then one token a row, then three tokens a row attend to; padding at several places."""
    prompts, table, cache = prefilled(backend, rule)
    single = jnp.asarray([LENGTHS[0], -1, LENGTHS[2], -1], jnp.int32)
    one, cache = jax.jit(partial(attend_single, backend, table, single, projected_of(4, 2), rule=rule))(
        cache=cache
    )
    several = jnp.asarray([[41, 42, -1], [3, 4, 5], [-1] * 3, [-1] * 3], jnp.int32)
    three, _ = jax.jit(partial(attend_even, backend, table, several, projected_of(12, 3), rule=rule))(
        cache=cache
    )
    return prompts, np.asarray(one), np.asarray(three)


def test_the_gpu_kernel_reads_pages_as_plain_xla_does():
    rng = np.random.default_rng(0)
    pages = rng.normal(size=(2, KV_HEADS, NUM_PAGES, PAGE_SIZE, HEAD_DIM))
    cache = GpuPages(*jnp.asarray(pages, jnp.float32))
    queries = jnp.asarray(rng.normal(size=(4, HEADS, HEAD_DIM)), jnp.float32)
    table = jnp.asarray(rng.permutation(np.arange(1, NUM_PAGES))[:16].reshape(2, 8), jnp.int32)
    table = jnp.concatenate([table, table])
    positions = jnp.asarray([200, -1, 31, 0], jnp.int32)
    rule = AttentionRule(scale=0.3, soft_cap=2.0)
    mixed = attend_singles(queries, cache, table, positions, rule, interpret=True)
    expected = attend_pages(queries[:, None], cache, table, positions[:, None], rule)
    np.testing.assert_allclose(mixed, expected[:, 0], atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule", [RULE, AttentionRule(scale=0.3, soft_cap=2.0), AttentionRule(scale=0.3, window=20)], ids=str
)
def test_the_gpu_kernel_and_its_pages_give_what_plain_xla_gives(rule):
    for mixed, expected in zip(attended("pallas-gpu", rule), attended("xla", rule), strict=True):
        np.testing.assert_allclose(mixed, expected, atol=2e-6)


class LateReshape:
    """A buffer that is reshaped once its values were read."""

    def __init__(self, ref, shape=()):
        self.ref, self.shape, self.dtype = ref, shape, ref.dtype

    def reshape(self, *shape):
        return LateReshape(self.ref, shape)

    def __getitem__(self, index):
        return self.ref[...].reshape(self.shape)[index]


class ReshapedLate(tpu_kernel.MultiPageAsyncCopyDescriptor):
    def wait(self):
        return LateReshape(super().wait())


class PlainStores:
    """Pallas for TPUs, with masked stores as a read, a choice and a whole store."""

    def __getattr__(self, name):
        return getattr(pltpu, name)

    def store(self, ref, values, *, mask):
        ref[...] = jnp.where(mask, values, ref[...])


@pytest.fixture
def interpretable_steps(monkeypatch):
    monkeypatch.setattr(tpu_kernel, "MultiPageAsyncCopyDescriptor", ReshapedLate)
    monkeypatch.setattr(tpu_kernel, "pltpu", PlainStores())
    with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams(out_of_bounds_reads="uninitialized")):
        yield
    jax.clear_caches()


@pytest.mark.slow
@pytest.mark.parametrize("rule", [RULE, AttentionRule(scale=0.3, window=20, soft_cap=2.0)], ids=str)
def test_the_tpu_kernel_and_its_pages_give_what_plain_xla_gives(interpretable_steps, rule):
    for mixed, expected in zip(attended("pallas-tpu", rule), attended("xla", rule), strict=True):
        np.testing.assert_allclose(mixed, expected, atol=3e-6)


@pytest.mark.parametrize("backend", ["pallas-gpu", "pallas-tpu"])
def test_copied_pages_hold_what_their_source_holds(backend):
    cache = make_cache(model_of(), 6, PAGE_SIZE, BFLOAT16, backend)
    filled = jax.tree.map(lambda pages: jnp.arange(pages.size, dtype=pages.dtype).reshape(pages.shape), cache)
    copied = copy_pages(filled, jnp.asarray([[1, 4], [2, 5]], jnp.int32))
    axis = 1 if backend == "pallas-gpu" else 0
    for before, after in zip(jax.tree.leaves(filled), jax.tree.leaves(copied), strict=True):
        wanted = np.take(np.asarray(before), [0, 1, 1, 3, 4, 4], axis)
        np.testing.assert_array_equal(np.asarray(after), wanted)


def test_heads_of_a_tpu_fill_whole_tiles():
    counts = range(1, 18)
    assert [padded_heads(n, FLOAT32) for n in counts[:9]] == [1, 2, 4, 4, 8, 8, 8, 8, 12]
    assert [padded_heads(n, BFLOAT16) for n in counts] == [1, 2, 4, 4, *[8] * 4, *[16] * 8, 24]


def test_both_kernels_are_lowered_for_their_devices():
    dtype = BFLOAT16
    table, positions = jnp.zeros((4, 8), jnp.int32), jnp.zeros(4, jnp.int32)
    queries = jnp.zeros((4, 9, 64), dtype)
    [gpu, *_] = make_cache(model_of(3, 64), 9, PAGE_SIZE, dtype, "pallas-gpu")
    singles = jax.jit(lambda *arrays: attend_singles(*arrays, RULE, interpret=False))
    lowered = singles.trace(queries, gpu, table, positions).lower(lowering_platforms=("cuda",))
    assert "triton" in lowered.as_text()
    [tpu, *_] = make_cache(model_of(3, 64), 9, PAGE_SIZE, dtype, "pallas-tpu")
    ragged = jax.jit(
        lambda queries, cache, table, positions: attend_ragged(
            queries, 3, cache, even_spans(table, positions[:, None]), RULE
        )
    )
    device = AbstractDevice("TPU v5 lite", 1, "tpu")
    with use_abstract_mesh(AbstractMesh((1,), ("x",), abstract_device=device)):
        lowered = ragged.trace(queries, tpu, table, positions).lower(lowering_platforms=("tpu",))
    assert "tpu_custom_call" in lowered.as_text()


def test_a_kernel_that_cannot_run_is_refused_with_the_reason():
    def choose(backend, head_dim=64, **options):
        return choose_backend(EngineConfig.of(attention_backend=backend, **options), head_dim)

    assert choose("pallas-gpu") == "pallas-gpu"
    with pytest.raises(ConfigError, match="runs on TPUs, the device is a cpu"):
        choose("pallas-tpu")
    with pytest.raises(ConfigError, match="powers of two"):
        choose("pallas-gpu", 96)
    with pytest.raises(ConfigError, match="page size 8"):
        choose("pallas-gpu", page_size=8)
    with pytest.raises(ConfigError, match="int8"):
        choose("pallas-gpu", kv_cache_dtype="int8")


@pytest.mark.slow
def test_an_engine_with_the_gpu_kernel_makes_the_tokens_of_plain_xla(native_model):
    prompts = [[40 + index] * (7 + 20 * index) for index in range(4)]

    def tokens(backend):
        config = tiny_config(
            attention_backend=backend, num_pages=40, max_num_seqs=4, enable_prefix_caching=True
        )
        with LLM(str(native_model), config) as llm:
            params = SamplingParams(max_tokens=20, ignore_eos=True, n=2, temperature=1.0, seed=1)
            outputs = llm.generate(prompt_token_ids=prompts, sampling_params=params)
            return [[list(one.token_ids) for one in output.outputs] for output in outputs]

    assert tokens("pallas-gpu") == tokens("xla")
