"""What Beam costs: rows through the pipeline against the same rows straight into the same engine.

One process, one engine that stays loaded, alternating runs; the ratio of a pair is the pipeline's time
divided by the engine's. The pipeline reads, commits and reports as `headrace` does, in four parts; what is
done once before a run of any length (the look at the model, the listing, the cutting) is told apart.

    python -m benchmarks.beam_overhead generate --rows 2000 --pairs 5
    python -m benchmarks.beam_overhead transcribe RECORDING... --minutes 30 --pairs 5
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.kept_engine import KEPT
from headrace.pipelines import GenerateConfig, TranscribeConfig
from headrace.pipelines import pipeline as pipeline_module
from headrace.pipelines.generate import GenerateWork
from headrace.pipelines.prepared_run import PreparedRun, prepare_run
from headrace.pipelines.run import run_prepared
from headrace.pipelines.run_chunk import work_rows
from headrace.pipelines.transcribe import TranscribeWork
from headrace.pipelines.work import ServingEngine

NUM_PARTS = 4
QUESTIONS = ("What is {}?", "Write a sentence with the number {}.", "Count down from {}.", "Name {} animals.")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("job", choices=("generate", "transcribe"))
    parser.add_argument("recordings", nargs="*")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--model")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        work = _generate(options, directory) if options.job == "generate" else _transcribe(options, directory)
        measure(work, directory, options.pairs)


class Cost(NamedTuple):
    """What a run took."""

    wall_s: float
    cpu_s: float


def measure(work: GenerateWork | TranscribeWork, directory: Path, num_pairs: int) -> None:
    """Prints each pair as it ends, then the median ratios of time and of the CPU's seconds."""
    pipeline_module.Shared = lambda: KEPT
    _pipeline(_prepare(work, directory / "warm"))
    engine = KEPT.acquire(None).engine
    prepared = _prepare(work, directory / "straight")
    _straight(prepared, engine)
    pairs = []
    for number in range(num_pairs):
        once = _prepare(work, directory / f"pair-{number}")
        runs = [partial(_pipeline, once), partial(_straight, prepared, engine)]
        costs = [_cost(run) for run in (runs if number % 2 else runs[::-1])]
        through, straight = costs if number % 2 else costs[::-1]
        pairs.append((through.wall_s / straight.wall_s, through.cpu_s / straight.cpu_s))
        told = {"pipeline": through, "straight": straight}
        shown = {name: [round(value, 2) for value in cost] for name, cost in told.items()}
        ratios = [round(ratio, 4) for ratio in pairs[-1]]
        print(json.dumps({**shown, "ratios": ratios}), flush=True)
    for name, ratios in zip(("time", "CPU seconds"), zip(*pairs, strict=True), strict=True):
        print(f"{name}: median ratio {statistics.median(ratios):.4f}, {min(ratios):.4f} to {max(ratios):.4f}")


def _cost(run: Callable[[], None]) -> Cost:
    started = Cost(time.monotonic(), time.process_time())
    run()
    return Cost(time.monotonic() - started.wall_s, time.process_time() - started.cpu_s)


def _prepare(work: GenerateWork | TranscribeWork, output: Path) -> PreparedRun:
    started_s = time.monotonic()
    prepared = prepare_run(replace(work, config=replace(work.config, output=str(output))))
    print(f"prepared in {time.monotonic() - started_s:.2f} s", flush=True)
    return prepared


def _pipeline(prepared: PreparedRun) -> None:
    summary = run_prepared(prepared)
    assert summary.rows_failed == 0, summary.errors_by_kind


def _straight(prepared: PreparedRun, engine: ServingEngine) -> None:
    work = prepared.work
    futures = [work.submit(engine, row) for task in prepared.plan.tasks for row in work_rows(work, task)]
    for future in futures:
        assert future.result().error is None


def _generate(options: argparse.Namespace, directory: Path) -> GenerateWork:
    path = directory / "prompts.jsonl"
    rows = [{"prompt": QUESTIONS[n % len(QUESTIONS)].format(n)} for n in range(options.rows)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = GenerateConfig.of(
        inputs=(str(path),),
        output="unused",
        model=options.model or "demo:smollm2-135m",
        max_tokens=options.max_tokens,
        max_model_len=256,
        ignore_eos=True,
        rows_per_part=-(-options.rows // NUM_PARTS),
    )
    return GenerateWork(config=config)


def _transcribe(options: argparse.Namespace, directory: Path) -> TranscribeWork:
    from headrace.audio import load_audio

    folder = directory / "recordings"
    folder.mkdir()
    seconds, number = 0.0, 0
    while seconds < 60 * options.minutes:
        path = Path(options.recordings[number % len(options.recordings)])
        (folder / f"{number:05d}{path.suffix}").symlink_to(path.resolve())
        seconds += load_audio(path).duration_s
        number += 1
    config = TranscribeConfig(
        inputs=(str(folder),),
        output="unused",
        model=options.model or "demo:whisper-tiny.en",
        rows_per_part=-(-number // NUM_PARTS),
    )
    return TranscribeWork(config=config)


if __name__ == "__main__":
    main()
