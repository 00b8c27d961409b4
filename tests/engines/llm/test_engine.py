"""The engine as a whole, on a tiny model: what a row gives may depend on nothing but the row."""

import random
import time

import pytest

from headrace.engines.errors import ConfigError, EngineError
from headrace.engines.llm import LLM, SamplingParams
from tests.engines.llm.conftest import tiny_config

GREEDY = SamplingParams(max_tokens=24, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=24, ignore_eos=True, temperature=1.0, top_p=0.9, top_k=50)
LENGTHS = (1, 5, 15, 16, 17, 31, 33, 64, 65, 130, 200)


def random_prompts(count: int, seed: int = 0) -> list[list[int]]:
    """Prompts with lengths around the borders of pages, chunks and blocks."""
    rng = random.Random(seed)
    return [[rng.randrange(32, 288) for _ in range(rng.choice(LENGTHS))] for _ in range(count)]


def token_ids(outputs) -> list[tuple[int, ...]]:
    return [output.outputs[0].token_ids for output in outputs]


def run(model, prompts, params, **config) -> list[tuple[int, ...]]:
    """Tokens of an engine of its own; its request ids, and so its seeds, follow the order of the prompts."""
    with LLM(str(model), tiny_config(**config)) as llm:
        outputs = llm.generate(prompts, params)
        assert all(output.error is None for output in outputs)
        return token_ids(outputs)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_row_gives_the_same_tokens_alone_and_in_any_company(tiny_model, params):
    prompts = random_prompts(20)
    seeded = [SamplingParams(**(_fields(params) | {"seed": index})) for index in range(20)]
    with LLM(str(tiny_model), tiny_config(deterministic=True)) as llm:
        together = token_ids(llm.generate(prompts, seeded))
        alone = [
            llm.generate([prompt], own)[0].outputs[0].token_ids
            for prompt, own in zip(prompts[:6], seeded[:6], strict=True)
        ]
        order = random.Random(1).sample(range(20), 20)
        shuffled = token_ids(llm.generate([prompts[i] for i in order], [seeded[i] for i in order]))
    assert alone == together[:6]
    assert [shuffled[order.index(i)] for i in range(20)] == together


@pytest.mark.parametrize("burst", [1, 5, 32])
def test_tokens_do_not_depend_on_the_burst(tiny_model, burst):
    prompts = random_prompts(12, seed=3)
    params = [SAMPLED if index % 2 else GREEDY for index in range(12)]
    expected = run(tiny_model, prompts, params, deterministic=True)
    assert run(tiny_model, prompts, params, deterministic=True, decode_burst=burst) == expected


def test_tokens_do_not_depend_on_chunks_of_the_prompt(tiny_model):
    prompts = random_prompts(10, seed=4)
    expected = run(tiny_model, prompts, GREEDY, max_num_batched_tokens=512)
    assert run(tiny_model, prompts, GREEDY, max_num_batched_tokens=32) == expected


def test_a_tiny_pool_gives_the_tokens_of_an_ample_one(tiny_model):
    prompts = random_prompts(16, seed=5)
    expected = run(tiny_model, prompts, GREEDY)
    with LLM(str(tiny_model), tiny_config(num_pages=20)) as llm:
        assert token_ids(llm.generate(prompts, GREEDY)) == expected
        assert llm.metrics()["preemptions"] > 0
        assert llm._engine._scheduler._pool.num_free == 19


def test_mixed_seeds_in_one_batch_are_each_obeyed(tiny_llm):
    prompt = random_prompts(1, seed=6)[0]
    params = [SamplingParams(**(_fields(SAMPLED) | {"seed": seed})) for seed in (1, 2, 1, None, 2, None)]
    first, second, again, free, second_again, other = token_ids(tiny_llm.generate([prompt] * 6, params))
    assert first == again
    assert second == second_again
    assert len({first, second, free, other}) == 4


def test_min_tokens_bars_every_way_to_stop(tiny_llm):
    prompt = random_prompts(1, seed=7)[0]
    every_token = tuple(tiny_llm.generate([prompt], GREEDY)[0].outputs[0].token_ids)
    stops = tuple(dict.fromkeys(every_token))[:8]
    early = tiny_llm.generate([prompt], SamplingParams(max_tokens=24, stop_token_ids=stops))[0].outputs[0]
    assert (early.finish_reason, len(early.token_ids)) == ("stop", 1)
    late_params = SamplingParams(max_tokens=24, min_tokens=10, stop_token_ids=stops)
    late = tiny_llm.generate([prompt], late_params)[0].outputs[0]
    assert not set(late.token_ids[:10]) & set(stops)
    assert len(late.token_ids) > 10


