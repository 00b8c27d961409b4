"""EAGLE heads propose what the published algorithm proposes, and change no text."""

import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

from headrace.engines.llm import LLM, SamplingParams, SpeculativeConfig
from tests.engines.llm.conftest import tiny_config
from tests.engines.llm.eagle_heads import (
    PlainLlama,
    fitted_head,
    mild_llama,
    simulate,
    write_head,
)
from tests.engines.llm.test_speculate import prompts_of

NUM_PROPOSALS = 3
COUNTS = ("speculative_steps", "draft_tokens", "accepted_tokens")


def eagle_config(head: str, **changes):
    chosen = {"method": "eagle", "speculative_model": head, "num_speculative_tokens": NUM_PROPOSALS}
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
    return write_head(mild[0].parent / "fitted", mild[1], head)


@pytest.fixture(scope="module")
def eagle(mild, spec):
    with LLM(str(mild[0]), eagle_config(spec, enable_prefix_caching=True)) as llm:
        yield llm


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
        tokens = eagle.generate(prompt, SamplingParams(max_tokens=24, ignore_eos=True)).outputs[0].token_ids
        found.append(counted(eagle.metrics(), before))
        expected.append(simulate(mild[1], head, prompt, list(tokens), NUM_PROPOSALS))
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
