"""What is compiled, and when."""

import jax.monitoring
import pytest

from headrace.engines import ConfigError
from headrace.engines.llm import LLM, SamplingParams
from tests.engines.llm.conftest import tiny_config
from tests.engines.llm.test_engine import GREEDY, SAMPLED, random_prompts, token_ids

BACKEND_COMPILE = "/jax/core/compile/backend_compile_duration"


def test_after_warm_up_a_mixed_workload_compiles_nothing(tiny_model):
    compiles = []

    def listen(event: str, duration_s: float, **_: str | int) -> None:
        if event == BACKEND_COMPILE:
            compiles.append(duration_s)

    options = {"strict_shapes": True, "max_num_seq_buckets": (4, 8), "token_buckets": (32, 64)}
    with LLM(str(tiny_model), tiny_config(num_pages=60, cache_dir=None, **options)) as llm:
        assert llm.precompile(num_seqs=3) == ["decode of 4"]
        compiled = llm.precompile()
        assert compiled == ["prefill of 32", "prefill of 64", "decode of 8", "copy of 32"]
        jax.monitoring.register_event_duration_secs_listener(listen)
        try:
            prompts = random_prompts(40, seed=2)
            params = [GREEDY, SAMPLED, SamplingParams(n=3, temperature=1.0, max_tokens=5, stop="a")]
            llm.generate(prompts, [params[index % 3] for index in range(40)])
            llm.generate([50] * 20, GREEDY)
        finally:
            jax.monitoring.unregister_event_duration_listener(listen)
        assert compiles == []
        metrics = llm.metrics()
        assert (metrics["compiles"], metrics["late_compiles"]) == (5, 0)


def test_lists_for_precompile_are_taken_side_by_side(tiny_model):
    with LLM(str(tiny_model), tiny_config(max_num_seq_buckets=(4, 8), token_buckets=(32, 64))) as llm:
        assert llm.precompile([1, 64], 5) == ["prefill of 32", "decode of 8", "prefill of 64"]
        told = []
        assert llm.precompile([1, 64], 5, progress_callback=lambda *now: told.append(now)) == []
        assert told == [(1, 3), (2, 3), (3, 3)]
        with pytest.raises(ConfigError, match="num_seqs is 9"):
            llm.precompile(None, 9)
        with pytest.raises(ConfigError, match="empty"):
            llm.precompile([], 8)


def test_programs_made_at_first_use_give_the_same_tokens(tiny_model, tiny_llm):
    prompts = random_prompts(6, seed=3)
    expected = token_ids(tiny_llm.generate(prompts, GREEDY))
    with LLM(str(tiny_model), tiny_config(deterministic=True, aot=False, cache_dir=None)) as llm:
        assert token_ids(llm.generate(prompts, GREEDY)) == expected
        assert llm.metrics()["compiles"] == 2


def test_buckets_that_do_not_reach_the_limits_are_refused():
    with pytest.raises(ConfigError, match="max_num_seq_buckets"):
        tiny_config(max_num_seq_buckets=(2, 4))
    with pytest.raises(ConfigError, match="token_buckets"):
        tiny_config(token_buckets=(64, 32))


def test_programs_of_announced_params_are_compiled_ahead_and_no_others(tiny_model):
    guided = SamplingParams(guided_regex="[a-z]{9}", max_tokens=12)
    edited = SamplingParams(frequency_penalty=1.0, logprobs=3, prompt_logprobs=0, max_tokens=12)
    config = tiny_config(deterministic=True, strict_shapes=True, cache_dir=None)
    with LLM(str(tiny_model), config) as llm:
        assert llm.precompile(sampling_params=guided) == [
            "prefill logits of 64",
            "decode logits of 8",
            "choose of 8 with a mask",
            "copy of 32",
        ]
        assert llm.precompile(sampling_params=edited) == [
            "prefill of 64 with 8 likely tokens, 64 touched tokens",
            "decode of 8 with 8 likely tokens, 64 touched tokens",
            "prompt scores of 64 with 8 likely tokens",
            "choose of 8 with 8 likely tokens, 64 touched tokens, a mask",
        ]
        prompts = random_prompts(8, seed=4)
        llm.generate(prompts, guided)
        llm.generate(prompts, edited)
        outputs = llm.generate(prompts, [guided, edited] * 4)
        assert all(output.error is None for output in outputs)
        metrics = llm.metrics()
        assert (metrics["compiles"], metrics["late_compiles"]) == (8, 0)
