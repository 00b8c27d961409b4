"""Every family against transformers, on tiny random checkpoints (see golden/make_family_goldens.py)."""

import shutil
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

from headrace.engines import native
from headrace.engines.checkpoints import open_checkpoint
from headrace.engines.errors import ModelError
from headrace.engines.llm import LLM, SamplingParams
from headrace.engines.llm.attend import attend_blocks
from headrace.engines.llm.batch import PackedPrefill, PrefillBatch, max_blocks, pack_prefill, unpack_prefill
from headrace.engines.llm.families import load_decoder, read_model_config
from headrace.engines.llm.kv_cache import make_cache
from headrace.engines.llm.layers import Precision
from headrace.engines.llm.request import LLMRequest, Sequence
from headrace.engines.quantization import quantize_int8
from tests.engines.llm.conftest import FLOAT32, tiny_config, write_byte_tokenizer

GOLDEN = Path(__file__).parents[2] / "golden" / "families"
VARIANTS = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())
PROMPT_LENGTHS = (5, 33, 270)
PAGE_SIZE = 16
CONTEXTS = dict.fromkeys(VARIANTS, (512,)) | {"phi3_longrope": (128, 512)}
"""Longest rows of the engines of a variant: longrope has other frequencies past 128 tokens."""


def prompts_within(variant: str, context: int) -> list[int]:
    """Lengths of the golden prompts that belong to an engine of that context."""
    if len(CONTEXTS[variant]) == 1:
        return list(PROMPT_LENGTHS)
    return [length for length in PROMPT_LENGTHS if (length > 128) == (context > 128)]


def all_logits(
    variant: str, context: int, backend: str, prompts: list[list[int]], quantization=None
) -> list[np.ndarray]:
    """Logits at every position of each prompt, all of them in one paged prefill."""
    checkpoint = open_checkpoint(str(GOLDEN / variant))
    config = read_model_config(checkpoint.config).for_context(context)
    decoder = load_decoder(checkpoint, config, Precision(FLOAT32, quantization))
    width = 512 // PAGE_SIZE
    cache = make_cache(config, 1 + 3 * width, PAGE_SIZE, FLOAT32)
    # Pages in an order of no meaning: the table alone says where a token lies.
    pages = np.random.default_rng(0).permutation(np.arange(1, 1 + 3 * width)).reshape(3, width).tolist()
    sequences = [
        Sequence(
            request=LLMRequest(
                request_id=str(row),
                prompt_token_ids=tuple(prompt),
                params=SamplingParams(),
                seed=0,
                submit_time_s=0.0,
            ),
            tokens=list(prompt),
            max_total=512,
            pages=pages[row],
        )
        for row, prompt in enumerate(prompts)
    ]
    sizes = PackedPrefill(4, 320, max_blocks(320, 4), width)
    lengths = [len(prompt) for prompt in prompts]
    batch = PrefillBatch(sequences, lengths, [True] * len(prompts))
    packed = pack_prefill(batch, [()] * len(prompts), sizes, 0)

    @jax.jit
    def run(cache, packed):
        rows, chunks = unpack_prefill(packed, sizes)
        attend = partial(attend_blocks, backend, rows, chunks)  # pyright: ignore[reportArgumentType]
        hidden, _ = decoder(chunks.tokens, chunks.positions, cache, attend)
        return decoder.logits(hidden)

    logits = np.asarray(run(cache, packed))[: sum(lengths)]
    return np.split(logits, np.cumsum(lengths)[:-1])


