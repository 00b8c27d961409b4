"""Several texts of one prompt: n and best_of."""

import pytest

from headrace.engines.llm import LLM, SamplingParams
from headrace.engines.sampling import derive_seed
from tests.engines.llm.conftest import tiny_config

PROMPTS = [[50] * 20, [60, 61] * 20, [70] * 16, [80] * 17, [90]]


@pytest.fixture(scope="module")
def engine(tiny_model):
    """A deterministic engine whose pool is so small that rows are preempted."""
    with LLM(str(tiny_model), tiny_config(deterministic=True, num_pages=14)) as llm:
        yield llm


def params(**changes) -> SamplingParams:
    return SamplingParams(**({"temperature": 1.0, "max_tokens": 20, "ignore_eos": True, "seed": 5} | changes))


def test_n_texts_are_those_of_n_rows_with_the_seeds_of_the_samples(engine):
    outputs = engine.generate(PROMPTS, params(n=3))
    assert engine.counters()["preemptions"] > 0
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        assert [text.index for text in output.outputs] == [0, 1, 2]
        seeds = [5, derive_seed(5, "", 1), derive_seed(5, "", 2)]
        assert [text.seed for text in output.outputs] == seeds
        alone = engine.generate([prompt] * 3, [params(seed=seed) for seed in seeds])
        assert [text.token_ids for text in output.outputs] == [each.outputs[0].token_ids for each in alone]
    assert engine._engine._scheduler._pool.num_free == 13
    assert not engine._engine._ended


def test_best_of_keeps_the_likeliest_texts(engine):
    every = engine.generate(PROMPTS[0], params(n=4)).outputs
    best = engine.generate(PROMPTS[0], params(n=2, best_of=4)).outputs
    ranked = sorted(every, key=lambda text: -text.cumulative_logprob / len(text.token_ids))
    assert [text.token_ids for text in best] == [text.token_ids for text in ranked[:2]]


def test_siblings_share_the_pages_of_the_prompt_without_a_prefix_cache(tiny_model):
    with LLM(str(tiny_model), tiny_config(enable_prefix_caching=False, num_pages=30)) as llm:
        # 8 rows of a prompt of 200 tokens in 12 full pages: alone each would need 14 of the 29 pages.
        output = llm.generate([[50, 51] * 100], params(n=8, max_tokens=8))[0]
        assert len({text.token_ids for text in output.outputs}) == 8
        assert llm.metrics()["preemptions"] == 0
        assert llm._engine._scheduler._pool.num_free == 29
