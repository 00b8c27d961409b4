"""What is known of a table before its rows are read, and what one row of it is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.engines import RowError


class TableRow(NamedTuple):
    """One row of a table; `values` is empty where the row itself cannot be read, which `error` then says."""

    row: int
    values: Mapping[str, Any]
    error: RowError | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TableScan:
    """What a table holds."""

    rows: int
    """Rows of the table."""
    columns: tuple[str, ...]
    """Columns of the table, in its order."""
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    """Arrow types of the columns that were asked for."""
    offsets: tuple[int, ...] = ()
    """Byte where each chunk's first row begins; empty for a format that is not of lines."""


def malformed(row: int, reason: str) -> TableRow:
    """A row that cannot be read; `reason` holds nothing of its content."""
    return TableRow(row, {}, RowError("malformed", f"the row cannot be read: {reason}"))


def wider_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that holds values of both, None where there is none; beside text, figures are kept as text."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    simple = (pa.string(), pa.bool_(), pa.int64(), pa.float64())
    return pa.string() if one in simple and other in simple else None
