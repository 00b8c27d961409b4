"""Numbers of a part, out of its rows, and __run/metrics.parquet, out of the footers of the parts."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.pipelines.commit import Footer, run_directory, scratch_directory
from headrace.pipelines.files import write_whole

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
        "rows_failed": pa.int64(),
        "errors": pa.map_(pa.string(), pa.int64()),
        "units": pa.float64(),
        "metrics": _NUMBERS,
        "engine": _NUMBERS,
        "device": pa.string(),
        "worker": pa.string(),
        "finished_at": pa.float64(),
        "wall_s": pa.float64(),
    }
)


def part_metrics(
    rows: Sequence[Mapping[str, Any]], *, sums: Sequence[str], times: Sequence[str]
) -> dict[str, float]:
    """Sums of the columns `sums`, and mean, median, 95th percentile and maximum of the columns `times`."""
    found: dict[str, float] = {}
    for name in sums:
        found[name] = float(sum(value for row in rows if (value := row.get(name)) is not None))
    for name in times:
        values = [value for row in rows if (value := row.get(name)) is not None]
        if values:
            found[f"{name}_mean"] = statistics.fmean(values)
            found[f"{name}_p50"] = statistics.median(values)
            found[f"{name}_p95"] = percentile(values, 0.95)
            found[f"{name}_max"] = max(values)
    return found


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that at least this share of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


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
        row = asdict(footer)
        for name in ("errors", "metrics", "engine"):
            row[name] = list(row[name].items())
        rows.append(row)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=METRICS_SCHEMA), sink, compression="zstd")
    path = run_directory(output, "metrics.parquet")
    write_whole(path, memoryview(sink.getvalue()), scratch=scratch_directory(output))
