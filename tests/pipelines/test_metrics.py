"""Metrics are sums and percentiles of rows, and one row a part."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from headrace.pipelines.commit import Footer
from headrace.pipelines.metrics import (
    add_up,
    count_errors,
    engine_counters,
    part_metrics,
    percentile,
    run_metrics,
    write_metrics,
)


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


def footer_of(chunk: int, **changes: Any) -> Footer:
    return replace(
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
            finished_at=float(chunk),
            wall_s=2.0,
        ),
        **changes,
    )


def proposals(drafted: float, accepted: float) -> dict[str, float]:
    return {"draft_tokens": drafted, "accepted_tokens": accepted, "speculative_steps": drafted / 4}


def test_metrics_parquet_has_one_row_a_part_in_order(tmp_path: Path):
    footers = [footer_of(chunk, engine=proposals(8.0, 2.0 * chunk)) for chunk in (2, 0, 1)]
    write_metrics(str(tmp_path), footers)
    rows = pq.read_table(tmp_path / "__run" / "metrics.parquet").to_pylist()
    assert [row["chunk"] for row in rows] == [0, 1, 2]
    assert rows[0]["errors"] == [("kind", 1)]
    assert rows[0]["metrics"] == [("tokens", 2.0)]
    assert [dict(row["engine_ratios"])["speculation_acceptance_rate"] for row in rows] == [0.0, 0.25, 0.5]
    assert not any("speculation_acceptance_rate" in dict(row["engine"]) for row in rows)


def test_ratios_of_a_run_are_those_of_the_last_counters_of_all_workers():
    footers = [
        footer_of(0, worker="one", engine=proposals(10.0, 10.0)),
        footer_of(2, worker="one", engine=proposals(40.0, 20.0)),
        footer_of(1, worker="other", engine=proposals(360.0, 80.0)),
    ]
    assert engine_counters(footers) == proposals(400.0, 100.0)
    found = run_metrics(footers, {})
    assert found["engine_draft_tokens"] == 400.0
    assert found["engine_speculation_acceptance_rate"] == 0.25
    assert found["engine_speculation_tokens_per_step"] == 2.0
    assert found["tokens"] == 6.0
    without = run_metrics([footer_of(0, engine={"requests": 1.0})], {})
    assert without == {"engine_requests": 1.0, "tokens": 2.0}
