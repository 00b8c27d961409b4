"""Tokens that are proposed and checked are those that come one by one."""

import contextlib
import json
import math
import shutil
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from headrace.engines import ConfigError
from headrace.engines.llm import LLM, EngineConfig, SamplingParams, SpeculativeConfig
from headrace.engines.llm.ngram import look_up
from headrace.engines.ratios import ratios
from tests.engines.llm.conftest import tiny_config
from tests.engines.llm.driving import drive, encode, make_engine

NUM_REAL_PROMPTS = 64


def propose(tokens: list[int], num_tokens: int = 3, sizes: tuple[int, int] = (1, 3)) -> list[int] | None:
    history = np.zeros((1, 16), np.int32)
    history[0, : len(tokens)] = tokens
    found, is_found = look_up(jnp.asarray(history), jnp.asarray([len(tokens)], jnp.int32), num_tokens, sizes)
    return found[0].tolist() if is_found[0] else None


def test_what_followed_the_last_tokens_is_proposed():
    assert propose([1, 2, 3, 4, 5, 1, 2]) == [3, 4, 5]
    assert propose([1, 2, 8, 5, 2, 9, 1, 2]) == [8, 5, 2]  # two tokens that match are worth more than one
    assert propose([1, 2, 8, 1, 2, 9, 1, 2]) == [9, 1, 2]  # the later of equals
    assert propose([7, 7]) == [7, 7, 7]
    assert propose([1, 2, 1, 2]) == [1, 2, 1]  # goes on from what it proposes
    assert propose([1, 2, 3]) is None
    assert propose([5]) is None
    assert propose([1, 2, 8, 2], sizes=(2, 3)) is None
    assert propose([0, 0, 3, 0, 0], num_tokens=2) == [3, 0]


@pytest.fixture(scope="module")
def ngram(tiny_model):
    config = tiny_config(max_num_seqs=4, speculative=SpeculativeConfig(method="ngram"))
    with LLM(str(tiny_model), config) as llm:
        yield llm


def prompts_of(count: int) -> list[list[int]]:
    """Prompts half of which repeat themselves."""
    rng = np.random.default_rng(3)
    made = [rng.integers(32, 288, rng.integers(1, 40)).tolist() for _ in range(count)]
    return [prompt * (index % 2 + 1) for index, prompt in enumerate(made)]


def assert_same(found, expected) -> None:
    """All that a reader sees of texts is the same, but for the last bits of log-probabilities."""
    for own, other in zip(found, expected, strict=True):
        for text, wanted in zip(own.outputs, other.outputs, strict=True):
            assert text.token_ids == wanted.token_ids
            assert (text.text, text.finish_reason) == (wanted.text, wanted.finish_reason)
            assert text.stop_reason == wanted.stop_reason
            assert text.cumulative_logprob == pytest.approx(wanted.cumulative_logprob, abs=1e-3)


def test_greedy_texts_are_those_without_proposals(tiny_llm, ngram):
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    before = ngram.counters()
    assert_same(ngram.generate(prompts_of(64), params), tiny_llm.generate(prompts_of(64), params))
    gained = {name: value - before[name] for name, value in ngram.counters().items()}
    assert 0 < gained["accepted_tokens"] < gained["draft_tokens"]
    # Each step made its accepted tokens and one more; a text's first token comes from its prefill.
    assert gained["completion_tokens"] >= gained["speculative_steps"] + gained["accepted_tokens"] + 64
    counters, metrics = ngram.counters(), ngram.metrics()
    share = counters["accepted_tokens"] / counters["draft_tokens"]
    assert metrics["speculation_acceptance_rate"] == share
    assert 1 < metrics["speculation_tokens_per_step"] < 5  # four are proposed
    assert "speculation_acceptance_rate" not in {**counters, **tiny_llm.metrics()}


def test_draws_stops_and_masks_are_those_without_proposals(tiny_llm, ngram):
    kinds = [
        SamplingParams(max_tokens=30, temperature=0.8, top_k=20, top_p=0.9, ignore_eos=True),
        SamplingParams(max_tokens=30, temperature=1.0, n=2, min_p=0.05),
        SamplingParams(max_tokens=30, stop="a", min_tokens=6),
        SamplingParams(max_tokens=30, temperature=0.5, stop_token_ids=tuple(range(32, 60)), min_tokens=3),
        SamplingParams(max_tokens=1),
        SamplingParams(max_tokens=300, ignore_eos=True),
    ]
    params = [kind.replace(seed=index) for index, kind in enumerate(kinds * 2)]
    prompts = prompts_of(12)
    assert_same(ngram.generate(prompts, params), tiny_llm.generate(prompts, params))