def check_logits(variant: str, backend: str) -> None:
    golden = np.load(GOLDEN / f"{variant}.npz")
    for context in CONTEXTS[variant]:
        lengths = prompts_within(variant, context)
        found = all_logits(variant, context, backend, [golden[f"prompt_{n}"].tolist() for n in lengths])
        for length, logits in zip(lengths, found, strict=True):
            np.testing.assert_allclose(logits[-1], golden[f"last_logits_{length}"], atol=1e-4, rtol=0)
            top = np.take_along_axis(logits, golden[f"top_ids_{length}"], axis=1)
            np.testing.assert_allclose(top, golden[f"top_logits_{length}"], atol=1e-4, rtol=0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_those_of_transformers(variant):
    check_logits(variant, "xla")


@pytest.mark.skipif(not native.is_available(), reason="the native kernels are not built")
@pytest.mark.parametrize("variant", ["gemma2", "gemma3"])
def test_windows_and_soft_caps_of_the_native_backend_equal_those_of_transformers(variant):
    check_logits(variant, "native")


def test_int8_weights_are_within_half_a_step_of_what_they_stand_for():
    kernel = np.random.default_rng(0).normal(size=(64, 5)).astype(np.float32)
    kernel[:, 4] = 0.0
    numbers, scale = quantize_int8(kernel)
    assert np.abs(numbers[:, :4]).max(axis=0).tolist() == [127] * 4
    assert (np.abs(numbers * scale[None, :] - kernel) <= scale[None, :] / 2 + 1e-7).all()


def test_int8_weights_of_products_and_experts_change_the_logits_little():
    golden = np.load(GOLDEN / "mixtral.npz")
    prompt = golden["prompt_33"].tolist()
    (found,) = all_logits("mixtral", 512, "xla", [prompt], "int8")
    wanted = golden["last_logits_33"]
    error = np.linalg.norm(found[-1] - wanted) / np.linalg.norm(wanted)
    assert 1e-4 < error < 0.05


def open_llm(variant: str, directory: Path, **changes) -> LLM:
    model = directory / "model"
    shutil.copytree(GOLDEN / variant, model, dirs_exist_ok=True)
    write_byte_tokenizer(model)
    return LLM(str(model), tiny_config(**changes))


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_tokens_of_the_engine_equal_those_of_transformers(variant, tmp_path):
    golden = np.load(GOLDEN / f"{variant}.npz")
    params = SamplingParams(max_tokens=48, ignore_eos=True)
    for context in CONTEXTS[variant]:
        lengths = prompts_within(variant, context)
        prompts = [golden[f"prompt_{n}"].tolist() for n in lengths]
        with open_llm(variant, tmp_path, max_model_len=context) as llm:
            outputs = llm.generate([*prompts, *prompts], params)
        for length, output in zip(lengths * 2, outputs, strict=True):
            assert list(output.outputs[0].token_ids) == golden[f"greedy_{length}"].tolist(), length


@pytest.mark.parametrize("variant", ["mixtral", pytest.param("qwen3_moe", marks=pytest.mark.slow)])
def test_a_row_passes_its_experts_alike_alone_and_in_a_batch(variant, tmp_path):
    golden = np.load(GOLDEN / f"{variant}.npz")
    prompts = [golden[f"prompt_{n}"].tolist() for n in (5, 33)]
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    with open_llm(variant, tmp_path, deterministic=True) as llm:
        batch = llm.generate([prompt[start:] for start in range(4) for prompt in prompts], params)
        alone = [llm.generate(prompt, params) for prompt in prompts]
    for one, among in zip(alone, batch, strict=False):
        assert one.outputs[0].token_ids == among.outputs[0].token_ids
        assert one.outputs[0].cumulative_logprob == among.outputs[0].cumulative_logprob


def test_older_configurations_are_read_as_the_newer_ones():
    newer = open_checkpoint(str(GOLDEN / "gemma3")).config
    older = {key: value for key, value in newer.items() if key not in ("rope_parameters", "layer_types")}
    older |= {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 2}
    older |= {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    assert read_model_config(older) == read_model_config(newer)

    newer = open_checkpoint(str(GOLDEN / "phi3_longrope")).config
    rope = dict(newer["rope_parameters"])
    older = {key: value for key, value in newer.items() if key != "rope_parameters"}
    older |= {
        "rope_theta": rope.pop("rope_theta"),
        "partial_rotary_factor": rope.pop("partial_rotary_factor"),
    }
    older |= {"rope_scaling": {"type": "su", **{key: rope[key] for key in ("short_factor", "long_factor")}}}
    assert read_model_config(older) == read_model_config(newer)


def test_what_is_not_understood_is_refused_by_name():
    config = dict(open_checkpoint(str(GOLDEN / "qwen2")).config)
    with pytest.raises(ModelError, match="dynamic"):
        read_model_config(config | {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}})
    with pytest.raises(ModelError, match="chunked_attention"):
        read_model_config(config | {"layer_types": ["chunked_attention", "full_attention"]})
    with pytest.raises(ModelError, match="relu"):
        read_model_config(config | {"hidden_act": "relu"})
    for method in ("gptq", "awq", "fp8"):
        with pytest.raises(ModelError, match=f"quantized by {method}"):
            read_model_config(config | {"quantization_config": {"quant_method": method, "bits": 4}})


def test_a_weight_that_the_configuration_does_not_describe_is_refused_by_name():
    checkpoint = open_checkpoint(str(GOLDEN / "qwen3"))
    config = read_model_config(checkpoint.config).replace(has_qk_norm=False)
    with pytest.raises(ModelError, match=r"k_norm\.weight, which is no part"):
        load_decoder(checkpoint, config, Precision(FLOAT32))
