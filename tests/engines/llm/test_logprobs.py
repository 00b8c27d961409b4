"""Log-probabilities against those of transformers (see golden/make_logprob_goldens.py)."""

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