@pytest.mark.slow
def test_masks_and_logprobs_are_those_without_proposals(tiny_llm, ngram):
    params = SamplingParams(max_tokens=9, allowed_token_ids=(70, 71), logprobs=3, ignore_eos=True)
    found, expected = (llm.generate(prompts_of(4), params) for llm in (ngram, tiny_llm))
    assert_same(found, expected)
    for own, other in zip(found[3].outputs[0].logprobs, expected[3].outputs[0].logprobs, strict=True):
        assert own.keys() == other.keys()
        for token, place in own.items():
            assert place.rank == other[token].rank
            assert place.logprob == pytest.approx(other[token].logprob, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=20, frequency_penalty=0.5, ignore_eos=True),
        SamplingParams(max_tokens=8, use_beam_search=True, beam_width=3, n=2, ignore_eos=True),
        SamplingParams(max_tokens=8, guided_regex="[a-d]{8}"),
    ],
)
def test_rows_with_rules_over_their_past_go_without_proposals(tiny_llm, ngram, params):
    before = ngram.metrics()["speculative_steps"]
    prompts = prompts_of(2)
    assert_same(ngram.generate(prompts, params), tiny_llm.generate(prompts, params))
    assert ngram.metrics()["speculative_steps"] == before


def test_texts_are_the_same_where_pages_are_few(tiny_llm, ngram):
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    prompts = prompts_of(12)
    engine = make_engine(
        ngram, tiny_config(max_num_seqs=4, num_pages=9, speculative=SpeculativeConfig(method="ngram"))
    )
    requests = [encode(ngram, str(index), prompt, params) for index, prompt in enumerate(prompts)]
    outputs = drive(engine, requests)
    assert engine.counters()["preemptions"] > 0
    expected = tiny_llm.generate(prompts, params)
    assert_same([outputs[str(index)] for index in range(12)], expected)


@pytest.mark.slow
def test_more_rows_than_pay_go_without_proposals(ngram):
    config = tiny_config(speculative=SpeculativeConfig(method="ngram", disable_by_batch_size=2))
    with LLM(ngram._checkpoint, config) as llm:
        lengths = [40, 40, 40, 40, 40, 100]
        # All are there before the first step: rows that came one by one would be few at a time.
        requests = [
            encode(llm, str(index), prompt, SamplingParams(max_tokens=length, ignore_eos=True))
            for index, (prompt, length) in enumerate(zip(prompts_of(6), lengths, strict=True))
        ]
        engine = make_engine(llm, config)
        drive(engine, requests)
        assert 0 < engine.counters()["speculative_steps"] < 70


def test_draws_with_proposals_are_spread_as_the_model_says(ngram):
    """Chi-square of second tokens, of three, after a first one that stands in the prompt."""
    count, draw = 600, SamplingParams(max_tokens=3, temperature=1.0, top_k=3, ignore_eos=True)
    likely = {"max_tokens": 1, "logprobs": 3}
    # The likeliest token after the prompt is put into its beginning, where it is found and followed by 50.
    prompt = [50, 60, 70, 80] * 3
    for _ in range(20):
        first = ngram.generate(prompt, likely).outputs[0].token_ids[0]
        if first in prompt:
            break
        prompt = [first, 50, *prompt]
    assert first in prompt
    weights = _likely(ngram.generate([*prompt, first], likely))
    before = ngram.metrics()["draft_tokens"]
    outputs = ngram.generate([prompt] * count, [draw.replace(seed=seed) for seed in range(count)])
    drawn = [output.outputs[0].token_ids for output in outputs]
    seconds = [tokens[1] for tokens in drawn if tokens[0] == first]
    assert len(seconds) > 150
    # Some are made beside prefills, without proposals.
    assert ngram.metrics()["draft_tokens"] - before > len(seconds) / 2
    assert set(seconds) <= set(weights)
    expected = {token: len(seconds) * weight / sum(weights.values()) for token, weight in weights.items()}
    assert min(expected.values()) > 5
    square = sum((seconds.count(token) - wanted) ** 2 / wanted for token, wanted in expected.items())
    assert square < 13.8  # 2 degrees of freedom: one in 1,000 is above


