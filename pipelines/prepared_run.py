"""A run that was checked and planned before anything of it is written."""

import time
from dataclasses import dataclass

from headrace.engines.checkpoints import resolve_model
from headrace.pipelines.config import RunConfig
from headrace.pipelines.dataset_tables import list_dataset, list_dataset_files
from headrace.pipelines.errors import InputError, OutputError
from headrace.pipelines.files import normalise
from headrace.pipelines.fingerprint import parameters, run_fingerprint
from headrace.pipelines.listing import Listing, list_inputs
from headrace.pipelines.output_directory import refuse_foreign_output, refuse_unwritable_output
from headrace.pipelines.plan import Plan, make_plan
from headrace.pipelines.run_record import (
    ModelRecord,
    RunRecord,
    current_versions,
    differences,
    read_record,
    record_config,
)
from headrace.pipelines.work import Work


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedRun:
    """A run that was checked and planned; nothing is written yet."""

    work: Work
    """The job, with its kept columns."""
    output: str
    """Directory of the results."""
    plan: Plan
    """What is to be done."""
    record: RunRecord
    """What run.json will say."""


def prepare_run(work: Work) -> PreparedRun:
    """Checks everything that can be checked before the run, and plans it.

    Raises:
      InputError: an option or the input is wrong.
      OutputError: the output directory belongs to another run or cannot be written.
      ModelError: the model cannot be used.
    """
    output = normalise(work.config.output)
    before = read_record(output)
    refuse_foreign_output(output, has_record=before is not None)
    check_options(work)
    if work.config.overwrite:
        before = None
    listing = _list(work.config, output, before)
    refuse_unwritable_output(output)
    model = find_model(work)
    refuse_other_run(before, output, work, model)
    fingerprint = run_fingerprint(work.job, model.fingerprint, work.config)
    plan = make_plan(work, listing, output, fingerprint, before)
    work = work.with_kept(plan.kept)
    _ = work.schema  # refuses kept columns that cannot stand side by side
    record = new_record(work, model, listing.root, plan, before)
    return PreparedRun(work=work, output=output, plan=plan, record=record)


def check_options(work: Work) -> None:
    """Has the engine look at its settings.

    Raises:
      InputError: it refuses one.
    """
    try:
        work.check()
    except ValueError as error:
        raise InputError(str(error)) from error


def _list(config: RunConfig, output: str, before: RunRecord | None) -> Listing:
    if config.dataset is not None and config.stream_dataset:
        return Listing(root="", files=list_dataset_files(config))
    if config.dataset is not None:
        return Listing(root="", files=(list_dataset(config),))
    return list_inputs(config.inputs, leave_out=output, root=before.root if before else None)


def find_model(work: Work) -> ModelRecord:
    """The run's model, looked at without its weights.

    Raises:
      ModelError: it cannot be used.
    """
    model = resolve_model(work.config.model, revision=work.config.revision)
    work.check_model(model)
    return ModelRecord(
        spec=work.config.model, format=model.format, revision=model.revision, fingerprint=model.fingerprint
    )


def refuse_other_run(before: RunRecord | None, output: str, work: Work, model: ModelRecord) -> None:
    """Refuses to go on with another model or other options than a run began with.

    Raises:
      OutputError: it says what differs.
    """
    found = differences(before, work.job, model, parameters(work.config)) if before else []
    if found:
        raise OutputError(
            f"{output} holds another run: {'; '.join(found)}: "
            "run it as before, choose another output directory, or delete it with overwrite"
        )


def new_record(work: Work, model: ModelRecord, root: str, plan: Plan, before: RunRecord | None) -> RunRecord:
    """What run.json will say, with this launch after those before."""
    launch = {"started_at": time.time(), "parts_reused": len(plan.reused), "parts_to_do": len(plan.tasks)}
    return RunRecord(
        job=work.job,
        config=record_config(work.config),
        parameters=parameters(work.config),
        model=model,
        versions=current_versions(),
        devices=before.devices if before else (),
        root=root,
        shards=plan.shards,
        kept=plan.kept,
        launches=(*(before.launches if before else ()), launch),
    )
