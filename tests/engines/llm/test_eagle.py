"""EAGLE heads propose what the published algorithm proposes, and change no text."""

import math
import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

from headrace.engines import ConfigError, ModelError
from headrace.engines.llm import LLM, SamplingParams, SpeculativeConfig
from tests.engines.llm.conftest import tiny_config
from tests.engines.llm.driving import drive, encode, make_engine
from tests.engines.llm.eagle_heads import (
    PlainLlama,
    fitted_head,
    mild_llama,
    random_head,
    simulate,
    write_head,
)
from tests.engines.llm.test_speculate import assert_same, prompts_of

NUM_PROPOSALS = 3
COUNTS = ("speculative_steps", "draft_tokens", "accepted_tokens")


def eagle_config(head: str, **changes):
    chosen = {"method": "eagle", "speculative_model": head, "num_speculative_tokens": NUM_PROPOSALS}
    chosen["measure_every"] = 0  # every burst has proposals: they are counted one by one
    own = {"decode_burst": 64, "max_num_seqs": 4, "speculative": SpeculativeConfig(**chosen)}
    return tiny_config(**(own | changes))


@pytest.fixture(scope="module")
def mild(tiny_model, tmp_path_factory):
    """The directory of a model that a head can foresee, and the same in NumPy."""
    directory = tmp_path_factory.mktemp("eagle") / "model"
    shutil.copytree(tiny_model, directory)
    made = mild_llama(PlainLlama.read(tiny_model))
    save_file(made.tensors, directory / "model.safetensors")
    return directory, made


@pytest.fixture(scope="module")
def head(mild):
    return fitted_head(mild[1])