def _likely(output) -> dict[int, float]:
    return {token: math.exp(place.logprob) for token, place in output.outputs[0].logprobs[0].items()}


@pytest.fixture(scope="module")
def drafted(tiny_model):
    speculative = SpeculativeConfig(method="draft_model", speculative_model=str(tiny_model))
    with LLM(str(tiny_model), tiny_config(max_num_seqs=4, speculative=speculative)) as llm:
        yield llm


def test_texts_are_those_without_a_draft_model(tiny_llm, drafted):
    greedy = SamplingParams(max_tokens=40, ignore_eos=True)
    prompts = prompts_of(64)
    assert_same(drafted.generate(prompts, greedy), tiny_llm.generate(prompts, greedy))
    metrics = drafted.metrics()
    assert metrics["accepted_tokens"] > 0.98 * metrics["draft_tokens"] > 1000  # the draft is the model itself
    kinds = [
        SamplingParams(max_tokens=30, temperature=0.9, top_p=0.9, ignore_eos=True),
        SamplingParams(max_tokens=30, stop="a", temperature=0.7),
        SamplingParams(max_tokens=200, temperature=1.0, min_p=0.02, n=2),
    ]
    params = [kind.replace(seed=index) for index, kind in enumerate(kinds * 4)]
    before = drafted.counters()
    assert_same(drafted.generate(prompts_of(12), params), tiny_llm.generate(prompts_of(12), params))
    gained = {name: value - before[name] for name, value in drafted.counters().items()}
    # The draft draws with the same noise: of its own model it hits every draw.
    assert gained["accepted_tokens"] > 0.9 * gained["draft_tokens"] > 100


def test_a_draft_model_keeps_up_with_rows_that_went_without_it(tiny_llm, tiny_model, drafted):
    """Rows that are preempted, and prompts that are shared."""
    speculative = SpeculativeConfig(method="draft_model", speculative_model=str(tiny_model))
    few = tiny_config(max_num_seqs=4, num_pages=9, speculative=speculative)
    engine = make_engine(drafted, few)
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    prompts = [[50] * 20, *prompts_of(10), [50] * 20]
    requests = [encode(drafted, str(index), prompt, params) for index, prompt in enumerate(prompts)]
    outputs = drive(engine, requests)
    metrics = engine.counters()
    assert metrics["preemptions"] > 0
    assert metrics["accepted_tokens"] > 0.9 * metrics["draft_tokens"] > 0
    assert_same([outputs[str(index)] for index in range(12)], tiny_llm.generate(prompts, params))


@pytest.mark.parametrize("fixture", ["ngram", "drafted"])
def test_bursts_without_proposals_in_between_tell_the_speed_up_and_change_no_text(fixture, tiny_llm, request):
    llm = request.getfixturevalue(fixture)
    chosen = replace(llm.config.speculative, measure_every=3)
    engine = make_engine(llm, tiny_config(max_num_seqs=4, speculative=chosen))
    llm.precompile(num_seqs=4)
    params, prompts = SamplingParams(max_tokens=100, ignore_eos=True), prompts_of(8)
    outputs = drive(engine, [encode(llm, str(index), each, params) for index, each in enumerate(prompts)])
    assert_same([outputs[str(index)] for index in range(8)], tiny_llm.generate(prompts, params))
    counters = engine.counters()
    # Some of the tokens came from bursts without proposals.
    assert counters["speculative_steps"] + counters["accepted_tokens"] < 8 * 99
    assert ratios(counters)["speculation_speed_up"] > 0
    if fixture == "drafted":
        # The draft model, which is the model itself, was told what was made without it.
        assert counters["accepted_tokens"] > 0.95 * counters["draft_tokens"] > 100


@pytest.mark.slow
def test_a_draft_may_be_an_llm_whose_settings_win(tiny_llm, tiny_model):
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    prompts = prompts_of(4)
    half = tiny_config(dtype="bfloat16", attention_backend="xla", page_size=32)
    with LLM(str(tiny_model), half) as draft:
        with LLM(str(tiny_model), tiny_config(), speculative_model=draft) as llm:
            assert_same(llm.generate(prompts, params), tiny_llm.generate(prompts, params))
            metrics = llm.metrics()
            assert 0.3 * metrics["draft_tokens"] < metrics["accepted_tokens"] < metrics["draft_tokens"]
        assert draft.generate(prompts[0], params).error is None  # its weights are still there


