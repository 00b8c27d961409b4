"""Progress of a run whose rows are in the engines of other processes."""

import time
from pathlib import Path

from headrace.pipelines.journal import attempt
from headrace.pipelines.progress import ProgressPoller
from headrace.pipelines.shards import Shard, ShardFile, cut_chunks


def test_rows_of_other_processes_are_counted_by_their_journals(tmp_path: Path):
    shard = Shard(index=0, is_table=True, files=(ShardFile(source="a.jsonl", size=1),), table_rows=20)
    chunks = list(cut_chunks([shard], rows_per_part=10, run_fingerprint="run"))
    output = str(tmp_path / "out")
    poller = ProgressPoller(output, chunks, {})
    assert poller.poll().rows_done == 0
    with attempt(output, chunks[0].part_name) as journal:
        for place in range(7):
            journal.submitted(place)
        for place in range(4):
            journal.finished(place)
        progress = poller.poll()
        assert (progress.rows_done, progress.rows_total, progress.parts_done) == (4, 20, 0)
        time.sleep(0.01)
        assert poller.poll().units_per_s == 0.0
    assert poller.poll().rows_done == 0