@pytest.fixture(scope="module")
def spec(mild, head) -> str:
    """With a constant beside its weights, as heads of older models have it."""
    constant = {"layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)}
    return write_head(mild[0].parent / "fitted", mild[1], head | constant)


@pytest.fixture(scope="module")
def eagle(mild, spec):
    with LLM(str(mild[0]), eagle_config(spec, enable_prefix_caching=True)) as llm:
        yield llm


def written(llm: LLM, prompt: list[int], count: int) -> list[int]:
    """The model's likeliest tokens after a prompt."""
    outputs = llm.generate([prompt], SamplingParams(max_tokens=count, ignore_eos=True))
    assert isinstance(outputs, list)
    return list(outputs[0].outputs[0].token_ids)


def counted(metrics: dict[str, float], before: dict[str, float] | None = None) -> dict[str, float]:
    return {name: metrics[name] - (before or {}).get(name, 0) for name in COUNTS}


def test_proposals_are_those_of_the_published_algorithm(eagle, mild, head):
    """Prompts one by one, the longest in chunks: every step accepts as many as with NumPy."""
    prompts = [
        *(np.random.default_rng(seed).integers(32, 288, 12).tolist() for seed in range(50, 61)),
        [40] * 150,
    ]
    found, expected = [], []
    for prompt in prompts:
        before = eagle.metrics()
        tokens = written(eagle, prompt, 24)
        found.append(counted(eagle.metrics(), before))
        expected.append(simulate(mild[1], head, prompt, tokens, NUM_PROPOSALS))
    assert found == expected
    assert sum(each["accepted_tokens"] for each in found) > 100


def test_greedy_texts_are_the_models_own(eagle, mild):
    """64 prompts, half of which repeat a period, some of them twice: pages are shared."""
    model, prompts = mild[1], [*prompts_of(60), *prompts_of(4)]
    before = eagle.metrics()
    outputs = eagle.generate(prompts, SamplingParams(max_tokens=32, ignore_eos=True))
    gained = counted(eagle.metrics(), before)
    for prompt, output in zip(prompts, outputs, strict=True):
        made = list(output.outputs[0].token_ids)
        states = model.hidden([*prompt, *made])[len(prompt) - 1 : -1]
        assert [model.likeliest(state) for state in states] == made
    assert gained["accepted_tokens"] > 0.15 * gained["draft_tokens"] > 100


@pytest.fixture(scope="module")
def mild_llm(mild):
    """The model without a head."""
    with LLM(str(mild[0]), tiny_config(max_num_seqs=4)) as llm:
        yield llm


@pytest.mark.slow
def test_draws_and_stops_are_those_without_a_head(eagle, mild_llm):
    kinds = [
        SamplingParams(max_tokens=30, temperature=0.8, top_k=20, top_p=0.9, ignore_eos=True),
        SamplingParams(max_tokens=30, temperature=1.0, n=2, min_p=0.05),
        SamplingParams(max_tokens=30, stop="a", min_tokens=6),
        SamplingParams(max_tokens=30, temperature=0.5, stop_token_ids=tuple(range(32, 60)), min_tokens=3),
        SamplingParams(max_tokens=1),
        SamplingParams(max_tokens=200, ignore_eos=True, logprobs=2),
        SamplingParams(max_tokens=9, allowed_token_ids=(70, 71), ignore_eos=True),
        SamplingParams(max_tokens=20, frequency_penalty=0.5, ignore_eos=True),
        SamplingParams(max_tokens=8, use_beam_search=True, beam_width=3, n=2, ignore_eos=True),
    ]
    params = [kind.replace(seed=index) for index, kind in enumerate(kinds * 2)]
    prompts = prompts_of(len(params))
    assert_same(eagle.generate(prompts, params), mild_llm.generate(prompts, params))


@pytest.mark.slow
def test_a_head_keeps_up_with_rows_that_went_without_it(eagle, mild, mild_llm, head):
    """Rows that are preempted, that share prompts, and that decode beside prefills."""
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    prompts = [[50] * 20, *prompts_of(10), [50] * 40, [50] * 20]
    engine = make_engine(eagle, eagle_config("x", num_pages=9, enable_prefix_caching=True))
    requests = [encode(eagle, str(index), prompt, params) for index, prompt in enumerate(prompts)]
    outputs = drive(engine, requests)
    metrics = engine.counters()
    assert metrics["preemptions"] > 0
    assert metrics["cached_tokens"] > 0
    assert_same([outputs[str(index)] for index in range(13)], mild_llm.generate(prompts, params))
    alone = [
        simulate(mild[1], head, prompt, list(outputs[str(index)].outputs[0].token_ids), NUM_PROPOSALS)
        for index, prompt in enumerate(prompts)
    ]
    wanted = sum(each["accepted_tokens"] for each in alone) / sum(each["draft_tokens"] for each in alone)
    assert metrics["accepted_tokens"] / metrics["draft_tokens"] == pytest.approx(wanted, rel=0.1)


@pytest.mark.slow
def test_draws_with_a_head_are_spread_as_the_model_says(eagle, mild, head):
    """Chi-square of second tokens, of three, after a first one where the head is right at times."""
    count, draw = 600, SamplingParams(max_tokens=3, temperature=1.0, top_k=3, ignore_eos=True)
    likely, rng = SamplingParams(max_tokens=1, logprobs=3), np.random.default_rng(4)
    for _ in range(40):
        prompt = rng.integers(32, 288, 12).tolist()
        first, *rest = written(eagle, prompt, 3)
        if simulate(mild[1], head, prompt, [first, *rest], NUM_PROPOSALS)["accepted_tokens"]:
            break
    places = eagle.generate([*prompt, first], likely).outputs[0].logprobs[0]
    weights = {token: math.exp(place.logprob) for token, place in places.items()}
    before = eagle.metrics()
    outputs = eagle.generate([prompt] * count, [draw.replace(seed=seed) for seed in range(count)])
    drawn = [output.outputs[0].token_ids for output in outputs]
    seconds = [tokens[1] for tokens in drawn if tokens[0] == first]
    assert len(seconds) > 150
    assert counted(eagle.metrics(), before)["accepted_tokens"] > 20
    assert set(seconds) <= set(weights)
    expected = {token: len(seconds) * weight / sum(weights.values()) for token, weight in weights.items()}
    assert min(expected.values()) > 5
    square = sum((seconds.count(token) - wanted) ** 2 / wanted for token, wanted in expected.items())
    assert square < 13.8  # 2 degrees of freedom: one in 1,000 is above


@pytest.mark.slow
def test_greedy_texts_are_those_without_a_random_head(tiny_llm, tiny_model, tmp_path):
    """With an embedding of its own, under the names that some exports have."""
    model = PlainLlama.read(tiny_model)
    tensors = random_head(model) | {"embed_tokens.weight": model.tensors["model.embed_tokens.weight"] + 1}
    spec = write_head(tmp_path / "head", model, {f"model.{name}": each for name, each in tensors.items()})
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    with LLM(str(tiny_model), eagle_config(spec)) as llm:
        assert_same(llm.generate(prompts_of(64), params), tiny_llm.generate(prompts_of(64), params))
        assert llm.metrics()["draft_tokens"] > 1000


@pytest.mark.slow
def test_more_rows_than_pay_go_without_a_head(mild, spec, eagle):
    """And where they become fewer, the head catches up."""
    chosen = SpeculativeConfig(
        method="eagle", speculative_model=spec, num_speculative_tokens=NUM_PROPOSALS, disable_by_batch_size=1
    )
    with LLM(str(mild[0]), eagle_config(spec, speculative=chosen)) as llm:
        params = [SamplingParams(max_tokens=length, ignore_eos=True) for length in (40, 40, 120)]
        llm.generate(prompts_of(3), params)
        metrics = llm.metrics()
        assert metrics["completion_tokens"] == 200
        assert 20 < metrics["speculative_steps"] < 80
        assert metrics["accepted_tokens"] > 0.15 * metrics["draft_tokens"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{"dtype": "bfloat16"}, {"quantization": "int8", "kv_cache_dtype": "int8"}]
)
def test_heads_run_in_the_precisions_of_the_engine(mild, spec, changes):
    """A head that is right for float32 is right as often in others."""
    with LLM(str(mild[0]), eagle_config(spec, **changes)) as llm:
        llm.generate(prompts_of(12), SamplingParams(max_tokens=30, ignore_eos=True))
        metrics = llm.metrics()
        assert metrics["accepted_tokens"] > 0.15 * metrics["draft_tokens"] > 50


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_greedy_texts_of_the_native_kernels_are_those_without_a_head(native_model, tmp_path, dtype):
    model = PlainLlama.read(native_model)
    spec = write_head(tmp_path / "head", model, random_head(model))
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    with LLM(str(native_model), eagle_config(spec, dtype=dtype)) as llm:
        found = llm.generate(prompts_of(12), params)
        assert llm.metrics()["draft_tokens"] > 500
    with LLM(str(native_model), tiny_config(dtype=dtype, max_num_seqs=4)) as llm:
        assert_same(found, llm.generate(prompts_of(12), params))