def test_a_draft_model_that_does_not_fit_is_refused(tiny_llm, tiny_model):
    with pytest.raises(ConfigError, match="give speculative_model"):
        LLM(str(tiny_model), tiny_config(speculative=SpeculativeConfig(method="draft_model")))
    draft, model = tiny_llm.as_draft(), tiny_llm.model_config
    with pytest.raises(ConfigError, match="288 tokens, the model 300"):
        draft.check(replace(model, vocab_size=300), 256)
    with pytest.raises(ConfigError, match="lower it"):
        draft.check(model, model.max_position + 1)


def test_a_draft_model_with_other_tokens_is_refused(tiny_llm, tiny_model, tmp_path):
    draft, own = tiny_llm.as_draft(), tiny_llm._tokenizer.vocabulary
    draft.check_vocabulary(own)
    draft.check_vocabulary({token: number for token, number in own.items() if number < 100})
    replace(draft, vocabulary={}).check_vocabulary(own)
    first, second = sorted(own, key=own.__getitem__)[40:42]
    swapped = own | {first: own[second], second: own[first]}
    with pytest.raises(ConfigError, match="under 2 ids, the first is") as caught:
        draft.check_vocabulary(swapped)
    assert f"{first!r}, and the model's {second!r}" in str(caught.value)
    # A whole model whose tokenizer counts otherwise.
    shutil.copytree(tiny_model, tmp_path / "other")
    path = tmp_path / "other" / "tokenizer.json"
    described = json.loads(path.read_text())
    described["model"]["vocab"] = swapped
    path.write_text(json.dumps(described))
    speculative = SpeculativeConfig(method="draft_model", speculative_model=str(tmp_path / "other"))
    with pytest.raises(ConfigError, match="take a draft model of the same family"):
        LLM(str(tiny_model), tiny_config(speculative=speculative))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_greedy_texts_of_a_real_model_are_those_without_proposals(method, shared_data):
    """SmolLM2 135M in float32, with itself in bfloat16 as its draft model."""
    lines = (shared_data / "prompts.jsonl").read_text(encoding="utf-8").splitlines()[:NUM_REAL_PROMPTS]
    prompts = [json.loads(line)["prompt"][:400] for line in lines]
    params = SamplingParams(max_tokens=32, ignore_eos=True)
    options = {"dtype": "float32", "max_num_seqs": 8, "max_model_len": 512}
    with LLM("demo:smollm2-135m", EngineConfig.of(**options)) as llm:
        expected = llm.generate(prompts, params)
    with contextlib.ExitStack() as stack:
        if method == "ngram":
            config, draft = EngineConfig.of(**options, method="ngram"), None
        else:
            config = EngineConfig.of(**options)
            draft = LLM("demo:smollm2-135m", EngineConfig.of(max_num_seqs=8, max_model_len=512))
            stack.enter_context(draft)
        llm = stack.enter_context(LLM("demo:smollm2-135m", config, speculative_model=draft))
        assert_same(llm.generate(prompts, params), expected)
        metrics = llm.metrics()
        share = metrics["accepted_tokens"] / metrics["draft_tokens"]
        print(f"{method}: {share:.1%} of {metrics['draft_tokens']:.0f} proposals accepted")
        assert share > (0.1 if method == "ngram" else 0.8)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"num_speculative_tokens": 0}, "num_speculative_tokens is 0"),
        ({"measure_every": 1}, "wanted at least 2, or 0"),
        ({"prompt_lookup_max": 1, "prompt_lookup_min": 2}, "less than prompt_lookup_min"),
        ({"method": "ngram", "speculative_model": "x"}, "draft_model"),
    ],
)
def test_what_cannot_be_is_refused(changes, text):
    with pytest.raises(ConfigError, match=text):
        SpeculativeConfig(**changes)


def test_deterministic_texts_are_not_speculated():
    with pytest.raises(ConfigError, match="do not go together"):
        tiny_config(deterministic=True, speculative=SpeculativeConfig(method="ngram"))
