"""Compacted outputs hold every row once, for every reader, for resume and for the tools."""

import shutil
from pathlib import Path

import datasets
import duckdb
import pandas as pd
import pyarrow.dataset as ds
import pytest

from headrace.pipelines import InputError, OutputError
from headrace.pipelines.committed import committed_footers, compacted_parts
from headrace.pipelines.compaction import Compaction, compact, delete_leftovers
from headrace.pipelines.output_directory import claim_output
from headrace.pipelines.report import report_page
from headrace.pipelines.run_view import read_run
from tests.pipelines.made_runs import make_generate_run


def rows(output: str) -> list[int]:
    return sorted(ds.dataset(output).to_table(columns=["row"])["row"].to_pylist())


def names(output: str) -> list[str]:
    return sorted(path.name for path in Path(output).glob("*.parquet"))


def test_few_large_files_hold_what_many_parts_held(tmp_path: Path):
    output = make_generate_run(tmp_path, state="done")
    before = committed_footers(output)
    page = report_page(read_run(output), with_content=True)
    assert compact(output) == Compaction(4, 1)
    assert len(names(output)) == 1
    assert names(output)[0].startswith("compact-00000-00000-")
    assert committed_footers(output) == before
    assert rows(output) == list(range(40))
    view = read_run(output)
    assert (view.state, view.rows, view.rows_failed, len(view.footers)) == ("done", 40, 2, 4)
    assert report_page(view, with_content=True) == page
    assert compact(output) == Compaction(0, 0)


def test_every_common_reader_reads_a_compacted_directory(tmp_path: Path):
    output = make_generate_run(tmp_path, state="done")
    compact(output)
    assert len(pd.read_parquet(output)) == 40
    counted = duckdb.sql(f"select count(*), count(distinct id) from '{output}/*.parquet'")
    assert counted.fetchall() == [(40, 40)]
    loaded = datasets.load_dataset(
        "parquet", data_dir=output, cache_dir=str(tmp_path / "cache"), split="train"
    )
    assert sorted(loaded["row"]) == list(range(40))


def test_files_are_of_about_the_size_that_was_asked_for(tmp_path: Path):
    output = make_generate_run(tmp_path, state="done")
    size = max(path.stat().st_size for path in Path(output).glob("part-*"))
    assert compact(output, target_bytes=size + 1) == Compaction(4, 2)
    assert rows(output) == list(range(40))
    with pytest.raises(InputError, match="target_bytes"):
        compact(output, target_bytes=0)


def test_a_compaction_that_was_broken_off_is_finished(tmp_path: Path):
    output = make_generate_run(tmp_path, state="done")
    shutil.copytree(output, tmp_path / "copy")
    compact(output)
    for part in (tmp_path / "copy").glob("part-*"):
        shutil.copy(part, output)
    assert len(names(output)) == 5
    assert len(committed_footers(output)) == 4
    assert read_run(output).rows == 40
    delete_leftovers(output)
    assert rows(output) == list(range(40))


def test_a_broken_large_file_counts_for_nothing(tmp_path: Path):
    output = make_generate_run(tmp_path, state="done")
    compact(output)
    path = Path(output, names(output)[0])
    path.write_bytes(path.read_bytes()[:-100])
    assert compacted_parts(output) == {}
    assert read_run(output).rows == 0


def test_a_directory_in_use_or_without_a_run_is_refused(tmp_path: Path):
    output = make_generate_run(tmp_path, state="done")
    with claim_output(output), pytest.raises(OutputError, match="another run"):
        compact(output)
    with pytest.raises(InputError, match="no run"):
        compact(str(tmp_path))
