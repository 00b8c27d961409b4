"""Numbers of a part, out of its rows, and __run/metrics.parquet, out of the footers of the parts."""

import math
import resource
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import jax
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.engines.ratios import ratios, with_ratios
from headrace.pipelines.commit import Footer, run_directory, scratch_directory
from headrace.pipelines.files import write_whole
from headrace.pipelines.summary import Unit

_NUMBERS = pa.map_(pa.string(), pa.float64())

METRICS_SCHEMA = pa.schema(
    {
        "part": pa.string(),
        "schema_version": pa.int64(),
        "job": pa.string(),
        "fingerprint": pa.string(),
        "shard": pa.int64(),
        "chunk": pa.int64(),
        "start": pa.int64(),
        "stop": pa.int64(),
        "rows": pa.int64(),
        "num_inputs": pa.int64(),
        "rows_failed": pa.int64(),
        "errors": pa.map_(pa.string(), pa.int64()),
        "units": pa.float64(),
        "metrics": _NUMBERS,
        "engine": _NUMBERS,
        "engine_ratios": _NUMBERS,
        "device": pa.string(),
        "worker": pa.string(),
        "finished_at": pa.float64(),
        "wall_s": pa.float64(),
    }
)


def part_metrics(
    rows: Sequence[Mapping[str, Any]], *, sums: Sequence[str], times: Sequence[str]
) -> dict[str, float]:
    """Sums of the columns `sums`; mean, median, 95th percentile and maximum of the columns `times`.

    `busy_s` is the time that rows spent in the engine's hands, added up: over a part's own time it is the
    mean number of them at work.
    """
    found: dict[str, float] = {}
    for name in sums:
        found[name] = float(sum(value for row in rows if (value := row.get(name)) is not None))
    found["busy_s"] = math.fsum(
        latency_s - (row.get("queue_s") or 0.0)
        for row in rows
        if (latency_s := row.get("latency_s")) is not None
    )
    for name in times:
        found |= _spread(name, [value for row in rows if (value := row.get(name)) is not None])
    return found


def rate_metrics(units: float, unit: Unit, wall_s: float) -> dict[str, float]:
    """Units a second of a part, beside which others ran, and for audio the real-time factor."""
    found = {"units_per_s": units / wall_s if wall_s > 0 else 0.0}
    if unit == "audio seconds" and units > 0:
        found["real_time_factor"] = wall_s / units
    return found


def memory_metrics() -> dict[str, float]:
    """Memory of this process, and of its first device where that has its own."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {"host_memory_peak_bytes": float(peak * (1 if sys.platform == "darwin" else 1024))}
    stats = jax.local_devices()[0].memory_stats() or {}
    for name in ("bytes_in_use", "peak_bytes_in_use"):
        if name in stats:
            found[f"device_memory_{name}"] = float(stats[name])
    return found


def run_metrics(footers: Sequence[Footer], columns: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Metrics of a whole run: sums, peaks, the engines' counters with their ratios, percentiles of rows.

    `columns` holds the times of the rows by name.
    """
    found: dict[str, float] = {}
    for footer in footers:
        for name, value in footer.metrics.items():
            if name.endswith(("_bytes", "_bytes_in_use")):
                found[name] = max(found.get(name, 0.0), value)
            elif not name.endswith(("_mean", "_p50", "_p95", "_max", "_per_s", "_factor")):
                found[name] = found.get(name, 0.0) + value
    engine = with_ratios(engine_counters(footers))
    found |= {f"engine_{name}": value for name, value in engine.items()}
    for name, values in columns.items():
        found |= _spread(name, values)
    return dict(sorted(found.items()))


def engine_counters(footers: Sequence[Footer]) -> dict[str, float]:
    """The engines' counters over a run: those of each worker's last part, added up.

    An engine that was loaded anew in the same process counts from its own start.
    """
    last = {footer.worker: footer for footer in sorted(footers, key=lambda each: each.finished_at)}
    found: dict[str, float] = {}
    for footer in last.values():
        for name, value in footer.engine.items():
            found[name] = found.get(name, 0.0) + value
    return found


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that at least this share of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """Mean, median, 95th percentile and maximum; nothing of nothing."""
    if not values:
        return {}
    return {
        f"{name}_mean": statistics.fmean(values),
        f"{name}_p50": statistics.median(values),
        f"{name}_p95": percentile(values, 0.95),
        f"{name}_max": max(values),
    }


def count_errors(kinds: Iterable[str]) -> dict[str, int]:
    """How often each kind occurs, sorted by its name."""
    counts: dict[str, int] = {}
    for kind in kinds:
        counts[kind] = counts.get(kind, 0) + 1
    return dict(sorted(counts.items()))


def add_up(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sums of several counts by name."""
    total: dict[str, int] = {}
    for each in counts:
        for name, count in each.items():
            total[name] = total.get(name, 0) + count
    return dict(sorted(total.items()))


def write_metrics(output: str, footers: Iterable[Footer]) -> None:
    """Rebuilds __run/metrics.parquet: one row a part, in the order of the parts.

    Raises:
      OSError: it cannot be written.
    """
    ordered = sorted(footers, key=lambda footer: (footer.shard, footer.chunk))
    rows = []
    for footer in ordered:
        row = asdict(footer) | {"engine_ratios": ratios(footer.engine)}
        for name in ("errors", "metrics", "engine", "engine_ratios"):
            row[name] = list(row[name].items())
        rows.append(row)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=METRICS_SCHEMA), sink, compression="zstd")
    path = run_directory(output, "metrics.parquet")
    write_whole(path, memoryview(sink.getvalue()), scratch=scratch_directory(output))
