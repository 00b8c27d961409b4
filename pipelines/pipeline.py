"""The Beam pipeline: chunks, spread over the workers, each run and committed by RunChunk."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import apache_beam as beam
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions
from apache_beam.utils.shared import Shared

from headrace.pipelines.beam_metrics import NAMESPACE
from headrace.pipelines.errors import RunError
from headrace.pipelines.plan import ChunkTask
from headrace.pipelines.run_chunk import MISSING, Launch, RunChunk
from headrace.pipelines.work import Work
from headrace.pipelines.worker_watch import watching_workers

_DEFAULT_WORKERS = {"multi_threading": 4, "multi_processing": 2, "in_memory": 1}
# While the last rows of one chunk are long, those of the next ones keep the engine busy.
_CHUNKS_IN_MEMORY = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineResult:
    """What a pipeline reports."""

    counters: Mapping[str, int] = field(default_factory=dict)
    """Beam's counters of our namespace, by name."""

    @property
    def missing(self) -> dict[str, int]:
        """How many parts could not be committed, by the reason."""
        return {
            name.removeprefix(MISSING): count
            for name, count in self.counters.items()
            if name.startswith(MISSING) and count
        }


def pipeline_options(beam_args: Sequence[str]) -> PipelineOptions:
    """Beam's options; where no runner is named, FnApiRunner in this process, or its threads if several."""
    options = PipelineOptions(list(beam_args))
    if options.view_as(StandardOptions).runner is not None:
        return options
    direct = options.view_as(DirectOptions)
    mode = direct.direct_running_mode
    if mode == "in_memory" and direct.direct_num_workers != 1:
        mode = "multi_threading"
    defaults = (f"--direct_running_mode={mode}", f"--direct_num_workers={_DEFAULT_WORKERS[mode]}")
    # The last of an option's values counts: what the user gave goes after the defaults.
    return PipelineOptions(["--runner=FnApiRunner", *defaults, *beam_args])


def chunks_at_once(options: PipelineOptions) -> int:
    """How many chunks a worker runs beside each other: several where it is the only one, in this process."""
    is_in_memory = options.view_as(DirectOptions).direct_running_mode == "in_memory"
    return _CHUNKS_IN_MEMORY if is_in_memory and is_local_runner(options) else 1


def run_pipeline(
    work: Work, launch: Launch, tasks: Sequence[ChunkTask], options: PipelineOptions
) -> PipelineResult:
    """Runs the chunks; when this returns each is committed, or counted with the reason why it could not be.

    Raises:
      RunError: the run broke off; chunks that were committed stay so.
    """
    pipeline = beam.Pipeline(options=options)
    add_run(pipeline, work, launch, tasks)
    return wait_for(pipeline, options, launch.output)


def add_run(pipeline: beam.Pipeline, work: Work, launch: Launch, tasks: Sequence[ChunkTask]) -> None:
    """Adds the chunks of a run to a pipeline: made, spread over the workers, run and committed."""
    _ = (
        pipeline
        | "Chunks" >> beam.Create(list(tasks), reshuffle=False)
        | "Spread" >> beam.Reshuffle()
        | "RunChunk" >> beam.ParDo(RunChunk(work, launch, Shared()))
    )


def wait_for(pipeline: beam.Pipeline, options: PipelineOptions, output: str) -> PipelineResult:
    """Runs a pipeline to its end.

    Raises:
      RunError: it broke off.
    """
    try:
        with _thread_cap(options), watching_workers(options, output):
            result = pipeline.run()
            result.wait_until_finish()
    except Exception as error:
        raise RunError(reason(error)) from error
    counters: dict[str, int] = {}
    for each in result.metrics().query(MetricsFilter().with_namespace(NAMESPACE))["counters"]:
        name = each.key.metric.name
        counters[name] = counters.get(name, 0) + (each.committed or 0)
    return PipelineResult(counters=counters)


def is_local_runner(options: PipelineOptions) -> bool:
    """Whether the workers are this process or its children, so that its launcher sees how they end."""
    return (options.view_as(StandardOptions).runner or "").rpartition(".")[2] in (
        "FnApiRunner",
        "DirectRunner",
    )


def reason(error: BaseException) -> str:
    """The one line of a worker's failure that says why: its own, or of the traceback that it wraps."""
    text = re.sub(r"\s*\[while running '[^']*'\]", "", str(error))
    lines = [line for line in text.splitlines() if line.strip()] or [type(error).__name__]
    named = [line for line in lines if re.match(r"[A-Za-z_][\w.]*: ", line)]
    line = (named or lines)[-1].strip()
    if not named and type(error) is not RuntimeError:
        line = f"{type(error).__name__}: {line}"
    return re.sub(r"(?:[A-Za-z_]\w*\.)+(?=[A-Z]\w*: )", "", line).removeprefix("RuntimeError: ")


@contextmanager
def _thread_cap(options: PipelineOptions) -> Iterator[None]:
    """Shares the CPUs among worker processes: each would else start a thread of XLA's for every CPU."""
    direct = options.view_as(DirectOptions)
    if direct.direct_running_mode != "multi_processing" or "NPROC" in os.environ:
        yield
        return
    num_cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    num_workers = direct.direct_num_workers or num_cpus
    os.environ["NPROC"] = str(max(1, num_cpus // num_workers))
    try:
        yield
    finally:
        del os.environ["NPROC"]
