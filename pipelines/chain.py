"""Chains of runs in one pipeline: a part of a stage goes into the next one as soon as it is committed."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

import apache_beam as beam
import pyarrow as pa
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import PCollection
from apache_beam.utils.shared import Shared

from headrace.pipelines.chained import RESULT_COLUMNS, ChainedGenerateWork
from headrace.pipelines.commit import is_part_of
from headrace.pipelines.committed import committed_footers, compacted_parts
from headrace.pipelines.config import GenerateConfig, TranscribeConfig
from headrace.pipelines.errors import InputError, OutputError, RunError
from headrace.pipelines.files import join, list_directory, normalise
from headrace.pipelines.fingerprint import parameters, run_fingerprint
from headrace.pipelines.generate import GenerateWork, engine_config
from headrace.pipelines.heartbeat import Heartbeat
from headrace.pipelines.in_flight import IN_FLIGHT
from headrace.pipelines.output_directory import claim_output, refuse_foreign_output, refuse_unwritable_output
from headrace.pipelines.pipeline import (
    PipelineResult,
    chunks_at_once,
    is_local_runner,
    pipeline_options,
    wait_for,
)
from headrace.pipelines.plan import ChunkTask, Plan
from headrace.pipelines.prepared_run import (
    PreparedRun,
    check_options,
    find_model,
    new_record,
    prepare_run,
    refuse_other_run,
)
from headrace.pipelines.progress import ProgressPoller, reporting
from headrace.pipelines.recipe import Recipe, Stage
from headrace.pipelines.run import begin_run, finish_run, note_break
from headrace.pipelines.run_chunk import Launch, Manifest, RunChunk
from headrace.pipelines.run_record import read_record
from headrace.pipelines.shards import Chunk, Shard, ShardFile, cut_chunks
from headrace.pipelines.summary import Progress, RunSummary
from headrace.pipelines.transcribe import TranscribeWork

OnStageProgress = Callable[[str, Progress], None]


def run_chain(
    recipe: Recipe, beam_args: Sequence[str] = (), on_progress: OnStageProgress | None = None
) -> dict[str, RunSummary]:
    """Summaries of the stages, by their names; the same recipe goes on where a chain was broken off.

    Every stage has a directory of results of its own, with everything that a run has. `on_progress` is
    called about once a second and stage, from other threads.

    Raises:
      InputError: the recipe, an option or the input is wrong; nothing was run.
      OutputError: a directory belongs to another run or cannot be written; nothing was run.
      ModelError: a model cannot be used; nothing was run.
      RunError: the chain broke off; what is committed stays.
    """
    runs = _prepare(recipe)
    started_s = time.monotonic()
    with ExitStack() as stack:
        for run in runs.values():
            stack.enter_context(claim_output(run.output))
        for run in runs.values():
            begin_run(run)
        try:
            result = _run(recipe, runs, beam_args, on_progress)
            wall_s = time.monotonic() - started_s
            return {name: finish_run(run, result, wall_s) for name, run in runs.items()}
        except RunError as error:
            for run in runs.values():
                note_break(run)
            raise RunError(f"the chain broke off: {error} (the same command goes on from there)") from error


def _prepare(recipe: Recipe) -> dict[str, PreparedRun]:
    runs: dict[str, PreparedRun] = {}
    for stage in recipe.stages:
        try:
            runs[stage.name] = _prepare_stage(stage, runs)
        except InputError as error:
            raise InputError(f"stage {stage.name}: {error}") from error
    return runs


def _prepare_stage(stage: Stage, runs: Mapping[str, PreparedRun]) -> PreparedRun:
    config = stage.config
    if stage.rows_of is not None:
        assert isinstance(config, GenerateConfig), "recipes have no other stages over results"
        before = runs[stage.rows_of].work.config
        if isinstance(before, TranscribeConfig) and before.channels == "split":
            raise InputError(
                f"stage {stage.rows_of} splits channels, and a chain knows beforehand how many rows there "
                "are: run its results through `headrace generate` afterwards"
            )
        return _prepare_chained(config, runs[stage.rows_of])
    if isinstance(config, GenerateConfig):
        return prepare_run(GenerateWork(config=config))
    return prepare_run(TranscribeWork(config=config))


def _prepare_chained(config: GenerateConfig, upstream: PreparedRun) -> PreparedRun:
    """As `prepare_run`, over parts that are yet to be written: their names, rows and columns are known."""
    work = ChainedGenerateWork(config=config)
    output = normalise(config.output)
    before = read_record(output)
    refuse_foreign_output(output, has_record=before is not None)
    check_options(work)
    before = None if config.overwrite else before
    refuse_unwritable_output(output)
    model = find_model(work)
    refuse_other_run(before, output, work, model)
    fingerprint = run_fingerprint(work.job, model.fingerprint, config)
    plan = _plan_chained(work, output, upstream, fingerprint)
    work = replace(work, kept=plan.kept)
    _ = work.schema
    record = new_record(work, model, upstream.output, plan, before)
    assert record.parameters == parameters(config)
    return PreparedRun(work=work, output=output, plan=plan, record=record)


def _plan_chained(work: ChainedGenerateWork, output: str, upstream: PreparedRun, fingerprint: str) -> Plan:
    schema = upstream.work.schema
    content = work.content_columns(upstream.output, schema.names)
    for name in work.config.keep_columns:
        if name not in schema.names:
            raise InputError(f"the stage before has no column {name!r}: it has {', '.join(schema.names)}")
    columns = tuple(dict.fromkeys((*content, *RESULT_COLUMNS, *work.config.keep_columns)))
    shards = [_shard(index, chunk) for index, chunk in enumerate(upstream.plan.chunks)]
    chunks: list[Chunk] = []
    for shard in shards:
        chunks += cut_chunks([shard], rows_per_part=max(shard.rows, 1), run_fingerprint=fingerprint)
    footers = {} if work.config.overwrite else committed_footers(output)
    strange = sorted({*list_directory(output, "part-"), *footers} - {chunk.part_name for chunk in chunks})
    if strange and not work.config.overwrite:
        raise OutputError(
            f"{output} holds {strange[0]}, which is no part of this chain: choose another output"
        )
    reused = {
        chunk.part_name: footers[chunk.part_name]
        for chunk in chunks
        if is_part_of(footers.get(chunk.part_name), chunk)
    }
    tasks = [
        ChunkTask(
            chunk=chunk,
            paths=(join(upstream.output, chunk.files[0].source),),
            content=content,
            columns=columns,
        )
        for chunk in chunks
        if chunk.part_name not in reused
    ]
    _refuse_compacted(upstream.output, tasks)
    kept = pa.schema([schema.field(name) for name in work.config.keep_columns])
    return Plan(shards=tuple(shards), chunks=tuple(chunks), tasks=tuple(tasks), reused=reused, kept=kept)


def _shard(index: int, chunk: Chunk) -> Shard:
    """A part of the stage before as a table; its name tells by its fingerprint what it holds."""
    file = ShardFile(source=chunk.part_name, size=None)
    return Shard(index=index, is_table=True, files=(file,), table_rows=chunk.rows)


def _refuse_compacted(output: str, tasks: Sequence[ChunkTask]) -> None:
    inside = {part.part for parts in compacted_parts(output).values() for part in parts}
    for task in tasks:
        if task.chunk.files[0].source in inside:
            raise OutputError(
                f"{output} was compacted before the stage after it was done: choose another output"
            )


def _run(
    recipe: Recipe,
    runs: Mapping[str, PreparedRun],
    beam_args: Sequence[str],
    on_progress: OnStageProgress | None,
) -> PipelineResult:
    if not any(run.plan.tasks for run in runs.values()):
        return PipelineResult()
    options = pipeline_options(beam_args)
    pipeline = beam.Pipeline(options=options)
    _build(pipeline, recipe, runs, options)
    with ExitStack() as stack:
        for name, run in runs.items():
            IN_FLIGHT.begin(run.output)
            stack.callback(Heartbeat(run.output).write, "ended")
            reports = [Heartbeat(run.output), *([_named(name, on_progress)] if on_progress else [])]
            poller = ProgressPoller(run.output, run.plan.chunks, run.plan.reused)
            stack.enter_context(reporting(poller, run.output, reports))
        try:
            return wait_for(pipeline, options, runs[recipe.stages[-1].name].output)
        except BaseException:
            for run in runs.values():
                IN_FLIGHT.stop(run.output)
            raise


def _named(name: str, report: OnStageProgress) -> Callable[[Progress], None]:
    return lambda progress: report(name, progress)


def _build(
    pipeline: beam.Pipeline, recipe: Recipe, runs: Mapping[str, PreparedRun], options: PipelineOptions
) -> None:
    """The stages as ParDos that feed each other, without a shuffle: no part waits for the others."""
    manifests: dict[str, PCollection] = {}
    engines: dict[str, Shared] = {}
    for stage in recipe.stages:
        run = runs[stage.name]
        if stage.rows_of is None:
            chunks = pipeline | f"Chunks of {stage.name}" >> beam.Create(
                list(run.plan.tasks), reshuffle=False
            )
            chunks |= f"Spread {stage.name}" >> beam.Reshuffle()
        else:
            by_part = {task.chunk.files[0].source: task for task in run.plan.tasks}
            chunks = manifests[stage.rows_of] | f"Rows of {stage.name}" >> beam.ParDo(NextTask(by_part))
        launch = Launch(
            output=run.output,
            is_strict=not is_local_runner(options),
            deadline=_deadline(stage),
            chunks_at_once=chunks_at_once(options),
        )
        engine = engines.setdefault(_engine_key(run), Shared())
        committed = chunks | f"Run {stage.name}" >> beam.ParDo(RunChunk(run.work, launch, engine))
        there = [Manifest(name, footer.rows) for name, footer in run.plan.reused.items()]
        before = pipeline | f"Parts of {stage.name}" >> beam.Create(there, reshuffle=False)
        before |= f"Spread parts of {stage.name}" >> beam.Reshuffle()
        manifests[stage.name] = (committed, before) | f"All of {stage.name}" >> beam.Flatten()


def _engine_key(run: PreparedRun) -> str:
    """The same for stages that one engine can serve."""
    config = run.work.config
    setting = engine_config(config) if isinstance(config, GenerateConfig) else config
    return f"{run.record.model.fingerprint} {setting}"


def _deadline(stage: Stage) -> float | None:
    hours = stage.config.max_hours
    return None if hours is None else time.time() + hours * 3600


class NextTask(beam.DoFn):
    """Manifests of one stage to the chunks of the next; nothing for a part that is missing."""

    def __init__(self, tasks: Mapping[str, ChunkTask]) -> None:
        self._tasks = tasks

    def process(self, element: Manifest) -> Iterable[ChunkTask]:
        if element.missing is None and element.part in self._tasks:
            yield self._tasks[element.part]
