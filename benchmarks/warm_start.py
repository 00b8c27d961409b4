"""Start of the text engine with an empty and a filled cache of compiled programs.

    python benchmarks/warm_start.py --model demo:smollm2-135m --rounds 3

Every start is a process of its own; cold and warm ones take turns. Shown are the medians of the seconds that
all programs took to compile (or to be read from the cache), and of those from the beginning of the process.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile

START = """
import sys, time
started_s = time.monotonic()
from headrace.engines.llm import LLM, EngineConfig
with LLM(sys.argv[1], EngineConfig.of(max_model_len=512, cache_dir=sys.argv[2])) as llm:
    before_s = time.monotonic()
    llm.precompile()
    now_s = time.monotonic()
    print(now_s - before_s, now_s - started_s)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Cold and warm starts.")
    parser.add_argument("--model", default="demo:smollm2-135m")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    compiled: dict[str, list[float]] = {"cold": [], "warm": []}
    started: dict[str, list[float]] = {"cold": [], "warm": []}
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as cache:
            for kind in ("cold", "warm"):
                compile_s, start_s = start(arguments.model, cache)
                compiled[kind].append(compile_s)
                started[kind].append(start_s)
                print(f"{kind}: {compile_s:.1f} s to compile, {start_s:.1f} s in all", flush=True)
    for name, seconds in (("compiling", compiled), ("the whole start", started)):
        cold, warm = (statistics.median(seconds[kind]) for kind in ("cold", "warm"))
        print(f"{name}: cold {cold:.1f} s, warm {warm:.1f} s, {cold / warm:.1f} times")


def start(model: str, cache: str) -> tuple[float, float]:
    command = [sys.executable, "-c", START, model, cache]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    compile_s, start_s = map(float, done.stdout.split()[-2:])
    return compile_s, start_s


if __name__ == "__main__":
    main()
