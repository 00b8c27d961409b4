"""The two jobs from end to end: checks, plan, pipeline, what is written about the run, summary."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headrace.engines.ratios import ratios
from headrace.pipelines.commit import Footer, is_part_of, read_footer
from headrace.pipelines.committed import number_columns
from headrace.pipelines.compaction import delete_leftovers
from headrace.pipelines.config import GenerateConfig, TranscribeConfig
from headrace.pipelines.errors import OutputError, RunError
from headrace.pipelines.heartbeat import Heartbeat
from headrace.pipelines.in_flight import IN_FLIGHT
from headrace.pipelines.journal import forget
from headrace.pipelines.metrics import add_up, engine_counters, run_metrics, write_metrics
from headrace.pipelines.openai_batch import generate_work
from headrace.pipelines.output_directory import claim_output, delete_run, mark_success, open_output
from headrace.pipelines.pipeline import (
    PipelineResult,
    chunks_at_once,
    is_local_runner,
    pipeline_options,
    run_pipeline,
)
from headrace.pipelines.plan import Plan
from headrace.pipelines.prepared_run import PreparedRun, prepare_run
from headrace.pipelines.progress import ProgressPoller, reporting
from headrace.pipelines.run_chunk import Launch
from headrace.pipelines.run_record import RunRecord, write_record
from headrace.pipelines.shards import Chunk
from headrace.pipelines.summary import Progress, RunSummary
from headrace.pipelines.transcribe import TranscribeWork
from headrace.pipelines.work import Work

logger = logging.getLogger(__name__)

OnProgress = Callable[[Progress], None]

# Files that an error names before it says that there are more.
_MAX_NAMED = 3


def run_generate(
    config: GenerateConfig, beam_args: Sequence[str] = (), on_progress: OnProgress | None = None
) -> RunSummary:
    """Summary of a run that wrote one result row for each prompt of the input to `config.output`.

    `on_progress` is called about once a second, from another thread.

    Raises:
      InputError: an option or the input is wrong; nothing was run.
      OutputError: the output directory belongs to another run or cannot be written; nothing was run.
      ModelError: the model cannot be used; nothing was run.
      RunError: the run broke off; the same call goes on from what was committed.
    """
    return run_work(generate_work(config), beam_args, on_progress)


def run_transcribe(
    config: TranscribeConfig, beam_args: Sequence[str] = (), on_progress: OnProgress | None = None
) -> RunSummary:
    """Summary of a run that wrote one result row for each recording of the input to `config.output`.

    `on_progress` is called about once a second, from another thread.

    Raises:
      InputError: an option or the input is wrong; nothing was run.
      OutputError: the output directory belongs to another run or cannot be written; nothing was run.
      ModelError: the model cannot be used; nothing was run.
      RunError: the run broke off; the same call goes on from what was committed.
    """
    return run_work(TranscribeWork(config=config), beam_args, on_progress)


def run_work(work: Work, beam_args: Sequence[str] = (), on_progress: OnProgress | None = None) -> RunSummary:
    """Summary of a run of any job; as `run_generate` and `run_transcribe`, which see."""
    return run_prepared(prepare_run(work), beam_args, on_progress)


def run_prepared(
    run: PreparedRun, beam_args: Sequence[str] = (), on_progress: OnProgress | None = None
) -> RunSummary:
    """Summary of a run that was checked and planned.

    Raises:
      OutputError: another run has the output directory, or it cannot be written; nothing was run.
      RunError: the run broke off; the same call goes on from what was committed.
    """
    with claim_output(run.output):
        begin_run(run)
        return _run_plan(run, beam_args, on_progress)


def begin_run(run: PreparedRun) -> None:
    """Makes the directory ready and writes run.json; the directory must be claimed.

    Raises:
      OutputError: it cannot be written.
    """
    if run.work.config.overwrite:
        delete_run(run.output)
    open_output(run.output)
    delete_leftovers(run.output)
    try:
        write_record(run.output, run.record)
    except OSError as error:
        raise OutputError(f"cannot write to the output {run.output}: {error.strerror or error}") from error
    forget(run.output, run.plan.reused)
    plan = run.plan
    logger.info("rows: %d, parts to do: %d of %d", _rows(plan), len(plan.tasks), len(plan.chunks))


def _run_plan(run: PreparedRun, beam_args: Sequence[str], on_progress: OnProgress | None) -> RunSummary:
    started_s = time.monotonic()
    output, plan = run.output, run.plan
    heartbeat = Heartbeat(output)
    try:
        reports = [heartbeat, *([on_progress] if on_progress else [])]
        with reporting(ProgressPoller(output, plan.chunks, plan.reused), output, reports):
            result = _run_tasks(run.work, output, plan, beam_args)
        return finish_run(run, result, time.monotonic() - started_s)
    except RunError as error:
        note_break(run)
        raise _with_remedy(error, output, plan) from error
    finally:
        heartbeat.write("ended")


def note_break(run: PreparedRun) -> None:
    """Has run.json say that the run broke off."""
    try:
        write_record(run.output, replace(run.record, state="broken"))
    except OSError:  # the disk may be what broke it, and the break itself is what must be told
        logger.warning("cannot write run.json: it goes on saying that the run is running")


def _run_tasks(work: Work, output: str, plan: Plan, beam_args: Sequence[str]) -> PipelineResult:
    if not plan.tasks:
        return PipelineResult()
    options = pipeline_options(beam_args)
    hours = work.config.max_hours
    launch = Launch(
        output=output,
        is_strict=not is_local_runner(options),
        deadline=time.time() + hours * 3600 if hours is not None else None,
        chunks_at_once=chunks_at_once(options),
    )
    IN_FLIGHT.begin(output)
    try:
        return run_pipeline(work, launch, plan.tasks, options)
    except BaseException:
        IN_FLIGHT.stop(output)
        raise


def _with_remedy(error: RunError, output: str, plan: Plan) -> RunError:
    names = [chunk.part_name for chunk in plan.chunks]
    done = sum(name in plan.reused or read_footer(output, name) is not None for name in names)
    return RunError(
        f"the run broke off with {done} of {len(plan.chunks)} parts committed: {error} "
        "(the same command goes on from there)"
    )


def finish_run(run: PreparedRun, result: PipelineResult, wall_s: float) -> RunSummary:
    """Looks whether every part is there, and writes what the run did.

    Raises:
      RunError: a part is missing, or the writing failed.
    """
    output, plan = run.output, run.plan
    footers = dict(plan.reused)
    for task in plan.tasks:
        footer = read_footer(output, task.chunk.part_name)
        if footer is not None and is_part_of(footer, task.chunk):
            footers[footer.part] = footer
    missing = [task.chunk for task in plan.tasks if task.chunk.part_name not in footers]
    if missing:
        raise RunError(_missing_text(missing, result, IN_FLIGHT.missing(output)))
    new = [footers[task.chunk.part_name] for task in plan.tasks]
    summary = _summary(run.work, output, footers, new, wall_s, result.counters.get("model_loads", 0))
    try:
        write_metrics(output, footers.values())
        times = number_columns(output, run.work.times)
        metrics = run_metrics(list(footers.values()), times)
        write_record(output, _done(run.record, footers, summary, metrics))
        run.work.write_beside(output)
        mark_success(output)
    except OSError as error:
        raise RunError(f"cannot write what the run did: {error.strerror or error}") from error
    return summary


def _missing_text(missing: Sequence[Chunk], result: PipelineResult, seen: Mapping[str, str]) -> str:
    """What is missing and why: the reasons of this process part by part, those of others as counts."""
    if len(set(seen.values())) == 1 and len(seen) == len(missing):
        reasons = next(iter(seen.values()))
    else:
        counted = result.missing or {"not committed, for a reason that no worker told": len(missing)}
        reasons = "; ".join(f"{_parts(count)}: {reason}" for reason, count in sorted(counted.items()))
    sources = list(dict.fromkeys(chunk.files[0].source for chunk in missing))
    named = ", ".join(sources[:_MAX_NAMED]) + (", ..." if len(sources) > _MAX_NAMED else "")
    rows = sum(chunk.rows for chunk in missing)
    verb = "is" if len(missing) == 1 else "are"
    return f"{_parts(len(missing))} with {rows} rows of {named} {verb} missing: {reasons}"


def _parts(count: int) -> str:
    return "1 part" if count == 1 else f"{count} parts"


def _summary(
    work: Work,
    output: str,
    footers: Mapping[str, Footer],
    new: Sequence[Footer],
    wall_s: float,
    model_loads: int,
) -> RunSummary:
    return RunSummary(
        rows=sum(footer.rows for footer in footers.values()),
        rows_failed=sum(footer.rows_failed for footer in footers.values()),
        errors_by_kind=add_up(footer.errors for footer in footers.values()),
        units=math.fsum(footer.units for footer in footers.values()),
        unit=work.unit,
        rows_run=sum(footer.rows for footer in new),
        units_run=math.fsum(footer.units for footer in new),
        wall_s=wall_s,
        output=output,
        parts_total=len(footers),
        parts_reused=len(footers) - len(new),
        model_loads=model_loads,
        ratios=ratios(engine_counters(list(footers.values()))),
    )


def _done(
    record: RunRecord, footers: Mapping[str, Footer], summary: RunSummary, metrics: Mapping[str, float]
) -> RunRecord:
    totals: dict[str, Any] = {
        "rows": summary.rows,
        "rows_failed": summary.rows_failed,
        "errors": dict(summary.errors_by_kind),
        "unit": summary.unit,
        "units": summary.units,
        "parts": summary.parts_total,
        "metrics": dict(metrics),
    }
    launch = {
        **record.launches[-1],
        "finished_at": time.time(),
        "wall_s": summary.wall_s,
        "rows": summary.rows_run,
        "units": summary.units_run,
        "model_loads": summary.model_loads,
    }
    return replace(
        record,
        state="done",
        devices=tuple(sorted({footer.device for footer in footers.values()})),
        totals=totals,
        launches=(*record.launches[:-1], launch),
    )


def _rows(plan: Plan) -> int:
    return sum(chunk.rows for chunk in plan.chunks)
