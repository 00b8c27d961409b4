"""Speculative decoding beside plain decoding, in turn in one process, for a few rows at a time.

    python -m benchmarks.speculation --model demo:smollm2-135m --rows 1 2 4

Two workloads: texts that repeat their prompt (a table is to be written again with one change), and free
answers. The first round of each engine is not counted.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable

from headrace.engines.llm import LLM, EngineConfig, SamplingParams, SpeculativeConfig
from headrace.engines.ratios import ratios

NAMES = ["oak", "ash", "elm", "fir", "yew", "lime", "pine", "rowan"]
TOPICS = ["the sea", "a mill", "winter", "bread", "a long road", "the moon", "old books", "rain"]


def copying(index: int) -> str:
    """A prompt that asks for a text that stands in it."""
    lines = [
        f"{number}. The {NAMES[(number + index) % 8]} is {number * 7 + index} m high." for number in range(9)
    ]
    table = "\n".join(lines)
    return f"Write this list three times, word for word.\n\n{table}\n\nThe list:\n\n{table}\n\nThe list:\n\n"


def free(index: int) -> str:
    """A prompt whose answer is new."""
    return f"Write a short story about {TOPICS[index % 8]}, in which a stranger comes at night.\n\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="demo:smollm2-135m")
    parser.add_argument("--draft", help="a draft model; without one proposals come from the text itself")
    parser.add_argument("--head", help="an EAGLE head for the model, in the place of a draft model")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--num-speculative-tokens", type=int, default=4)
    parser.add_argument("--measure-every", type=int, default=0, help="as --speculative-measure-every")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16")
    arguments = parser.parse_args()
    method = "eagle" if arguments.head else "draft_model" if arguments.draft else "ngram"
    speculative = SpeculativeConfig(
        method=method,
        speculative_model=arguments.head or arguments.draft,
        num_speculative_tokens=arguments.num_speculative_tokens,
        disable_by_batch_size=max(arguments.rows),
        measure_every=arguments.measure_every,
    )
    options = {"max_model_len": 1024, "max_num_seqs": 32, "num_pages": 600, "dtype": arguments.dtype}
    options["enable_prefix_caching"] = True
    with (
        LLM(arguments.model, EngineConfig.of(**options)) as plain,
        LLM(arguments.model, EngineConfig.of(**options, speculative=speculative)) as speculating,
    ):
        for workload in (copying, free):
            for num_rows in arguments.rows:
                compare(workload, num_rows, [plain, speculating], arguments)


def compare(
    workload: Callable[[int], str], num_rows: int, engines: list[LLM], arguments: argparse.Namespace
) -> None:
    params = SamplingParams(max_tokens=arguments.tokens, ignore_eos=True)
    prompts = [workload(index) for index in range(num_rows)]
    seconds: list[list[float]] = [[], []]
    texts: list[list[str]] = [[], []]
    before = engines[1].counters()
    for _ in range(arguments.rounds + 1):
        for number, llm in enumerate(engines):
            started_s = time.perf_counter()
            texts[number] = [output.text for output in llm.generate(prompts, params)]
            seconds[number].append(time.perf_counter() - started_s)
    rates = [num_rows * arguments.tokens / statistics.median(each[1:]) for each in seconds]
    gains = [plain / own for plain, own in zip(seconds[0][1:], seconds[1][1:], strict=True)]
    gained = {name: value - before[name] for name, value in engines[1].counters().items()}
    found = ratios(gained)
    accepted, per_step, own = (
        found.get(f"speculation_{name}", math.nan)
        for name in ("acceptance_rate", "tokens_per_step", "speed_up")
    )
    same = sum(one == other for one, other in zip(*texts, strict=True))
    print(
        f"{workload.__name__}, {num_rows} rows: {rates[0]:.0f} tokens/s plain, {rates[1]:.0f} speculating, "
        f"ratio {statistics.median(gains):.2f} ({min(gains):.2f} to {max(gains):.2f}); "
        f"{accepted:.0%} accepted, {per_step:.2f} tokens a step, by its own measure {own:.2f}; "
        f"{same} of {num_rows} texts equal",
        flush=True,
    )


if __name__ == "__main__":
    main()
