"""The decoder against transformers, on tiny random Llama checkpoints (see golden/make_llama_goldens.py)."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from headrace.engines import native
from headrace.engines.errors import ModelError
from headrace.engines.llm.attend import attend_blocks
from headrace.engines.llm.attention import Backend
from headrace.engines.llm.batch import PackedPrefill, PrefillBatch, max_blocks, pack_prefill, unpack_prefill
from headrace.engines.llm.families import load_decoder, read_model_config
from headrace.engines.llm.kv_cache import make_cache
from headrace.engines.llm.layers import Precision
from headrace.engines.llm.model import Decoder
from headrace.engines.llm.request import LLMRequest, Sequence
from headrace.engines.llm.sampling_params import SamplingParams
from tests.engines.llm.conftest import FLOAT32, GOLDEN, VARIANTS, open_golden

PROMPT_LENGTHS = (5, 33, 130)
PAGE_SIZE = 16
BFLOAT16 = jnp.dtype(jnp.bfloat16)


def all_logits(variant: str, prompts: list[list[int]], backend: Backend = "xla") -> list[np.ndarray]:
    """Logits at every position of each prompt, through the paged prefill path, one prompt at a time."""
    checkpoint = open_golden(variant)
    config = read_model_config(checkpoint.config)
    decoder = load_decoder(checkpoint, config, Precision(FLOAT32))
    cache = make_cache(config, 33, PAGE_SIZE, FLOAT32)
    sizes = PackedPrefill(2, 160, max_blocks(160, 2), 256 // PAGE_SIZE)

    @jax.jit
    def run(cache, packed):
        rows, chunks = unpack_prefill(packed, sizes)
        attend = partial(attend_blocks, backend, rows, chunks)
        hidden, _ = decoder(chunks.tokens, chunks.positions, cache, attend)
        return decoder.logits(hidden)

    logits = []
    for prompt in prompts:
        request = LLMRequest(
            request_id="a", prompt_token_ids=tuple(prompt), params=SamplingParams(), seed=0, submit_time_s=0.0
        )
        # Pages in an order of no meaning: the table alone says where a token lies.
        pages = [17, 3, 30, 9, 1, 12, 25, 8, 19]
        sequence = Sequence(request=request, tokens=list(prompt), max_total=256, pages=pages)
        packed = pack_prefill(PrefillBatch([sequence], [len(prompt)], [True]), [()], sizes, 0)
        logits.append(np.asarray(run(cache, packed))[: len(prompt)])
    return logits


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_those_of_transformers(variant):
    check_logits(variant, "xla")


@pytest.mark.skipif(not native.is_available(), reason="the native kernels are not built")
def test_logits_of_the_native_backend_equal_those_of_transformers():
    check_logits("head_dim", "native")


def check_logits(variant: str, backend: Backend) -> None:
    golden = np.load(GOLDEN / f"{variant}.npz")
    found = all_logits(variant, [golden[f"prompt_{length}"].tolist() for length in PROMPT_LENGTHS], backend)
    for length, logits in zip(PROMPT_LENGTHS, found, strict=True):
        np.testing.assert_allclose(logits[-1], golden[f"last_logits_{length}"], atol=1e-4, rtol=0)
        top = np.take_along_axis(logits, golden[f"top_ids_{length}"], axis=1)
        np.testing.assert_allclose(top, golden[f"top_logits_{length}"], atol=1e-4, rtol=0)


def test_unknown_architectures_and_fields_are_refused_by_name():
    config = dict(open_golden("gqa").config)
    with pytest.raises(ModelError, match="bloom"):
        read_model_config(config | {"model_type": "bloom"})
    with pytest.raises(ModelError, match="logit_scale"):
        read_model_config(config | {"logit_scale": 0.5})
    with pytest.raises(ModelError, match="dynamic"):
        read_model_config(config | {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}})
    read_model_config(config | {"sliding_window": None, "use_sliding_window": False})


def test_a_missing_or_misshapen_weight_is_named():
    checkpoint = open_golden("gqa")
    config = read_model_config(checkpoint.config | {"num_hidden_layers": 3})
    with pytest.raises(ModelError, match=r"model\.layers\.2\.\S+ is missing"):
        load_decoder(checkpoint, config, Precision(FLOAT32))
    config = read_model_config(checkpoint.config | {"intermediate_size": 24})
    with pytest.raises(ModelError, match="shape"):
        load_decoder(checkpoint, config, Precision(FLOAT32))


@pytest.mark.skipif(not native.is_available(native.LINEAR), reason="the native kernels are not built")
@pytest.mark.parametrize("variant", ["gqa", "biases"])
def test_packed_weights_give_the_hidden_states_of_plain_ones(variant):
    plain, packed = (
        hidden_states(variant, Precision(BFLOAT16, is_packed=is_packed)) for is_packed in (False, True)
    )
    # Sums run in another order, and a sum that differs in its last bit may round to another bfloat16.
    np.testing.assert_allclose(packed, plain, atol=0.06)
    if native.multiplies_bfloat16(native.BEST_LEVEL):
        assert np.abs(packed - plain).mean() < 0.004
    else:  # inputs are rounded elsewhere, and less
        exact = hidden_states(variant, Precision(FLOAT32))
        assert np.abs(packed - exact).mean() < np.abs(plain - exact).mean()


@pytest.mark.skipif(not native.is_available(native.LINEAR), reason="the native kernels are not built")
@pytest.mark.parametrize("variant", ["gqa", "biases"])
def test_weights_of_16_bits_give_nearly_the_hidden_states_of_float32(variant):
    exact = hidden_states(variant, Precision(FLOAT32))
    whole = hidden_states(variant, Precision(FLOAT32, "int16", is_packed=True))
    halves = hidden_states(variant, Precision(BFLOAT16))
    np.testing.assert_allclose(whole, exact, atol=0.01)
    assert np.abs(whole - exact).mean() < 0.2 * np.abs(halves - exact).mean()


def hidden_states(variant: str, precision: Precision) -> np.ndarray:
    """Those of a prompt, without attention between its tokens."""
    checkpoint = open_golden(variant)
    config = read_model_config(checkpoint.config)
    decoder = load_decoder(checkpoint, config, precision)

    def attend_to_themselves(projected, cache, rule):
        _, _, values = projected.split()
        group = config.num_heads // config.num_kv_heads
        return jnp.repeat(values, group, axis=1), cache

    tokens = jnp.arange(3, 40, dtype=jnp.int32)
    cache = make_cache(config, 2, PAGE_SIZE, precision.dtype)
    hidden, _ = decoder(tokens, tokens, cache, attend_to_themselves)
    return np.asarray(hidden)


def test_steps_in_a_loop_look_tokens_up_without_a_copy_of_the_embedding():
    config = read_model_config(open_golden("gqa").config)
    config = replace(config, layers=(), vocab_size=4096, tie_embeddings=True)
    graph, weights = nnx.split(Decoder(config, Precision(BFLOAT16)))

    def attend(projected, cache, rule):
        raise AssertionError("there are no layers")

    @jax.jit
    def run(weights, tokens):
        decoder = nnx.merge(graph, weights)

        def step(_, tokens):
            hidden, _ = decoder(tokens, tokens, (), attend)
            return jnp.argmax(hidden, axis=-1).astype(jnp.int32)

        return jax.lax.fori_loop(0, 4, step, tokens)

    needed = run.lower(weights, jnp.arange(8, dtype=jnp.int32)).compile().memory_analysis()
    assert needed is not None
    assert needed.temp_size_in_bytes < config.vocab_size * config.hidden_size
