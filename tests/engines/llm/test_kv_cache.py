"""KV pages in 8 bits through the engine."""

import numpy as np
import pytest

from headrace.engines.llm import LLM, SamplingParams
from tests.engines.llm.conftest import tiny_config
from tests.engines.llm.test_logprobs import LOGPROBS, TOKENS


@pytest.fixture(scope="module")
def small(tiny_model):
    """A deterministic engine with pages of int8, too few for all rows."""
    with LLM(str(tiny_model), tiny_config(deterministic=True, kv_cache_dtype="int8", num_pages=14)) as llm:
        yield llm


def test_int8_pages_change_log_probabilities_little(small):
    output = small.generate([TOKENS[:80]], SamplingParams(max_tokens=1, prompt_logprobs=0))[0]
    found = [next(iter(place.values())).logprob for place in output.prompt_logprobs[1:]]
    wanted = LOGPROBS[np.arange(79), TOKENS[1:80]]
    error = np.linalg.norm(np.asarray(found) - wanted) / np.linalg.norm(wanted - wanted.mean())
    assert 1e-5 < error < 0.02


def test_int8_pages_are_shared_copied_and_computed_again(small):
    params = SamplingParams(max_tokens=24, ignore_eos=True, temperature=1.0, seed=5)
    samples = small.generate([TOKENS[:40]] * 4, params.replace(n=3))
    alone = small.generate([TOKENS[:40]], [params])[0]
    assert small.counters()["preemptions"] > 0
    assert {output.outputs[0].token_ids for output in samples} == {alone.outputs[0].token_ids}
    assert len({output.outputs[2].token_ids for output in samples}) == 1
