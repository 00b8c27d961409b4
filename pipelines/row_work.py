"""The work of a shard's rows, estimated before any of them is read for good."""

from collections.abc import Mapping

import numpy as np

from headrace.pipelines.scans import TableScan
from headrace.pipelines.shards import Shard
from headrace.pipelines.tables import read_rows
from headrace.pipelines.work import Work

Picks = Mapping[str, np.ndarray]
"""The rows that are taken, for the tables of which it is not the first so many, by source."""


def estimate_works(
    work: Work, shard: Shard, scans: Mapping[str, TableScan], paths: Mapping[str, str], picks: Picks
) -> list[float]:
    """The work of each place of a shard, in the unit of the job; nothing where that cannot be told.

    Raises:
      OSError: a table cannot be read.
    """
    if not shard.is_table:
        return [0.0 if f.gone else work.file_work(paths[f.source], f.size) for f in shard.files]
    source = shard.files[0].source
    columns = work.work_columns(scans[source]) if source in scans else ()
    if not columns:
        return []
    path, scan = paths[source], scans[source]
    taken = picks.get(source, np.arange(shard.rows))
    works = np.zeros(scan.rows)
    last = int(taken[-1]) + 1
    for row in read_rows(path, 0, last, offset=scan.offsets[0] if scan.offsets else 0, columns=columns):
        works[row.row] = work.row_work({name: row.values.get(name) for name in columns}, path)
    return works[taken].tolist()
