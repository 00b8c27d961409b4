"""Random workloads: no hang, no leaked page, every request answered once."""

import random
import time

import pytest

from headrace.engines.llm import LLM, SamplingParams
from tests.engines.llm.conftest import tiny_config
from tests.engines.llm.driving import encode, is_refused, make_engine

LENGTHS = (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 128)
PATIENCE_S = 60.0
"""Of processor time, in which a busy machine cannot run out; no workload takes more than a second or two."""


@pytest.fixture(scope="module")
def engine(tiny_model):
    with LLM(str(tiny_model), tiny_config(num_pages=200)) as llm:
        beams = SamplingParams(max_tokens=2, use_beam_search=True, beam_width=3)
        llm.precompile(sampling_params=[SamplingParams(), beams])
        yield llm


def random_params(rng: random.Random) -> SamplingParams:
    kind = rng.random()
    length = rng.choice([1, 2, 15, 16, 17, 30])
    if kind < 0.1:
        width = rng.choice([2, 3])
        return SamplingParams(max_tokens=min(length, 8), n=1, use_beam_search=True, beam_width=width)
    if kind < 0.3:
        return SamplingParams(max_tokens=length, n=2, best_of=rng.choice([2, 3]), temperature=1.0)
    return SamplingParams(
        max_tokens=length, temperature=rng.choice([0.0, 1.0]), ignore_eos=rng.random() < 0.5
    )


def run_workload(llm: LLM, seed: int) -> None:
    rng = random.Random(seed)
    config = tiny_config(
        num_pages=rng.choice([12, 20, 200]),
        policy=rng.choice(["fcfs", "priority"]),
        look_ahead=rng.choice([1, 5, 64]),
        look_past=rng.choice([0, 1, 64]),
        enable_prefix_caching=rng.random() < 0.7,
        deterministic=rng.random() < 0.3,
        prefill_chunk_size=rng.choice([None, 7, 16]),
        long_prefill_token_threshold=rng.choice([0, 20]),
        max_concurrent_prefill=rng.choice([1, 8]),
        async_scheduling=rng.random() < 0.7,
        dispatches_in_flight=rng.choice([1, 2, 4]),
        decode_burst=rng.choice([1, 3, 8]),
    )
    made = make_engine(llm, config)
    beginning = [rng.randrange(32, 288) for _ in range(rng.choice([0, 16, 40]))]
    waiting = [str(name) for name in range(rng.randrange(1, 25))]
    expected, answered = set(), []
    started_s = time.process_time()
    while waiting or made.has_work():
        assert time.process_time() - started_s < PATIENCE_S, "the engine hangs"
        for _ in range(min(rng.randrange(4), len(waiting))):
            name = waiting.pop()
            prompt = [rng.randrange(32, 288) for _ in range(rng.choice(LENGTHS))]
            prompt = beginning + prompt if rng.random() < 0.5 else prompt
            request = encode(llm, name, prompt, random_params(rng), rng.randrange(3))
            if not is_refused(made, request):
                expected.add(name)
        if expected and rng.random() < 0.1:
            name = rng.choice(sorted(expected))
            made.abort(name)
            expected -= {name} - set(answered)
        if made.has_work():
            answered += [output.request_id for output in made.step() if output.finished]
    assert sorted(answered) == sorted(expected)
    assert made._scheduler._pool.num_free == config.cache.num_pages - 1
    assert not made._searches
    assert not made._ended


@pytest.mark.parametrize("seed", range(6))
def test_a_random_workload_is_answered_in_full(engine, seed):
    run_workload(engine, seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(50))
def test_500_random_workloads_are_answered_in_full(engine, part):
    for seed in range(10 * part, 10 * part + 10):
        run_workload(engine, 1000 + seed)
