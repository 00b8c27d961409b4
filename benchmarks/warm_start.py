"""Start of the text engine with an empty and a filled cache of compiled programs.

    python benchmarks/warm_start.py --model demo:smollm2-135m --rounds 3

Every start is a process of its own; cold and warm ones take turns. Shown are the medians of the seconds that
all programs took to compile (or to be read from the cache), of those from `LLM(...)` until all programs are
there, and of those from the beginning of the process, Python's imports included.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from typing import NamedTuple

START = """
import sys, time
started_s = time.monotonic()
from headrace.engines.llm import LLM, EngineConfig
imported_s = time.monotonic()
with LLM(sys.argv[1], EngineConfig.of(max_model_len=512, cache_dir=sys.argv[2])) as llm:
    before_s = time.monotonic()
    llm.precompile()
    now_s = time.monotonic()
    print(now_s - before_s, now_s - imported_s, now_s - started_s)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Cold and warm starts.")
    parser.add_argument("--model", default="demo:smollm2-135m")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    seconds: dict[str, list[Start]] = {"cold": [], "warm": []}
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as cache:
            for kind, starts in seconds.items():
                starts.append(start(arguments.model, cache))
                print(f"{kind}: {starts[-1]}", flush=True)
    for name in Start._fields:
        cold, warm = (statistics.median(getattr(one, name) for one in starts) for starts in seconds.values())
        print(f"{name}: cold {cold:.1f} s, warm {warm:.1f} s, {cold / warm:.1f} times")


class Start(NamedTuple):
    """Seconds of one start."""

    programs: float
    engine: float
    process: float


def start(model: str, cache: str) -> Start:
    command = [sys.executable, "-c", START, model, cache]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Start(*map(float, done.stdout.split()[-3:]))


if __name__ == "__main__":
    main()