@pytest.mark.slow
def test_an_artifact_has_the_programs_of_its_head(mild, spec, tmp_path):
    prompt, params = prompts_of(1)[0], SamplingParams(max_tokens=12, ignore_eos=True)
    with LLM(str(mild[0]), eagle_config(spec)) as llm:
        expected = llm.generate(prompt, params)
        llm.save_artifact(tmp_path / "made")
    with LLM.load_artifact(tmp_path / "made") as llm:
        assert_same([llm.generate(prompt, params)], [expected])
        metrics = llm.metrics()
        assert metrics["compiles"] == 0
        assert metrics["speculative_steps"] > 0


@pytest.mark.slow
def test_new_weights_of_the_model_are_those_of_the_head_too(mild, spec, head):
    """The embedding is shared: with other rows for the same tokens the counts are those of NumPy again."""
    rng = np.random.default_rng(7)
    name = "model.embed_tokens.weight"
    table = mild[1].tensors[name] + rng.normal(0, 0.05, (288, 48)).astype(np.float32)
    changed = PlainLlama(mild[1].config, mild[1].tensors | {name: table})
    with LLM(str(mild[0]), eagle_config(spec)) as llm:
        llm.update_weights({name: table})
        for prompt in [each for each in prompts_of(8) if len(each) > 1]:
            before = llm.metrics()
            tokens = written(llm, prompt, 20)
            expected = simulate(changed, head, prompt, tokens, NUM_PROPOSALS)
            assert counted(llm.metrics(), before) == expected


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        ({"fc.weight": None}, ModelError, "no fc.weight"),
        ({"midlayer.mlp.up_proj.weight": (96, 48)}, ModelError, "a head of EAGLE-3"),
        ({"layers.0.mlp.up_proj.weight": None}, ModelError, "mlp.up_proj.weight is missing"),
        ({"layers.0.input_layernorm.weight": (48,)}, ModelError, "no part of an EAGLE head"),
        ({"lm_head.weight": (288, 48)}, ModelError, "another output head"),
        ({"fc.weight": (48, 48)}, ModelError, r"has shape \(48, 48\)"),
    ],
)
def test_what_is_no_such_head_is_refused(mild, head, tmp_path, changes, kind, text):
    tensors = {name: each for name, each in head.items() if name not in changes}
    tensors |= {name: np.zeros(shape, np.float32) for name, shape in changes.items() if shape}
    spec = write_head(tmp_path / "head", mild[1], tensors)
    with pytest.raises(kind, match=text):
        LLM(str(mild[0]), eagle_config(spec))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"hidden_size": 64}, "states of 64 numbers, the model gives 48: take the head"),
        ({"vocab_size": 300}, "has 300 tokens, the model 288: take the head"),
    ],
)
def test_a_head_of_another_model_is_refused(mild, head, tmp_path, changes, text):
    spec = write_head(tmp_path / "head", mild[1], head, **changes)
    with pytest.raises(ConfigError, match=text):
        LLM(str(mild[0]), eagle_config(spec))


def test_what_does_not_go_with_a_head_is_refused(mild, eagle):
    assert SpeculativeConfig(method="eagle").use_eagle()
    assert not SpeculativeConfig(method="draft_model").use_eagle()
    with pytest.raises(ConfigError, match="has no EAGLE head: give speculative_model"):
        LLM(str(mild[0]), tiny_config(speculative=SpeculativeConfig(method="eagle")))
    with pytest.raises(ConfigError, match="an EAGLE head and its target run on one device"):
        eagle_config("x", tensor_parallel_size=2)
    with pytest.raises(ConfigError, match="as a spec"):
        LLM(str(mild[0]), eagle.config, speculative_model=eagle)
