"""Seconds from process start to the first committed row, with cold and warm programs, and what they hold.

    python benchmarks/cold_start.py --rounds 3

Each start is the command itself on two short inputs with a part a row; cold ones have an empty directory for
compiled programs, warm ones that of the cold one before, and they take turns. The time ends when the first
part is in place. A second start of each kind, without the supervising process, tells what the time is made of
(cold_start_parts.py). Models are in the cache already, and their files in memory after the first round.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from headrace.engines.cache import cache_home

PARTS = Path(__file__).parent / "cold_start_parts.py"
LOOK_S = 0.02
"""How often the output is looked at."""
LIMIT_S = 300.0
OPTIONS = {
    "generate": ["--model", "demo:smollm2-135m", "--max-tokens", "16"],
    "transcribe": ["--model", "demo:whisper-tiny.en"],
}


def main() -> None:
    args = _arguments()
    record: dict[str, dict[str, list]] = {}
    for _ in range(args.rounds):
        for job in args.jobs:
            with tempfile.TemporaryDirectory() as scratch:
                for kind in ("cold", "warm"):
                    one = measure(job, Path(scratch), kind)
                    record.setdefault(f"{job}, {kind}", []).append(one)
                    print(
                        f"{job}, {kind}: {one['seconds']:.1f} s, {one['parts']}", file=sys.stderr, flush=True
                    )
                    args.output.parent.mkdir(parents=True, exist_ok=True)
                    args.output.write_text(json.dumps(record, indent=1))
    print("\n".join(table(record)))


def measure(job: str, scratch: Path, kind: str) -> dict:
    """Seconds of a start, and the parts of another one; both with programs of their own."""
    inputs = _inputs(job, scratch)
    for number, suffix in enumerate(("plain", "parts")):
        output, cache = scratch / f"{kind}-{suffix}", cache_without_programs(scratch / f"cache-{suffix}")
        command = [job, *inputs, "--output", str(output), "--rows-per-part", "1", *OPTIONS[job]]
        if number == 0:
            seconds = first_part([sys.executable, "-m", "headrace.jobs", *command], output, cache)
        else:
            stamps = scratch / f"{kind}.json"
            whole = [sys.executable, str(PARTS), str(stamps), str(time.time()), *command, "--no-supervise"]
            first_part(whole, output, cache)
            parts = json.loads(stamps.read_text())
    return {"seconds": seconds, "parts": parts}


def cache_without_programs(path: Path) -> Path:
    """A cache with all that headrace's own has but for compiled programs; as it was where it is there."""
    if not path.exists():
        path.mkdir()
        for entry in cache_home().iterdir():
            if entry.name != "programs":
                (path / entry.name).symlink_to(entry)
    return path


def first_part(command: list[str], output: Path, cache: Path) -> float:
    """Seconds until a command has its first part in place; returns once the command has ended.

    Raises:
      RuntimeError: it ended with an error.
    """
    environ = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    environ["HEADRACE_CACHE"] = str(cache)
    started_s = time.monotonic()
    process = subprocess.Popen(
        command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    while not any(output.glob("part-*.parquet")):
        if process.poll() is not None or time.monotonic() - started_s > LIMIT_S:
            break
        time.sleep(LOOK_S)
    seconds = time.monotonic() - started_s
    _, errors = process.communicate(timeout=LIMIT_S)
    if process.returncode:
        raise RuntimeError(errors[-2000:])
    return seconds


def table(record: Mapping[str, list]) -> list[str]:
    """Medians as Markdown: a line a job and kind."""
    names = list(next(iter(record.values()))[0]["parts"])
    lines = [f"| start | first row, s | {' | '.join(names)} |", "| --- | ---: |" + " ---: |" * len(names)]
    for kind, starts in record.items():
        cells = [statistics.median(one["seconds"] for one in starts)]
        cells += [statistics.median(one["parts"][name] for one in starts) for name in names]
        lines.append(f"| {kind} | {' | '.join(f'{cell:.1f}' for cell in cells)} |")
    return lines


def _inputs(job: str, scratch: Path) -> list[str]:
    if job == "transcribe":
        from headrace.jobs.demo_inputs import speech_folder

        return sorted(map(str, speech_folder().rglob("*.wav")))[:2]
    prompts = scratch / "prompts.jsonl"
    prompts.write_text('{"prompt": "The sea is"}\n{"prompt": "A mill wheel turns"}\n')
    return [str(prompts)]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", nargs="*", choices=tuple(OPTIONS), default=list(OPTIONS))
    parser.add_argument("--output", type=Path, default=Path("build/cold-start.json"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
