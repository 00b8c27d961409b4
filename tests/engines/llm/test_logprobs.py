"""Log-probabilities against those of transformers (see golden/make_logprob_goldens.py)."""

import asyncio

import numpy as np
import pytest

from headrace.engines.llm import LLM, SamplingParams
from tests.engines.llm.conftest import GOLDEN, tiny_config

golden = np.load(GOLDEN / "logprobs_gqa.npz")
TOKENS = golden["tokens"].tolist()
LOGPROBS = golden["logprobs"]
NUM_PROMPT = 33


def check_place(place, token: int, logprobs: np.ndarray, num_top: int) -> None:
    """One token's report against all the log-probabilities there."""
    order = np.argsort(-logprobs, kind="stable")
    expected_ids = list(dict.fromkeys([token, *order[:num_top].tolist()]))
    assert list(place) == expected_ids
    for token_id, found in place.items():
        assert abs(found.logprob - logprobs[token_id]) < 1e-4
        assert found.rank == 1 + (logprobs > logprobs[token_id]).sum()


@pytest.mark.parametrize("num_top", [0, 1, 20, 128])
def test_logprobs_of_outputs_are_those_of_transformers(tiny_llm, num_top):
    params = SamplingParams(max_tokens=48, ignore_eos=True, logprobs=num_top)
    plain = SamplingParams(max_tokens=20, ignore_eos=True)
    output, beside = tiny_llm.generate([TOKENS[:NUM_PROMPT], TOKENS[:20]], [params, plain])
    made = output.outputs[0]
    assert list(made.token_ids) == TOKENS[NUM_PROMPT:]
    assert len(made.logprobs) == 48
    for index, place in enumerate(made.logprobs):
        check_place(place, made.token_ids[index], LOGPROBS[NUM_PROMPT - 1 + index], num_top)
    total = sum(place[token].logprob for place, token in zip(made.logprobs, made.token_ids, strict=True))
    assert made.cumulative_logprob == pytest.approx(total, abs=1e-3)
    assert beside.outputs[0].logprobs is None


def test_logprobs_are_the_models_whatever_changes_the_draw(tiny_llm):
    params = SamplingParams(
        max_tokens=30,
        temperature=2.0,
        top_k=3,
        presence_penalty=2.0,
        suppress_tokens=(40,),
        logprobs=4,
        seed=3,
    )
    first = tiny_llm.generate([TOKENS[:NUM_PROMPT]], params)[0].outputs[0]
    check_place(first.logprobs[0], first.token_ids[0], LOGPROBS[NUM_PROMPT - 1], 4)


def test_a_text_that_is_cut_at_a_stop_string_has_as_many_logprobs_as_tokens(tiny_llm):
    params = SamplingParams(max_tokens=48, ignore_eos=True, logprobs=2)
    whole = tiny_llm.generate([TOKENS[:NUM_PROMPT]], params)[0].outputs[0]
    cut = tiny_llm.generate([TOKENS[:NUM_PROMPT]], params.replace(stop=whole.text[10:13]))[0].outputs[0]
    assert len(cut.logprobs) == len(cut.token_ids) < 48
    assert cut.logprobs == whole.logprobs[: len(cut.logprobs)]


@pytest.mark.slow
def test_logprobs_come_through_preemption(tiny_model):
    rng = np.random.default_rng(0)
    prompts = [rng.integers(32, 288, 60).tolist() for _ in range(8)]
    params = SamplingParams(max_tokens=40, ignore_eos=True, logprobs=3)
    found = []
    for num_pages in (200, 24):
        with LLM(str(tiny_model), tiny_config(num_pages=num_pages)) as llm:
            found.append([output.outputs[0] for output in llm.generate(prompts, params)])
            assert (llm.metrics()["preemptions"] > 0) == (num_pages == 24)
    for ample, tight in zip(*found, strict=True):
        assert ample.token_ids == tight.token_ids
        assert len(tight.logprobs) == 40
        for one, other in zip(ample.logprobs, tight.logprobs, strict=True):
            assert list(one) == list(other)
            assert max(abs(one[token].logprob - other[token].logprob) for token in one) < 1e-4


def check_prompt(output, tokens: list[int], num_top: int) -> None:
    """The report on a prompt against transformers'."""
    first, *places = output.prompt_logprobs
    assert first is None
    assert len(places) == len(tokens) - 1
    for index, place in enumerate(places):
        check_place(place, tokens[index + 1], LOGPROBS[index], num_top)


@pytest.mark.parametrize("num_top", [0, 1, 20])
def test_logprobs_of_prompts_are_those_of_transformers(tiny_llm, num_top):
    params = SamplingParams(max_tokens=2, ignore_eos=True, prompt_logprobs=num_top)
    plain = SamplingParams(max_tokens=20, ignore_eos=True)
    prompts = [TOKENS[:70], TOKENS[:20], TOKENS[:1], TOKENS[:17]]
    output, beside, single, short = tiny_llm.generate(prompts, [params, plain, params, params])
    check_prompt(output, TOKENS[:70], num_top)
    check_prompt(short, TOKENS[:17], num_top)
    assert beside.prompt_logprobs is None
    assert single.prompt_logprobs == (None,)
    assert output.outputs[0].token_ids == tuple(TOKENS[70:72])


def test_a_prompt_whose_logprobs_are_wanted_is_computed_in_full_for_all_its_samples(tiny_model):
    config = tiny_config(prefill_chunk_size=7, num_pages=24)
    with LLM(str(tiny_model), config) as llm:
        llm.generate([TOKENS[:70]], SamplingParams(max_tokens=1))
        assert llm.generate([TOKENS[:70]], SamplingParams(max_tokens=1))[0].cached_tokens == 64
        params = SamplingParams(max_tokens=40, ignore_eos=True, prompt_logprobs=3)
        samples = params.replace(n=3, temperature=1.0)
        beams = params.replace(max_tokens=4, use_beam_search=True, beam_width=2)
        outputs = llm.generate([TOKENS[:70]] * 4, [params, samples, beams, params.replace(prompt_logprobs=0)])
        assert llm.metrics()["preemptions"] > 0
    for output, num_top in zip(outputs, (3, 3, 3, 0), strict=True):
        assert output.cached_tokens == 0
        check_prompt(output, TOKENS[:70], num_top)


def test_prompt_logprobs_change_no_text_and_come_with_the_first_delta(tiny_llm):
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    expected = tiny_llm.generate([TOKENS[:33]], params)[0]

    async def read():
        stream = tiny_llm.stream_generate(TOKENS[:33], params.replace(prompt_logprobs=2))
        return [output async for output in stream]

    outputs = asyncio.run(read())
    assert "".join(output.text for output in outputs) == expected.text
    check_prompt(outputs[0], TOKENS[:33], 2)
    assert len(outputs) > 1
    assert all(output.prompt_logprobs is None for output in outputs[1:])
