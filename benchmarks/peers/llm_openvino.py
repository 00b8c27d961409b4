"""OpenVINO GenAI's continuous batching on one workload."""

import argparse
from collections.abc import Sequence

import numpy as np
import openvino as ov
import openvino_genai as genai
from measured import Answer, Answers, Loaded, run

PRECISIONS = {"bfloat16": "bf16", "float32": "f32", "int8": "bf16"}
"""What is computed in; int8 weights stand in the model's own files."""


def load(args: argparse.Namespace) -> Loaded:
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 4  # GB
    scheduler.max_num_seqs = args.slots
    scheduler.max_num_batched_tokens = 2048
    scheduler.enable_prefix_caching = True
    properties = {
        "INFERENCE_PRECISION_HINT": PRECISIONS[args.dtype],
        "INFERENCE_NUM_THREADS": args.threads,
        "PERFORMANCE_HINT": "THROUGHPUT",
        "NUM_STREAMS": 1,
    }
    pipeline = genai.ContinuousBatchingPipeline(args.model, scheduler, "CPU", properties)
    tokenizer = pipeline.get_tokenizer()

    def answer(prompts: Sequence[list[int]], max_tokens: int) -> Answers:
        config = genai.GenerationConfig(max_new_tokens=max_tokens, ignore_eos=True, do_sample=False)
        inputs = [ov.Tensor(np.array([ids], np.int64)) for ids in prompts]
        results = pipeline.generate(inputs, [config] * len(inputs))
        token_ids = [list(one.m_generation_ids[0]) for one in results]
        return [Answer(tokenizer.decode(ids), ids) for ids in token_ids]

    return answer


if __name__ == "__main__":
    run(load, ["openvino", "openvino-genai"])
