"""`headrace plan`: how a run would be cut, what it needs, and, from a sample, what it would take."""

import os
from collections.abc import Iterator, Sequence

from headrace.engines.config_fields import to_flat
from headrace.jobs.command import read_arguments
from headrace.jobs.display import SHORT_UNITS, format_rate, format_seconds
from headrace.jobs.errors import UsageError
from headrace.jobs.options import Parser
from headrace.pipelines import GenerateConfig, TranscribeConfig
from headrace.pipelines.estimate import Estimate, Range, estimate
from headrace.pipelines.generate import engine_config
from headrace.pipelines.needs import Needs, engine_needs
from headrace.pipelines.openai_batch import generate_work
from headrace.pipelines.prepared_run import PreparedRun, prepare_run
from headrace.pipelines.transcribe import TranscribeWork

JOBS = {"generate": GenerateConfig, "transcribe": TranscribeConfig}
DESCRIPTION = """\
Shows how a run would be cut, without running it: headrace plan generate INPUT... with the job's options.
With --sample N, N rows from all over the input are run here, without a result, and tell how long it takes."""


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="headrace plan",
        description=DESCRIPTION,
        allow_abbrev=False,
        usage="headrace plan JOB [options of JOB]",
    )
    parser.add_argument("job", choices=JOBS, help="the job to plan; its own options follow")
    parser.add_argument(
        "--sample", type=int, metavar="N", help="run N rows and tell how long the rest would take"
    )
    parser.add_argument(
        "--price-per-hour", type=float, metavar="X", help="price of a machine like this one, for the cost"
    )
    parsed, rest = parser.parse_known_args(list(argv))
    if parsed.price_per_hour is not None and parsed.sample is None:
        raise UsageError("--price-per-hour needs --sample: without one there are no hours to pay for")
    config, _ = read_arguments(rest, parsed.job, JOBS[parsed.job], DESCRIPTION)
    work = generate_work(config) if isinstance(config, GenerateConfig) else TranscribeWork(config=config)
    run = prepare_run(work)
    print("\n".join(plan_lines(run)))
    print("\n".join(needs_lines(engine_needs(run), run)))
    if parsed.sample is not None:
        found = estimate(run, parsed.sample)
        print("\n".join(estimate_lines(found, run.work.unit, parsed.price_per_hour)))
    return 0


def plan_lines(run: PreparedRun) -> Iterator[str]:
    """Shards, rows and parts, a line each."""
    plan = run.plan
    rows = [chunk.rows for chunk in plan.chunks]
    tables = sum(shard.is_table for shard in plan.shards)
    yield f"model       {run.record.model.spec}, {run.record.model.format}"
    yield f"shards      {len(plan.shards):,}, of which {tables:,} are tables"
    yield f"rows        {sum(rows):,}"
    yield f"parts       {len(rows):,} of {min(rows):,} to {max(rows):,} rows"
    if plan.reused:
        left = sum(task.chunk.rows for task in plan.tasks)
        yield f"  there     {len(plan.reused):,} with {sum(rows) - left:,} rows"
        yield f"  to do     {len(plan.tasks):,} with {left:,} rows"


def needs_lines(needs: Needs, run: PreparedRun) -> Iterator[str]:
    """Memory and the engine's limits, a line each."""
    yield f"weights     {_mib(needs.weights_bytes)} in {run.work.config.dtype}, for each worker process"
    if needs.kv_bytes is not None:
        yield f"KV pages    {_mib(needs.kv_bytes)}, {needs.num_pages:,} pages of {needs.page_size} tokens"
    if needs.num_devices > 1:
        held = f"{_mib(needs.device_weights_bytes)} of weights and {_mib(needs.device_kv_bytes)} of KV pages"
        yield f"devices     {needs.num_devices}, each with about {held}"
    config = run.work.config
    if isinstance(config, GenerateConfig):
        chosen = to_flat(engine_config(config))
        shown = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "decode_burst")
        limits = ", ".join(f"{name} {chosen[name]}" for name in shown if chosen.get(name) is not None)
        yield f"engine      {limits}"
    yield f"machine     {os.cpu_count()} CPUs, {_mib(needs.free_bytes)} free"


def estimate_lines(found: Estimate, unit: str, price_per_hour: float | None) -> Iterator[str]:
    """Rate, time and cost of the rest of the run, a line each."""
    yield f"sample      {found.num_rows:,} rows, {found.num_failed:,} failed"
    low, middle, high = found.units_per_row
    yield f"a row       {middle:,.1f} {unit} ({low:,.1f} to {high:,.1f})"
    yield f"throughput  {format_rate(found.units_per_s)} {SHORT_UNITS[unit]} when warm"
    yield f"start       {format_seconds(found.load_s)}"
    yield f"time        {_span(found.seconds)} for {found.rows_left:,} rows on one machine like this"
    if price_per_hour is not None:
        low, middle, high = found.seconds.times(price_per_hour / 3600)
        yield f"cost        {middle:,.2f} ({low:,.2f} to {high:,.2f})"


def _span(seconds: Range) -> str:
    low, middle, high = (format_seconds(value) for value in seconds)
    return f"{middle} ({low} to {high})"


def _mib(size: int | float) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
