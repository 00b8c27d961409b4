"""Async scheduling on and off, and decode bursts of 1 to 64 tokens, on the same rows in turn in one process.

    python benchmarks/bursts.py --rounds 3

Every round loads an engine with each setting, warms it up on as many rows as are timed, and times others.
Shown are the medians of tokens a second, and how many times as fast each setting is as the default (bursts
of 32, async scheduling on).
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.engines.checkpoints import open_checkpoint
from headrace.engines.llm import LLM, EngineConfig, SamplingParams

DEFAULT = "default"
SEED = 20261130


def main() -> None:
    args = _arguments()
    settings: dict[str, dict[str, Any]] = {DEFAULT: {}, "async scheduling off": {"async_scheduling": False}}
    settings |= {f"bursts of {size}": {"decode_burst": size} for size in args.bursts}
    checkpoint = open_checkpoint(args.model)
    seconds: dict[int, dict[str, list[float]]] = {rows: {} for rows in args.rows}
    for number in range(args.rounds):
        for name, options in settings.items():
            config = EngineConfig.of(max_num_seqs=max(args.rows), max_model_len=256, **options)
            with LLM(checkpoint, config) as llm:
                for rows in args.rows:
                    taken = measure(llm, rows, args.max_tokens)
                    seconds[rows].setdefault(name, []).append(taken)
                    print(
                        f"round {number + 1}, {name}, {rows} rows: {taken:.2f} s", file=sys.stderr, flush=True
                    )
    print("\n".join(table(seconds, args.max_tokens)))
    if args.output:
        args.output.write_text(json.dumps(seconds, indent=1))


def measure(llm: LLM, rows: int, max_tokens: int) -> float:
    """Seconds of the second of two times that rows are made, with other prompts each time."""
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    draw = np.random.default_rng(SEED)
    for _ in range(2):
        prompts = draw.integers(100, llm.model_config.vocab_size, (rows, 32)).tolist()
        started_s = time.perf_counter()
        llm.generate(prompt_token_ids=prompts, sampling_params=params)
    return time.perf_counter() - started_s


def table(seconds: Mapping[int, Mapping[str, Sequence[float]]], max_tokens: int) -> list[str]:
    """Tokens a second of each setting and its ratio to the default, as Markdown."""
    heads = " | ".join(f"{rows} rows, tokens/s | to the default" for rows in seconds)
    lines = [f"| setting | {heads} |", "| --- " + "| ---: " * (2 * len(seconds)) + "|"]
    for name in next(iter(seconds.values())):
        cells = []
        for rows, taken in seconds.items():
            median = statistics.median(taken[name])
            cells += [
                f"{rows * max_tokens / median:.0f}",
                f"{statistics.median(taken[DEFAULT]) / median:.2f}",
            ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo:smollm2-135m")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, nargs="*", default=[4, 128])
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--bursts", type=int, nargs="*", default=[1, 2, 4, 8, 16, 64])
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