def test_the_text_ends_before_a_stop_string_that_spans_tokens(tiny_llm):
    prompt = random_prompts(1, seed=8)[0]
    whole = tiny_llm.generate([prompt], GREEDY)[0].outputs[0]
    stop = whole.text[2:4]
    cut = tiny_llm.generate([prompt], SamplingParams(max_tokens=24, ignore_eos=True, stop=stop))[0].outputs[0]
    assert cut.finish_reason == "stop"
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.token_ids == whole.token_ids[: len(cut.token_ids)]
    assert stop in tiny_llm._tokenizer.decode(cut.token_ids)
    assert stop not in tiny_llm._tokenizer.decode(cut.token_ids[:-1])
    assert cut.cumulative_logprob > whole.cumulative_logprob


def test_prompts_at_the_context_length(tiny_model):
    with LLM(str(tiny_model), tiny_config(max_model_len=100)) as llm:
        prompts = [[40] * length for length in (98, 99, 100, 101, 0)]
        outputs = llm.generate(prompts, GREEDY)
        assert [len(output.outputs[0].token_ids) for output in outputs[:2]] == [2, 1]
        assert [output.outputs[0].finish_reason for output in outputs[:2]] == ["length"] * 2
        assert [output.error.kind for output in outputs[2:]] == ["prompt_too_long"] * 2 + ["prompt_empty"]
        assert "the engine takes 99" in outputs[2].error.message


@pytest.mark.parametrize("side", ["truncate-left", "truncate-right"])
def test_an_overlong_prompt_is_cut_where_wanted_and_flagged(tiny_model, side):
    prompt = [40 + index % 200 for index in range(150)]
    with LLM(str(tiny_model), tiny_config(max_model_len=100, overlong=side)) as llm:
        cut, whole = llm.generate([prompt, prompt[:50]], GREEDY)
    expected = prompt[-99:] if side == "truncate-left" else prompt[:99]
    assert list(cut.prompt_token_ids) == expected
    assert cut.quality_flags == ("prompt_truncated",)
    assert whole.quality_flags == ()


def test_a_row_that_no_pool_could_hold_is_refused_and_the_rest_run(tiny_model):
    with LLM(str(tiny_model), tiny_config(num_pages=9)) as llm:
        bad, good = llm.generate([[50] * 120, [50] * 20], GREEDY)
    assert bad.error.kind == "prompt_too_long"
    assert len(good.outputs[0].token_ids) == 24


def test_an_aborted_request_ends_with_an_error_and_frees_its_pages(tiny_model):
    with LLM(str(tiny_model), tiny_config(max_model_len=512, decode_burst=1)) as llm:
        future = llm.submit([50] * 20, SamplingParams(max_tokens=450, ignore_eos=True), request_id="long")
        other = llm.submit([60] * 20, GREEDY, request_id="short")
        llm.abort("long")
        assert future.result(timeout=60).error.kind == "aborted"
        assert other.result(timeout=60).error is None
        assert llm._engine._scheduler._pool.num_free == 199


def test_close_ends_requests_in_flight_with_engine_error(tiny_model):
    llm = LLM(str(tiny_model), tiny_config(max_model_len=512, decode_burst=1))
    future = llm.submit([50] * 20, SamplingParams(max_tokens=450, ignore_eos=True), request_id="long")
    llm.close()
    with pytest.raises(EngineError):
        future.result(timeout=60)
    with pytest.raises(EngineError):
        llm.submit([50], GREEDY, request_id="late")


def test_times_are_in_order(tiny_llm):
    started_s = time.monotonic()
    output = tiny_llm.generate([[50] * 20], GREEDY)[0]
    assert 0 <= output.queue_s <= output.ttft_s <= output.latency_s <= time.monotonic() - started_s


def test_a_context_beyond_the_model_is_refused(tiny_model):
    with pytest.raises(ConfigError, match="max_model_len"):
        LLM(str(tiny_model), tiny_config(max_model_len=4096))


def test_few_programs_are_compiled(tiny_llm):
    tiny_llm.generate(random_prompts(30, seed=9), GREEDY)
    assert tiny_llm.metrics()["compiles"] <= 3  # prefill, decode and, after a while, copy


def _fields(params: SamplingParams) -> dict:
    return {name: getattr(params, name) for name in params.__dataclass_fields__}


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("num_pages", [200, 24])
def test_shared_beginnings_change_no_token(tiny_model, params, num_pages):
    beginning = random_prompts(1, seed=10)[0][:1] * 70
    prompts = [beginning + prompt[:40] for prompt in random_prompts(12, seed=11)] + [beginning] * 4
    seeded = [SamplingParams(**(_fields(params) | {"seed": index})) for index in range(16)]
    expected = run(tiny_model, prompts, seeded, enable_prefix_caching=False)
    with LLM(str(tiny_model), tiny_config(num_pages=num_pages)) as llm:
        for _ in range(2):
            outputs = llm.generate(prompts, seeded)
            assert token_ids(outputs) == expected
            assert llm._engine._scheduler._pool.num_free == num_pages - 1
        assert sum(output.cached_tokens for output in outputs) > 5 * 64
        assert all(output.cached_tokens < len(output.prompt_token_ids) for output in outputs)
