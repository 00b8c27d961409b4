"""Metrics are sums and percentiles of rows, and one row a part."""

from pathlib import Path

import pyarrow.parquet as pq

from headrace.pipelines.commit import Footer
from headrace.pipelines.metrics import add_up, count_errors, part_metrics, percentile, write_metrics


def test_metrics_of_a_part_leave_failed_rows_out():
    rows = [
        {"tokens": 3, "latency_s": 1.0},
        {"tokens": None, "latency_s": None},
        {"tokens": 4, "latency_s": 3.0},
    ]
    assert part_metrics(rows, sums=("tokens",), times=("latency_s",)) == {
        "tokens": 7,
        "busy_s": 4.0,
        "latency_s_mean": 2.0,
        "latency_s_p50": 2.0,
        "latency_s_p95": 3.0,
        "latency_s_max": 3.0,
    }
    assert part_metrics([], sums=("tokens",), times=("latency_s",)) == {"tokens": 0, "busy_s": 0.0}


def test_a_percentile_is_one_of_the_values():
    assert percentile([float(n) for n in range(100)], 0.95) == 95.0
    assert percentile([5.0], 0.95) == 5.0


def test_errors_are_counted_by_kind():
    counts = count_errors(["b", "a", "b"])
    assert list(counts.items()) == [("a", 1), ("b", 2)]
    assert add_up([counts, {"a": 4, "c": 1}]) == {"a": 5, "b": 2, "c": 1}


def test_metrics_parquet_has_one_row_a_part_in_order(tmp_path: Path):
    footers = [
        Footer(
            part=f"part-{chunk}",
            job="generate",
            fingerprint="f",
            shard=0,
            chunk=chunk,
            start=0,
            stop=1,
            rows=1,
            rows_failed=1,
            errors={"kind": 1},
            units=0.0,
            metrics={"tokens": 2.0},
            finished_at=1.0,
            wall_s=2.0,
        )
        for chunk in (2, 0, 1)
    ]
    write_metrics(str(tmp_path), footers)
    rows = pq.read_table(tmp_path / "__run" / "metrics.parquet").to_pylist()
    assert [row["chunk"] for row in rows] == [0, 1, 2]
    assert rows[0]["errors"] == [("kind", 1)]
    assert rows[0]["metrics"] == [("tokens", 2.0)]
