"""Rows that are results of another run: what a stage of a chain makes of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace.engines import RowError
from headrace.pipelines.generate import GenerateWork
from headrace.pipelines.scans import TableRow
from headrace.pipelines.work import WorkRow

RESULT_COLUMNS = ("id", "source", "row", "error")
"""Columns of results that a row keeps its place by, and that say whether it failed."""


@dataclass(frozen=True, kw_only=True)
class ChainedGenerateWork(GenerateWork):
    """Prompts out of results: each row keeps the id, source and row that it had in the first stage."""

    def prepare(self, row: TableRow, path: str, source: str, content: Sequence[str]) -> WorkRow:
        """A row of the stage before; one that failed there fails here, and says so."""
        prepared = super().prepare(row, path, source, content)
        if row.error is not None:
            return prepared
        key = {name: row.values[name] for name in ("id", "source", "row")}
        failure = row.values["error"]
        if failure is None:
            return replace(prepared, key=key)
        error = RowError("upstream", f"the row failed in the stage before: {failure}")
        return replace(prepared, key=key, payload=None, error=error)
