"""How long a table of many prompts takes until its first row is in the engine, and in what memory.

    python -m benchmarks.large_table --rows 200000

The model is loaded already, as in a worker that has one; the time is that of the checks, the listing, the
cutting, and the way through Beam.
"""

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.kept_engine import KEPT
from headrace.engines.llm import LLM, RequestOutput
from headrace.pipelines import GenerateConfig
from headrace.pipelines import pipeline as pipeline_module
from headrace.pipelines.generate import GenerateWork
from headrace.pipelines.prepared_run import prepare_run
from headrace.pipelines.resident import Resident
from headrace.pipelines.run import run_prepared
from headrace.pipelines.work import WorkRow


class FirstRowWork(GenerateWork):
    """The job that ends the process when its first row reaches the engine, after telling what it took."""

    def submit(self, engine: LLM, row: WorkRow) -> "Future[RequestOutput]":
        started_s, listed_s = TIMES
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        told = {
            "listed_and_cut_s": round(listed_s - started_s, 2),
            "started_s": round(time.monotonic() - started_s, 2),
            "peak_mib_before": round(PEAKS[0]),
            "peak_mib": round(peak),
        }
        print(json.dumps(told), flush=True)
        os._exit(0)


TIMES: list[float] = []
PEAKS: list[float] = []


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--model", default="demo:smollm2-135m")
    parser.add_argument("--work-per-part", type=float)
    options = parser.parse_args(arguments)
    scratch = Path(tempfile.mkdtemp())
    path = scratch / "prompts.parquet"
    pq.write_table(pa.table({"prompt": [f"What is {n}?" for n in range(options.rows)]}), path)
    config = GenerateConfig.of(
        inputs=(str(path),),
        output=str(scratch / "out"),
        model=options.model,
        max_model_len=256,
        work_per_part=options.work_per_part,
    )
    work = FirstRowWork(config=config)
    pipeline_module.Shared = lambda: KEPT
    KEPT.acquire(lambda: Resident(work.load()))
    PEAKS.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    TIMES.append(time.monotonic())
    run = prepare_run(work)
    TIMES.append(time.monotonic())
    run_prepared(run)


if __name__ == "__main__":
    main()
