"""Two runs side by side, row by row: texts, lengths, errors, speed."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow.compute import call_function

from headrace.pipelines.committed import result_tables
from headrace.pipelines.errors import InputError
from headrace.pipelines.metrics import percentile
from headrace.pipelines.run_view import RunView

_PLACE = ("source", "row")
_CHANNEL = "channel"
_COLUMNS = (
    "id",
    *_PLACE,
    _CHANNEL,
    "text",
    "error",
    "latency_s",
    "completion_tokens",
    "num_tokens",
    "duration_s",
)


class ChangedRow(NamedTuple):
    """A row that the runs do not agree on: its text, or its error where it failed."""

    id: str
    one: str | None
    other: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """How fast a run was and how long its results are."""

    units_per_s: float
    """Tokens, or seconds of audio, a second."""
    latency_p50_s: float
    """Median of the rows' latencies, in seconds."""
    latency_p95_s: float
    """Their 95th percentile."""
    mean_length: float
    """Mean tokens of a result."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What two runs agree and differ in."""

    matched_by: str
    """`id`, or `source and row` where an id occurs twice."""
    num_matched: int
    """Rows of both."""
    num_only_one: int
    """Rows of the first alone."""
    num_only_other: int
    """Rows of the second alone."""
    num_equal: int
    """Rows of both whose texts are equal, or that failed in both."""
    num_changed: int
    """Rows of both whose texts differ."""
    num_newly_failed: int
    """Rows that failed in the second alone."""
    num_newly_fine: int
    """Rows that failed in the first alone."""
    changed: Sequence[ChangedRow]
    """Some of the rows that differ, in the order of their ids."""
    options: Sequence[str]
    """Options that differ, each in a few words."""
    speeds: tuple[Speed, Speed]
    """Of the first run and of the second."""


def compare_runs(one: RunView, other: RunView, *, max_shown: int) -> Comparison:
    """The comparison, with at most `max_shown` of the rows that differ.

    Raises:
      InputError: they are of two jobs.
    """
    if one.record.job != other.record.job:
        raise InputError(
            f"{one.output} is a run of {one.record.job} and {other.output} of {other.record.job}"
        )
    tables = [_read(one), _read(other)]
    keys = _keys(tables)
    joined = tables[0].join(
        tables[1], keys, join_type="full outer", left_suffix="_one", right_suffix="_other", use_threads=False
    )
    there = [_known(joined, "there_one"), _known(joined, "there_other")]
    both = joined.filter(_call("and", *there))
    failed = [_known(both, "error_one"), _known(both, "error_other")]
    is_equal = _call("equal", both["text_one"], both["text_other"]).fill_null(False)
    both_fine = _call("invert", _call("or", *failed))
    is_changed = _call("and_not", both_fine, is_equal)
    differs = _call("or", is_changed, _call("xor", *failed))
    num_differing = _count(differs)
    return Comparison(
        matched_by="id" if keys == ["id"] else "source and row",
        num_matched=both.num_rows,
        num_only_one=_count(_call("and_not", there[0], there[1])),
        num_only_other=_count(_call("and_not", there[1], there[0])),
        num_equal=both.num_rows - num_differing,
        num_changed=_count(is_changed),
        num_newly_failed=_count(_call("and_not", failed[1], failed[0])),
        num_newly_fine=_count(_call("and_not", failed[0], failed[1])),
        changed=_changed_rows(both.filter(differs), keys, max_shown),
        options=_option_differences(one, other),
        speeds=(_speed(one, tables[0]), _speed(other, tables[1])),
    )


def _read(view: RunView) -> pa.Table:
    tables = list(result_tables(view.output, _COLUMNS))
    if not tables:
        raise InputError(f"{view.output} has no results yet: there is nothing to compare")
    table = pa.concat_tables(tables).combine_chunks()
    return table.append_column("there", pa.array([True] * table.num_rows))


def _keys(tables: Sequence[pa.Table]) -> list[str]:
    by_id = all(_call("count_distinct", table["id"]).as_py() == table.num_rows for table in tables)
    places = [name for name in (*_PLACE, _CHANNEL) if all(name in table.column_names for table in tables)]
    return ["id"] if by_id else places


def _call(name: str, *arguments: Any) -> Any:
    """One of Arrow's functions over whole columns."""
    return call_function(name, list(arguments))


def _known(table: pa.Table, name: str) -> Any:
    return table[name].is_valid()


def _count(mask: Any) -> int:
    return _call("sum", mask).as_py() or 0


def _changed_rows(table: pa.Table, keys: Sequence[str], max_shown: int) -> list[ChangedRow]:
    ordered = table.sort_by([(key, "ascending") for key in keys]).slice(0, max_shown).to_pylist()
    return [
        ChangedRow(
            id="#".join(str(row[key]) for key in keys),
            one=row["error_one"] or row["text_one"],
            other=row["error_other"] or row["text_other"],
        )
        for row in ordered
    ]


def _option_differences(one: RunView, other: RunView) -> list[str]:
    """Names of the model and options that differ; texts of the user's are not repeated."""
    found = []
    if one.record.model.fingerprint != other.record.model.fingerprint:
        found.append(f"model: {one.record.model.spec} and {other.record.model.spec}")
    before, after = one.record.config, other.record.config
    for name in sorted({*before, *after} - {"inputs", "output", "model"}):
        values = [before.get(name), after.get(name)]
        if values[0] != values[1]:
            is_short = all(len(str(value)) <= 24 for value in values)
            found.append(f"{name}: {values[0]} and {values[1]}" if is_short else f"{name}: another")
    return found


def _speed(view: RunView, table: pa.Table) -> Speed:
    latencies = table["latency_s"].drop_null().to_pylist()
    length = "completion_tokens" if view.record.job == "generate" else "num_tokens"
    lengths = table[length].drop_null().to_pylist()
    return Speed(
        units_per_s=view.units_per_s,
        latency_p50_s=percentile(latencies, 0.5) if latencies else math.nan,
        latency_p95_s=percentile(latencies, 0.95) if latencies else math.nan,
        mean_length=statistics.fmean(lengths) if lengths else math.nan,
    )
