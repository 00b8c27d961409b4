"""Models over several devices give the tokens of one device, and no device holds more than its share."""

import gc
import math
import re
import shutil
from collections import Counter
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import PartitionSpec

from headrace.engines import ConfigError
from headrace.engines.llm import LLM, EngineConfig, SamplingParams, StepEngine
from headrace.engines.llm.attention import choose_backend
from headrace.engines.llm.families import read_model_config
from headrace.engines.llm.partition import check_split
from headrace.engines.llm.variants import PLAIN
from headrace.engines.programs import ProgramKey
from tests.engines.llm.conftest import GOLDEN, open_golden, tiny_config, write_byte_tokenizer

MODELS = {
    "llama": GOLDEN / "gqa",
    "qwen3": GOLDEN.parent / "families" / "qwen3",
    "gemma3": GOLDEN.parent / "families" / "gemma3",
    "mixtral": GOLDEN.parent / "families" / "mixtral",
}
SPREADS = {
    "tp 2": {"tensor_parallel_size": 2},
    "tp 4": {"tensor_parallel_size": 4},
    "dp 2": {"data_parallel_size": 2},
    "pp 2": {"pipeline_parallel_size": 2},
    "tp 2 x pp 2": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
}
PROMPTS = ["The river", "a", "of mills and races " * 9, "water under the wheel", "seven", "b c d e f"]
NUM_PAGES = 200
GREEDY = SamplingParams(max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module", params=["llama"])
def model(request, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("parallel") / request.param
    shutil.copytree(MODELS[request.param], directory)
    write_byte_tokenizer(directory)
    return directory


def tokens(llm: LLM) -> list[tuple[int, ...]]:
    outputs = llm.generate(PROMPTS, GREEDY)
    assert isinstance(outputs, list)
    assert [output.error for output in outputs] == [None] * len(PROMPTS)
    return [tuple(output.outputs[0].token_ids) for output in outputs]


@pytest.fixture
def without_the_cache_of_jax():
    """What is read from it is not kept again."""
    was_on = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_enable_compilation_cache", was_on)
    compilation_cache.reset_cache()


@pytest.fixture(scope="module")
def tokens_of_one_device(model) -> list[tuple[int, ...]]:
    with LLM(str(model), tiny_config(attention_backend="xla")) as llm:
        return tokens(llm)


def bytes_by_device(arrays) -> dict[int, int]:
    """Bytes on each device; buffers that several arrays share count once."""
    buffers = {}
    for array in arrays:
        for shard in array.addressable_shards:
            buffers[shard.device.id, shard.data.unsafe_buffer_pointer()] = shard.data.nbytes
    held: dict[int, int] = {}
    for (device, _), size in buffers.items():
        held[device] = held.get(device, 0) + size
    return held


def stages_of(llm: LLM) -> list[tuple]:
    """Weights and pages of every pipeline stage."""
    runner = llm._engine._runner
    earlier = [(stage.weights, stage.cache) for stage in runner._earlier.stages]
    return [*earlier, (runner._weights, runner._cache)]


def check_memory(llm: LLM) -> None:
    """Norms lie on every device of a stage, of everything else each has its share."""
    config, shards = llm.model_config, llm.config.parallel.tensor_parallel_size
    stages = stages_of(llm)
    kv_heads = max(config.num_kv_heads, shards)
    qkv = config.hidden_size * (config.num_heads + 2 * kv_heads) * config.head_dim
    output = config.hidden_size * config.num_heads * config.head_dim
    table = config.vocab_size * config.hidden_size
    layer = qkv + output + 3 * config.hidden_size * config.intermediate_size
    norms = 2 * config.hidden_size
    page = kv_heads * config.head_dim * llm.config.cache.page_size
    layers = llm.config.parallel.stage_layers(config.num_layers)
    for number, ((weights, cache), count) in enumerate(zip(stages, layers, strict=True)):
        ends = (table if number == 0 else 0) + (table if number == len(stages) - 1 else 0)
        after = config.hidden_size if number == len(stages) - 1 else 0
        share = (count * layer + ends) // shards + count * norms + after
        first = number * shards
        devices = range(first, first + shards)
        assert bytes_by_device(jax.tree.leaves(weights)) == dict.fromkeys(devices, 4 * share)
        pages = 2 * count * page * NUM_PAGES // shards
        assert bytes_by_device(jax.tree.leaves(cache)) == dict.fromkeys(devices, 4 * pages)


def test_shards_and_stages_give_the_tokens_of_one_device_and_hold_their_share(tiny_model, tiny_llm):
    wanted = tokens(tiny_llm)
    gc.collect()
    before = bytes_by_device(jax.live_arrays())
    with LLM(str(tiny_model), tiny_config(**SPREADS["tp 2 x pp 2"])) as llm:
        check_memory(llm)
        gc.collect()
        own = bytes_by_device(jax.tree.leaves(stages_of(llm)))
        # Nothing else was left on any device by the loading.
        held = bytes_by_device(jax.live_arrays())
        assert {number: held[number] - before.get(number, 0) for number in own} == own
        assert tokens(llm) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("spread", list(SPREADS))
@pytest.mark.parametrize("model", list(MODELS), indirect=True)
def test_every_family_gives_the_tokens_of_one_device(model, tokens_of_one_device, spread):
    with LLM(str(model), tiny_config(**SPREADS[spread])) as llm:
        assert tokens(llm) == tokens_of_one_device
        if model.name == "llama" and spread != "dp 2":
            check_memory(llm)
        if spread == "dp 2":
            pages = [bytes_by_device(jax.tree.leaves(each._runner._cache)) for each in llm._engines]
            assert [list(held) for held in pages] == [[0], [1]]
            assert all(each.counters()["requests"] for each in llm._engines)


@pytest.mark.slow
def test_experts_are_split_in_their_width(tmp_path):
    shutil.copytree(MODELS["mixtral"], tmp_path / "model")
    write_byte_tokenizer(tmp_path / "model")
    with LLM(str(tmp_path / "model"), tiny_config(tensor_parallel_size=4)) as llm:
        mlp = llm._engine.decoder.layers[0].mlp
        config = llm.model_config
        experts = config.layers[0].experts
        assert experts is not None
        inner = experts.intermediate_size // 4
        for kernel, shape in (
            (mlp.gate_up.kernel[...], (experts.num_experts, config.hidden_size, 2 * inner)),
            (mlp.down.kernel[...], (experts.num_experts, inner, config.hidden_size)),
        ):
            assert [shard.data.shape for shard in kernel.addressable_shards] == [shape] * 4


@pytest.mark.slow
def test_nothing_but_activations_and_logits_moves_between_shards(model):
    with LLM(str(model), tiny_config(tensor_parallel_size=2)) as llm:
        lowering = llm._engine._runner._lowering
        key = ProgramKey("decode", 8, PLAIN)
        program = lowering.lower(key, lowering.example(key)).compile().as_text()
    assert program is not None
    moves = re.findall(
        r"= (.*) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)\(", program
    )
    kinds = Counter(kind for _, kind in moves)
    # Two sums a layer and that of the embedding, of every token's width; the rest are of a choice of tokens.
    shapes = [
        tuple(map(int, found.split(",")))
        for shape, _ in moves
        for found in re.findall(r"\[([\d,]+)\]", shape)
    ]
    width, vocab = llm.model_config.hidden_size, llm.model_config.vocab_size
    assert shapes.count((8, width)) == 2 * llm.model_config.num_layers + 1
    assert max(map(math.prod, shapes)) == 8 * vocab, kinds


def not_the_likeliest(prompt: np.ndarray, outputs: np.ndarray, logits: np.ndarray) -> np.ndarray:
    logits[np.argmax(logits)] = -np.inf
    return logits


@pytest.mark.slow
def test_every_program_gives_what_it_gives_on_one_device(model):
    """Scored prompts, samples of one prompt, the host's rules, drawn tokens, another set of weights."""
    params = [
        SamplingParams(max_tokens=12, prompt_logprobs=2, logprobs=2, ignore_eos=True),
        SamplingParams(max_tokens=12, n=3, temperature=0.8, seed=7, ignore_eos=True),
        SamplingParams(max_tokens=12, logits_processors=f"{__name__}:not_the_likeliest", ignore_eos=True),
        SamplingParams(max_tokens=12, repetition_penalty=1.3, min_tokens=4),
        SamplingParams(max_tokens=12, temperature=0.7, top_p=0.9, top_k=40, seed=3, ignore_eos=True),
        SamplingParams(max_tokens=12, use_beam_search=True, n=2, best_of=3),
    ]

    def results(**spread) -> list:
        with LLM(str(model), tiny_config(**spread)) as llm:
            outputs = llm.generate(PROMPTS, params)
            scaled = -2 * llm._checkpoint.tensor("model.layers.1.mlp.down_proj.weight")
            llm.update_weights({"model.layers.1.mlp.down_proj.weight": scaled})
            changed = tokens(llm)
        assert [output.error for output in outputs] == [None] * len(PROMPTS)
        scores = [place and sorted(place) for place in outputs[0].prompt_logprobs]
        return [[each.token_ids for each in output.outputs] for output in outputs] + [scores, changed]

    assert results(**SPREADS["tp 2 x pp 2"]) == results(attention_backend="xla")


@pytest.mark.slow
def test_proposals_are_checked_over_shards_and_int8_weights_and_pages_are_split(model):
    changes = {"quantization": "int8", "kv_cache_dtype": "int8", "method": "ngram"}
    found = []
    for spread in ({}, SPREADS["tp 2"]):
        with LLM(str(model), tiny_config(**changes, **spread)) as llm:
            outputs = llm.generate(PROMPTS[2:4], SamplingParams(max_tokens=24, ignore_eos=True))
            assert llm.metrics()["speculative_steps"] > 0
            found.append([output.outputs[0].token_ids for output in outputs])
    assert found[0] == found[1]


@pytest.mark.slow
def test_stages_may_be_uneven_and_a_second_start_reads_its_programs(
    model, tokens_of_one_device, without_the_cache_of_jax, tmp_path
):
    overrides = {"num_hidden_layers": 3}
    uneven = {"pipeline_parallel_size": 2, "pipeline_layers": (2, 1), "tensor_parallel_size": 2}
    config = {"use_random_weights": True, "cache_dir": str(tmp_path)}
    with LLM(str(model), tiny_config(**config, **uneven), hf_overrides=overrides) as llm:
        assert [len(cache) for _, cache in stages_of(llm)] == [2, 1]
        tokens(llm)
    spread = SPREADS["tp 2 x pp 2"]
    for is_new in (True, False):
        with LLM(str(model), tiny_config(cache_dir=str(tmp_path), **spread)) as llm:
            # Else those that no row needs are compiled where the work takes long, and only there.
            llm.precompile()
            assert tokens(llm) == tokens_of_one_device
            metrics = llm.metrics()
            assert (metrics["compiles"] > 0, metrics["programs_read"] > 0) == (is_new, not is_new)


@pytest.mark.slow
def test_given_rules_take_the_place_of_the_engines_own(model, tokens_of_one_device):
    rules = [(r"mlp\.down\.kernel", PartitionSpec("tensor")), (r"^embedding$", PartitionSpec(None, "tensor"))]
    with LLM(str(model), tiny_config(tensor_parallel_size=2), partition_rules=rules) as llm:
        decoder, config = llm._engine.decoder, llm.model_config
        layer = decoder.layers[1]
        shapes = [
            [shard.data.shape for shard in array.addressable_shards]
            for array in (
                decoder.embedding[...],
                layer.mlp.down.kernel[...],
                layer.attention.output.kernel[...],
            )
        ]
        hidden, inner = config.hidden_size, config.intermediate_size
        assert shapes == [
            [(config.vocab_size, hidden // 2)] * 2,
            [(inner // 2, hidden)] * 2,
            [(config.num_heads * config.head_dim, hidden)] * 2,
        ]
        assert tokens(llm) == tokens_of_one_device
    odd = [("norm", PartitionSpec(None, "tensor"))]
    with pytest.raises(ConfigError, match="names 2 axes, it has 1"):
        LLM(str(model), tiny_config(tensor_parallel_size=2), partition_rules=odd)


def test_what_does_not_go_over_several_devices_is_refused(tiny_model):
    def told(**options) -> str:
        with pytest.raises(ConfigError) as caught:
            LLM(str(tiny_model), tiny_config(**options))
        return str(caught.value)

    assert "runs on one device" in told(attention_backend="native", tensor_parallel_size=2)
    assert "3 shards" in told(tensor_parallel_size=3)
    assert "the model has 2 layers" in told(pipeline_parallel_size=3)
    assert "take the method ngram" in told(method="draft_model", data_parallel_size=2)
    assert "one step a dispatch" in told(method="ngram", pipeline_parallel_size=2)
    with pytest.raises(ConfigError, match="take LLM"):
        StepEngine(str(tiny_model), tiny_config(data_parallel_size=2))


def test_the_backend_of_several_devices_is_xla():
    assert choose_backend(EngineConfig.of(tensor_parallel_size=2), 64) == "xla"


def test_heads_that_do_not_divide_are_refused():
    model = read_model_config(open_golden("gqa").config)
    check_split(model, 4)
    with pytest.raises(ConfigError, match="query heads do not divide into 8 shards"):
        check_split(model, 8)
