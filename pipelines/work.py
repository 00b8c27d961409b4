"""What the DoFn needs to know of a job: how a row becomes a request, and an output a row of the results."""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from headrace.engines import RowError
from headrace.engines.checkpoints import LocalModel
from headrace.pipelines.config import RunConfig
from headrace.pipelines.errors import InputError
from headrace.pipelines.scans import TableRow, TableScan
from headrace.pipelines.schemas import kept_name
from headrace.pipelines.summary import Unit


@runtime_checkable
class ServingEngine(Protocol):
    """What the pipelines use of an engine, besides its `submit`."""

    @property
    def num_slots(self) -> int: ...

    def counters(self) -> Mapping[str, float]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkRow:
    """One row of the input, ready to be submitted, or with the error that it will be."""

    key: Mapping[str, Any]
    """`id`, `source` and `row` of the result."""
    payload: Any = None
    """What the engine is given; None where there is an error."""
    options: Any = None
    """What the row asks of the engine besides; None: nothing."""
    shown: Mapping[str, Any] = field(default_factory=dict)
    """Input that the result shows: the prompt and the kept columns, by their names in the results."""
    payload_bytes: int = 0
    """Memory that the payload holds, where it is worth counting."""
    priority: int = 0
    """Rows of a lower number go first, where the engine is told to heed it."""
    error: RowError | None = None
    """Why the row cannot be submitted."""

    @property
    def request_id(self) -> str:
        """A name that no other row of the run has, and that is the same in every run."""
        return f"{self.key['source']}#{self.key['row']}"


class ResultRow(NamedTuple):
    """One row of the results and what the counters need of it."""

    values: Mapping[str, Any]
    error: RowError | None
    units: float
    is_copy: bool = False
    """Whether it is the output of another row of equal content."""
    further: "tuple[ResultRow, ...]" = ()
    """Further rows that the same row of the input gives."""


@runtime_checkable
class Work(Protocol):
    """A job as the DoFn sees it; pickled once, to every worker."""

    job: ClassVar[str]
    """Its name."""
    unit: ClassVar[Unit]
    """What the units of a result are."""
    sums: ClassVar[tuple[str, ...]]
    """Columns whose sums the metrics hold."""
    times: ClassVar[tuple[str, ...]]
    """Columns of seconds, whose percentiles the metrics hold."""

    @property
    def config(self) -> RunConfig: ...

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def files_per_shard(self) -> int:
        """Most files that are no tables in a shard."""
        ...

    @property
    def typed_columns(self) -> tuple[str, ...]:
        """Columns whose types the estimates of work need."""
        ...

    def work_columns(self, scan: TableScan) -> tuple[str, ...]:
        """Columns of a table that tell a row's work; none where it cannot be told without the content."""
        ...

    def row_work(self, values: Mapping[str, Any], path: str) -> float:
        """Work of a row of the table at `path`, estimated from its work columns, in the job's unit."""
        ...

    def file_work(self, path: str, size: int | None) -> float:
        """Work of a file that is a row, estimated."""
        ...

    def with_kept(self, kept: pa.Schema) -> "Work":
        """The same with these columns carried through."""
        ...

    def is_table(self, path: str) -> bool:
        """Whether a file of the input is a table; another file is one row.

        Raises:
          InputError: the job has no use for such a file.
        """
        ...

    def content_columns(self, source: str, columns: Sequence[str]) -> tuple[str, ...]:
        """The columns that requests are made from.

        Raises:
          InputError: the table has no such column.
        """
        ...

    def check(self) -> None:
        """Builds the engine's own settings, so that what they refuse is refused before the run.

        Raises:
          ValueError: an option that the engine does not take.
        """
        ...

    def check_model(self, model: LocalModel) -> None:
        """Looks at the model's configuration, without reading its weights.

        Raises:
          ModelError: it is not a model for this job.
          ConfigError: the options do not fit the model.
        """
        ...

    def load(self) -> ServingEngine:
        """The engine, ready to serve."""
        ...

    def prepare(self, row: TableRow, path: str, source: str, content: Sequence[str]) -> WorkRow:
        """A row of the table at `path`."""
        ...

    def prepare_file(self, path: str, source: str) -> WorkRow:
        """The row that a file which is not a table is."""
        ...

    def submit(self, engine: Any, row: WorkRow) -> "Future[Any]": ...

    def finish(self, row: WorkRow, output: Any) -> ResultRow: ...

    def fail(self, row: WorkRow) -> ResultRow: ...

    def write_beside(self, output: str) -> None:
        """Writes what there is beside the parts, once all of them are committed; again is the same.

        Raises:
          OSError: it cannot be written.
        """
        ...


def row_key(config: RunConfig, source: str, row: int, values: Mapping[str, Any]) -> dict[str, Any]:
    """`id`, `source` and `row`: the id is that of the id column, or the row's place where it has none."""
    given = values.get(config.id_column) if config.id_column else None
    name = f"{source}#{row}" if given is None or half_character(as_text(given)) else as_text(given)
    return {"id": name, "source": source, "row": row}


def kept_values(kept: pa.Schema, schema: pa.Schema, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of the kept columns by their names in the results; kept as text, other values are JSON."""
    chosen: dict[str, Any] = {}
    for column in kept:
        value = values.get(column.name)
        if value is not None and pa.types.is_string(column.type):
            value = as_text(value)
        elif isinstance(value, int) and pa.types.is_float64(column.type):
            value = float(value)  # Arrow refuses whole numbers beyond 2**53 there
        chosen[kept_name(column.name, schema)] = value
    return chosen


def as_text(value: Any) -> str:
    """A value as text: text, dates and decimals as they are, what JSON has a form for as JSON."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if value is None or isinstance(value, bool | int | float | list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def half_character(value: Any) -> bool:
    """Whether a value is text that cannot be UTF-8, as a JSON escape or a wrong byte can make it."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return True
    return False


def without_half_characters(row: WorkRow) -> WorkRow:
    """The row, or one with an error where text of it cannot be written as UTF-8."""
    for name, value in row.shown.items():
        if half_character(value):
            error = RowError("malformed", f"column {name!r} is not valid Unicode text")
            return WorkRow(key=row.key, error=error)
    return row


def require_columns(wanted: Sequence[str], source: str, columns: Sequence[str]) -> None:
    """Refuses a table that lacks a column.

    Raises:
      InputError: it names the column and those that are there.
    """
    for name in wanted:
        if name not in columns:
            raise InputError(
                f"{source} has no column {name!r}: its columns are {', '.join(columns) or 'none'}"
            )
        if columns.count(name) > 1:
            raise InputError(f"{source} has more than one column {name!r}: rename all but one")
