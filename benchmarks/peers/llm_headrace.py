"""headrace's text engine on one workload."""

import argparse
from collections.abc import Sequence

from measured import Answer, Answers, Loaded, run

from headrace.engines.llm import LLM, EngineConfig, SamplingParams


def load(args: argparse.Namespace) -> Loaded:
    dtype, _, option = args.dtype.partition("-")
    int8 = dtype == "int8"
    config = EngineConfig.of(
        dtype="bfloat16" if int8 else dtype,
        quantization="int8" if int8 else "int16" if option == "int16" else None,
        kv_cache_dtype="int8" if option == "int8kv" or int8 else "auto",
        max_num_seqs=args.slots,
        max_model_len=1024,
    )
    llm = LLM(args.model, config)
    llm.precompile()

    def answer(prompts: Sequence[list[int]], max_tokens: int) -> Answers:
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        outputs = llm.generate(prompt_token_ids=list(prompts), sampling_params=params)
        return [Answer(one.text, list(one.outputs[0].token_ids)) for one in outputs]

    return answer


if __name__ == "__main__":
    run(load, ["jax", "jaxlib"])
