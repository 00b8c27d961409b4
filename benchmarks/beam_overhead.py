"""What Beam costs: rows through the pipeline against the same rows straight into the same engine.

One process, one engine that stays loaded, alternating runs; the ratio of a pair is the pipeline's time
divided by the engine's. The pipeline lists, cuts, reads, commits and reports as `headrace` does.

    python -m benchmarks.beam_overhead generate --rows 2000 --pairs 5
    python -m benchmarks.beam_overhead transcribe RECORDING... --minutes 30 --pairs 5
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from headrace.pipelines import GenerateConfig, TranscribeConfig
from headrace.pipelines import pipeline as pipeline_module
from headrace.pipelines.generate import GenerateWork
from headrace.pipelines.run import PreparedRun, prepare_run, run_work
from headrace.pipelines.run_chunk import work_rows
from headrace.pipelines.transcribe import TranscribeWork
from headrace.pipelines.work import ServingEngine

QUESTIONS = ("What is {}?", "Write a sentence with the number {}.", "Count down from {}.", "Name {} animals.")


class KeptEngine:
    """In place of Beam's `Shared`: the engine of the benchmark, for every pipeline."""

    def __init__(self) -> None:
        self._kept: object | None = None

    def acquire(self, load, tag=None):
        if self._kept is None:
            self._kept = load()
        return self._kept

    def __reduce__(self):
        return _the_kept, ()


KEPT = KeptEngine()


def _the_kept() -> KeptEngine:
    return KEPT


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


def measure(work: GenerateWork | TranscribeWork, directory: Path, num_pairs: int) -> None:
    """Prints each pair as it ends, then the median ratio."""
    pipeline_module.Shared = lambda: KEPT
    _pipeline(work, directory / "warm")
    engine = KEPT.acquire(None).engine
    prepared = prepare_run(replace(work, config=replace(work.config, output=str(directory / "straight"))))
    _straight(prepared, engine)
    ratios = []
    for number in range(num_pairs):
        first, second = (
            (_timed_straight, _timed_pipeline) if number % 2 else (_timed_pipeline, _timed_straight)
        )
        times = {}
        for run in (first, second):
            name, seconds = run(work, prepared, engine, directory / f"pair-{number}")
            times[name] = seconds
        ratios.append(times["pipeline"] / times["straight"])
        shown = {name: round(seconds, 2) for name, seconds in times.items()}
        print(json.dumps({**shown, "ratio": round(ratios[-1], 4)}), flush=True)
    print(f"median ratio {statistics.median(ratios):.4f}, from {min(ratios):.4f} to {max(ratios):.4f}")


def _timed_pipeline(work, prepared: PreparedRun, engine: ServingEngine, output: Path) -> tuple[str, float]:
    started_s = time.monotonic()
    _pipeline(work, output)
    return "pipeline", time.monotonic() - started_s


def _timed_straight(work, prepared: PreparedRun, engine: ServingEngine, output: Path) -> tuple[str, float]:
    started_s = time.monotonic()
    _straight(prepared, engine)
    return "straight", time.monotonic() - started_s


def _pipeline(work: GenerateWork | TranscribeWork, output: Path) -> None:
    config = replace(work.config, output=str(output))
    summary = run_work(replace(work, config=config))
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
        inputs=(str(folder),), output="unused", model=options.model or "demo:whisper-tiny.en"
    )
    return TranscribeWork(config=config)


if __name__ == "__main__":
    main()
