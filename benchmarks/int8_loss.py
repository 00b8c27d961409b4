"""What int8 weights and int8 KV pages cost in quality, and gain in speed.

    python benchmarks/int8_loss.py prompts.jsonl --model demo:smollm2-135m --rows 64

Each prompt's tokens are scored: perplexity, and whether the likeliest token is the bfloat16 engine's.
With --speed all engines make the same 32 tokens a row in turn, three times over, and the median ratio of
their speed to the bfloat16 engine's is shown.
"""

import argparse
import json
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headrace.engines.llm import LLM, EngineConfig, RequestOutput, SamplingParams

MAX_PROMPT = 224
NUM_OUTPUTS = 32
ROUNDS = 3
KINDS = {
    "bfloat16": {},
    "int8 weights": {"quantization": "int8"},
    "int8 KV": {"kv_cache_dtype": "int8"},
    "int8 weights and KV": {"quantization": "int8", "kv_cache_dtype": "int8"},
}


class Scored(NamedTuple):
    """What an engine made of all prompts."""

    losses: np.ndarray  # of each prompt token
    likeliest: np.ndarray  # the most likely token at its place


def main() -> None:
    parser = argparse.ArgumentParser(description="Loss of int8 weights and KV pages.")
    parser.add_argument("prompts", type=Path, help="table of prompts, .jsonl")
    parser.add_argument("--model", default="demo:smollm2-135m")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--speed", action="store_true")
    arguments = parser.parse_args()
    lines = arguments.prompts.read_text(encoding="utf-8").splitlines()[: arguments.rows]
    prompts = [json.loads(line)["prompt"] for line in lines]
    engines = {name: make_engine(arguments.model, options) for name, options in KINDS.items()}
    scored = {name: score(engine, prompts) for name, engine in engines.items()}
    plain = scored["bfloat16"]
    print(f"{len(prompts)} prompts, {plain.losses.size} tokens scored")
    print("| | perplexity | likeliest token the same |")
    print("| --- | --- | --- |")
    for name, own in scored.items():
        agree = np.mean(own.likeliest == plain.likeliest)
        print(f"| {name} | {np.exp(own.losses.mean()):.3f} | {agree:.1%} |", flush=True)
    if arguments.speed:
        for name, ratio in measure_speed(engines, prompts).items():
            print(f"{name}: {ratio:.2f} times the speed of bfloat16")


def make_engine(model: str, options: dict[str, str]) -> LLM:
    limits = {"max_model_len": 256, "max_num_seqs": 32, "max_num_batched_tokens": 512}
    # At first use: without --speed nothing decodes, and no program for it is wanted.
    limits |= {"aot": False, "token_buckets": (512,)}
    return LLM(model, EngineConfig.of(**limits, **options))


def run(engine: LLM, prompts: list[str], params: SamplingParams) -> list[RequestOutput]:
    cut = {"max_length": MAX_PROMPT, "truncation": True, "truncation_side": "right"}
    outputs = engine.generate(prompts, params, tokenizer_kwargs=cut)
    assert isinstance(outputs, list)
    assert all(output.error is None for output in outputs)
    return outputs


def score(engine: LLM, prompts: list[str]) -> Scored:
    outputs = run(engine, prompts, SamplingParams(max_tokens=1, prompt_logprobs=1))
    losses, likeliest = [], []
    for output in outputs:
        for token, place in zip(output.prompt_token_ids, output.prompt_logprobs or (), strict=True):
            if place is not None:
                losses.append(-place[token].logprob)
                likeliest.append(next(each for each, found in place.items() if found.rank == 1))
    return Scored(np.asarray(losses), np.asarray(likeliest))


def measure_speed(engines: dict[str, LLM], prompts: list[str]) -> dict[str, float]:
    """Each engine's speed by that of the first."""
    params = SamplingParams(max_tokens=NUM_OUTPUTS, ignore_eos=True)
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(ROUNDS + 1):
        for name, engine in engines.items():
            started_s = time.monotonic()
            run(engine, prompts, params)
            seconds[name].append(time.monotonic() - started_s)
    first, *_ = seconds.values()
    # The first round compiles.
    return {name: float(np.median(np.divide(first[1:], each[1:]))) for name, each in seconds.items()}


if __name__ == "__main__":
    main()
